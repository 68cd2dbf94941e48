"""Which device may take what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tensor import HOST
from headrace.placement.affinity import NEVER, STEAL_AFTER_NS, STEAL_BATCH_AFTER_NS, visible

NOW = 10**8
ROWS = 4
LANE = st.tuples(st.integers(0, NOW), st.lists(st.just(1), min_size=1, max_size=ROWS + 1), st.integers(-1, 3))
LANES = st.lists(LANE, max_size=6).map(lambda lanes: [(at, *lane) for at, lane in enumerate(lanes)])


@given(LANES, st.integers(0, 3), st.booleans())
def test_every_lane_is_taken_or_left_until_it_may_be_stolen(lanes, device: int, draining: bool) -> None:
    own, foreign, until = visible(lanes, device, NOW, draining, ROWS)
    assert sorted([lane[0] for lane in own] + [number for number, _ in foreign]) == [lane[0] for lane in lanes]
    busy = any(home in (HOST, device) and len(rows) >= ROWS for _, _, rows, home in lanes)
    for number, oldest, rows, home in lanes:
        patience = STEAL_BATCH_AFTER_NS if len(rows) >= ROWS and not busy else STEAL_AFTER_NS
        mine = draining or home in (HOST, device) or NOW - oldest >= patience
        assert mine == (number not in dict(foreign))
    assert all((rows == NEVER) == (len(lanes[number][2]) >= ROWS) for number, rows in foreign)
    if foreign:
        assert until is not None
        later, _, _ = visible(lanes, device, until, draining, ROWS)
        assert len(later) > len(own)
    else:
        assert until is None
