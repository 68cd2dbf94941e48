"""Which device may take what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.placement.affinity import HOST, STEAL_AFTER_NS, visible

LANES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 10**8), st.just([1]), st.integers(-1, 3)), max_size=6)


@given(LANES, st.integers(0, 3), st.booleans())
def test_every_lane_is_taken_or_left_until_it_may_be_stolen(lanes, device: int, draining: bool) -> None:
    now = 10**8
    own, foreign, until = visible(lanes, device, now, draining)
    assert len(own) + len(foreign) == len(lanes)
    for number, oldest, _, home in lanes:
        mine = draining or home in (HOST, device) or now - oldest >= STEAL_AFTER_NS
        assert mine == any(lane[0] == number and lane[3] == home and lane[1] == oldest for lane in own)
    if foreign:
        assert until is not None
        later, _, _ = visible(lanes, device, until, draining)
        assert len(later) > len(own)
    else:
        assert until is None
