"""The thread that pulls control calls from the wire and answers them, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.control.grpc import answer_rpc
from headrace.control.http import answer_http
from headrace.control.verbs import Verbs
from headrace.core.errors import HeadraceError, Kind
from headrace.core.wire import Call, Wire
from headrace.observe.logs import Log

_PATIENCE_S = 1.0
"""The wire calls the loop stuck when it has not pulled for 5 s, so it must pull when there is nothing to do,
too.
"""


class ControlLoop:
    """Answers calls until `stop`; `tidy` is called now and then, for what has no call of its own."""

    def __init__(self, wire: Wire, verbs: Verbs, log: Log, tidy: Callable[[], None]) -> None:
        self._wire = wire
        self._verbs = verbs
        self._log = log
        self._tidy = tidy
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; the wire is closed by then, or one patience later."""
        self._stopped.set()
        self._thread.join(2 * _PATIENCE_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            call = self._wire.pull(_PATIENCE_S)
            if call is not None:
                self._answer(call)
            self._tidy()

    def _answer(self, call: Call) -> None:
        self._log.detail(f"{call.door}: {call.verb} {call.model} {call.version} {call.region}".rstrip())
        try:
            call.answer(self._body(call))
        except HeadraceError as error:
            call.fail(error.kind, error.message)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs this call and not the loop
            self._log.error(f"{call.verb} failed: {error!r}")
            call.fail(Kind.INTERNAL, f"{call.verb} failed: {error!r}")

    def _body(self, call: Call) -> bytes:
        if call.door == "metrics":
            return self._verbs.metrics()
        if call.door == "grpc":
            return answer_rpc(self._verbs, call.verb, call.payload, call.local)
        return answer_http(self._verbs, call)
