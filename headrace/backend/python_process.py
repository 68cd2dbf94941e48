"""A process of a Python model: its two sockets, its start and its end."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.core.wire import Process
from headrace.observe.logs import Log

_CHILD = Path(__file__).parent.parent / "python_model"
_VERBOSE, _ERROR = 3, 2


class ProcessError(Exception):
    """A process did not come up, or cannot be used any more; the text says what it did."""


class ProcessDownError(ProcessError):
    """There is none just now: it did not come up again so far."""


class ModelProcess:
    """A running process. `wire` executes batches."""

    def __init__(self, interpreter: str, environment: Mapping[str, str], patience: float, log: Log, who: str) -> None:
        self.wire = Process(patience)
        self._log = log
        self._who = who
        self._side, theirs = socket.socketpair()
        descriptors = (self.wire.descriptor, theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [interpreter, str(_CHILD), *map(str, descriptors)],
                env=environment,
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )
        self.wire.started()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name=f"{who} side", daemon=True).start()

    def ask(self, order: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What the process answers to its order.

        Raises:
            ProcessError: with what the model said, or how the process ended.
        """
        try:
            self._side.sendall(json.dumps(order).encode() + b"\n")
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise ProcessError(f"did not start within {seconds:g} s") from None
        except OSError:
            answer = None
        if answer is None:
            raise ProcessError(self.end("ended"))
        if "failed" in answer:
            raise ProcessError(str(answer["failed"]))
        return answer

    def end(self, what: str) -> str:
        """Kills the process if it is still there; `what` it did, and how it ended."""
        self.wire.close()
        if what == "ended":  # by itself
            try:
                self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                what = "closed its connection"
        self._process.kill()
        status = self._process.wait()
        self._side.close()
        if what != "ended":
            return f"{what} and was killed"
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def finish(self, seconds: float) -> None:
        """Lets the model finish within `seconds`, then kills the process."""
        self.wire.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._side.close()

    def _listen(self) -> None:
        """Passes on what the process says beside its answers."""
        try:
            with self._side.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._hear(line)
        except (OSError, ValueError):  # closed
            pass
        self._answers.put(None)

    def _hear(self, line: str) -> None:
        try:
            said = json.loads(line)
            level = said.get("log")
        except (ValueError, AttributeError):
            self._log.error(f"{self._who} said what is no JSON object: {line[:200]!r}")
            return
        if level is None:
            self._answers.put(said)
        elif level == _ERROR:
            self._log.error(f"{self._who}: {said.get('text', '')}")
        elif level == _VERBOSE:
            self._log.detail(f"{self._who}: {said.get('text', '')}")
        else:
            self._log.event(f"{self._who}: {said.get('text', '')}")
