"""Optimization profiles: the one that is chosen takes the batch, and no other that does is nearer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backend.trt_profiles import Profile, Range, choose_profile, choose_rows
from headrace.core.errors import ConfigError

EXTENT = st.integers(1, 40)
RANGE = st.lists(st.tuples(EXTENT, EXTENT, EXTENT).map(sorted), min_size=2, max_size=2).map(
    lambda dims: Range(*(tuple(dim[at] for dim in dims) for at in range(3)))
)
SHAPE = st.tuples(EXTENT, EXTENT)


@st.composite
def profiles(draw) -> list[Profile]:
    ranges = draw(st.lists(st.tuples(RANGE, RANGE, RANGE), min_size=1, max_size=5))
    return [Profile(at, {"x": x, "y": y}, {"s": s}) for at, (x, y, s) in enumerate(ranges)]


def within(range_: Range, shape: tuple[int, ...]) -> bool:
    return all(low <= dim <= high for low, dim, high in zip(range_.smallest, shape, range_.largest, strict=True))


@given(profiles(), SHAPE, SHAPE, SHAPE)
def test_the_nearest_that_takes_it_or_all_are_named(known: list[Profile], x, y, s) -> None:
    shapes, values = {"x": x, "y": y}, {"s": s}
    fitting = [
        one for one in known if within(one.shapes["x"], x) and within(one.shapes["y"], y) and within(one.values["s"], s)
    ]
    if not fitting:
        with pytest.raises(ConfigError) as raised:
            choose_profile(known, shapes, values)
        assert all(str(profile) in str(raised.value) for profile in known)
        return
    chosen = choose_profile(known, shapes, values)
    assert chosen in fitting
    order = [(one.distance(shapes, values), one.most_elements, one.index) for one in fitting]
    assert (chosen.distance(shapes, values), chosen.most_elements, chosen.index) == min(order)


@given(profiles(), SHAPE, SHAPE)
def test_order_does_not_matter(known: list[Profile], x, y) -> None:
    shapes = {"x": x, "y": y}
    if any(one.takes(shapes, {}) for one in known):
        assert choose_profile(known, shapes, {}) == choose_profile(known[::-1], shapes, {})


def test_a_shape_that_a_profile_is_tuned_for_gets_it_and_of_two_the_tighter() -> None:
    def one(index: int, *rows: int) -> Profile:
        return Profile(index, {"x": Range(*((count, 4) for count in rows))}, {})

    wide, narrow, single = one(0, 1, 8, 64), one(1, 1, 8, 16), one(2, 1, 1, 1)
    for rows, expected in ((8, narrow), (1, single), (17, wide), (5, narrow)):
        assert choose_profile([wide, narrow, single], {"x": (rows, 4)}, {}) is expected


@given(profiles(), EXTENT, EXTENT, st.sets(EXTENT, max_size=6).map(sorted), st.booleans())
def test_rows_are_added_only_as_far_as_needed(
    known: list[Profile], rows: int, dim: int, sizes: list[int], always
) -> None:
    shapes = {"x": (rows, dim), "y": (rows, dim)}

    def takes(count: int) -> list[Profile]:
        return [one for one in known if one.takes({"x": (count, dim), "y": (count, dim)}, {})]

    larger = [size for size in sizes if size >= rows]
    if not takes(rows) and not any(takes(size) for size in larger):
        with pytest.raises(ConfigError, match=rf"takes x \[{rows}, {dim}\]"):
            choose_rows(known, shapes, sizes, always)
        return
    chosen, padded = choose_rows(known, shapes, sizes, always)
    count = padded["x"][0]
    assert padded == {"x": (count, dim), "y": (count, dim)}
    assert chosen in takes(count)
    assert count == rows or count in larger
    if takes(rows) and not always:
        assert count == rows
    if not takes(rows):
        assert count == next(size for size in larger if takes(size))
