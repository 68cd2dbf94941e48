"""Which waiting requests an instance on a device may take. Pure.

A request whose tensors are in the memory of a device is served there, where its tensors are, unless that device is the
bottleneck: it left a whole batch waiting while another device has none of its own, or a request for longer than a peer
copy could ever cost. Tensors in host memory go where a slot is free first.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.tensor import HOST

STEAL_AFTER_NS = 20_000_000
"""Several batches of the founding report's detector; a peer copy of one takes a hundredth of it."""
STEAL_BATCH_AFTER_NS = 500_000
"""Time enough for the home's feeding threads to take a whole batch, if they have a slot."""
NEVER = 1 << 62
"""Rows that no lane reaches."""

Lane = tuple[int, int, list[int], int]
"""Number, when the oldest request was queued (ns), rows of each request, home device or `HOST`."""


def visible(
    lanes: Sequence[Lane], device: int, now: int, draining: bool, max_rows: int
) -> tuple[list[Lane], list[tuple[int, int]], int | None]:
    """What an instance on `device` may take; everything when nothing more will come (`draining`).

    Args:
        lanes: what waits.
        device: the instance's own.
        now: ns on the clock of the lanes' stamps.
        draining: nothing more will come.
        max_rows: of a batch.

    Returns:
        The lanes that it may take from; the others, by number and the rows that make one worth another look; and
        when the first of those may be stolen (ns).
    """
    own = [lane for lane in lanes if draining or lane[3] in (HOST, device)]
    has_batch = any(_is_batch(lane, max_rows) for lane in own)
    foreign: list[tuple[int, int]] = []
    until: int | None = None
    for lane in lanes:
        number, oldest, _, home = lane
        if draining or home in (HOST, device):
            continue
        hurry = _is_batch(lane, max_rows) and not has_batch
        due = oldest + (STEAL_BATCH_AFTER_NS if hurry else STEAL_AFTER_NS)
        if now >= due:
            own.append(lane)
        else:
            foreign.append((number, NEVER if _is_batch(lane, max_rows) else max_rows))
            until = due if until is None else min(until, due)
    return own, foreign, until


def _is_batch(lane: Lane, max_rows: int) -> bool:
    return sum(lane[2]) >= max_rows
