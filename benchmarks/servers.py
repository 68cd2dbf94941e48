"""Servers under test: started on free ports, asked for their counts, and their CPU time read from /proc."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException, shared_memory

from benchmarks.peers import HOME, Program

DEADLINE_S = float(os.environ.get("HEADRACE_START_SECS", "120"))
"""Until a server is ready: engines that try all algorithms for all batch sizes take long."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    metrics: str

    def cpu_s(self) -> float:
        """CPU seconds so far of the process and all its children, such as Triton's Python stubs."""
        return sum(_cpu_ticks(Path(f"/proc/{pid}/stat")) for pid in _tree(self.process.pid)) * _TICK_S

    def interpreter_s(self) -> float:
        """CPU seconds so far of the threads that run Python, what they do outside of the interpreter included."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return sum(_cpu_ticks(path) for path in tasks if (path.parent / "comm").read_text() != "wire\n") * _TICK_S

    def counts(self, model: str) -> tuple[int, int]:
        """Successful requests and executions of a model so far."""
        with grpcclient.InferenceServerClient(self.grpc) as client:
            statistics = client.get_inference_statistics(model).model_stats[0]
        return int(statistics.inference_stats.success.count), int(statistics.execution_count)

    def batches(self, model: str) -> dict[int, tuple[int, float]]:
        """Executions so far by batch size, and the milliseconds of *infer* that they took in sum."""
        with grpcclient.InferenceServerClient(self.grpc) as client:
            rows = client.get_inference_statistics(model).model_stats[0].batch_stats
        return {row.batch_size: (row.compute_infer.count, row.compute_infer.ns / 1e6) for row in rows}

    def copied_bytes(self, model: str) -> tuple[float, float] | None:
        """Tensor bytes that the server's CPU copied in and out so far; `None` where it does not tell."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as page:
            text = page.read().decode()
        pattern = rf'headrace_transfer_copied_bytes_total{{direction="(input|output)",model="{model}",.*}} (\S+)'
        found = dict(re.findall(pattern, text))
        return (float(found["input"]), float(found["output"])) if found else None


@contextmanager
def headrace(repository: Path, *options: str, name: str = "headrace") -> Iterator[Server]:
    """Headrace, of this checkout; `name` is that of its log."""
    command = (sys.executable, "-m", "headrace", "serve", str(repository), *options)
    ports = ("--http-port={http}", "--grpc-port={grpc}", "--metrics-port={metrics}")
    with _running(name, Program(command, {}), ports) as server:
        yield server


@contextmanager
def triton(program: Program, repository: Path) -> Iterator[Server]:
    """The real Triton, with default settings."""
    ports = ("--http-port={http}", "--grpc-port={grpc}", "--metrics-port={metrics}", f"--model-repository={repository}")
    with _running("triton", program, ports) as server:
        yield server


@contextmanager
def _running(name: str, program: Program, options: tuple[str, ...]) -> Iterator[Server]:
    http, grpc, metrics = (_free_port() for _ in range(3))
    filled = [option.format(http=http, grpc=grpc, metrics=metrics) for option in options]
    log = HOME / f"{name}.log"
    with log.open("wb") as out:
        environment = {**os.environ, **program.environment}
        process = subprocess.Popen([*program.command, *filled], stdout=out, stderr=subprocess.STDOUT, env=environment)
    server = Server(name, process, f"127.0.0.1:{grpc}", f"127.0.0.1:{http}", f"127.0.0.1:{metrics}")
    try:
        _wait_until_ready(server, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def crowded(repository: Path, regions: int) -> Iterator[Server]:
    """Headrace with so many regions registered."""
    key = f"/headrace_crowd_{os.getpid()}"
    with headrace(repository, name="crowded") as server, grpcclient.InferenceServerClient(server.grpc) as client:
        memory = shared_memory.create_shared_memory_region("crowd", key, regions * 64)
        try:
            for number in range(regions):
                client.register_system_shared_memory(f"crowd_{number}", key, 64, number * 64)
            yield server
        finally:
            client.unregister_system_shared_memory()
            shared_memory.destroy_shared_memory_region(memory)


def _wait_until_ready(server: Server, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with grpcclient.InferenceServerClient(server.grpc) as client:
        while True:
            try:
                if client.is_server_ready():
                    return
            except InferenceServerException:
                pass
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{server.name} did not start; its log is {log}:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(path)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cpu_ticks(path: Path) -> int:
    fields = _stat(path)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _stat(path: Path) -> list[str]:
    """The fields behind the command's name, which may hold spaces; none when the process is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []
