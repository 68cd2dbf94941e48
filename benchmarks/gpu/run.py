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

from benchmarks import light
from benchmarks.gpu import floors, models
from benchmarks.measure import measure
from benchmarks.peers import HOME, Program
from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import Server, headrace, triton

MODES = {
    "system": ("--shared-memory", "system", "--output-shared-memory-size", "846720"),
    "cuda": ("--shared-memory", "cuda", "--output-shared-memory-size", "846720"),
}
LIGHT_MODES = ("none", "slots", "echo")
"""By our own client: tensors in the message; 64 slots of a region for input and output each; the client's own floor."""
SLOTS = 64
IMAGES = light.Tensor("images", "FP16", (1, 3, 384, 640), 2 * 3 * 384 * 640)
DETECTIONS = light.Tensor("output0", "FP16", (1, 84, 5040), 2 * 84 * 5040)
SMALL = light.Tensor("INPUT0", "FP32", (1, 16), 64)


def main() -> None:
    """Runs a stage and writes it."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.run", description=__doc__)
    parser.add_argument("stage", choices=["floors", "headrace", "triton"])
    parser.add_argument("--detector", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--window", type=int, default=2500, help="perf_analyzer's measurement window, ms")
    parser.add_argument("--modes", nargs="*", choices=[*MODES, *LIGHT_MODES], default=["system", "cuda", "none"])
    parser.add_argument("--models", nargs="*", default=["yolo", "slice"])
    parser.add_argument("--serve", nargs="*", default=[], help="more options of headrace serve, without their dashes")
    parser.add_argument("--instances", type=int, default=2, help="of each model")
    parser.add_argument("--compiled", action="store_true", help="floors: the engine compiled by Inductor")
    parser.add_argument("--concurrency", nargs="*", type=int, default=[100])
    parser.add_argument("--name", help="of the file of results; the stage's by default")
    arguments = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    figures = {"floors": _floors, "headrace": _headrace, "triton": _triton}[arguments.stage](arguments)
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{arguments.name or arguments.stage}.json"
    path.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
    print(f"written: {path}")


def _floors(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    if arguments.compiled:
        rate = floors.engine_rate(torch, arguments.detector, compiled=True)
        print(f"compiled: {rate:.0f}/s")
        return {"engine_compiled": rate}
    rates = {"engine": floors.engine_rate(torch, arguments.detector), "link": floors.link_rate(torch)}
    print(rates)
    return rates


def _headrace(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    repository = models.write_headrace(
        HOME / "gpu_headrace", arguments.detector, torch, [*arguments.models, "echo"], arguments.instances
    )
    with headrace(repository, *(f"--{option}" for option in arguments.serve)) as server:
        return {"runs": runs(server, arguments, arguments.models)}


def _triton(arguments: argparse.Namespace) -> dict[str, Any]:
    repository = models.write_triton(HOME / "gpu_triton", arguments.detector)
    program = Program((os.environ.get("HEADRACE_TRITON", "tritonserver"),), {})
    with triton(program, repository) as server:
        return {"runs": runs(server, arguments, ["yolo"])}


def runs(server: Server, arguments: argparse.Namespace, names: list[str]) -> list[dict[str, Any]]:
    """One row for each model, mode and concurrency; a run that failed has an `error`."""
    rows = []
    for name in names:
        for mode in arguments.modes:
            for concurrency in arguments.concurrency:
                row: dict[str, Any] = {"model": name, "mode": mode, "concurrency": concurrency}
                measured = _light if mode in LIGHT_MODES else _perf_analyzer
                try:
                    before = server.batches(name)
                    row |= measured(server, name, mode, concurrency, arguments.window)
                    row["batches"] = _added(before, server.batches(name))
                    print(_line(server.name, row), flush=True)
                except RuntimeError as error:
                    row["error"] = str(error)[-2000:]
                    print(f"{server.name} {name} {mode} {concurrency}: {row['error'][-600:]}", flush=True)
                rows.append(row)
    return rows


def _perf_analyzer(server: Server, name: str, mode: str, concurrency: int, window: int) -> dict[str, Any]:
    analyzer = Program((os.environ.get("HEADRACE_PERF_ANALYZER", "perf_analyzer"),), {})
    options = (*MODES[mode], "--shape", "images:3,384,640")
    scenario = Scenario(f"{name}_{mode}", "", concurrency, (), (), options, copies=0)
    return asdict(measure(analyzer, server, Contestant(server.name, name, server.name), scenario, window))


def _light(server: Server, name: str, mode: str, concurrency: int, _window: int) -> dict[str, Any]:
    """By our own client."""
    served = "echo" if mode == "echo" else name
    requests, cpu_s = server.counts(served)[0], server.cpu_s()
    if mode == "slots":
        with light.slots(server.grpc, name, IMAGES, DETECTIONS, SLOTS) as ready:
            load = light.drive(server.grpc, ready, concurrency)
    else:
        request = light.inline_request(served, SMALL if mode == "echo" else IMAGES)
        load = light.drive(server.grpc, [request], concurrency)
    if load.errors:
        raise RuntimeError(f"{load.errors} requests failed")
    count = server.counts(served)[0] - requests
    return {**asdict(load), "cpu_us": (server.cpu_s() - cpu_s) * 1e6 / count, "client": "light"}


def _line(server: str, row: dict[str, Any]) -> str:
    what = f"{server} {row['model']} {row['mode']} {row['concurrency']}"
    figures = f"{row['throughput']:.0f}/s, p50 {row['p50_us']:.0f} us, {row['cpu_us']:.0f} us CPU"
    sizes = row["batches"]
    mean = sum(rows * count for rows, (count, _) in sizes.items()) / max(1, sum(count for count, _ in sizes.values()))
    return f"{what}: {figures}, batch {mean:.1f}, copied {row.get('copied_in')}"


def _added(before: dict[int, tuple[int, float]], after: dict[int, tuple[int, float]]) -> dict[int, tuple[int, float]]:
    """Executions of a run by batch size, and the mean milliseconds of *infer*."""
    added = {}
    for rows, (count, ms) in after.items():
        count_before, ms_before = before.get(rows, (0, 0.0))
        if count > count_before:
            added[rows] = count - count_before, round((ms - ms_before) / (count - count_before), 2)
    return added


def machine() -> dict[str, str]:
    """What it ran on."""

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
