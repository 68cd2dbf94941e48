"""The interface of a device: what transfers and backends need of a GPU, and no more.

`cuda.py` implements it with CUDA, `simulated.py` with a clock. Nothing else asks which of them a device is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Copy = tuple[int, int, int]
"""Destination address, source address, bytes."""

PIECE = 1 << 30
"""Bytes of host memory that are page-locked by one call at most (`PIN_PIECE` in `src/shm.rs`)."""


class DeviceError(Exception):
    """A call of the device's driver failed; the text has the driver's name of the error."""


class Graph(Protocol):
    """Work that was captured from a stream, to be put on one by one call. The addresses that it uses are part of it."""

    def launch(self, stream: Any) -> None:
        """Puts it on the stream. Raises `DeviceError`."""

    def close(self) -> None:
        """Gives back what it holds; it is on no stream any more. Raises `DeviceError`."""


class Device(Protocol):
    """One GPU. Streams and events are values that only the device reads; addresses are unified over all devices."""

    index: int
    name: str
    engine_name: str
    """What engines call devices of this kind when they are given addresses on them; empty: none can compute there."""

    def attach(self) -> None:
        """Makes the device the current one of the calling thread."""

    def stream(self) -> Any:
        """A new stream: what is put on it runs in order, and beside other streams."""

    def handle(self, stream: Any) -> int:
        """The stream as engines take it."""

    def event(self) -> Any:
        """A new event, which takes a time."""

    def record(self, event: Any, stream: Any) -> None:
        """The event happens when what is on the stream now is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is put on the stream from now on waits for the event."""

    def synchronize(self, event: Any) -> None:
        """Returns when the event has happened; other Python threads run meanwhile. Raises `DeviceError`."""

    def drain(self, stream: Any) -> None:
        """Returns when everything that is on the stream now is done. Raises `DeviceError`."""

    def lost(self) -> str:
        """Why the device can do nothing any more (a kernel reached beyond its memory, say); empty while it works."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Time between two events that have happened."""

    def copy(self, stream: Any, copies: Sequence[Copy]) -> None:
        """Puts copies on the stream; they may run in any order among themselves."""

    def capture(self, stream: Any, work: Callable[[], None]) -> Graph:
        """A graph of what `work` puts on the stream; nothing of it runs. Raises `DeviceError` if there can be none."""

    def lock(self, address: int, nbytes: int) -> None:
        """Page-locks host memory for all devices. Raises `DeviceError`."""

    def unlock(self, address: int) -> None:
        """Undoes `lock` of this very address."""

    def allocate(self, nbytes: int) -> int:
        """Address of new memory of the device, at least 256-byte aligned and all zeros: no engine warms up on what lay
        there before. Raises `DeviceError`.
        """

    def free(self, address: int) -> None:
        """Undoes `allocate`; nothing uses the memory any more. Raises `DeviceError`."""

    def close(self, *things: Any) -> None:
        """Gives streams and events back; nothing is on them any more. Raises `DeviceError`."""

    def open_handle(self, handle: bytes, nbytes: int) -> int:
        """Address of the memory that another process shared by this handle.

        Raises:
            DeviceError: when it cannot be opened, or is smaller than `nbytes`.
        """

    def close_handle(self, address: int) -> None:
        """Undoes `open_handle`."""
