"""Starting and stopping as an operator sees it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from concurrent.futures import wait

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests import models
from tests.doors.asking import ask, until_waiting
from tests.servers import start_headrace, wait_for_line


@pytest.fixture
def repository(tmp_path):
    path = tmp_path / "models"
    models.identity(path, "together", "FP32", [-1], max_batch=8, extra=models.TOGETHER.format(size=8))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_is_in_flight(repository, tmp_path, number: int) -> None:
    server = start_headrace(repository, tmp_path / "log")
    with grpcclient.InferenceServerClient(server.grpc) as client:
        futures = [ask(client, "together", np.full((1, 2), row))[0] for row in range(5)]
        until_waiting(server, "together", 5)
        server.process.send_signal(number)
        assert not wait(futures, timeout=60).not_done
        assert [future.result()[0, 0] for future in futures] == [0, 1, 2, 3, 4]
    assert server.process.wait(60) == 0
    assert "stopped" in server.log.read_text()


def test_no_descriptor_of_ours_is_left_after_the_end(repository, tmp_path) -> None:
    server = start_headrace(repository, tmp_path / "log")
    assert server.stop() == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", server.grpc_port))


def test_an_empty_repository_is_ready(tmp_path) -> None:
    (tmp_path / "models").mkdir()
    server = start_headrace(tmp_path / "models", tmp_path / "log")
    with httpclient.InferenceServerClient(server.http) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_model_repository_index() == []
    assert "No models" in server.log.read_text()
    assert server.stop() == 0


def test_a_broken_model_is_shown_and_named(repository, tmp_path) -> None:
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "config.pbtxt").write_text("max_batchsize: 3")
    server = start_headrace(repository, tmp_path / "log")
    with httpclient.InferenceServerClient(server.http) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert client.is_model_ready("together")
        assert not client.is_model_ready("broken")
        index = {row["name"]: row for row in client.get_model_repository_index()}
        assert index["broken"]["state"] == "UNAVAILABLE"
        assert (
            "config.pbtxt:1:1: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"
            in index["broken"]["reason"]
        )
    assert "UNAVAILABLE" in server.log.read_text()
    assert server.stop() == 0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_starts_that_cannot_be(tmp_path) -> None:
    missing = run("serve", str(tmp_path / "nothing"))
    assert (missing.returncode, "is not a directory" in missing.stderr) == (1, True)
    assert "no model repository" in run("serve").stderr
    assert "No such option" in run("serve", "--http-prot=1", str(tmp_path)).stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = run(
            "serve",
            str(tmp_path),
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--grpc-port=0",
            "--metrics-port=0",
        )
    assert (busy.returncode, f"cannot listen on 127.0.0.1:{port} for http" in busy.stderr) == (1, True)


def test_half_a_request_is_not_waited_for(tmp_path) -> None:
    path = tmp_path / "models"
    models.identity(path, "echo", "FP32", [-1])
    server = start_headrace(path, tmp_path / "log")
    with socket.create_connection(("127.0.0.1", server.http_port)) as held:
        held.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert server.stop() == 0


FOREVER = np.array([10**12], np.int64)


def hang(server):
    """An instance of `spin` that will not come back, and its client."""
    client = grpcclient.InferenceServerClient(server.grpc)
    tensor = grpcclient.InferInput("INPUT0", [1], "INT64")
    tensor.set_data_from_numpy(FOREVER)
    client.async_infer("spin", [tensor], lambda *_: None)
    return client


def test_an_instance_that_hangs_is_named_and_ends_with_status_1(tmp_path) -> None:
    models.spin(tmp_path / "models", "spin", "instance_group { count: 1 }")
    models.identity(tmp_path / "models", "echo", "FP32", [-1])
    options = ("--stall-secs=0.2", "--exit-timeout-secs=1")
    server = start_headrace(tmp_path / "models", tmp_path / "log", *options)
    with hang(server), httpclient.InferenceServerClient(server.http) as client:
        while client.is_server_ready():
            pass
        assert client.is_server_live()
        assert "model 'spin' version 1 has held a batch" in client._get("v2/health/ready", {}, {}).read().decode()
        tensor = httpclient.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        assert client.infer("echo", [tensor]).as_numpy("OUTPUT0") == 1
        assert server.stop() == 1
    assert "still in flight after 1 s" in server.log.read_text()


def test_a_second_signal_ends_at_once(tmp_path) -> None:
    models.spin(tmp_path / "models", "spin", "instance_group { count: 1 }")
    server = start_headrace(tmp_path / "models", tmp_path / "log", "--stall-secs=0.2")
    with hang(server), httpclient.InferenceServerClient(server.http) as client:
        while client.is_server_ready():
            pass
        server.process.send_signal(signal.SIGTERM)
        wait_for_line(server.process, server.log, "stopping")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == -signal.SIGTERM
