"""`python -m benchmarks.simulate.wire`: simulated GPUs behind the real wire, driven by perf_analyzer.

Rates are scaled so that one client and one server on two cores can drive them: all devices together serve `--rate`
requests a second at best. Once compute is the bound, once the link.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import measure
from benchmarks.peers import HOME, Program, perf_analyzer
from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import headrace

ROWS = 32
IMAGE = 2 * 3 * 384 * 640
TO_REACH = 0.9
CONFIG = """
backend: "simulated"
max_batch_size: 32
input {{ name: "images" data_type: TYPE_FP16 dims: 3 dims: 384 dims: 640 }}
output {{ name: "output0" data_type: TYPE_FP16 dims: 84 dims: 5040 }}
dynamic_batching {{ preferred_batch_size: 32 }}
instance_group {{ count: 2 kind: KIND_GPU }}
parameters {{ key: "batch_us" value {{ string_value: "{batch_us}" }} }}
"""
PERF_ANALYZER = ("--shared-memory", "system", "--output-shared-memory-size", "846720", "--shape", "images:3,384,640")


@dataclass(frozen=True)
class Row:
    """One run."""

    devices: int
    bounded_by: str
    bound: float
    per_second: float
    mean_batch: float
    cpu_us: float
    """Of the server, for each request."""
    interpreter: float
    """Share of the time that threads which run Python were on a core: at least as much as they had the interpreter."""

    @property
    def share(self) -> float:
        """Of the bound."""
        return self.per_second / self.bound


def main() -> int:
    """The exit status: 1 when a row is under 0.9 of its bound."""
    parser = argparse.ArgumentParser(prog="benchmarks.simulate.wire", description=__doc__)
    parser.add_argument("--devices", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--rate", type=float, default=2000.0, help="requests per second of all devices")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("wire.json"))
    arguments = parser.parse_args()
    analyzer = perf_analyzer()
    rows = []
    for devices in arguments.devices:
        for bounded_by in ("compute", "link"):
            row = run(analyzer, devices, bounded_by, arguments.rate)
            rows.append(row)
            print(
                f"{row.devices} GPUs, {row.bounded_by} bound: {row.per_second:.0f}/s, {row.share:.3f} of the bound, "
                f"batch {row.mean_batch:.1f}, {row.cpu_us:.0f} us CPU, interpreter {row.interpreter:.3f}",
                flush=True,
            )
    arguments.results.write_text(json.dumps([asdict(row) | {"share": row.share} for row in rows], indent=1) + "\n")
    lowest = min(rows, key=lambda row: row.share)
    print(f"lowest share {lowest.share:.3f} at {lowest.devices} devices, mode system, {lowest.bounded_by} bound")
    return 0 if lowest.share >= TO_REACH else 1


def run(analyzer: Program, devices: int, bounded_by: str, rate: float) -> Row:
    """Serves, measures, and tells."""
    batch_us = 1e6 * ROWS * devices / rate
    link_gb = IMAGE * rate / devices / 1e9
    repository = HOME / "simulated"
    shutil.rmtree(repository, ignore_errors=True)
    (repository / "detector" / "1").mkdir(parents=True)
    slow = bounded_by == "compute"
    (repository / "detector" / "config.pbtxt").write_text(CONFIG.format(batch_us=batch_us if slow else batch_us / 10))
    options = (f"--simulate-gpus={devices}", *([] if slow else [f"--simulate-link-gb={link_gb}"]))
    with headrace(repository, *options) as server:
        scenario = Scenario("simulated", "", 100 * devices, (), (), PERF_ANALYZER, copies=0)
        began, before = time.monotonic(), server.interpreter_s()
        figures = measure(analyzer, server, Contestant("headrace", "detector", ""), scenario, 3000)
        interpreter = (server.interpreter_s() - before) / (time.monotonic() - began)
    return Row(devices, bounded_by, rate, figures.throughput, figures.average_batch, figures.cpu_us, interpreter)


if __name__ == "__main__":
    sys.exit(main())
