"""The thread of one instance: wait for what the policy asked for, take what it decided, have it served."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.core.errors import Kind
from headrace.core.wire import Batch, Intake
from headrace.queue.policy import IDLE, BatchPolicy, Take, Wait, decide


class InstanceLoop:
    """Runs until its intake is closed. `serve` settles the batch it gets, or raises."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        policy: BatchPolicy,
        serve: Callable[[Batch], None],
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._intake = intake
        self._policy = policy
        self._serve = serve
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run_or_close, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Waits for the end of the thread; false when it still runs after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run_or_close(self) -> None:
        """A fault of ours in the loop must not leave requests waiting for nobody."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - see above
            self._on_failure(self._thread.name, error)
            self._intake.close()

    def _run(self) -> None:
        intake, policy = self._intake, self._policy
        wait: Wait = IDLE
        while (pending := intake.wait(list(wait.thresholds), wait.until, None, policy.max_rows)) is not None:
            now, draining, _, lanes = pending
            decision = decide(lanes, policy, now, draining)
            if isinstance(decision, Take):
                wait = IDLE
                batch = intake.take(decision.lane, decision.count, decision.reason)
                if batch is not None:
                    self._serve_or_fail(batch)
            else:
                wait = decision

    def _serve_or_fail(self, batch: Batch) -> None:
        """The boundary to engines: whatever one raises costs its own batch and nothing else."""
        try:
            self._serve(batch)
        except Exception as error:  # noqa: BLE001 - see above
            batch.fail(Kind.INTERNAL, f"instance '{self._thread.name}' failed: {error}")
            self._on_failure(self._thread.name, error)
