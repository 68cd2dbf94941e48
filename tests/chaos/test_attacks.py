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


MOST_IN_FLIGHT = 2_000_000_000
MOST_GROWTH = MOST_IN_FLIGHT + (500 << 20)
"""Bytes: what may be in flight, and room for the server itself."""


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    models.add_one(repository, "bystander", "max_batch_size: 8 dynamic_batching {}")
    models.gather(repository, "gather", "max_batch_size: 8")
    models.row_sums(repository, "sum")
    models.add_any(repository, "add", "max_batch_size: 8")
    models.add_any(repository, "pairs", "max_batch_size: 2 " + models.TOGETHER.format(size=2))
    return start(repository, f"--max-in-flight-bytes={MOST_IN_FLIGHT}")


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


class Footprint:
    """What a process holds: descriptors now, and the most memory that was resident since this was made."""

    def __init__(self, pid: int) -> None:
        self._process = Path(f"/proc/{pid}")
        (self._process / "clear_refs").write_text("5")  # starts the peak anew
        self._before = self._peak()
        self._descriptors = self._count()

    def grown_by(self) -> int:
        """Bytes."""
        return self._peak() - self._before

    def until_descriptors_are_back(self) -> None:
        """Returns when those that came since are gone; the test's timeout ends it otherwise."""
        while self._count() > self._descriptors:
            pass

    def _peak(self) -> int:
        status = (self._process / "status").read_text()
        return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))

    def _count(self) -> int:
        return sum(1 for _ in (self._process / "fd").iterdir())


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_bystander_loses_nothing(server: RunningServer, attack: str) -> None:
    footprint = Footprint(server.process.pid)
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
    footprint.until_descriptors_are_back()
    assert footprint.grown_by() < MOST_GROWTH
