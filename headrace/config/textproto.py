"""Protobuf text format, read for people: where a field is, what it may hold, and what to leave out to read on.

protobuf's own parser is the judge of what is right. It stops at the first mistake and knows no field around it; this
walk over the same text knows the field at every place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_TOKEN = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? | \$\{[^}\n]*\} | [\w.+-]+ | \S""", re.VERBOSE
)
_OPENING, _CLOSING = "{<[", "}>]"


@dataclass(frozen=True)
class Place:
    """A token of the text and the field that it belongs to."""

    token: str
    start: int
    """Offset of the token."""
    statement: int
    """Offset of the name of its field."""
    message: Any
    """Descriptor of the message around it; `None` inside of an unknown field."""
    field: Any
    """Descriptor of the field; `None` for an unknown one."""
    path: str
    """Names of the fields around it and its own, joined by dots."""
    is_name: bool
    """The token is the field's name; otherwise its value, or punctuation."""


@dataclass
class _Frame:
    """A message that is open."""

    message: Any
    path: tuple[str, ...] = ()
    field: Any = None
    name: str = ""
    statement: int = 0
    has_colon: bool = False
    in_list: bool = False

    def begin(self, name: str, start: int) -> None:
        self.field = self.message.fields_by_name.get(name) if self.message is not None else None
        self.name, self.statement, self.has_colon = name, start, False

    def end(self) -> None:
        self.field, self.name, self.has_colon = None, "", False

    def place(self, token: str, start: int, is_name: bool) -> Place:
        path = ".".join((*self.path, self.name) if self.name else self.path)
        return Place(token, start, self.statement, self.message, self.field, path, is_name)


@dataclass
class _Walk:
    stack: list[_Frame] = field(default_factory=list)

    def step(self, token: str, start: int) -> Place:
        top = self.stack[-1]
        is_word = token not in "{}<>[]:,;"
        is_name = is_word and not top.has_colon and not top.in_list and token[0] not in "\"'"
        if is_name:
            top.begin(token, start)
        place = top.place(token, start, is_name)
        if is_word and not is_name and not top.in_list:
            top.end()
        elif not is_word:
            self._punctuation(token, top)
        return place

    def _punctuation(self, token: str, top: _Frame) -> None:
        if token in "{<":
            inner = top.field.message_type if top.field is not None else None
            self.stack.append(_Frame(inner, (*top.path, top.name) if top.name else top.path))
        elif token in "}>" and len(self.stack) > 1:
            self.stack.pop()
            if not self.stack[-1].in_list:
                self.stack[-1].end()
        elif token == "[":
            top.in_list = True
        elif token == "]":
            top.in_list = False
            top.end()
        elif token == ":":
            top.has_colon = True


def places(text: str, message: Any) -> Iterator[Place]:
    """Every token of a text that is a message of this descriptor, comments left out. Any text is walked to its end."""
    walk = _Walk([_Frame(message)])
    for match in _TOKEN.finditer(text):
        if not match[0].startswith("#"):
            yield walk.step(match[0], match.start())


def place_at(text: str, message: Any, line: int, column: int) -> Place | None:
    """The token at a line and column, both counted from 1."""
    offset = sum(len(row) + 1 for row in text.split("\n")[: line - 1]) + column - 1
    return next(
        (place for place in places(text, message) if place.start <= offset < place.start + len(place.token)), None
    )


def left_open(text: str, message: Any) -> tuple[str, int] | None:
    """Path and offset of the innermost field whose message is open where the text ends."""
    walk = _Walk([_Frame(message)])
    for match in _TOKEN.finditer(text):
        if not match[0].startswith("#"):
            walk.step(match[0], match.start())
    opened = walk.stack[-2] if len(walk.stack) > 1 else None
    return (".".join((*opened.path, opened.name)), opened.statement) if opened is not None else None


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both counted from 1."""
    before = text[:offset]
    return before.count("\n") + 1, offset - before.rfind("\n")


def without_statement(text: str, start: int) -> str:
    """The text with blanks for the field whose name is at `start`, so that everything else stays where it is."""
    end = _end_of_statement(text, start)
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def without_value(text: str, place: Place) -> str:
    """The text with a 0 for a value."""
    end = place.start + len(place.token)
    return text[: place.start] + "0".ljust(len(place.token)) + text[end:]


def _end_of_statement(text: str, start: int) -> int:
    depth, end, has_value = 0, start, False
    for number, match in enumerate(token for token in _TOKEN.finditer(text, start) if token[0][0] != "#"):
        token = match[0]
        if depth == 0 and ((has_value and token not in ",;" and token[0] not in "\"'") or token in _CLOSING):
            break
        end = match.end()
        depth += (token in _OPENING) - (token in _CLOSING)
        has_value = has_value or (number > 0 and token != ":" and depth == 0)
    return end
