"""Which shapes may be reshaped to which."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.rules import may_reshape

EXTENTS = st.lists(st.integers(1, 6), max_size=4)


@given(EXTENTS, EXTENTS)
def test_fixed_shapes_have_as_many_elements(dims: list[int], shape: list[int]) -> None:
    assert may_reshape(dims, shape) == (math.prod(dims) == math.prod(shape))


@given(st.lists(st.lists(st.integers(2, 3), max_size=3), min_size=1, max_size=3), st.data())
def test_whatever_the_free_extents_are_elements_and_their_order_stay(blocks: list[list[int]], data) -> None:
    """Blocks between free extents, and the same blocks flattened: NumPy reshapes any such array."""
    dims = [dim for block in blocks for dim in [-1, *block]][1:]
    shape = [dim for block in blocks for dim in [-1, math.prod(block)]][1:]
    assert may_reshape(dims, shape)
    free = [data.draw(st.integers(1, 3)) for _ in range(len(blocks) - 1)]
    whole, flat = _filled(dims, free), _filled(shape, free)
    assert np.zeros(whole).reshape(flat).shape == flat
    assert not may_reshape(dims, [*shape, 2])
    assert not may_reshape(dims, [*shape, -1])


def _filled(dims: list[int], free: list[int]) -> tuple[int, ...]:
    left = iter(free)
    return tuple(next(left) if dim == -1 else dim for dim in dims)
