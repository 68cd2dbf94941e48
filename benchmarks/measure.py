"""One run of perf_analyzer against one model, with the server's own counts around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from typing import Any

from benchmarks import light, machine
from benchmarks.answers import QUESTIONS, Array
from benchmarks.peers import Program
from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import Server

ATTEMPTS = 3
TIMEOUT_S = 300.0


class UnstableError(RuntimeError):
    """perf_analyzer called no attempt stable."""


@dataclass(frozen=True)
class Run:
    """What one run showed."""

    throughput: float
    """Inferences per second."""
    p50_us: float
    p90_us: float
    p99_us: float
    cpu_us: float
    """CPU of the server's process tree for each request, warm-up included in both."""
    client_cpu_us: float
    """CPU of perf_analyzer for each request, its start included."""
    average_batch: float
    copied_in: float | None
    copied_out: float | None
    """Tensor bytes that Headrace's transfer copied for each request."""
    foreign_cores: float
    """Cores that neither the server nor the client took: the other server, idle, and whatever else runs here."""
    stolen_cores: float
    """Cores that the host of a virtual machine took away."""
    attempts: int
    """1, or more where perf_analyzer had called the runs before unstable."""
    command: str


@dataclass(frozen=True)
class _Counts:
    """What the server had done by then."""

    cpu_s: float
    requests: int
    executions: int
    copied: tuple[float, float] | None
    clocks: machine.Clocks


def measure(analyzer: Program, server: Server, contestant: Contestant, scenario: Scenario, window_ms: int) -> Run:
    """Runs until perf_analyzer calls three windows stable.

    Raises:
        UnstableError: when it calls no attempt stable.
        RuntimeError: when it fails otherwise, with what it wrote.
    """
    if scenario.client == "light":
        return _measure_light(server, contestant, scenario)
    options = _options(server, contestant, scenario, window_ms)
    for attempt in range(1, ATTEMPTS + 1):
        before = _count(server, contestant.model)
        text = _analyze(analyzer, options)
        after = _count(server, contestant.model)
        if text is not None:
            command = "perf_analyzer " + " ".join(options).replace(server.grpc, "ADDRESS").replace(
                server.http, "ADDRESS"
            )
            figures = {name: _figure(text, pattern) for name, pattern in _PATTERNS.items()}
            return _run(figures, before, after, attempt, command)
    raise UnstableError(f"no stable run of {contestant.model} in {ATTEMPTS} attempts")


def _measure_light(server: Server, contestant: Contestant, scenario: Scenario) -> Run:
    row = QUESTIONS[scenario.question]()
    url = server.grpc if scenario.protocol == "Grpc" else server.http
    before = _count(server, contestant.model)
    request = _light_request(contestant.model, row, scenario)
    load = light.drive(url, [request], scenario.concurrency, scenario.protocol)
    after = _count(server, contestant.model)
    if load.errors:
        raise RuntimeError(f"{load.errors} requests of {contestant.model} failed")
    figures = {"throughput": load.throughput, "p50_us": load.p50_us, "p90_us": load.p90_us, "p99_us": load.p99_us}
    return _run(figures, before, after, 1, f"benchmarks/light.py, {scenario.concurrency} in flight")


def _light_request(model: str, row: Array, scenario: Scenario) -> bytes:
    tensor = light.Tensor("INPUT0", "FP32", row.shape, row.nbytes)
    if scenario.protocol == "Grpc":
        return light.inline_request(model, tensor)
    head: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": list(row.shape)}
    if scenario.json:
        numbers = [float(str(value)) for value in row.flat]  # as short as FP32 can be told
        return light.http_request(model, json.dumps({"inputs": [{**head, "data": numbers}]}).encode(), "")
    head["parameters"] = {"binary_data_size": row.nbytes}
    text = json.dumps({"inputs": [head], "parameters": {"binary_data_output": True}}).encode()
    return light.http_request(model, text + row.tobytes(), f"Inference-Header-Content-Length: {len(text)}\r\n")


def _options(server: Server, contestant: Contestant, scenario: Scenario, window_ms: int) -> list[str]:
    url = server.grpc if scenario.protocol == "Grpc" else server.http
    who = ["-m", contestant.model, "-i", scenario.protocol, "-u", url, "-b", "1"]
    how = ["--concurrency-range", str(scenario.concurrency), "-p", str(window_ms), "-s", "50", "--percentile=99"]
    return [*who, *how, *scenario.options]


def _analyze(analyzer: Program, options: list[str]) -> str | None:
    """What it wrote; `None` when it found no stable windows, for which it gives no figures."""
    done = subprocess.run(
        [*analyzer.command, *options],
        capture_output=True,
        text=True,
        env={**os.environ, **analyzer.environment},
        check=False,
        timeout=TIMEOUT_S,
    )
    if "Failed to obtain stable measurement" in done.stderr:
        return None
    if done.returncode != 0:
        raise RuntimeError(
            f"perf_analyzer {' '.join(options)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def _count(server: Server, model: str) -> _Counts:
    requests, executions = server.counts(model)
    copied = server.copied_bytes(model)
    return _Counts(server.cpu_s(), requests, executions, copied, machine.clocks())


def _run(figures: dict[str, float], before: _Counts, after: _Counts, attempts: int, command: str) -> Run:
    count = after.requests - before.requests
    if count == 0:
        raise RuntimeError(f"the server counted no successful request of {command}")
    cpu_s, passed = after.cpu_s - before.cpu_s, after.clocks - before.clocks
    copied_in, copied_out = (_share(before, after, direction, count) for direction in (0, 1))
    return Run(
        **figures,
        cpu_us=cpu_s * 1e6 / count,
        client_cpu_us=passed.clients_s * 1e6 / count,
        average_batch=count / max(1, after.executions - before.executions),
        copied_in=copied_in,
        copied_out=copied_out,
        foreign_cores=max(0.0, passed.busy_s - cpu_s - passed.clients_s) / passed.wall_s,
        stolen_cores=passed.stolen_s / passed.wall_s,
        attempts=attempts,
        command=command,
    )


def _share(before: _Counts, after: _Counts, direction: int, count: int) -> float | None:
    if before.copied is None or after.copied is None:
        return None
    return (after.copied[direction] - before.copied[direction]) / count


_PATTERNS = {
    "throughput": r"Throughput: ([\d.]+) infer/sec",
    "p50_us": r"p50 latency: (\d+) usec",
    "p90_us": r"p90 latency: (\d+) usec",
    "p99_us": r"p99 latency: (\d+) usec",
}


def _figure(text: str, pattern: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"perf_analyzer wrote no {pattern!r}:\n{text}")
    return float(found[1])
