"""Which devices there are."""

from __future__ import annotations

from headrace.memory import cuda
from headrace.memory.device import Device
from headrace.memory.simulated import SimulatedDevice


def find_devices(simulated: int) -> tuple[list[Device], str]:
    """The GPUs, or so many simulated ones; with none, why."""
    if simulated:
        return [SimulatedDevice(index) for index in range(simulated)], ""
    return cuda.find_devices()
