"""Which position a name of the config means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backend.torch_naming import input_positions, output_positions
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("names", "arguments", "positions"),
    [
        (["images"], ["images"], [0]),
        (["b", "a"], ["a", "b", "scale"], [1, 0]),
        (["INPUT__1", "INPUT__0"], ["x", "y"], [1, 0]),
        (["INPUT__1", "x"], ["x", "y"], [0, 1]),
        (["a__b__1", "__0", "q__0"], [], [0, 1, 2]),
        (["mask__1", "ids__0"], [], [1, 0]),
        (["first", "second"], ["x", "y"], [0, 1]),
    ],
)
def test_inputs(names: list[str], arguments: list[str], positions: list[int]) -> None:
    assert input_positions(names, arguments) == positions


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a__0", "b__0"], "position 1"),
        (["a__1"], "position 0, argument 'x',"),
        (["y"], "position 0, argument 'x',"),
    ],
)
def test_positions_without_an_input_are_named(names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        input_positions(names, ["x", "y"])


def test_outputs() -> None:
    assert output_positions(["o__2", "o__0"]) == [2, 0]
    assert output_positions(["boxes", "scores"]) == [0, 1]
    with pytest.raises(ConfigError, match="two outputs"):
        output_positions(["a__1", "b__1"])


@given(st.permutations(range(5)))
def test_numbered_inputs_go_where_they_say(order: list[int]) -> None:
    assert input_positions([f"INPUT__{at}" for at in order], []) == order
