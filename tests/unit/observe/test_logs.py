"""The log's lines."""

from __future__ import annotations

import io
import re

from headrace.observe.logs import Log


def test_one_line_for_each_event() -> None:
    stream = io.StringIO()
    log = Log(0, stream)
    log.event("first\nsecond")
    log.error("bad")
    log.detail("not shown")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} headrace\] first second", lines[0])
    assert lines[1].startswith("E")
    Log(1, stream).detail("shown")
    assert "shown" in stream.getvalue()
