"""`make bench`: measures all scenarios in interleaved rounds and writes `results/spine.json` and `README.md`.

A part (`--only`) or a hurried run (`--quick`) is shown, and kept in `.cache/bench/latest.json`, but not published.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks import answers, floors, machine, models, peers, servers
from benchmarks.measure import Run, UnstableError, measure
from benchmarks.report import page, write_readme
from benchmarks.scenarios import SCENARIOS, Contestant, Scenario

RESULTS = Path(__file__).parent / "results" / "spine.json"
LATEST = peers.HOME / "latest.json"
REGIONS = 1000
"""Registered in the crowded server."""
QUICK_ROUNDS, QUICK_WINDOW_MS = 1, 500


def main() -> None:
    """Sets up the peers, measures, writes."""
    arguments = _arguments()
    chosen = [scenario for scenario in SCENARIOS if not arguments.only or scenario.name in arguments.only]
    console = Console(stderr=arguments.json)
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "rounds": arguments.rounds,
        "window_ms": arguments.window,
        "scenarios": [],
    }
    for result in _measure_all(chosen, arguments, console):
        results["scenarios"].append(result)
        LATEST.write_text(json.dumps(results, indent=1) + "\n")  # what is measured stays, whatever comes next
    if not arguments.only and not arguments.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(LATEST.read_text())
        write_readme(results)
    if arguments.json:
        json.dump(results, sys.stdout, indent=1)
    else:
        console.print(Markdown(page(results)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all contestants; medians are reported")
    parser.add_argument("--window", type=int, default=2000, help="perf_analyzer's measurement window, ms")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, help="measure these only; nothing is published")
    quick = f"{QUICK_ROUNDS} round of {QUICK_WINDOW_MS} ms windows, to see that all works; nothing is published"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", action="store_true", help="write the results to stdout, and progress to stderr")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.window = QUICK_ROUNDS, QUICK_WINDOW_MS
    return arguments


def _measure_all(chosen: list[Scenario], arguments: argparse.Namespace, console: Console) -> Iterator[dict[str, Any]]:
    """Both servers are up all the time, so that contestants can take turns."""
    console.print("Setting up the peers (once: 120 MB of packages)", highlight=False)
    peers.HOME.mkdir(parents=True, exist_ok=True)
    analyzer, triton = peers.perf_analyzer(), peers.triton()
    ours, theirs = models.write_headrace(peers.HOME / "headrace"), models.write_triton(peers.HOME / "triton_models")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
    with ExitStack() as stack:
        running = {
            "headrace": stack.enter_context(servers.headrace(ours)),
            "triton": stack.enter_context(servers.triton(triton, theirs)),
        }
        if any(contestant.server == "crowded" for scenario in chosen for contestant in scenario.contestants):
            crowd = models.write_crowd(peers.HOME / "crowd")
            running["crowded"] = stack.enter_context(servers.crowded(crowd, REGIONS))
        stack.enter_context(progress)
        task = progress.add_task("", total=arguments.rounds * sum(len(own.contestants) for own in chosen))
        for scenario in chosen:
            runs: dict[str, list[Run | None]] = {contestant.label: [] for contestant in scenario.contestants}
            for number, contestant in _turns(scenario, arguments.rounds):
                server = running[contestant.server]
                what = f"{scenario.name}, round {number + 1} of {arguments.rounds}: {contestant.label}"
                progress.update(task, description=what)
                if number == 0:
                    answers.check(server, contestant, scenario)
                run = _stable(analyzer, server, contestant, scenario, arguments.window)
                runs[contestant.label].append(run)
                progress.advance(task)
                console.print(f"{what}: {_brief(run)}", highlight=False)
            yield _result(scenario, runs)


def _stable(
    analyzer: peers.Program, server: servers.Server, contestant: Contestant, scenario: Scenario, window_ms: int
) -> Run | None:
    try:
        return measure(analyzer, server, contestant, scenario, window_ms)
    except UnstableError:
        return None  # told as that in the report: the other contestants are still worth measuring


def _turns(scenario: Scenario, rounds: int) -> Iterator[tuple[int, Contestant]]:
    """All contestants in each round, and another one first: what disturbs the machine disturbs all."""
    count = len(scenario.contestants)
    for number in range(rounds):
        for place in range(count):
            yield number, scenario.contestants[(number + place) % count]


def _brief(run: Run | None) -> str:
    return "no stable run" if run is None else f"{run.throughput:.0f}/s, {run.cpu_us:.0f} us CPU"


def _result(scenario: Scenario, runs: dict[str, list[Run | None]]) -> dict[str, Any]:
    contestants = {
        label: {"median": _median(own), "runs": [run and asdict(run) for run in own]} for label, own in runs.items()
    }
    return {"name": scenario.name, "contestants": contestants, "floor": floors.measure(scenario)}


def _median(runs: list[Run | None]) -> dict[str, float | None]:
    names = [field.name for field in fields(Run) if field.name not in ("command", "attempts")]
    values = {name: [getattr(run, name) for run in runs if run is not None] for name in names}
    return {name: None if not own or None in own else statistics.median(own) for name, own in values.items()}


if __name__ == "__main__":
    main()
