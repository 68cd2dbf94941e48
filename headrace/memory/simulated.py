"""Devices that only take time: a link and a compute unit with given rates, on the machine's clock or on a virtual one.

They implement the interface of `device.py` for trying schedules on 1, 2, 4 and 8 GPUs where there is none
(`headrace serve --simulate-gpus 8`, `make simulate`). No byte is moved: what comes out is not to be looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.memory.device import Copy, DeviceError


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
    """What a simulated device can do; by default what was measured on one H200."""

    link_bytes_per_s: float = 53e9
    """To and from memory of the host or of another device, each; both directions run at once."""
    memory_bytes_per_s: float = 2e12
    """From the device's own memory to its own memory."""
    copy_overhead_ns: int = 4_000
    """For each batch of copies."""


_ADDRESSES = 1 << 56
"""Where the memory of simulated devices begins: no process has memory of its own there."""
_ADDRESSES_EACH = 1 << 48
_ALIGNMENT = 256


@dataclass(frozen=True)
class SimulatedGraph:
    """Does the work again with each launch: it takes as long."""

    work: Callable[[], None]

    def launch(self, stream: SimulatedStream) -> None:  # noqa: ARG002 - the work has its stream
        """Does it."""
        self.work()

    def close(self) -> None:
        """Nothing to give back."""


@dataclass
class SimulatedDevice:
    """A GPU that takes the time of its work and does not do it."""

    index: int
    rates: Rates = field(default_factory=Rates)
    clock: Callable[[], int] = time.monotonic_ns
    sleep_until: Callable[[int], None] = lambda at: time.sleep(max(0, at - time.monotonic_ns()) / 1e9)
    name: str = "simulated GPU"
    engine_name: str = ""
    lost_at: int | None = None
    """When it fails for good, ns."""
    _engines_free_at: dict[str, int] = field(default_factory=lambda: {"in": 0, "out": 0, "compute": 0})
    _reserved: int = 0
    """Bytes of addresses that were ever given out."""
    _blocks: dict[int, int] = field(default_factory=dict)
    """Sizes of what is allocated, by address."""
    _freed: dict[int, list[int]] = field(default_factory=dict)
    """Addresses that may be given out again, by size."""
    _open: int = 0

    def attach(self) -> None:
        """Nothing to do."""

    def stream(self) -> SimulatedStream:
        """A stream that is idle."""
        self._open += 1
        return SimulatedStream()

    def handle(self, stream: SimulatedStream) -> int:
        """No engine takes it."""
        return id(stream)

    def event(self) -> SimulatedEvent:
        """An event that has happened."""
        self._open += 1
        return SimulatedEvent()

    def close(self, *things: object) -> None:
        """Counts them."""
        self._open -= len(things)

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        """It happens when the stream is done, or now."""
        self._check()
        event.at = max(stream.free_at, self.clock())

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """The stream goes on after the event."""
        stream.free_at = max(stream.free_at, event.at)

    def synchronize(self, event: SimulatedEvent) -> None:
        """Sleeps."""
        self.sleep_until(event.at)
        self._check()

    def drain(self, stream: SimulatedStream) -> None:
        """Sleeps."""
        self.sleep_until(stream.free_at)

    def lost(self) -> str:
        """Whether its end has come."""
        return "it was lost" if self.lost_at is not None and self.clock() >= self.lost_at else ""

    def _check(self) -> None:
        if why := self.lost():
            raise DeviceError(f"GPU {self.index}: {why}")

    def elapsed_ns(self, start: SimulatedEvent, end: SimulatedEvent) -> int:
        """Their difference."""
        return end.at - start.at

    def copy(self, stream: SimulatedStream, copies: Sequence[Copy]) -> None:
        """Takes the engines of its directions, which serve one stream after another."""
        self._check()
        moved: dict[str, int] = {}
        for target, source, nbytes in copies:
            direction = ("within" if self.owns(source) else "in") if self.owns(target) else "out"
            moved[direction] = moved.get(direction, 0) + nbytes
        rates = self.rates
        within = moved.pop("within", 0)
        if within:  # no engine serves these one after another
            duration = rates.copy_overhead_ns + int(within / rates.memory_bytes_per_s * 1e9)
            stream.free_at = max(stream.free_at, self.clock()) + duration
        for direction, nbytes in moved.items():
            self._take(direction, stream, rates.copy_overhead_ns + int(nbytes / rates.link_bytes_per_s * 1e9))

    def compute(self, stream: SimulatedStream, duration_ns: int) -> None:
        """Takes the compute unit, which serves one stream after another."""
        self._check()
        self._take("compute", stream, duration_ns)

    def capture(self, stream: SimulatedStream, work: Callable[[], None]) -> SimulatedGraph:
        """The work, which is done once for what it says of itself; that takes no time."""
        free_at = stream.free_at
        work()
        stream.free_at = free_at
        return SimulatedGraph(work)

    def _take(self, engine: str, stream: SimulatedStream, duration_ns: int) -> None:
        start = max(stream.free_at, self._engines_free_at[engine], self.clock())
        stream.free_at = self._engines_free_at[engine] = start + duration_ns

    def allocate(self, nbytes: int) -> int:
        """An aligned address that is nobody else's."""
        freed = self._freed.get(nbytes)
        address = freed.pop() if freed else _ADDRESSES + self.index * _ADDRESSES_EACH + self._reserved
        end = address + nbytes - _ADDRESSES - self.index * _ADDRESSES_EACH
        self._reserved = max(self._reserved, end + -end % _ALIGNMENT)
        self._blocks[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """Its addresses are given out again. Raises `DeviceError` for what is not allocated."""
        nbytes = self._blocks.pop(address, None)
        if nbytes is None:
            raise DeviceError(f"GPU {self.index}: {address:#x} is not allocated")
        self._freed.setdefault(nbytes, []).append(address)

    def used(self) -> tuple[int, int]:
        """Bytes that are allocated, and streams and events that are open."""
        return sum(self._blocks.values()), self._open

    def owns(self, address: int) -> bool:
        """Whether the address is of this device."""
        start = _ADDRESSES + self.index * _ADDRESSES_EACH
        return start <= address < start + _ADDRESSES_EACH

    def lock(self, address: int, nbytes: int) -> None:
        """Host memory is always reached."""

    def unlock(self, address: int) -> None:
        """Nothing to undo."""

    def open_handle(self, handle: bytes, nbytes: int) -> int:  # noqa: ARG002 - any handle will do
        """Some memory of this device."""
        return self.allocate(nbytes)

    def close_handle(self, address: int) -> None:
        """As if it were allocated here."""
        self.free(address)
