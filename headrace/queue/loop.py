"""The thread of one instance: wait for what the policy asked for, take what it decided, have it served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from headrace.core.errors import Kind
from headrace.core.tensor import HOST
from headrace.core.wire import Batch, Intake
from headrace.placement.affinity import visible
from headrace.queue.policy import IDLE, BatchPolicy, Lane, Take, Wait, decide


class InstanceLoop:
    """Runs until its intake is closed, and then calls `finish`. `serve` settles the batch it gets, or raises."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        policy: BatchPolicy,
        serve: Callable[[Batch], None],
        on_failure: Callable[[str, BaseException], None],
        on_end: Callable[[str, BaseException], None],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_end = on_end
        self._finish = finish
        self._device = HOST
        self._intake = intake
        self._policy = policy
        self._serve = serve
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run_or_close, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def is_running(self) -> bool:
        """False when the thread has ended."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Ends what was made for a loop that is never started."""
        self._finish()

    def join(self, timeout: float) -> bool:
        """Waits for the end of the thread; false when it still runs after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run_or_close(self) -> None:
        """A fault of ours in the loop must not leave requests waiting for nobody, in a server that says it is ready."""
        try:
            self._run()
            self._finish()
        except BaseException as error:  # noqa: BLE001 - see above
            self._intake.close()
            self._on_end(self._thread.name, error)

    def _run(self) -> None:
        intake, policy = self._intake, self._policy
        wait: Wait = IDLE
        while (pending := self._wait(wait, None)) is not None:
            now, draining, _, lanes = pending
            decision = decide(lanes, policy, now, draining)
            if isinstance(decision, Take):
                wait = IDLE
                batch = intake.take(decision.lane, decision.count, decision.reason)
                if batch is not None:
                    self._serve_or_fail(batch)
            else:
                wait = decision

    def _wait(self, wait: Wait, nudges: int | None) -> tuple[int, bool, int, list[Lane]] | None:
        return self._intake.wait(list(wait.thresholds), wait.until, self._device, nudges, self._policy.max_rows)

    def _serve_or_fail(self, batch: Batch) -> None:
        """The boundary to engines: whatever one raises costs its own batch and nothing else."""
        try:
            self._serve(batch)
        except BaseException as error:  # noqa: BLE001 - a panic of the extension is no Exception
            batch.fail(Kind.INTERNAL, f"instance '{self._thread.name}' failed: {error}")
            self._on_failure(self._thread.name, error)


class Pipeline(Protocol):
    """What feeds on batches: a pipeline of slots, from `transfer`."""

    def free_slot(self) -> Any:
        """Waits for a slot."""

    def booked(self) -> int:
        """Batches whose computation has not ended."""

    def book(self) -> None:
        """Announces a batch, before it is taken."""

    def unbook(self) -> None:
        """There was no such batch."""

    def start(self, slot: Any, batch: Batch) -> None:
        """Puts a batch that was booked on the device; never raises."""

    def lost(self) -> str:
        """Why the device cannot serve any more; empty while it can."""

    def close(self) -> None:
        """Ends when all batches are settled."""

    def join(self, timeout: float) -> bool:
        """Waits for that end; false when it has not come after `timeout` seconds."""


class FeedLoop(InstanceLoop):
    """The thread that feeds a device instance: its batches are computed while it takes the next.

    A second slot is a prefetch and not a free instance: see `decide`. When its device is lost the loop ends, so that
    what waits goes to others; `on_lost` is its last act.
    """

    def __init__(
        self,
        name: str,
        device: int,
        intake: Intake,
        policy: BatchPolicy,
        pipeline: Pipeline,
        on_lost: Callable[[str, str], None],
        on_end: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__(name, intake, policy, lambda _: None, lambda *_: None, on_end)
        self._device = device
        self._pipeline = pipeline
        self._on_lost = on_lost

    def abandon(self) -> None:
        """Ends what was made for a loop that is never started."""
        self._pipeline.close()

    def join(self, timeout: float) -> bool:
        """Waits for the end of the thread and of the pipeline."""
        return super().join(timeout) and self._pipeline.join(timeout)

    def _run(self) -> None:
        self._feed()
        self._pipeline.close()
        self._intake.ring()  # whoever was not woken because this thread was
        if why := self._pipeline.lost():
            self._on_lost(self._thread.name, why)

    def _feed(self) -> None:
        intake, policy, pipeline = self._intake, self._policy, self._pipeline
        slot = pipeline.free_slot()
        wait, nudges = IDLE, None
        while (pending := self._wait(wait, nudges)) is not None:
            if pipeline.lost():
                return
            now, draining, nudges, lanes = pending
            own, foreign, steal_at = visible(lanes, self._device, now, draining, policy.max_rows)
            decision = decide(own, policy, now, draining, pipeline.booked())
            if isinstance(decision, Take):
                wait, nudges = IDLE, None
                pipeline.book()
                batch = intake.take(decision.lane, decision.count, decision.reason)
                if batch is None:
                    pipeline.unbook()
                else:
                    pipeline.start(slot, batch)
                    slot = pipeline.free_slot()
            else:
                wait = _beside(decision, foreign, steal_at)


def _beside(wait: Wait, foreign: list[tuple[int, int]], steal_at: int | None) -> Wait:
    """The wait of an instance that must leave some lanes to other devices until `steal_at`."""
    times = [time for time in (wait.until, steal_at) if time is not None]
    return Wait((*wait.thresholds, *foreign), min(times, default=None))
