"""Which devices there are."""

from __future__ import annotations

from headrace.memory import cuda
from headrace.memory.device import Device
from headrace.memory.simulated import Rates, SimulatedDevice


def find_devices(simulated: int, link_gb: float) -> tuple[list[Device], str]:
    """The GPUs, or so many simulated ones whose links carry so many GB/s; with none, why."""
    if simulated:
        rates = Rates(link_bytes_per_s=link_gb * 1e9)
        return [SimulatedDevice(index, rates) for index in range(simulated)], ""
    return cuda.find_devices()
