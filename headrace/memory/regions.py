"""Shared-memory regions by name: of the host, and of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.errors import HeadraceError, Kind
from headrace.core.wire import Wire, WireError
from headrace.memory.device import Device, DeviceError
from headrace.memory.pinning import Pinning


@dataclass(frozen=True)
class RegionStatus:
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int
    leases: int
    """Requests that hold a part of its memory now."""
    unpinned: str
    """Why it is not page-locked; empty when it is."""


class SystemRegions:
    """Registers and forgets regions for a client; `local` says that it is on this host."""

    def __init__(self, wire: Wire, pinning: Pinning) -> None:
        self._wire = wire
        self._pinning = pinning

    def register(self, name: str, key: str, offset: int, byte_size: int, local: bool) -> None:
        """Maps `byte_size` bytes from `offset` on of the shared-memory object `key` as `name`.

        Raises:
            HeadraceError: ALREADY_EXISTS for a taken name, INVALID_ARGUMENT for a key or bounds that cannot
            be, INTERNAL when the
                object cannot be opened, UNSUPPORTED for a client that may not.
        """
        try:
            start, length, to_be_pinned = self._wire.register_region(name, key, offset, byte_size, local)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None
        if to_be_pinned:
            self._pinning.lock_region(self._wire, name, start, length)

    def unregister(self, name: str, local: bool) -> None:
        """Forgets `name`, or all names when it is empty. Requests in flight keep their memory."""
        _forget(self._wire, name, local, host=True)

    def status(self, name: str) -> list[RegionStatus]:
        """One region, or all of them when `name` is empty; NOT_FOUND for one that is not registered."""
        try:
            rows = self._wire.regions(name or None, True)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None
        return [RegionStatus(*row[:5], unpinned=row[6]) for row in rows]


@dataclass(frozen=True)
class DeviceRegionStatus:
    """A registered region in the memory of a device."""

    name: str
    device: int
    byte_size: int
    leases: int


HANDLE_BYTES = 64
"""Of a `cudaIpcMemHandle_t`."""


class DeviceRegions:
    """Registers and forgets regions of device memory that another process shares by a CUDA IPC handle."""

    def __init__(self, wire: Wire, devices: Sequence[Device], pinning: Pinning) -> None:
        self._wire = wire
        self._devices = devices
        self._pinning = pinning

    def register(self, name: str, handle: bytes, device: int, byte_size: int, local: bool) -> None:
        """Opens the handle and registers `byte_size` bytes of the memory behind it as `name`.

        Raises:
            HeadraceError: INVALID_ARGUMENT for a handle that cannot be, ALREADY_EXISTS for a taken name, UNSUPPORTED
                for a client that may not, or a server without GPUs.
        """
        try:
            self._wire.check_client(local)
            address = self._open(name, handle, device, byte_size)
            self._wire.register_device_region(name, device, address, byte_size)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None

    def _open(self, name: str, handle: bytes, device: int, byte_size: int) -> int:
        where = f"failed to register shared memory region '{name}': invalid args"
        if not self._devices:
            raise HeadraceError(Kind.UNSUPPORTED, f"CUDA shared memory region '{name}': this server has no GPU")
        if len(handle) != HANDLE_BYTES:
            raise HeadraceError(Kind.INVALID_ARGUMENT, f"{where}: a handle has {HANDLE_BYTES} bytes, got {len(handle)}")
        if not 0 <= device < len(self._devices):
            raise HeadraceError(
                Kind.INVALID_ARGUMENT, f"{where}: device {device} is not one of {len(self._devices)} GPUs"
            )
        if byte_size < 1:
            raise HeadraceError(Kind.INVALID_ARGUMENT, f"{where}: byte size is {byte_size}")
        try:
            with self._pinning.quiet:
                return self._devices[device].open_handle(handle, byte_size)
        except DeviceError as error:
            raise HeadraceError(
                Kind.INVALID_ARGUMENT,
                f"{where}: {error}; the handle must be of memory that another live process allocated by cudaMalloc",
            ) from error

    def unregister(self, name: str, local: bool) -> None:
        """Forgets `name`, or all names when it is empty. Requests in flight keep their memory."""
        _forget(self._wire, name, local, host=False)

    def status(self, name: str) -> list[DeviceRegionStatus]:
        """One region, or all of them when `name` is empty; NOT_FOUND for one that is not registered."""
        try:
            rows = self._wire.regions(name or None, False)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None
        return [DeviceRegionStatus(row[0], row[5] or 0, row[3], row[4]) for row in rows]


def _forget(wire: Wire, name: str, local: bool, host: bool) -> None:
    try:
        if name:
            wire.unregister_region(name, host, local)
        else:
            wire.unregister_all_regions(host, local)
    except WireError as error:
        raise HeadraceError.from_wire(error) from None
