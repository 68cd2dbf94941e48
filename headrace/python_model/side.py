"""What a model tells the server beside its answers: JSON lines for the log and for metrics of its own."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from .errors import TritonModelException


class Side:
    """The second socket. It is there until the server is gone."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()

    def receive(self) -> dict[str, Any] | None:
        """The server's next line; `None` when it is gone."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def send(self, **fields: Any) -> None:
        """Sends a line."""
        data = json.dumps(fields).encode() + b"\n"
        with self._lock:
            self._socket.sendall(data)


_side: Side | None = None


def open_side(descriptor: int) -> Side:
    """Opens the socket for `Logger` and `MetricFamily`, too."""
    global _side
    _side = Side(descriptor)
    return _side


def _send(**fields: Any) -> None:
    if _side is not None:
        _side.send(**fields)


class Logger:
    """Writes to the server's log."""

    INFO, WARNING, ERROR, VERBOSE = range(4)

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        """Logs at a level: `Logger.INFO`, `WARNING`, `ERROR` or `VERBOSE`."""
        _send(log=int(level), text=str(message))

    @staticmethod
    def log_info(message: str) -> None:
        """Logs an event."""
        Logger.log(message, Logger.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Logs a warning."""
        Logger.log(message, Logger.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Logs an error."""
        Logger.log(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Logs a detail."""
        Logger.log(message, Logger.VERBOSE)


class MetricFamily:
    """A family of metrics of the model's own."""

    COUNTER, GAUGE, HISTOGRAM = range(3)

    def __init__(self, name: str, description: str, kind: int) -> None:
        del description
        raise TritonModelException(
            f"metric family '{name}' of kind {kind}: metrics of a model's own are not served yet"
        )
