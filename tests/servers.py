"""Servers as a user starts them: Headrace in a process of its own, and the real Triton, which is the judge."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tritonclient.http
from tritonclient.utils import InferenceServerException

ORACLE = Path(os.environ.get("HEADRACE_SHARED", "../shared")) / "tools" / "triton-oracle"
DEADLINE_S = 60


@dataclass
class RunningServer:
    """A started server."""

    process: subprocess.Popen[bytes]
    http_port: int
    grpc_port: int
    metrics_port: int
    log: Path
    is_oracle: bool = False

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()


def start_headrace(
    repository: Path, log: Path, *options: str, module: str = "headrace", **environment: str
) -> RunningServer:
    """Starts on free ports and waits for the line that tells them."""
    ports = [
        "--http-port=0",
        "--grpc-port=0",
        "--metrics-port=0",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--exit-on-error=false",  # tests look at what becomes of broken models beside good ones
    ]
    command = [sys.executable, "-m", module, "serve", str(repository), *ports, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    place = r"(?:unix:\S+|\S+:(\d+))"  # a socket of the file system has no port
    line = wait_for_line(process, log, f"Serving HTTP on {place}, gRPC on {place}, metrics on {place}")
    http, grpc, metrics = (int(port or 0) for port in line.groups())
    return RunningServer(process, http, grpc, metrics, log)


def start_oracle(repository: Path, log: Path, *options: str) -> RunningServer:
    """Starts the real Triton and waits until it is ready."""
    http, grpc, metrics = (free_port() for _ in range(3))
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    command = [str(ORACLE), f"--model-repository={repository}", *ports, *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    server = RunningServer(process, http, grpc, metrics, log, is_oracle=True)
    client = tritonclient.http.InferenceServerClient(server.http)
    deadline = time.monotonic() + DEADLINE_S
    while not _is_ready(client):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"the oracle did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return server


def wait_for_line(process: subprocess.Popen[bytes], log: Path, pattern: str) -> re.Match[str]:
    """Waits until the log has a line of this pattern."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := re.search(pattern, log.read_text())) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"no line of {pattern!r} in the log:\n{log.read_text()}")
        time.sleep(0.01)
    return found


def _is_ready(client: tritonclient.http.InferenceServerClient) -> bool:
    try:
        return bool(client.is_server_ready())
    except (OSError, InferenceServerException):
        return False


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
