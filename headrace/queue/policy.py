"""The batching rule: given what waits, take how many of which shape now, or wait until what.

Pure: the same question gets the same answer, so property tests own this file
(`tests/property/test_policy.py`). The rule is Triton's documented one, with two differences that cost a
client nothing: a batch that cannot grow any more leaves at once, and nothing is waited for while the server
drains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Why a batch left the queue: labels of the metric `headrace_batch_leave_total`.
FULL = "full"
"""It has `max_batch_size` rows, or the next request would pass them."""
PREFERRED = "preferred"
"""It has a preferred size."""
DELAY = "delay"
"""Its oldest request has waited `max_queue_delay_microseconds`."""
NO_DELAY = "no_delay"
"""No delay is configured: whatever waits when an instance is free goes together."""
DRAIN = "drain"
"""The model is being unloaded or the server stops."""
SINGLE = "single"
"""The model does not batch."""


@dataclass(frozen=True)
class BatchPolicy:
    """What config.pbtxt says about batching."""

    max_rows: int
    """Rows of a batch at most; 1 for a model that does not batch."""
    dynamic: bool = False
    """Several requests may share a batch."""
    preferred: tuple[int, ...] = ()
    """Preferred sizes in rows, ascending."""
    delay_ns: int = 0
    """How long the oldest request may wait for company."""


@dataclass(frozen=True, slots=True)
class Take:
    """Take the `count` oldest requests of `lane`."""

    lane: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again when a lane has its threshold of rows (1 for lanes not named), or at `until` (ns)."""

    thresholds: tuple[tuple[int, int], ...] = ()
    until: int | None = None


Lane = tuple[int, int, list[int], int]
"""Number, when the oldest request was queued (ns), rows of each request, oldest first, home device or -1."""

IDLE = Wait()


def decide(lanes: Sequence[Lane], policy: BatchPolicy, now: int, draining: bool, booked: int = 0) -> Take | Wait:
    """Takes from the lane whose oldest request has waited longest, among those that may go; waits when none
    may.

    Args:
        lanes: what waits, one entry for each shape; no lane is empty.
        policy: the model's batching rule.
        now: ns on the clock of the lanes' stamps.
        draining: nothing more will come.
        booked: batches of the model that the instance's device has not computed yet. While there is one, only a batch
            that cannot grow may go: the device's compute does not run dry, so a partial batch would gain nothing.
    """
    best: Take | None = None
    best_age = 0
    thresholds: list[tuple[int, int]] = []
    until: int | None = None
    for lane in lanes:
        answer = _decide_lane(lane, policy, now, draining, booked)
        number, oldest, _, _ = lane
        if isinstance(answer, Take):
            if best is None or oldest < best_age:
                best, best_age = answer, oldest
        else:
            thresholds.append((number, answer))
            if not booked:
                due = oldest + policy.delay_ns
                until = due if until is None else min(until, due)
    return best if best is not None else Wait(tuple(thresholds), until)


def _decide_lane(lane: Lane, policy: BatchPolicy, now: int, draining: bool, booked: int) -> Take | int:
    """What to take of this lane, or the rows that it must have to be looked at again."""
    number, oldest, rows, _ = lane
    if not policy.dynamic:
        return Take(number, 1, SINGLE)
    count, total, preferred_count = _fitting(rows, policy)
    if total == policy.max_rows or count < len(rows):
        return Take(number, count, FULL)
    if draining:
        return Take(number, count, DRAIN)
    if policy.delay_ns == 0 and not booked:
        return Take(number, count, NO_DELAY)
    if now - oldest >= policy.delay_ns and not booked:
        return Take(number, count, DELAY)
    if preferred_count and policy.delay_ns:
        return Take(number, preferred_count, PREFERRED)
    return next((size for size in policy.preferred if size > total), policy.max_rows)


def _fitting(rows: Sequence[int], policy: BatchPolicy) -> tuple[int, int, int]:
    """How many of the oldest requests fit one batch, their rows, and how many make the largest preferred size
    reached.
    """
    count = total = preferred_count = 0
    for size in rows:
        if total + size > policy.max_rows:
            break
        count += 1
        total += size
        if total in policy.preferred:
            preferred_count = count
    return count, total, preferred_count
