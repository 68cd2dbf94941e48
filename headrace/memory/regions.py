"""System shared-memory regions by name."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.errors import HeadraceError
from headrace.core.wire import Wire, WireError


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

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def register(self, name: str, key: str, offset: int, byte_size: int, local: bool) -> None:
        """Maps `byte_size` bytes from `offset` on of the shared-memory object `key` as `name`.

        Raises:
            HeadraceError: ALREADY_EXISTS for a taken name, INVALID_ARGUMENT for a key or bounds that cannot
            be, INTERNAL when the
                object cannot be opened, UNSUPPORTED for a client that may not.
        """
        try:
            self._wire.register_region(name, key, offset, byte_size, local)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None

    def unregister(self, name: str, local: bool) -> None:
        """Forgets `name`, or all names when it is empty. Requests in flight keep their memory."""
        try:
            if name:
                self._wire.unregister_region(name, True, local)
            else:
                self._wire.unregister_all_regions(True, local)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None

    def status(self, name: str) -> list[RegionStatus]:
        """One region, or all of them when `name` is empty; NOT_FOUND for one that is not registered."""
        try:
            rows = self._wire.regions(name or None, True)
        except WireError as error:
            raise HeadraceError.from_wire(error) from None
        return [RegionStatus(*row[:5], unpinned=row[6]) for row in rows]
