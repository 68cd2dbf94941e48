"""The mistakes of a config.pbtxt: found by protobuf's parser, told in the words of the config."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format

from headrace.config.nearest import field_hint, nearest
from headrace.config.textproto import (
    Place,
    left_open,
    line_and_column,
    place_at,
    places,
    without_statement,
    without_value,
)
from headrace.core.messages import ModelConfig, parse_text

_MOST_PROBLEMS = 50
"""Mistakes of one file that are told; who has more mends these first."""
_SHOWN = 60
"""Characters of what came that are repeated."""
_SYNTAX = ("Expected identifier", "ending quote", 'Expected "}"', 'Expected ">"', "extensions")
"""Mistakes in the text itself, after which nobody can tell what was meant."""


def parse_config(text: str) -> tuple[Any, list[str]]:
    """A `ModelConfig` and the mistakes of its text, as `line:column: what`. With mistakes it is not to be used.

    After each the field that is wrong is left out and the rest is read again, up to a mistake after which nobody can
    tell what was meant, such as a missing brace.
    """
    problems: list[str] = []
    while len(problems) < _MOST_PROBLEMS:
        message = ModelConfig()
        try:
            parse_text(text, message)
        except text_format.ParseError as error:
            line, column = error.GetLine() or 1, error.GetColumn() or 1
            place = place_at(text, ModelConfig.DESCRIPTOR, line, column)
            problems.append(f"{line}:{column}: {_explain(str(error), place, text)}")
            mended = _mend(text, str(error), place)
            if mended == text:
                break
            text = mended
        except ValueError as error:  # a number of an enum that is too large: the parser lets it pass, the message not
            return message, problems + (list(_unknown_numbers(text)) or [f"1:1: {error}"])
        else:
            problems += _unknown_numbers(text)
            break
    return message, problems


def _mend(text: str, error: str, place: Place | None) -> str:
    """The text without what is wrong, as far as that can be told."""
    if place is None or any(words in error for words in _SYNTAX):
        return text
    if place.is_name:
        is_whole = "has no field named" in error or "another member of oneof" in error
        return without_statement(text, place.statement) if is_whole else text
    if not _is_value(place):
        return text
    has_zero = place.field.message_type is None and place.field.cpp_type != place.field.CPPTYPE_STRING
    return (
        without_value(text, place)
        if has_zero and "should not have multiple" not in error
        else without_statement(text, place.statement)
    )


def _explain(error: str, place: Place | None, config: str) -> str:
    """What is wrong in the words of config.pbtxt, or the parser's where it is the text itself."""
    text = re.sub(r"^\d+:\d+\s*:\s*", "", error)
    text = re.sub(r"^'.*?': (?=[A-Z])", "", text, flags=re.DOTALL)
    if text.startswith(('Expected "}"', 'Expected ">"')):
        return _explain_open(config)
    if place is None or "ending quote" in text:
        return text
    if place.field is None:
        return _explain_unknown(text, place)
    if "should not have multiple" in text:
        return f"{place.path} is given twice, and holds one value"
    if "another member of oneof" in text and place.field.containing_oneof:
        choice = ", ".join(one.name for one in place.field.containing_oneof.fields)
        return f"{place.path} is given beside another of {choice}; only one of them can be"
    if "codec can't" in text:
        return f"{place.path}: {_shown(place.token)} is no text: {text}"
    if _is_value(place):
        expected = _expected(place, with_range="out of range" in text)
        return f"{place.path}: expected {expected}, got {_shown(place.token)}{_note(place)}"
    return text


def _explain_unknown(text: str, place: Place) -> str:
    if place.message is None:
        return text
    if place.is_name and "has no field named" in text:
        return f"{place.message.name} has no field '{place.token}'; {field_hint(place.token, place.message)}"
    if place.message.GetOptions().map_entry:
        return f"{place.path}: expected {{ key: … value: … }}, got {_shown(place.token)}"
    return text


def _explain_open(config: str) -> str:
    opened = left_open(config, ModelConfig.DESCRIPTOR)
    if opened is None:
        return "the text ends, and a brace is missing"
    path, offset = opened
    return f"the text ends, and {path} of line {line_and_column(config, offset)[0]} is not closed"


def _is_value(place: Place) -> bool:
    return place.field is not None and not place.is_name and place.token not in "}>])"


def _expected(place: Place, with_range: bool = False) -> str:
    field = place.field
    if field.message_type is not None:
        return "{ … }"
    if field.enum_type is not None:
        return f"one of {', '.join(value.name for value in field.enum_type.values)}"
    if field.cpp_type == field.CPPTYPE_STRING:
        return "a string in quotes"
    if field.cpp_type == field.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return "a number"
    if not with_range:
        return "an integer"
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    is_unsigned = field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64)
    low, high = (0, 2**bits - 1) if is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return f"an integer within {low} and {high}"


def _shown(token: str) -> str:
    return token if len(token) <= _SHOWN else f"{token[:_SHOWN]}…"


def _note(place: Place) -> str:
    if place.token.startswith("${"):
        return ", a placeholder that nobody filled in"
    enum = place.field.enum_type
    near = nearest(place.token.strip("\"'"), [value.name for value in enum.values]) if enum is not None else None
    return f"; did you mean {near}?" if near else ""


def _unknown_numbers(text: str) -> Iterator[str]:
    """Numbers that stand for no value of an enum: protobuf lets them pass."""
    for place in places(text, ModelConfig.DESCRIPTOR):
        enum = place.field.enum_type if place.field is not None else None
        if (
            enum is None
            or place.is_name
            or not re.fullmatch(r"[+-]?\w+", place.token)
            or place.token in enum.values_by_name
        ):
            continue
        if int(place.token, 0) not in enum.values_by_number:
            line, column = line_and_column(text, place.start)
            yield f"{line}:{column}: {place.path}: expected {_expected(place)}, got {_shown(place.token)}"
