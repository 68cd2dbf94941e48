"""ONNX Runtime's CUDA provider behind Headrace against itself alone: `python -m benchmarks.gpu.onnx`.

For each of {channels last} x {CUDA graphs} x {run thread, or the library on our stream}: the images per second of the
library alone, bound to device memory, 32 at a time, with the same options; then Headrace with the same model under
perf_analyzer, tensors in system and in CUDA shared memory. Rows are written as they come.

Needs onnxruntime-gpu, cuda-bindings, and perf_analyzer on PATH (or HEADRACE_PERF_ANALYZER).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.floors import DETECTIONS, IMAGE, ROWS
from benchmarks.gpu.run import MODES, machine, runs
from benchmarks.peers import HOME
from benchmarks.servers import headrace
from headrace.memory.device import Device

SHARED = Path(os.environ.get("HEADRACE_SHARED", "../shared"))
SWITCHES = {"nhwc": "prefer_nhwc", "graph": "enable_cuda_graph", "stream": "has_user_compute_stream"}
"""Names of a row's switches and the provider's options that they set."""
SYSTEM_OF_RATE, SYSTEM_OF_CUDA = 0.9, 0.97
"""To reach."""


def main() -> None:
    """Runs the rows."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.onnx", description=__doc__)
    parser.add_argument("--detector", type=Path, default=SHARED / "data" / "detector_fp16.onnx")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "onnx.json")
    parser.add_argument("--rows", nargs="*", type=_row, help="some only, such as nhwc=1,graph=1,stream=0")
    parser.add_argument("--option", nargs="*", default=[], help="more of the provider's, KEY=VALUE, for all rows")
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--sizes", default="", help="cuda_graph_batch_sizes, such as 8,16,32: fewer load faster")
    parser.add_argument("--window", type=int, default=2500, help="perf_analyzer's measurement window, ms")
    parser.add_argument("--modes", nargs="*", choices=[*MODES], default=["system", "cuda"])
    parser.add_argument("--concurrency", nargs="*", type=int, default=[100])
    parser.add_argument("--rate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rate:
        print(json.dumps(_rate(arguments.detector, json.loads(arguments.rate))))
        return
    HOME.mkdir(parents=True, exist_ok=True)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    switches = [dict(zip(SWITCHES, values, strict=True)) for values in itertools.product("10", "10", "01")]
    rows = []
    for row in arguments.rows or switches:
        rows.append(_measure(row, arguments))
        print(_line(rows[-1]), flush=True)
        arguments.results.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print(f"written: {arguments.results}")


def _row(text: str) -> dict[str, str]:
    """`nhwc=1,graph=1,stream=0`."""
    row = dict.fromkeys(SWITCHES, "0") | dict(pair.split("=") for pair in text.split(","))
    if set(row) != set(SWITCHES):
        raise argparse.ArgumentTypeError(f"expected {', '.join(SWITCHES)}, got {text}")
    return row


def _measure(row: Mapping[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    options = {SWITCHES[name]: value for name, value in row.items()}
    options |= dict(pair.split("=") for pair in arguments.option)
    measured: dict[str, Any] = {**row, "options": options}
    try:
        measured |= _in_a_process(arguments.detector, options)
        repository = models.write_onnx(
            HOME / "gpu_onnx", arguments.detector, options, arguments.instances, arguments.sizes
        )
        began = time.monotonic()
        with headrace(repository) as server:
            measured["start_s"] = round(time.monotonic() - began, 1)
            measured["runs"] = runs(server, arguments, ["yolo"])
        log = (HOME / "headrace.log").read_text()
        measured["said"] = [line for line in log.splitlines() if "without CUDA graphs" in line]
        measured |= _ratios(measured)
    except (RuntimeError, SystemExit, subprocess.CalledProcessError) as error:
        measured["error"] = str(error)[-2000:]
    return measured


def _ratios(measured: Mapping[str, Any]) -> dict[str, float]:
    best: dict[str, float] = {}
    for run in measured["runs"]:
        if "throughput" in run:
            best[run["mode"]] = max(best.get(run["mode"], 0.0), run["throughput"])
    ratios = {}
    if "system" in best:
        ratios["system_of_rate"] = round(best["system"] / measured["rate"], 3)
    if "system" in best and "cuda" in best:
        ratios["system_of_cuda"] = round(best["system"] / best["cuda"], 3)
    return ratios


def _line(row: Mapping[str, Any]) -> str:
    name = " ".join(f"{switch}={row[switch]}" for switch in SWITCHES)
    if "error" in row:
        return f"{name}: {row['error'][-400:]}"
    goals = {"system_of_rate": SYSTEM_OF_RATE, "system_of_cuda": SYSTEM_OF_CUDA}
    ratios = ", ".join(
        f"{key} {row[key]} ({'reached' if row[key] >= goal else 'missed'}: {goal})"
        for key, goal in goals.items()
        if key in row
    )
    return (
        f"{name}: alone {row['rate']:,.0f}/s (call {row['call_us']:.0f} us), {ratios}, ready after {row['start_s']} s"
    )


def _in_a_process(detector: Path, options: Mapping[str, str]) -> dict[str, float]:
    """So that nothing of it is on the GPU any more when the server starts."""
    command = [sys.executable, "-m", "benchmarks.gpu.onnx", "--detector", str(detector), "--rate", json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the library alone: {done.stderr[-1500:]}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def _rate(detector: Path, options: Mapping[str, str]) -> dict[str, float]:
    import onnxruntime

    from headrace.backend.onnxruntime import find_libraries
    from headrace.memory.cuda import find_devices

    find_libraries(onnxruntime)
    devices, why = find_devices()
    if not devices:
        raise RuntimeError(why)
    return rate(onnxruntime, devices[0], detector, options)


def rate(
    runtime: Any, device: Device, detector: Path, options: Mapping[str, str], seconds: float = 3.0
) -> dict[str, float]:
    """Images per second without I/O, and the microseconds that the library's call takes."""
    import numpy as np

    stream = device.stream()
    provider = {"device_id": str(device.index), **options}
    run_options = runtime.RunOptions()
    if options.get("enable_cuda_graph") == "1":
        run_options.add_run_config_entry("gpu_graph_id", "1")
    if provider.get("has_user_compute_stream") == "1":
        provider["user_compute_stream"] = str(device.handle(stream))
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    else:
        provider.pop("has_user_compute_stream", None)
    settings = runtime.SessionOptions()
    for name, extent in {"batch": ROWS, "height": 384, "width": 640}.items():
        settings.add_free_dimension_override_by_name(name, extent)  # no graph holds what computes shapes
    session = runtime.InferenceSession(
        str(detector),
        settings,
        providers=[("CUDAExecutionProvider", provider), "CPUExecutionProvider"],
        enable_fallback=0,
    )
    images = np.random.default_rng(0).random((ROWS, 3, 384, 640), np.float32).astype(np.float16)
    there, out = device.allocate(ROWS * IMAGE), device.allocate(ROWS * DETECTIONS)
    device.copy(stream, [(there, images.ctypes.data, images.nbytes)])
    device.drain(stream)
    binding = session.io_binding()
    binding.bind_input("images", "cuda", device.index, np.float16, images.shape, there)
    binding.bind_output("output0", "cuda", device.index, np.float16, (ROWS, 84, 5040), out)
    for _ in range(3):
        session.run_with_iobinding(binding, run_options)
    device.drain(stream)
    count, in_call, began = 0, 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(4):
            started = time.perf_counter()
            session.run_with_iobinding(binding, run_options)
            in_call += time.perf_counter() - started
        device.drain(stream)
        count += 4
    elapsed = time.perf_counter() - began
    return {"rate": count * ROWS / elapsed, "call_us": in_call / count * 1e6}


if __name__ == "__main__":
    main()
