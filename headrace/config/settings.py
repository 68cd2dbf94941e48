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


def read_switch(text: str) -> bool:
    """`ON_OFF`."""
    if text.lower() not in _SWITCHES:
        raise ValueError(text)
    return _SWITCHES[text.lower()]


def read_entry(text: str) -> str:
    """`ON_OFF`, as ONNX Runtime wants it."""
    return "1" if read_switch(text) else "0"
