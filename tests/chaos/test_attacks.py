"""Every attack of `attacks/`, while a second client works on the same server and loses nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests import models
from tests.servers import RunningServer

SHARED = ("__init__", "story", "http2")
ATTACKS = sorted(path.stem for path in Path("attacks").glob("*.py") if path.stem not in SHARED)


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    models.add_one(repository, "bystander", "max_batch_size: 8 dynamic_batching {}")
    models.gather(repository, "gather", "max_batch_size: 8")
    models.row_sums(repository, "sum")
    models.add_any(repository, "add", "max_batch_size: 8")
    models.add_any(repository, "pairs", "max_batch_size: 2 " + models.TOGETHER.format(size=2))
    return start(repository, "--max-in-flight-bytes=2000000000")


class Bystander:
    """Asks and checks until told to stop."""

    def __init__(self, server: RunningServer) -> None:
        self.answers = 0
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(server,))
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _work(self, server: RunningServer) -> None:
        with grpcclient.InferenceServerClient(server.grpc) as client:
            while not self._over.is_set() or self.answers < 10:
                array = np.full((2, 4), self.answers, np.float32)
                tensor = grpcclient.InferInput("INPUT0", [2, 4], "FP32")
                tensor.set_data_from_numpy(array)
                try:
                    answer = client.infer("bystander", [tensor], client_timeout=30).as_numpy("OUTPUT0")
                except Exception as error:  # noqa: BLE001 - anything is a loss
                    self.wrong.append(repr(error))
                    return
                if not (answer == array + 1).all():
                    self.wrong.append(f"{answer} for {array}")
                self.answers += 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bystander_loses_nothing(server: RunningServer, attack: str) -> None:
    bystander = Bystander(server)
    try:
        addresses = [server.grpc, server.http, f"127.0.0.1:{server.metrics_port}"]
        outcome = subprocess.run(
            [sys.executable, "-m", f"attacks.{attack}", *addresses],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        bystander.stop()
    assert outcome.returncode == 0, outcome.stderr
    assert bystander.wrong == []
    assert bystander.answers >= 10
    assert server.process.poll() is None
