"""`README.md` and the plot of this folder, from the results: `python -m benchmarks.gpu.report` writes them anew.

Needs matplotlib for the plot (`pip install matplotlib`); the table is written without it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MODES = {
    "system": "system shared memory",
    "cuda": "CUDA shared memory",
    "none": "tensors in the message (light client)",
    "slots": "system shared memory, 64 places for inputs and outputs (light client)",
    "echo": "echo of 64 bytes in the message: what the light client can drive",
}
PLOTTED = ("system", "cuda", "none")
Row = dict[str, Any]


def main() -> None:
    """Writes both."""
    results = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    (HERE / "README.md").write_text(page(results))
    try:
        plot(results)
    except ImportError:
        print("no matplotlib: the plot was not drawn")
    print(f"written: {HERE / 'README.md'}")


def page(results: dict[str, Any]) -> str:
    """The page."""
    yolo, slicing = results["headrace_yolo"]["runs"], results["headrace_slice"]["runs"]
    inline, peer = results["headrace_inline"]["runs"], results["triton"]["runs"]
    at_100 = [row for row in yolo if row["concurrency"] == 100 and row["mode"] != "none"]
    at_100 += [row for row in inline if row["mode"] == "none"]
    machine = results["headrace_yolo"]["machine"]
    commits = ", ".join(sorted({result["machine"]["commit"] for result in results.values()} - {""}))
    sections = [
        "# One H200, the founding report's tensors",
        f"Written by `python -m benchmarks.gpu.report` from `results/`. {machine['gpu']}, {machine['cores']} cores, "
        f"commits {commits}. perf_analyzer 2.60 over gRPC with `--shape images:3,384,640`, or a client of our own that "
        "keeps no answers, where it says so; two instances, FP16, channels_last, CUDA graphs. The real Triton is 24.10 "
        "with a Python model around the same TorchScript in a CUDA graph of 32, two instances.",
        "![Throughput over concurrency for each mode](throughput.svg)",
        "## The detector, 100 requests in flight",
        _table(at_100, [row for row in peer if row["concurrency"] == 100]),
        f"The engine alone, in a CUDA graph of 32 and without I/O: {results['floors']['engine']:,.0f} images/s. Two "
        "instances overlap on the GPU, so a server can pass it.",
        "## The model that only slices",
        _table(slicing, []),
        f"The link carries {results['floors']['link']['both']:,.0f} requests/s both ways at once "
        f"({results['floors']['link']['in']:,.0f} in alone): it bounds the first row.",
        "## What was to be reached",
        _targets(results, at_100, [row for row in peer if row["concurrency"] == 100], slicing),
        "## All runs of the detector",
        _sweep(yolo, peer),
        *_onnx(results.get("onnx")),
        (HERE / "NOTES.md").read_text().rstrip(),
    ]
    return "\n\n".join(sections) + "\n"


def _mean_batch(row: Row) -> float:
    sizes = {int(rows): count for rows, (count, _) in row["batches"].items()}
    return float(sum(rows * count for rows, count in sizes.items()) / max(1, sum(sizes.values())))


def _table(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    lines = [
        "| server, tensors | inferences/s | p50 ms | server CPU us/request | mean batch |",
        "| --- | --- | --- | --- | --- |",
    ]
    for server, rows in (("Headrace", ours), ("Triton, Python model", theirs)):
        for row in rows:
            batch = f"{_mean_batch(row):.1f}" if row["mode"] != "echo" else ""
            lines.append(
                f"| {server}, {MODES[row['mode']]} | {row['throughput']:,.0f} | {row['p50_us'] / 1000:.1f} "
                f"| {row['cpu_us']:,.0f} | {batch} |"
            )
    return "\n".join(lines)


def _targets(results: dict[str, Any], ours: list[Row], theirs: list[Row], slicing: list[Row]) -> str:
    own = {row["mode"]: row for row in ours}
    peer = {row["mode"]: row for row in theirs}
    system, engine = own["system"]["throughput"], results["floors"]["engine"]
    slices = {row["mode"]: row for row in slicing}
    rows = [
        ("detector, system / CUDA shared memory", system / own["cuda"]["throughput"], 0.98, True),
        ("detector, system / the engine's own rate", system / engine, 0.95, True),
        ("detector, mean executed batch", _mean_batch(own["system"]), 30, True),
        ("detector, system / Triton's system", system / peer["system"]["throughput"], 4.4, True),
        ("detector, system / Triton's CUDA", system / peer["cuda"]["throughput"], 1.85, True),
        ("detector, in the message / Triton's", own["none"]["throughput"] / peer["none"]["throughput"], 2, True),
        ("slicing, system, inferences/s", slices["system"]["throughput"], 20_000, True),
        ("slicing, 64 places, inferences/s", slices["slots"]["throughput"], 20_000, True),
        ("server CPU per request, detector, us", own["system"]["cpu_us"], 60, False),
        ("server CPU per request, slicing, us", slices["system"]["cpu_us"], 60, False),
        ("bytes that the CPU copied, system", own["system"]["copied_in"] + own["system"]["copied_out"], 0, False),
    ]
    lines = ["| what | measured | to reach | |", "| --- | --- | --- | --- |"]
    for what, value, goal, at_least in rows:
        reached = value >= goal if at_least else value <= goal
        text = f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
        lines.append(
            f"| {what} | {text} | {'≥' if at_least else '≤'} {goal:,} | {'reached' if reached else '**missed**'} |"
        )
    return "\n".join(lines)


def _sweep(ours: list[Row], theirs: list[Row]) -> str:
    levels = sorted({row["concurrency"] for row in ours})
    lines = [
        "| inferences/s at so many in flight | " + " | ".join(map(str, levels)) + " |",
        "| --- |" + " --- |" * len(levels),
    ]
    for server, rows in (("Headrace", ours), ("Triton, Python model", theirs)):
        for mode in PLOTTED:
            by_level = {row["concurrency"]: row for row in rows if row["mode"] == mode}
            cells = " | ".join(f"{by_level[level]['throughput']:,.0f}" for level in levels)
            lines.append(f"| {server}, {MODES[mode]} | {cells} |")
    return "\n".join(lines)


def _onnx(results: dict[str, Any] | None) -> list[str]:
    """ONNX Runtime's CUDA provider, where `benchmarks.gpu.onnx` has run."""
    if results is None:
        return []
    lines = [
        "| channels last | graphs | computes on | alone | system | CUDA | system / alone | system / CUDA | CPU us |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        runs = {run["mode"]: run for run in row.get("runs", []) if "throughput" in run}
        rates = [f"{runs[mode]['throughput']:,.0f}" if mode in runs else "failed" for mode in ("system", "cuda")]
        cells = [
            "yes" if row["nhwc"] == "1" else "no",
            "yes" if row["graph"] == "1" else "no",
            "our stream" if row["stream"] == "1" else "its own, on a run thread",
            f"{row['rate']:,.0f}" if "rate" in row else "failed",
            *rates,
            *(f"{row[key]:.3f}" if key in row else "" for key in ("system_of_rate", "system_of_cuda")),
            f"{runs['system']['cpu_us']:,.0f}" if "system" in runs else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    told = (
        "The detector as ONNX (`python -m benchmarks.gpu.onnx`), inferences/s at 100 in flight: the library alone, "
        "bound to device memory, and behind Headrace with the same options; server CPU a request."
    )
    return ["## ONNX Runtime's CUDA provider", told, "\n".join(lines)]


def plot(results: dict[str, Any]) -> None:
    """Throughput over concurrency."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for stage, server, style in (("headrace_yolo", "Headrace", "o-"), ("triton", "Triton, Python model", "s--")):
        for number, mode in enumerate(PLOTTED):
            rows = [row for row in results[stage]["runs"] if row["mode"] == mode]
            label = f"{server}, {mode if mode != 'none' else 'message'}"
            axes.plot(
                [row["concurrency"] for row in rows],
                [row["throughput"] for row in rows],
                style,
                color=f"C{number}",
                label=label,
                markersize=4,
            )
    axes.axhline(results["floors"]["engine"], color="grey", linewidth=1, label="engine alone, graph of 32")
    axes.set(xlabel="requests in flight", ylabel="inferences/s", title="Detector of the founding report, one H200")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(HERE / "throughput.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
