"""`README.md` of this folder, from the results: `python -m benchmarks.report` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.scenarios import SCENARIOS, Scenario, Target

HERE = Path(__file__).parent
BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
COLUMNS = (
    "server, backend",
    "inferences/s",
    "p50 us",
    "p90 us",
    "p99 us",
    "server CPU us/request",
    "mean batch",
    "bytes copied in, out",
)
UNITS = {"throughput": "throughput", "cpu_us": "server CPU per request", "p50_us": "p50 latency"}


def write_readme(results: dict[str, Any]) -> None:
    """Writes the page."""
    by_name = {result["name"]: result for result in results["scenarios"]}
    sections = [_section(scenario, by_name[scenario.name]) for scenario in SCENARIOS if scenario.name in by_name]
    (HERE / "README.md").write_text("\n".join([_head(results), *sections]))
    _write_summary(results, by_name)


def _write_summary(results: dict[str, Any], by_name: dict[str, Any]) -> None:
    """The table of the project's README, between its markers."""
    readme = HERE.parent / "README.md"
    before, rest = readme.read_text().split(BEGIN)
    lines = [
        "| load | server, backend | inferences/s | p50 us | server CPU us/request |",
        "| --- | --- | --- | --- | --- |",
    ]
    for scenario in SCENARIOS:
        contestants = by_name[scenario.name]["contestants"] if scenario.name in by_name else {}
        for number, (label, own) in enumerate(contestants.items()):
            figures = " | ".join(f"{own['median'][name]:,.0f}" for name in ("throughput", "p50_us", "cpu_us"))
            lines.append(f"| {'' if number else scenario.title} | {label} | {figures} |")
    machine = results["machine"]
    note = f"{machine['date']}, commit {machine['commit']}, {machine['cpu']}, {machine['cores']} cores."
    readme.write_text(f"{before}{BEGIN}\n" + "\n".join([*lines, "", note]) + f"\n{END}{rest.split(END)[1]}")


def _head(results: dict[str, Any]) -> str:
    machine = results["machine"]
    rows = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
    return f"""# Benchmarks

Written by `make bench` from `results/spine.json`; do not edit. [METHOD.md](METHOD.md) says how it is measured.
Medians of {results["rounds"]} interleaved rounds, windows of {results["window_ms"]} ms.
Compare ratios within this page only.

| | |
| --- | --- |
{rows}
"""


def _section(scenario: Scenario, result: dict[str, Any]) -> str:
    parts = [f"## {scenario.title}\n", _figures(result), _floor(scenario, result["floor"])]
    parts.append("| what | ratio | to reach | |\n| --- | --- | --- | --- |")
    parts += [_verdict(target, result["contestants"]) for target in scenario.targets]
    if scenario.copies is not None:
        parts.append(_copies(scenario, result["contestants"]))
    command = next(iter(result["contestants"].values()))["runs"][0]["command"]
    return "\n".join([*parts, "", f"`{command}`", ""])


def _figures(result: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for label, own in result["contestants"].items():
        row = own["median"]
        copied = "not told" if row["copied_in"] is None else f"{row['copied_in']:,.0f}, {row['copied_out']:,.0f}"
        times = " | ".join(f"{row[name]:,.0f}" for name in ("throughput", "p50_us", "p90_us", "p99_us", "cpu_us"))
        lines.append(f"| {label} | {times} | {row['average_batch']:.1f} | {copied} |")
    return "\n".join(lines)


def _floor(scenario: Scenario, floor: dict[str, float]) -> str:
    text = f"\nFloor: a loopback round trip takes {floor['round_trip_us']:.0f} us"
    if scenario.copies is not None:
        text += f"; copying a request's tensors once into a batch takes {floor['copy_in_us']:.0f} us in, "
        text += f"{floor['copy_out_us']:.0f} us out"
    return text + ".\n"


def _verdict(target: Target, contestants: dict[str, Any]) -> str:
    ratio = contestants[target.of]["median"][target.figure] / contestants[target.against]["median"][target.figure]
    if target.at_least is not None:
        reached, wanted = ratio >= target.at_least, f"≥ {target.at_least}"
    else:
        reached, wanted = ratio <= (target.at_most or 0), f"≤ {target.at_most}"
    what = f"{UNITS[target.figure]}: {target.of} ÷ {target.against}"
    return _row(what, f"{ratio:.2f}", wanted, reached)


def _copies(scenario: Scenario, contestants: dict[str, Any]) -> str:
    row = next(own["median"] for label, own in contestants.items() if label.startswith("Headrace"))
    wanted_in, wanted_out = scenario.bytes_in * (scenario.copies or 0), scenario.bytes_out * (scenario.copies or 0)
    # A batch of one request is a view and costs no copy, so the mean can be a little lower where one copy is expected.
    reached = row["copied_in"] <= wanted_in and row["copied_out"] <= wanted_out
    got = f"{row['copied_in']:,.0f}, {row['copied_out']:,.0f}"
    return _row("bytes copied by transfer for each request", got, f"≤ {wanted_in:,}, {wanted_out:,}", reached)


def _row(what: str, got: str, wanted: str, reached: bool) -> str:
    return f"| {what} | {got} | {wanted} | {'reached' if reached else '**missed**'} |"


if __name__ == "__main__":
    write_readme(json.loads((HERE / "results" / "spine.json").read_text()))
