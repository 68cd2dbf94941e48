"""`make simulate`: prints the table, and ends with 1 when a row is under 0.95 of its bound."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.simulate.run import Outcome, scenarios, simulate

TO_REACH = 0.95


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.simulate", description=__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    rows = scenarios(arguments.devices)
    outcomes = [simulate(row) for row in track(rows, "simulating", console=console, disable=not console.is_terminal)]
    if arguments.json:
        print(json.dumps([asdict(outcome) | {"share": outcome.share} for outcome in outcomes], indent=1))
    else:
        Console(width=120).print(_table(outcomes))
    lowest = min(outcomes, key=lambda outcome: outcome.share)
    scenario = lowest.scenario
    print(f"lowest share {lowest.share:.3f} at {scenario.devices} devices, mode {scenario.model.name} {scenario.mode}")
    return 0 if lowest.share >= TO_REACH else 1


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("model", "mode", title="Simulated GPUs, rates of an H200")
    for column in ("GPUs", "requests/s", "bound", "share", "mean batch", "failed", "peer batches"):
        table.add_column(column, justify="right")
    for outcome in outcomes:
        scenario = outcome.scenario
        table.add_row(
            scenario.model.name,
            scenario.mode + (", blocking engine" if scenario.blocking else ""),
            str(scenario.devices),
            f"{outcome.per_second:,.0f}",
            f"{outcome.bound:,.0f}",
            f"{outcome.share:.3f}",
            f"{outcome.mean_batch:.1f}",
            str(outcome.failed),
            str(outcome.peer_batches),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
