"""The log: one line for each event, on stderr, in Triton's line format so that collectors read it."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from typing import TextIO


class Log:
    """Writes events, errors and, when verbose, details. Safe from any thread."""

    def __init__(self, verbose: int = 0, stream: TextIO | None = None) -> None:
        self._verbose = verbose
        self._stream = stream if stream is not None else sys.stderr
        self._lock = threading.Lock()

    def event(self, text: str) -> None:
        """Something a person who runs the server wants to know."""
        self._write("I", text)

    def error(self, text: str) -> None:
        """Something is wrong."""
        self._write("E", text)

    def detail(self, text: str) -> None:
        """Written with `--log-verbose 1` and more."""
        if self._verbose:
            self._write("V", text)

    def _write(self, level: str, text: str) -> None:
        stamp = datetime.now(UTC).strftime("%m%d %H:%M:%S.%f")
        # A line break within would make a second line that looks like an event of its own.
        line = f"{level}{stamp} headrace] {' '.join(text.splitlines())}\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()
