"""Rows of tables of settings: what a key expects, and the readers of common values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SWITCHES = {"1": True, "true": True, "0": False, "false": False}
ON_OFF = "1, true, 0 or false"


@dataclass(frozen=True)
class Setting:
    """One key of a table."""

    key: str
    expects: str
    read: Callable[[str], Any]
    """The value, or `ValueError` or `KeyError`."""
    default: str
    """For people."""
    text: str

    def accepts(self, value: str) -> bool:
        """Whether it can be read."""
        try:
            self.read(value)
        except (ValueError, KeyError):
            return False
        return True


def read_sizes(text: str, largest: int) -> list[int]:
    """Batch sizes from 1 to `largest` ("1,8,32"), ascending and with the largest; or `ValueError`, saying why."""
    sizes = [int(size) for size in text.split(",") if size.strip().isdecimal()]
    if len(sizes) != text.count(",") + 1 or not all(0 < size <= max(1, largest) for size in sizes):
        raise ValueError(f"expected sizes from 1 to max_batch_size {largest}, such as '1,{largest}', got '{text}'")
    return sorted({*sizes, max(1, largest)})


def read_switch(text: str) -> bool:
    """`ON_OFF`."""
    if text.lower() not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text.lower()]


def read_entry(text: str) -> str:
    """`ON_OFF`, as ONNX Runtime wants it."""
    return "1" if read_switch(text) else "0"
