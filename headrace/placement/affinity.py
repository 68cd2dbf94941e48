"""Which waiting requests an instance on a device may take. Pure.

A request whose tensors are in the memory of a device is served there, where its tensors are, unless that device is the
bottleneck: then it has waited for longer than a peer copy could ever cost, and any device may take it. Tensors in host
memory go where a slot is free first.
"""

from __future__ import annotations

from collections.abc import Sequence

HOST = -1
STEAL_AFTER_NS = 20_000_000
"""Several batches of the founding report's detector; a peer copy of one takes a hundredth of it."""

Lane = tuple[int, int, list[int], int]
"""Number, when the oldest request was queued (ns), rows of each request, home device or `HOST`."""


def visible(lanes: Sequence[Lane], device: int, now: int, draining: bool) -> tuple[list[Lane], list[int], int | None]:
    """What an instance on `device` may take; everything when nothing more will come (`draining`).

    Returns:
        The lanes that it may take from, the numbers of the others, and when the first of those may be stolen (ns).
    """
    own: list[Lane] = []
    foreign: list[int] = []
    until: int | None = None
    for lane in lanes:
        number, oldest, _, home = lane
        if draining or home in (HOST, device) or now - oldest >= STEAL_AFTER_NS:
            own.append(lane)
        else:
            foreign.append(number)
            due = oldest + STEAL_AFTER_NS
            until = due if until is None else min(until, due)
    return own, foreign, until
