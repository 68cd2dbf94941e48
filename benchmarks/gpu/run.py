"""One stage of the GPU benchmark, where the GPU is: `python -m benchmarks.gpu.run STAGE --detector FILE`.

Stages: `floors`, `headrace`, `triton`. Each writes its figures as JSON into `--results`. Needs PyTorch, and
perf_analyzer and tritonserver on PATH (or named by HEADRACE_PERF_ANALYZER and HEADRACE_TRITON).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu import floors, models
from benchmarks.measure import measure
from benchmarks.peers import HOME, Program
from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import Server, headrace, triton

MODES = {
    "system": ("--shared-memory", "system", "--output-shared-memory-size", "846720"),
    "cuda": ("--shared-memory", "cuda", "--output-shared-memory-size", "846720"),
    # perf_analyzer keeps every answer that comes in a message: windows of few requests, or its memory is full.
    "none": ("--measurement-mode", "count_windows", "--measurement-request-count", "300"),
}


def main() -> None:
    """Runs a stage and writes it."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.run", description=__doc__)
    parser.add_argument("stage", choices=["floors", "headrace", "triton"])
    parser.add_argument("--detector", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--window", type=int, default=2500, help="perf_analyzer's measurement window, ms")
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    parser.add_argument("--models", nargs="*", default=["yolo", "slice"])
    parser.add_argument("--serve", nargs="*", default=[], help="more options of headrace serve, without their dashes")
    parser.add_argument("--instances", type=int, default=2, help="of each model")
    parser.add_argument("--concurrency", nargs="*", type=int, default=[100])
    arguments = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    figures = {"floors": _floors, "headrace": _headrace, "triton": _triton}[arguments.stage](arguments)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{arguments.stage}.json"
    path.write_text(json.dumps({"machine": _machine(), **figures}, indent=1) + "\n")
    print(f"written: {path}")


def _floors(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    rates = {"engine": floors.engine_rate(torch, arguments.detector), "link": floors.link_rate(torch)}
    print(rates)
    return rates


def _headrace(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    repository = models.write_headrace(
        HOME / "gpu_headrace", arguments.detector, torch, arguments.models, arguments.instances
    )
    with headrace(repository, *(f"--{option}" for option in arguments.serve)) as server:
        return {"runs": _runs(server, arguments, arguments.models)}


def _triton(arguments: argparse.Namespace) -> dict[str, Any]:
    repository = models.write_triton(HOME / "gpu_triton", arguments.detector)
    program = Program((os.environ.get("HEADRACE_TRITON", "tritonserver"),), {})
    with triton(program, repository) as server:
        return {"runs": _runs(server, arguments, ["yolo"])}


def _runs(server: Server, arguments: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    analyzer = Program((os.environ.get("HEADRACE_PERF_ANALYZER", "perf_analyzer"),), {})
    runs = []
    for name in names:
        for mode in arguments.modes:
            for concurrency in arguments.concurrency:
                options = (*MODES[mode], "--shape", "images:3,384,640")
                scenario = Scenario(f"{name}_{mode}", "", concurrency, (), (), options, copies=0)
                contestant = Contestant(server.name, name, server.name)
                row: dict[str, Any] = {"model": name, "mode": mode, "concurrency": concurrency}
                try:
                    before = server.batches(name)
                    row |= asdict(measure(analyzer, server, contestant, scenario, arguments.window))
                    row["batches"] = _added(before, server.batches(name))
                    print(_line(server.name, row), flush=True)
                except RuntimeError as error:
                    row["error"] = str(error)[-2000:]
                    print(f"{server.name} {name} {mode} {concurrency}: {row['error'][-600:]}", flush=True)
                runs.append(row)
    return runs


def _line(server: str, row: dict[str, Any]) -> str:
    what = f"{server} {row['model']} {row['mode']} {row['concurrency']}"
    figures = f"{row['throughput']:.0f}/s, p50 {row['p50_us']:.0f} us, {row['cpu_us']:.0f} us CPU"
    return f"{what}: {figures}, batch {row['average_batch']:.1f} {row['batches']}, copied {row['copied_in']}"


def _added(before: dict[int, tuple[int, float]], after: dict[int, tuple[int, float]]) -> dict[int, tuple[int, float]]:
    """Executions of a run by batch size, and the mean milliseconds of *infer*."""
    added = {}
    for rows, (count, ms) in after.items():
        count_before, ms_before = before.get(rows, (0, 0.0))
        if count > count_before:
            added[rows] = count - count_before, round((ms - ms_before) / (count - count_before), 2)
    return added


def _machine() -> dict[str, str]:
    def told(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return {
        "gpu": told("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "cores": str(os.cpu_count()),
        "commit": os.environ.get("HEADRACE_COMMIT", ""),
    }


if __name__ == "__main__":
    main()
