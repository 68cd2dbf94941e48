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
FLOOR_ROW = ("round_trip_us", "cpu_us")
FLOORS = {
    "round_trip_us": "a loopback round trip takes {:.0f} us",
    "echo_cpu_us": "a process that only sends back what it reads takes {:.1f} us of CPU for each request in flight",
    "model_us": "the model's own cut takes {:.0f} us",
    "copy_in_us": "copying a request's input once takes {:.0f} us",
    "copy_out_us": "copying its output once takes {:.0f} us",
}
NOISE = {"foreign_cores": "taken by other processes", "stolen_cores": "by the host"}
ALONE = 0.01
"""Share of requests that may be alone in their batch where one copy is expected."""
UNITS = {"throughput": "throughput", "cpu_us": "server CPU per request", "p50_us": "p50 latency"}


def write_readme(results: dict[str, Any]) -> None:
    """Writes the page, and the table of the project's README."""
    (HERE / "README.md").write_text(page(results))
    _write_summary(results, _by_name(results))


def page(results: dict[str, Any]) -> str:
    """The page of the scenarios that were measured."""
    by_name = _by_name(results)
    sections = [_section(scenario, by_name[scenario.name]) for scenario in SCENARIOS if scenario.name in by_name]
    return "\n".join([_head(results), *sections])


def _by_name(results: dict[str, Any]) -> dict[str, Any]:
    return {result["name"]: result for result in results["scenarios"]}


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
            figures = " | ".join(_number(own["median"][name]) for name in ("throughput", "p50_us", "cpu_us"))
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
Compare ratios within this page only; the range beside a ratio is over the rounds.

| | |
| --- | --- |
{rows}
"""


def _section(scenario: Scenario, result: dict[str, Any]) -> str:
    contestants = result["contestants"]
    parts = [f"## {scenario.title}\n", _figures(result), *_floor(result["floor"]), *_noise(contestants), ""]
    parts.append("| what | ratio | to reach | |\n| --- | --- | --- | --- |")
    parts += [_verdict(target, contestants) for target in scenario.targets]
    if scenario.copies is not None:
        parts.append(_copies(scenario, scenario.copies, contestants))
    commands = (run["command"] for own in contestants.values() for run in own["runs"] if run)
    return "\n".join([*parts, "", f"`{next(commands, 'no stable run')}`", ""])


def _figures(result: dict[str, Any]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for label, own in result["contestants"].items():
        row = own["median"]
        copied = "not told" if row["copied_in"] is None else f"{row['copied_in']:,.0f}, {row['copied_out']:,.0f}"
        times = " | ".join(_number(row[name]) for name in ("throughput", "p50_us", "p90_us", "p99_us", "cpu_us"))
        lines.append(f"| {label} | {times} | {_number(row['average_batch'], 1)} | {copied} |")
    if "cpu_us" in result["floor"]:
        lines.append(f"| *floor* | | {' | | | '.join(_number(result['floor'][name]) for name in FLOOR_ROW)} | | |")
    return "\n".join(lines)


def _number(value: float | None, digits: int = 0) -> str:
    return "no stable run" if value is None else f"{value:,.{digits}f}"


def _floor(floor: dict[str, float]) -> list[str]:
    told = [text.format(floor[name]) for name, text in FLOORS.items() if name in floor]
    return ["\nFloor: " + "; ".join(told) + "."]


def _noise(contestants: dict[str, Any]) -> list[str]:
    runs = [(label, run) for label, own in contestants.items() for run in own["runs"] if run and "foreign_cores" in run]
    if not runs:
        return []
    clients = [run["client_cpu_us"] for _, run in runs]
    worst = {name: max(runs, key=lambda pair: pair[1][name]) for name in ("foreign_cores", "stolen_cores")}
    told = [f"{worst[name][1][name]:.2f} cores {text} ({worst[name][0]})" for name, text in NOISE.items()]
    again = sum(run["attempts"] - 1 for _, run in runs)
    return [
        f"\nClient: {min(clients):,.0f} to {max(clients):,.0f} us of CPU for a request. "
        f"Noise of the worst run: {', '.join(told)}; {again} unstable runs were repeated."
    ]


def _verdict(target: Target, contestants: dict[str, Any]) -> str:
    above, below = contestants[target.of], contestants[target.against]
    wanted = f"≤ {target.at_most}" if target.at_least is None else f"≥ {target.at_least}"
    what = f"{UNITS[target.figure]}: {target.of} ÷ {target.against}"
    if above["median"][target.figure] is None or below["median"][target.figure] is None:
        return _row(what, "no stable run", wanted, None)
    ratio = above["median"][target.figure] / below["median"][target.figure]
    rounds = [a[target.figure] / b[target.figure] for a, b in zip(above["runs"], below["runs"], strict=True) if a and b]
    spread = f" ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else ""
    reached = ratio <= (target.at_most or 0) if target.at_least is None else ratio >= target.at_least
    return _row(what, f"{ratio:.2f}{spread}", wanted, reached)


def _copies(scenario: Scenario, copies: int, contestants: dict[str, Any]) -> str:
    what = "bytes copied by transfer for each request, in and out"
    wanted = [scenario.bytes_in * copies, scenario.bytes_out * copies]
    row = next(own["median"] for label, own in contestants.items() if label.startswith("Headrace"))
    got = [row["copied_in"], row["copied_out"]]
    if None in got:
        return _row(what, "no stable run", ", ".join(f"{want:,}" for want in wanted), None)
    text = ", ".join(_number(value) for value in got)
    # A request that was alone in its batch is a view and costs no copy: a few of them are no other answer.
    reached = all((1 - ALONE) * want <= have <= want for have, want in zip(got, wanted, strict=True))
    return _row(what, text, ", ".join(f"{want:,}" for want in wanted), reached)


def _row(what: str, got: str, wanted: str, reached: bool | None) -> str:
    verdict = {True: "reached", False: "**missed**", None: "**not measured**"}[reached]
    return f"| {what} | {got} | {wanted} | {verdict} |"


if __name__ == "__main__":
    write_readme(json.loads((HERE / "results" / "spine.json").read_text()))
