"""Triton's command lines start the server as they start the real Triton."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests import models
from tests.doors.clients import DOORS
from tests.servers import ORACLE, RunningServer, free_port, wait_for_line

SERVING = r"Serving .*"


class Launched:
    """`headrace serve` with the arguments of a test and no others."""

    def __init__(self, log: Path, *arguments: str, **environment: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "headrace", "serve", *arguments]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}
            )

    def serving(self) -> str:
        """The line that tells the doors, once they are open."""
        return wait_for_line(self.process, self.log, SERVING).group()

    def ended(self) -> tuple[int, str]:
        """Exit status and log of one that ends by itself."""
        status = self.process.wait(60)
        return status, re.sub(r"[│\s]+", " ", self.log.read_text())


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path) -> Iterator[Launch]:
    launched: list[Launched] = []

    def launch_one(*arguments: str, **environment: str) -> Launched:
        launched.append(Launched(tmp_path / f"log{len(launched)}", *arguments, **environment))
        return launched[-1]

    yield launch_one
    for server in launched:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def repository(tmp_path) -> Path:
    path = tmp_path / "models"
    for name in ("echo", "other"):
        models.identity(path, name, "FP32", [-1])
    return path


ANY_PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")


def test_the_arguments_of_kserves_triton_runtime(launch: Launch, repository: Path, tmp_path: Path) -> None:
    """Its ports are 9000 and 8080; the page of metrics has the one that it does not name."""
    grpc_port, http_port = free_port(), free_port()
    server = launch(
        f"--model-store={repository}",
        f"--grpc-port={grpc_port}",
        f"--http-port={http_port}",
        "--allow-grpc=true",
        "--allow-http=true",
        HEADRACE_METRICS_PORT="0",
    )
    assert f"HTTP on 0.0.0.0:{http_port}, gRPC on 0.0.0.0:{grpc_port}, metrics on 0.0.0.0:" in server.serving()
    running = RunningServer(server.process, http_port, grpc_port, 0, tmp_path)
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    for door in DOORS[:3]:
        np.testing.assert_array_equal(door.infer(running, "echo", {"INPUT0": array}, "FP32")["OUTPUT0"], array)
    assert running.stop() == 0


def test_values_after_a_space(launch: Launch, repository: Path) -> None:
    arguments = ("--model-repository", str(repository), "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    server = launch(*arguments, "--http-address", "127.0.0.1", "--exit-timeout-secs", "5", "--id", "mine")
    port = re.search(r"HTTP on 127.0.0.1:(\d+)", server.serving())
    assert port is not None
    with httpclient.InferenceServerClient(f"127.0.0.1:{port.group(1)}") as client:
        assert client.get_server_metadata()["name"] == "mine"


def test_doors_that_stay_shut(launch: Launch, repository: Path) -> None:
    grpc_only = launch(str(repository), *ANY_PORTS, "--allow-http=false", "--allow-metrics=off").serving()
    found = re.fullmatch(r"Serving gRPC on 0.0.0.0:(\d+)", grpc_only)
    assert found is not None, grpc_only
    with grpcclient.InferenceServerClient(f"127.0.0.1:{found.group(1)}") as client:
        assert client.is_server_ready()
    http_only = launch(str(repository), *ANY_PORTS, "--allow-grpc=0").serving()
    found = re.fullmatch(r"Serving HTTP on 0.0.0.0:(\d+), metrics on 0.0.0.0:\d+", http_only)
    assert found is not None, http_only
    with httpclient.InferenceServerClient(f"127.0.0.1:{found.group(1)}") as client:
        assert client.is_server_ready()


def test_a_start_with_a_broken_model(launch: Launch, repository: Path) -> None:
    models.write_config(repository, "broken", 'backend: "nonsense"')
    status, log = launch(str(repository), *ANY_PORTS).ended()
    assert status == 1
    assert "model 'broken' version 1 is UNAVAILABLE: unknown backend 'nonsense'" in log
    server = launch(str(repository), *ANY_PORTS, "--exit-on-error=false")
    assert "HTTP on" in server.serving()


@pytest.mark.oracle
def test_a_start_with_a_broken_model_in_the_real_triton(repository: Path) -> None:
    if not ORACLE.exists():
        pytest.skip(f"the real Triton is not here: no {ORACLE}")
    models.write_config(repository, "broken", 'backend: "nonsense"')
    ports = [f"--{door}-port={free_port()}" for door in ("http", "grpc", "metrics")]
    command = [str(ORACLE), f"--model-repository={repository}", *ports]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.parametrize(("chosen", "served"), [(["echo"], ["echo"]), (["*"], ["echo", "other"])], ids=str)
def test_models_that_are_chosen(launch: Launch, repository: Path, chosen: list[str], served: list[str]) -> None:
    names = [f"--load-model={name}" for name in chosen]
    server = launch(str(repository), *ANY_PORTS, "--model-control-mode=explicit", *names)
    port = re.search(r"gRPC on 0.0.0.0:(\d+)", server.serving())
    assert port is not None
    with grpcclient.InferenceServerClient(f"127.0.0.1:{port.group(1)}") as client:
        ready = [model.name for model in client.get_model_repository_index().models if model.state == "READY"]
        assert client.is_server_ready()
    assert ready == served


def test_a_chosen_model_that_is_not_there(launch: Launch, repository: Path) -> None:
    arguments = ("--model-control-mode=explicit", "--load-model=ehco")
    status, log = launch(str(repository), *ANY_PORTS, *arguments).ended()
    assert status == 1
    assert "--load-model 'ehco': not in a model repository; there is echo, other" in log


def test_a_log_in_a_file(launch: Launch, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    file.write_text("what was there before\n")
    arguments = (f"--log-file={file}", "--log-format=ISO8601", "--host-policy=gpu_0,numa-node=0")
    server = launch(str(repository), *ANY_PORTS, *arguments)
    server.serving()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    lines = file.read_text().splitlines()
    assert lines[0] == "what was there before"
    for line in lines[1:]:
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I headrace\] ", line)
    assert sum("--host-policy=gpu_0,numa-node=0 has no effect: " in line for line in lines) == 1
    assert "headrace]" not in server.log.read_text()


def test_a_log_file_that_cannot_be_written(launch: Launch, repository: Path, tmp_path: Path) -> None:
    status, log = launch(str(repository), *ANY_PORTS, f"--log-file={tmp_path / 'none' / 'log'}").ended()
    assert status == 2
    assert "--log-file" in log
    assert "cannot be written" in log


def test_events_that_are_not_wanted(launch: Launch, repository: Path) -> None:
    models.write_config(repository, "broken", 'backend: "nonsense"')
    server = launch(str(repository), *ANY_PORTS, "--log-info=false", "--exit-on-error=0")
    server.serving()
    levels = set(re.findall(r"(?m)^(\w)\d{4} .*headrace\]", server.log.read_text()))
    assert levels == {"E"}


def test_a_refused_flag_ends_the_start(launch: Launch, repository: Path) -> None:
    status, log = launch(str(repository), *ANY_PORTS, "--allow-sagemaker=true").ended()
    assert status == 2
    assert "--allow-sagemaker=true is refused: SageMaker's door is not served" in log
    status, log = launch(str(repository), "--grpc-prot=9000").ended()
    assert status == 2
    assert "No such option: --grpc-prot" in log
    assert "--grpc-port" in log
