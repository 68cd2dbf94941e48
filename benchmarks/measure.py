"""One run of perf_analyzer against one model, with the server's own counts around it."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

from benchmarks.peers import Program
from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import Server


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
    average_batch: float
    copied_in: float | None
    copied_out: float | None
    """Tensor bytes that Headrace's transfer copied for each request."""
    command: str


def measure(analyzer: Program, server: Server, contestant: Contestant, scenario: Scenario, window_ms: int) -> Run:
    """Runs until perf_analyzer calls three windows stable.

    Raises:
        RuntimeError: when it fails, with what it wrote.
    """
    model = contestant.model
    options = [
        "-m",
        model,
        "-i",
        "Grpc",
        "-u",
        server.grpc,
        "-b",
        "1",
        "--concurrency-range",
        str(scenario.concurrency),
    ]
    options += ["-p", str(window_ms), "-s", "50", "--percentile=99", *scenario.options]
    cpu, (requests, executions), copied = server.cpu_s(), server.counts(model), server.copied_bytes(model)
    environment = {**os.environ, **analyzer.environment}
    done = subprocess.run([*analyzer.command, *options], capture_output=True, text=True, env=environment, check=False)
    cpu, (requests_after, executions_after) = server.cpu_s() - cpu, server.counts(model)
    copied_after = server.copied_bytes(model)
    if done.returncode != 0:
        raise RuntimeError(
            f"perf_analyzer {' '.join(options)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    count = requests_after - requests
    figures = {name: _figure(done.stdout, pattern) for name, pattern in _PATTERNS.items()}
    return Run(
        **figures,
        cpu_us=cpu * 1e6 / count,
        average_batch=count / max(1, executions_after - executions),
        copied_in=None if copied is None or copied_after is None else (copied_after[0] - copied[0]) / count,
        copied_out=None if copied is None or copied_after is None else (copied_after[1] - copied[1]) / count,
        command="perf_analyzer " + " ".join(options).replace(server.grpc, "ADDRESS"),
    )


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
