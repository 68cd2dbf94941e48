"""Any text is a config, or a clear error with a position; never anything else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.mistakes import parse_config
from headrace.config.textproto import places
from headrace.core.messages import ModelConfig, parse_text

BUDGET = settings(max_examples=400, deadline=None)

GOOD = """
name: "yolo"  # a comment
platform: 'onnxruntime_onnx' max_batch_size: 8
input [ { name: "images" data_type: TYPE_FP32 dims: [3, -1, -1] reshape { shape: [3, 384, 640] } } ]
output < name: "output0" data_type: TYPE_FP32 dims: 84 dims: -1 label_filename: "labels.txt" >
dynamic_batching { preferred_batch_size: [2, 4], max_queue_delay_microseconds: 100; preserve_ordering: true }
instance_group { count: 2 kind: KIND_CPU } parameters { key: "a" value: { string_value: "b" "c" } }
version_policy: { specific: { versions: 3 } } optimization { graph { level: -1 } }
model_metrics { metric_control { histogram_options { buckets: 1.5e3 } } }
"""


def _names(message: Any, seen: set[str]) -> Iterator[str]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field.name
        if field.enum_type is not None:
            yield from (value.name for value in field.enum_type.values)
        if field.message_type is not None:
            yield from _names(field.message_type, seen)


WORDS = sorted(set(_names(ModelConfig.DESCRIPTOR, set())))
PIECES = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(
        [
            *"{}[]<>:,;#=$\"'\\/",
            "${x}",
            '"a"',
            "'",
            "\n",
            "-1",
            "0",
            "1e400",
            "0x1F",
            "09",
            "012",
            "9" * 11,
            "9" * 5000,
            "0x" + "f" * 4000,
            "inf",
            "true",
        ]
    ),
    st.sampled_from(["'oneof'", "'has no field named'", "'should not have multiple'", "'codec can''t'"]),
    st.integers().map(str),
    st.text(max_size=6),
    st.text(max_size=6).map(repr),
)


def problems_of(text: str) -> list[str]:
    """All problems; each has a position within the text."""
    message, found = parse_config(text)
    lines = text.split("\n")
    for problem in found:
        place = re.match(r"(\d+):(\d+): \S", problem)
        assert place, problem
        line, column = int(place[1]), int(place[2])
        assert 1 <= line <= len(lines), problem
        assert 1 <= column <= len(lines[line - 1]) + 1, problem
    if not found:
        plain = ModelConfig()
        parse_text(text, plain)
        assert message == plain
    return found


@BUDGET
@given(st.text())
def test_any_text(text: str) -> None:
    problems_of(text)


@BUDGET
@given(st.lists(PIECES, max_size=30).map(" ".join))
def test_any_words(text: str) -> None:
    problems_of(text)


@BUDGET
@given(st.integers(0, len(GOOD)), st.integers(0, 12), PIECES)
def test_a_good_config_with_a_change(at: int, removed: int, piece: str) -> None:
    problems_of(GOOD[:at] + piece + GOOD[at + removed :])


@BUDGET
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.text("abcdefgh", min_size=1, max_size=9)), max_size=5))
def test_every_unknown_field_is_told(fields: list[tuple[str, str]]) -> None:
    """However many there are, of whatever value, and what is right around them stays right."""
    unknown = [f"{name}_{tail}" for name, tail in fields]
    values = [": 3", ": [1, x]", " { a: 1 b { c: 'd' } }", ": [ { a: 1 }, { b: '}' } ]", ": 'x' \"y\","]
    lines = [f"{name}{values[number % len(values)]}" for number, name in enumerate(unknown)]
    found = problems_of(GOOD + "\n".join(lines))
    assert [problem.split(";")[0].split(": ")[1] for problem in found] == [
        f"ModelConfig has no field '{name}'" for name in unknown
    ]


def test_the_good_config_is_good() -> None:
    assert problems_of(GOOD) == []
    names = [place.path for place in places(GOOD, ModelConfig.DESCRIPTOR) if place.is_name]
    assert names[:6] == ["name", "platform", "max_batch_size", "input", "input.name", "input.data_type"]
    assert {"parameters.value.string_value", "optimization.graph.level", "version_policy.specific.versions"} <= set(
        names
    )
