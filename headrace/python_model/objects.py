"""Memory that the wire and this process share: clients' regions, and blocks for tensors of messages."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from typing import Any


class Objects:
    """By their numbers. Memory stays mapped while a view on it lives, whatever the wire retires."""

    def __init__(self) -> None:
        self._mapped: dict[int, mmap.mmap | str] = {}
        self._lingering: list[mmap.mmap] = []

    def update(self, new: Iterable[tuple[int, int, int]], retired: Iterable[int]) -> None:
        """Maps what is new, from number, bytes and descriptor, and lets go of what is retired."""
        for number, nbytes, descriptor in new:
            self._mapped[number] = _map(descriptor, nbytes)
        for number in retired:
            gone = self._mapped.pop(number, None)
            if isinstance(gone, mmap.mmap):
                self._lingering.append(gone)
        if self._lingering:
            self._lingering = [mapped for mapped in self._lingering if not _closed(mapped)]

    def memory(self, number: int) -> Any:
        """The memory with this number.

        Raises:
            OSError: when it could not be mapped, for example because the client truncated it meanwhile.
        """
        mapped = self._mapped[number]
        if isinstance(mapped, str):
            raise OSError(mapped)
        return mapped

    def size(self, number: int) -> int:
        """Bytes of the memory with this number."""
        mapped = self._mapped[number]
        return 0 if isinstance(mapped, str) else len(mapped)


def _map(descriptor: int, nbytes: int) -> mmap.mmap | str:
    try:
        return mmap.mmap(descriptor, nbytes)
    except (OSError, ValueError) as error:
        return f"shared memory cannot be mapped: {error}"
    finally:
        os.close(descriptor)


def _closed(mapped: mmap.mmap) -> bool:
    try:
        mapped.close()
    except BufferError:  # a view on it lives
        return False
    return True
