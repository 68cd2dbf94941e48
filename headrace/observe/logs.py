"""The log: one line for each event, on stderr or in a file, in Triton's line formats so that collectors read it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO


class Level(StrEnum):
    """What a line is, by the letter that it begins with."""

    EVENT = "I"
    ERROR = "E"
    DETAIL = "V"


USUAL = (Level.EVENT, Level.ERROR)


class Log:
    """Writes events, errors and details, those that are wanted. Safe from any thread.

    Args:
        levels: what is wanted.
        stream: where to; stderr by default.
        iso: stamps lines as `YYYY-MM-DDThh:mm:ssZ L`, not as `LMMDD hh:mm:ss.ssssss`.
    """

    def __init__(self, levels: Collection[Level] = USUAL, stream: TextIO | None = None, *, iso: bool = False) -> None:
        self._levels = frozenset(levels)
        self._stream = stream if stream is not None else sys.stderr
        self._iso = iso
        self._lock = threading.Lock()

    def event(self, text: str) -> None:
        """Something a person who runs the server wants to know."""
        self._write(Level.EVENT, text)

    def error(self, text: str) -> None:
        """Something is wrong."""
        self._write(Level.ERROR, text)

    def detail(self, text: str) -> None:
        """Written with `--log-verbose 1` and more."""
        self._write(Level.DETAIL, text)

    def _write(self, level: Level, text: str) -> None:
        if level not in self._levels:
            return
        now = datetime.now(UTC)
        stamp = f"{now:%Y-%m-%dT%H:%M:%SZ} {level}" if self._iso else f"{level}{now:%m%d %H:%M:%S.%f}"
        # A line break within would make a second line that looks like an event of its own.
        line = f"{stamp} headrace] {' '.join(text.splitlines())}\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()
