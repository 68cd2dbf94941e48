"""Figures of the machine, from files of the kernel's form and from a driver that has not all answers."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.observe.machine import CpuGauge, Gauges, Gpu, GpuGauge

GUEST = "0 0"


def kernel_tells(proc: Path, user: int, idle: int, available: int = 300) -> None:
    (proc / "stat").write_text(f"cpu  {user} 0 10 {idle} 5 0 0 0 {GUEST}\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 7\n")
    (proc / "meminfo").write_text(
        f"MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable: {available} kB\nHugePages_Total: 0\n"
    )


def test_utilization_is_of_the_time_between_two_readings(tmp_path: Path) -> None:
    kernel_tells(tmp_path, user=100, idle=100)
    gauge = CpuGauge(tmp_path)
    assert gauge.read() == (0.0, 1000 << 10, 700 << 10)
    kernel_tells(tmp_path, user=130, idle=190, available=1000)
    assert gauge.read() == (0.25, 1000 << 10, 0)
    kernel_tells(tmp_path, user=130, idle=180)  # idle ticks may go back
    assert 0 <= (gauge.read()[0] or 0) <= 1


class Driver:
    """Two GPUs; the second one tells no energy and no power."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.energy = 5000

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, gpu: int) -> str | bytes:  # noqa: N802
        return [b"GPU-0", "GPU-1"][gpu]

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=1000, used=100 + gpu)

    def nvmlDeviceGetUtilizationRates(self, gpu: int) -> SimpleNamespace:  # noqa: ARG002, N802
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError("not supported")
        return 70_500

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:  # noqa: ARG002, N802
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: int) -> int:  # noqa: N802
        if gpu == 1:
            raise self.NVMLError("not supported")
        return self.energy


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    driver = Driver()
    gauge = GpuGauge(driver)
    driver.energy = 8500
    first, second = gauge.read()
    assert (first.uuid, first.utilization, first.memory_total, first.memory_used) == ("GPU-0", 0.37, 1000, 100)
    assert (first.power, first.power_limit, first.energy) == (70.5, 700, 3.5)
    assert (second.uuid, second.memory_used, second.power, second.energy) == ("GPU-1", 101, None, None)


def test_figures_are_not_taken_again_within_the_interval(tmp_path: Path) -> None:
    kernel_tells(tmp_path, user=0, idle=100)
    now = [0.0]
    gauges = Gauges(2.0, CpuGauge(tmp_path), None, lambda: now[0])
    first = gauges.read()
    kernel_tells(tmp_path, user=50, idle=150)
    now[0] = 1.9
    assert gauges.read() is first
    now[0] = 2.0
    assert gauges.read().cpu_utilization == pytest.approx(0.5)


def test_a_driver_that_hangs_keeps_nobody_waiting(tmp_path: Path) -> None:
    hangs = threading.Event()
    hangs.set()

    class Slow(GpuGauge):
        def read(self) -> list[Gpu]:
            hangs.wait()
            return super().read()

    kernel_tells(tmp_path, user=0, idle=100)
    now = [0.0]
    gauges = Gauges(2.0, CpuGauge(tmp_path), Slow(Driver()), lambda: now[0], patience=0.01)
    while not gauges.read().gpus:
        pass
    hangs.clear()
    now[0] = 10.0
    before = gauges.read()
    now[0] = 20.0
    assert gauges.read() is before
    hangs.set()
    while gauges.read() is before:
        pass
    assert len(gauges.read().gpus) == 2


def test_what_is_not_wanted_is_not_told() -> None:
    machine = Gauges(2.0, None, None).read()
    assert (machine.cpu_utilization, machine.memory_total, list(machine.gpus)) == (None, None, [])
