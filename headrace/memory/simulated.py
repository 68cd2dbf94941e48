"""Devices that only take time: a link and a compute unit with given rates, on the machine's clock or on a virtual one.

They implement the interface of `device.py` for trying schedules on 1, 2, 4 and 8 GPUs where there is none
(`headrace serve --simulate-gpus 8`, `make simulate`). No byte is moved: what comes out is not to be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.memory.device import Copy


@dataclass
class SimulatedStream:
    """When what is on it will be done, ns."""

    free_at: int = 0


@dataclass
class SimulatedEvent:
    """When it happens, ns; it is only known once it is recorded."""

    at: int = 0


@dataclass(frozen=True)
class Rates:
    """What a simulated device can do."""

    link_bytes_per_s: float = 53e9
    """Of each direction; both run at once."""
    copy_overhead_ns: int = 4_000
    """For each batch of copies."""


@dataclass
class SimulatedDevice:
    """A GPU that takes the time of its work and does not do it."""

    index: int
    rates: Rates = field(default_factory=Rates)
    clock: Callable[[], int] = time.monotonic_ns
    sleep_until: Callable[[int], None] = lambda at: time.sleep(max(0, at - time.monotonic_ns()) / 1e9)
    name: str = "simulated GPU"
    _links: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0})
    _compute_free_at: int = 0
    _next_address: int = 1 << 40

    def attach(self) -> None:
        """Nothing to do."""

    def stream(self) -> SimulatedStream:
        """A stream that is idle."""
        return SimulatedStream()

    def handle(self, stream: SimulatedStream) -> int:
        """No engine takes it."""
        return id(stream)

    def event(self) -> SimulatedEvent:
        """An event that has happened."""
        return SimulatedEvent()

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        """It happens when the stream is done, or now."""
        event.at = max(stream.free_at, self.clock())

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """The stream goes on after the event."""
        stream.free_at = max(stream.free_at, event.at)

    def synchronize(self, event: SimulatedEvent) -> None:
        """Sleeps."""
        self.sleep_until(event.at)

    def elapsed_ns(self, start: SimulatedEvent, end: SimulatedEvent) -> int:
        """Their difference."""
        return end.at - start.at

    def copy(self, stream: SimulatedStream, copies: Sequence[Copy]) -> None:
        """Takes the link of its direction, which serves one stream after another."""
        if not copies:
            return
        direction = "in" if self.owns(copies[0][0]) else "out"
        nbytes = sum(nbytes for _, _, nbytes in copies)
        start = max(stream.free_at, self._links[direction], self.clock())
        end = start + self.rates.copy_overhead_ns + int(nbytes / self.rates.link_bytes_per_s * 1e9)
        stream.free_at = self._links[direction] = end

    def compute(self, stream: SimulatedStream, duration_ns: int) -> None:
        """Takes the compute unit, which serves one stream after another."""
        start = max(stream.free_at, self._compute_free_at, self.clock())
        stream.free_at = self._compute_free_at = start + duration_ns

    def allocate(self, nbytes: int) -> int:
        """An address that is nobody else's."""
        address = self._next_address + (self.index << 44)
        self._next_address += nbytes
        return address

    def owns(self, address: int) -> bool:
        """Whether the address is of this device."""
        return (1 << 40) + (self.index << 44) <= address < (1 << 40) + ((self.index + 1) << 44)

    def lock(self, address: int, nbytes: int) -> None:
        """Host memory is always reached."""

    def unlock(self, address: int) -> None:
        """Nothing to undo."""

    def open_handle(self, handle: bytes, nbytes: int) -> int:  # noqa: ARG002 - any handle will do
        """Some memory of this device."""
        return self.allocate(nbytes)

    def close_handle(self, address: int) -> None:
        """Nothing to undo."""
