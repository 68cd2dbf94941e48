"""The thread of one instance: wait for what the policy asked for, take what it decided, have it served."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from headrace.core.errors import Kind
from headrace.core.wire import Batch, Intake
from headrace.placement.affinity import visible
from headrace.queue.policy import IDLE, BatchPolicy, Take, Wait, decide


class InstanceLoop:
    """Runs until its intake is closed. `serve` settles the batch it gets, or raises."""

    def __init__(
        self,
        name: str,
        intake: Intake,
        policy: BatchPolicy,
        serve: Callable[[Batch], None],
        on_failure: Callable[[str, BaseException], None],
        on_end: Callable[[str, BaseException], None],
    ) -> None:
        self._on_end = on_end
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
        """A fault of ours in the loop must not leave requests waiting for nobody, in a server that says it is ready."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - see above
            self._intake.close()
            self._on_end(self._thread.name, error)

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

    def close(self) -> None:
        """Ends when all batches are settled."""


class FeedLoop(InstanceLoop):
    """The thread that feeds a device instance: its batches are computed while it takes the next.

    A second slot is a prefetch and not a free instance: see `decide`.
    """

    def __init__(
        self,
        name: str,
        device: int,
        intake: Intake,
        policy: BatchPolicy,
        pipeline: Pipeline,
        on_failure: Callable[[str, BaseException], None],
        on_end: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__(name, intake, policy, lambda _: None, on_failure, on_end)
        self._device = device
        self._pipeline = pipeline

    def _run(self) -> None:
        intake, policy, pipeline = self._intake, self._policy, self._pipeline
        slot = pipeline.free_slot()
        wait, nudges = IDLE, None
        while (pending := intake.wait(list(wait.thresholds), wait.until, nudges, policy.max_rows)) is not None:
            now, draining, nudges, lanes = pending
            own, foreign, steal_at = visible(lanes, self._device, now, draining)
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
        pipeline.close()


_NEVER = 1 << 62
"""A threshold that no lane reaches."""


def _beside(wait: Wait, foreign: list[int], steal_at: int | None) -> Wait:
    """The wait of an instance that must leave some lanes to other devices until `steal_at`."""
    times = [time for time in (wait.until, steal_at) if time is not None]
    thresholds = (*wait.thresholds, *((number, _NEVER) for number in foreign))
    return Wait(thresholds, min(times, default=None))
