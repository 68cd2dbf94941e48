"""`make bench`: measures all scenarios in interleaved rounds and writes `results/spine.json` and `README.md`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks import floors, models, peers, servers
from benchmarks.measure import Run, measure
from benchmarks.report import write_readme
from benchmarks.scenarios import SCENARIOS, Scenario

RESULTS = Path(__file__).parent / "results" / "spine.json"


def main() -> None:
    """Sets up the peers, measures, writes."""
    arguments = _arguments()
    chosen = [scenario for scenario in SCENARIOS if not arguments.only or scenario.name in arguments.only]
    console = Console()
    console.print("Setting up the peers (once: 100 MB from PyPI)", highlight=False)
    peers.HOME.mkdir(parents=True, exist_ok=True)
    analyzer, triton = peers.perf_analyzer(), peers.triton()
    ours, theirs = models.write_headrace(peers.HOME / "headrace"), models.write_triton(peers.HOME / "triton_models")
    with servers.headrace(ours) as headrace, servers.triton(triton, theirs) as judge:
        running = {"headrace": headrace, "triton": judge}
        runs = _measure_all(analyzer, running, chosen, arguments, console)
    results = {"machine": _machine(), "rounds": arguments.rounds, "window_ms": arguments.window, "scenarios": runs}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_readme(results)
    console.print(f"Written: {RESULTS} and benchmarks/README.md", highlight=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all contestants; medians are reported")
    parser.add_argument("--window", type=int, default=2000, help="perf_analyzer's measurement window, ms")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="*", choices=names, help="measure these only (the report then has these only)")
    return parser.parse_args()


def _measure_all(
    analyzer: peers.Program,
    running: dict[str, servers.Server],
    chosen: list[Scenario],
    arguments: argparse.Namespace,
    console: Console,
) -> list[dict[str, Any]]:
    """All contestants of a scenario in turn, and that `rounds` times: what disturbs the machine disturbs all."""
    results = []
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        for scenario in chosen:
            runs: dict[str, list[Run]] = {contestant.label: [] for contestant in scenario.contestants}
            for number in range(arguments.rounds):
                for contestant in scenario.contestants:
                    what = f"{scenario.name}, round {number + 1} of {arguments.rounds}: {contestant.label}"
                    task = progress.add_task(what)
                    run = measure(analyzer, running[contestant.server], contestant, scenario, arguments.window)
                    progress.remove_task(task)
                    runs[contestant.label].append(run)
                    console.print(f"{what}: {run.throughput:.0f}/s, {run.cpu_us:.0f} us CPU", highlight=False)
            results.append(_result(scenario, runs))
    return results


def _result(scenario: Scenario, runs: dict[str, list[Run]]) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "contestants": {
            label: {"median": _median(own), "runs": [asdict(run) for run in own]} for label, own in runs.items()
        },
        "floor": {
            "round_trip_us": floors.round_trip_us(),
            "copy_in_us": floors.copy_us(scenario.bytes_in),
            "copy_out_us": floors.copy_us(scenario.bytes_out),
        },
    }


def _median(runs: list[Run]) -> dict[str, float | None]:
    names = [field.name for field in fields(Run) if field.name != "command"]
    values = {name: [getattr(run, name) for run in runs] for name in names}
    return {name: None if None in own else statistics.median(own) for name, own in values.items()}


def _machine() -> dict[str, Any]:
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "src", "headrace"], capture_output=True, text=True, check=False
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "headrace": version("headrace"),
        "commit": commit.stdout.strip() + (" with changes" if changed.stdout else ""),
        "onnxruntime": version("onnxruntime"),
        "triton": f"2.51.0 (release 24.10), of {peers.TRITON}",
        "perf_analyzer": peers.PERF_ANALYZER,
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
