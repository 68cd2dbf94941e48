"""The machine that measures: what it is, and what else it did meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import peers

CORES = len(os.sched_getaffinity(0))
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Clocks:
    """Seconds so far, of all cores together where it is CPU time."""

    wall_s: float
    busy_s: float
    stolen_s: float
    """Taken away by the host of a virtual machine."""
    clients_s: float
    """CPU of our own children that have ended, such as perf_analyzer."""

    def __sub__(self, before: Clocks) -> Clocks:
        return Clocks(
            self.wall_s - before.wall_s,
            self.busy_s - before.busy_s,
            self.stolen_s - before.stolen_s,
            self.clients_s - before.clients_s,
        )


def clocks() -> Clocks:
    """Reads them all."""
    # man 5 proc_stat: user nice system idle iowait irq softirq steal
    ticks = [int(field) for field in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Clocks(
        wall_s=time.monotonic(),
        busy_s=(sum(ticks[:3]) + sum(ticks[5:7])) * _TICK_S,
        stolen_s=ticks[7] * _TICK_S,
        clients_s=children.ru_utime + children.ru_stime,
    )


def describe() -> dict[str, Any]:
    """Machine, versions, commit and date."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.split(":")[1].strip() for line in cpus if "model name" in line), ""),
        "cores": CORES,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "headrace": version("headrace"),
        "commit": _git("rev-parse", "--short", "HEAD") + (" with changes" if _changed() else ""),
        "onnxruntime": version("onnxruntime"),
        "triton": f"2.51.0 (release 24.10), of {peers.TRITON}",
        "perf_analyzer": peers.PERF_ANALYZER,
        "date": time.strftime("%Y-%m-%d"),
    }


def _changed() -> bool:
    return bool(_git("status", "--porcelain", "src", "headrace"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()
