"""Page-locked memory: clients' regions, locked once when they register, and staging buffers.

What cannot be locked is told, counted and logged once, and served through staging.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from headrace.core.wire import Buffer, Wire
from headrace.memory.device import PIECE, Device, DeviceError
from headrace.observe.logs import Log


def pieces(address: int, nbytes: int) -> list[tuple[int, int]]:
    """The ranges that are locked by one call each; a DMA must not cross from one to the next."""
    return [(address + at, min(PIECE, nbytes - at)) for at in range(0, nbytes, PIECE)]


class Pinning:
    """Locks and unlocks host memory through one device, for all of them."""

    def __init__(self, devices: Sequence[Device], log: Log) -> None:
        self._device = devices[0] if devices else None
        self._log = log
        self._told: set[str] = set()
        self.quiet = threading.Lock()
        """Held while a graph is captured, and while memory is locked or handles are opened: they disturb each other."""

    def lock_region(self, wire: Wire, name: str, address: int, nbytes: int) -> None:
        """Locks the mapping behind a region that was just registered, and tells the wire how it went."""
        if self._device is None:
            return
        try:
            with self.quiet:
                self._lock(self._device, address, nbytes)
        except DeviceError as error:
            self.tell_once(f"regions are not page-locked and go through staging, '{name}' is the first: {error}")
            wire.set_pinned(name, str(error))
        else:
            self._log.detail(f"region '{name}' of {nbytes} bytes is page-locked")
            wire.set_pinned(name, None)

    def _lock(self, device: Device, address: int, nbytes: int) -> None:
        done: list[int] = []
        try:
            for start, length in pieces(address, nbytes):
                device.lock(start, length)
                done.append(start)
        except DeviceError:
            for start in done:
                device.unlock(start)
            raise

    def staging(self, nbytes: int) -> Buffer:
        """A page-locked buffer; a plain one where locking fails, which copies slower and as well."""
        buffer = Buffer.reuse_pinned(nbytes)
        if buffer is not None:
            return buffer
        buffer = Buffer(nbytes)
        if self._device is not None:
            try:
                with self.quiet:
                    self._device.lock(buffer.address, buffer.capacity)
            except DeviceError as error:
                self.tell_once(f"staging memory is not page-locked: {error}")
            else:
                buffer.mark_pinned()
        return buffer

    def release_retired(self, devices: Sequence[Device]) -> None:
        """Lets go of memory that no name and no request holds any more."""
        for device, address, nbytes in Wire.retired():
            try:
                with self.quiet:
                    if device is not None:
                        devices[device].close_handle(address)
                    elif self._device is not None:
                        for start, _ in pieces(address, nbytes):
                            self._device.unlock(start)
            except DeviceError as error:
                self.tell_once(f"memory could not be let go of: {error}")
            Wire.bury(address)

    def tell_once(self, text: str) -> None:
        """Logs a fall-back of a device, each text once."""
        if text not in self._told:
            self._told.add(text)
            self._log.event(text)
