"""The log's lines."""

from __future__ import annotations

import io
import re

import pytest

from headrace.observe.logs import USUAL, Level, Log

LETTERS = {Level.EVENT: "I", Level.ERROR: "E", Level.DETAIL: "V"}


def written(log: Log, stream: io.StringIO) -> list[str]:
    log.event("first\nsecond")
    log.error("bad")
    log.detail("why")
    return stream.getvalue().splitlines()


def test_one_line_for_each_event() -> None:
    stream = io.StringIO()
    lines = written(Log(stream=stream), stream)
    assert len(lines) == 2
    assert re.fullmatch(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} headrace\] first second", lines[0])
    assert lines[1].startswith("E")


def test_stamps_of_iso_8601() -> None:
    stream = io.StringIO()
    lines = written(Log(stream=stream, iso=True), stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I headrace\] first second", lines[0])


@pytest.mark.parametrize("levels", [(), USUAL, (Level.ERROR,), (Level.DETAIL,), tuple(Level)], ids=str)
def test_only_what_is_wanted(levels: tuple[Level, ...]) -> None:
    stream = io.StringIO()
    lines = written(Log(levels, stream), stream)
    assert [line[0] for line in lines] == [LETTERS[level] for level in Level if level in levels]
