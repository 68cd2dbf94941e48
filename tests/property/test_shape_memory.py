"""Guesses of output shapes: few are wrong, and none stays wrong."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headrace.backend.shape_memory import ShapeMemory

SHAPES = st.tuples(st.integers(0, 3))
INPUTS = st.tuples(st.tuples(st.integers(1, 3)))


def run(memory: ShapeMemory, inputs: tuple, shape: tuple, told: tuple | None = None) -> bool:
    """As an instance does; whether the guess was wrong and the model had to run twice."""
    guess = memory.guess(inputs, 0, told)
    if guess != shape:
        memory.learn(inputs, 0, shape, guess)
    return guess not in (None, shape)


@given(results=st.lists(st.tuples(INPUTS, SHAPES)), told=st.none() | SHAPES)
def test_only_what_was_told_or_seen_is_guessed(results: list, told: tuple | None) -> None:
    memory = ShapeMemory()
    seen: dict[tuple, set] = {}
    for inputs, shape in results:
        guess = memory.guess(inputs, 0, told)
        assert guess in {None, told} | seen.get(inputs, set())
        run(memory, inputs, shape, told)
        seen.setdefault(inputs, set()).add(shape)


@given(shapes=st.lists(SHAPES, max_size=200), told=st.none() | SHAPES)
def test_wrong_guesses_are_few(shapes: list, told: tuple | None) -> None:
    memory = ShapeMemory()
    wrong = sum(run(memory, ((1,),), shape, told) for shape in shapes)
    assert wrong <= math.log2(len(shapes) + 1) + len(shapes) / 32 + 1


@given(every=st.integers(40, 200))
def test_now_and_then_an_odd_result_is_cheap(every: int) -> None:
    memory = ShapeMemory()
    shapes = [(9,) if number % every == every - 1 else (5,) for number in range(20 * every)]
    for shape in shapes:
        run(memory, ((1,),), shape)
    assert memory.guess(((1,),), 0, None) is None
    guessed = 0
    for shape in shapes:
        guessed += memory.guess(((1,),), 0, None) == (5,)
        run(memory, ((1,),), shape)
    assert guessed > 0.9 * len(shapes)


@given(before=st.integers(1, 50), odd=st.lists(st.just((9,)), min_size=1, max_size=3), told=st.none() | st.just((5,)))
def test_an_odd_result_spoils_nothing_for_good(before: int, odd: list, told: tuple | None) -> None:
    memory = ShapeMemory()
    for shape in [(5,)] * before + odd:
        run(memory, ((1,),), shape, told)
    for _ in range(2 ** (len(odd) + 1)):
        run(memory, ((1,),), (5,), told)
    assert memory.guess(((1,),), 0, told) == (5,)


@given(shapes=st.lists(SHAPES, min_size=1))
def test_other_inputs_and_outputs_are_left_alone(shapes: list) -> None:
    memory = ShapeMemory()
    for shape in shapes:
        run(memory, ((1,),), shape)
    assert memory.guess(((2,),), 0, (7,)) == (7,)
    assert memory.guess(((1,),), 1, None) is None


def test_memory_is_bounded() -> None:
    memory = ShapeMemory()
    for size in range(2000):
        run(memory, ((size,),), (size,))
    assert len(memory._seen) <= 256
    assert memory.guess(((1999,),), 0, None) == (1999,)
