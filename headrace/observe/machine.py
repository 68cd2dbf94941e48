"""Figures of the machine for the metrics page: CPUs and memory from `/proc`, GPUs from NVIDIA's management library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


@dataclass(frozen=True)
class Gpu:
    """Figures of one GPU; `None` where its driver does not tell."""

    uuid: str
    utilization: float | None = None
    """0 to 1."""
    memory_total: int | None = None
    """Bytes."""
    memory_used: int | None = None
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    energy: float | None = None
    """Joules since the server started."""


@dataclass(frozen=True)
class Machine:
    """Figures of one moment; `None` for what is not told."""

    cpu_utilization: float | None = None
    """0 to 1, over the time since the figures before."""
    memory_total: int | None = None
    """Bytes."""
    memory_used: int | None = None
    gpus: Sequence[Gpu] = ()


class CpuGauge:
    """CPUs and memory as the kernel tells them under `proc`."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._before = self._times()

    def read(self) -> tuple[float | None, int | None, int | None]:
        """Utilization since the last reading, bytes of memory, bytes of it in use."""
        used, total = self._times()
        used_before, total_before = self._before
        self._before = used, total
        utilization = (used - used_before) / (total - total_before) if total > total_before else 0.0
        memory = self._memory()
        return min(max(utilization, 0.0), 1.0), memory.get("MemTotal"), _used(memory)

    def _times(self) -> tuple[int, int]:
        """Ticks that the CPUs were used, and all ticks."""
        # user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice
        ticks = [int(word) for word in (self._proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)

    def _memory(self) -> dict[str, int]:
        rows = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3}


def _used(memory: dict[str, int]) -> int | None:
    total, available = memory.get("MemTotal"), memory.get("MemAvailable")
    return None if total is None or available is None else total - available


class GpuGauge:
    """All GPUs, through `pynvml`, whose `nvmlInit` has been called."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._handles = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        self._energy_before = {uuid: self._energy(handle) for uuid, handle in self._handles.items()}

    def read(self) -> list[Gpu]:
        """The figures of each."""
        return [self._gpu(uuid, handle) for uuid, handle in self._handles.items()]

    def _gpu(self, uuid: str, handle: Any) -> Gpu:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        energy, before = self._energy(handle), self._energy_before[uuid]
        return Gpu(
            uuid,
            self._ask(lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100, handle),
            memory.total if memory is not None else None,
            memory.used if memory is not None else None,
            self._ask(lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000, handle),
            self._ask(lambda gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000, handle),
            energy - before if energy is not None and before is not None else None,
        )

    def _energy(self, handle: Any) -> float | None:
        """Joules since the driver was loaded."""
        joules: float | None = self._ask(lambda gpu: self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000, handle)
        return joules

    def _ask(self, question: Callable[[Any], Any], handle: Any) -> Any:
        """The answer; `None` when this GPU has none."""
        try:
            return question(handle)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    """Older bindings answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value


def find_gpus() -> tuple[GpuGauge | None, str]:
    """The gauge of the GPUs that there are and, when there is none, why."""
    try:
        import pynvml
    except ImportError as error:
        return None, f"nvidia-ml-py is not installed ({error}): pip install 'headrace[cuda]'"
    try:
        pynvml.nvmlInit()
        return GpuGauge(pynvml), ""
    except pynvml.NVMLError as error:
        return None, f"NVIDIA's management library: {error}"


class Gauges:
    """Reads all figures, at most once in `interval` seconds. For one thread.

    A driver whose GPU fails may keep its callers waiting for long: it is asked by a thread of its own, and those who
    ask here get the figures before meanwhile.

    Args:
        interval: seconds.
        cpu: `None`: CPUs and memory are not told.
        gpus: `None`: GPUs are not told.
        clock: seconds.
        patience: seconds that new figures are waited for.
    """

    def __init__(
        self,
        interval: float,
        cpu: CpuGauge | None,
        gpus: GpuGauge | None,
        clock: Callable[[], float] = time.monotonic,
        patience: float = 0.5,
    ) -> None:
        self._patience = patience
        self._reader: threading.Thread | None = None
        self._interval = interval
        self._cpu = cpu
        self._gpus = gpus
        self._clock = clock
        self._read_at = float("-inf")
        self._last = Machine()

    def read(self) -> Machine:
        """The figures; those of the last reading when the interval is not over."""
        now, reading = self._clock(), self._reader is not None and self._reader.is_alive()
        if now - self._read_at >= self._interval and not reading:
            self._read_at = now
            self._reader = threading.Thread(target=self._take, name="gauges", daemon=True)
            self._reader.start()
        if self._reader is not None:
            self._reader.join(self._patience)
        return self._last

    def _take(self) -> None:
        cpu = self._cpu.read() if self._cpu is not None else (None, None, None)
        self._last = Machine(*cpu, self._gpus.read() if self._gpus is not None else ())
