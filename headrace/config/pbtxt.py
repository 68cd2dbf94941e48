"""config.pbtxt into a `ModelConfig` message, by protobuf's text format, with all its mistakes told at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from headrace.config.textproto import (
    Place,
    left_open,
    line_and_column,
    place_at,
    places,
    without_statement,
    without_value,
)
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text

_MOST_PROBLEMS = 50
"""Mistakes of one file that are told; who has more mends these first."""
_OTHER_NAMES = {
    "shape": "dims",
    "datatype": "data_type",
    "is_optional": "optional",
    "batch_size": "max_batch_size",
    "instance_groups": "instance_group",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
    "TYPE_BYTES": "TYPE_STRING",
}
"""Names that other formats have for the same thing."""


@dataclass(frozen=True)
class GivenConfig:
    """What the owner of a model wrote."""

    message: Any
    """A `ModelConfig`."""
    path: Path | None
    """The file, or `None` where there is none and everything is to be completed."""
    sets_max_batch_size: bool
    """`max_batch_size` is written: proto3 cannot tell a 0 that is written from one that is not."""


@dataclass(frozen=True)
class ConfigRules:
    """Which config of a model applies, and whether the model file may complete it."""

    auto_complete: bool = True
    name: str = ""
    """Use `configs/NAME.pbtxt` of the models that have it."""


def read_config(path: Path) -> GivenConfig:
    """Reads a config file; one that does not exist is an empty config.

    Raises:
        ConfigError: with file, line, column and, for an unknown name, the nearest valid one, for each mistake.
    """
    if not path.exists():
        return GivenConfig(ModelConfig(), None, sets_max_batch_size=False)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    problems = list(text_problems(text))
    if problems:
        raise ConfigError(*(f"{path}:{problem}" for problem in problems))
    message = ModelConfig()
    parse_text(text, message)
    written = {place.path for place in places(text, ModelConfig.DESCRIPTOR) if place.is_name}
    return GivenConfig(message, path, sets_max_batch_size="max_batch_size" in written)


def text_problems(text: str) -> Iterator[str]:
    """The mistakes of a text that shall be a `ModelConfig`, as `line:column: what`; none when protobuf parses it.

    After each the field that is wrong is left out and the rest is read again, up to a mistake after which nobody can
    tell what was meant, such as a missing brace.
    """
    for _ in range(_MOST_PROBLEMS):
        try:
            parse_text(text, ModelConfig())
        except text_format.ParseError as error:
            line, column = error.GetLine() or 1, error.GetColumn() or 1
            place = place_at(text, ModelConfig.DESCRIPTOR, line, column)
            yield f"{line}:{column}: {_explain(str(error), place, text)}"
            mended = _mend(text, str(error), place)
            if mended == text:
                return
            text = mended
        else:
            yield from _unknown_numbers(text)
            return


_SYNTAX = ("Expected identifier", "ending quote", 'Expected "}"', 'Expected ">"', "extensions")
"""Mistakes in the text itself, after which nobody can tell what was meant."""


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
        return f"{place.path}: {place.token} is no text: {text}"
    if _is_value(place):
        return f"{place.path}: expected {_expected(place, 'out of range' in text)}, got {place.token}{_note(place)}"
    return text


def _explain_unknown(text: str, place: Place) -> str:
    if place.message is None:
        return text
    if place.is_name and "has no field named" in text:
        return f"{place.message.name} has no field '{place.token}'; {_hint(place.token, place.message)}"
    if place.message.GetOptions().map_entry:
        return f"{place.path}: expected {{ key: … value: … }}, got {place.token}"
    return text


def _explain_open(config: str) -> str:
    opened = left_open(config, ModelConfig.DESCRIPTOR)
    if opened is None:
        return "the text ends, and a brace is missing"
    path, offset = opened
    return f"the text ends, and {path} of line {line_and_column(config, offset)[0]} is not closed"


def _is_value(place: Place) -> bool:
    return place.field is not None and not place.is_name and place.token not in "}>])"


def _hint(name: str, message: Any) -> str:
    names = list(message.fields_by_name)
    homes = sorted(set(_homes(name, ModelConfig.DESCRIPTOR, ())))
    near = _nearest(name, names, cutoff=0.8 if homes else 0.6)
    if near:
        return f"did you mean '{near}'?"
    return f"it is a field of {' and '.join(homes)}" if homes else f"it has {', '.join(sorted(names))}"


def _homes(name: str, message: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Where else in a config a field has this name."""
    for field in message.fields:
        if field.name == name and path:
            yield ".".join(path)
        if field.message_type is not None:
            yield from _homes(name, field.message_type, (*path, field.name))


def _nearest(name: str, names: list[str], cutoff: float = 0.6) -> str | None:
    for guess in (name, f"TYPE_{name}", f"KIND_{name}"):
        known = _OTHER_NAMES.get(guess.upper(), _OTHER_NAMES.get(guess, guess))
        for candidate in (known, known.upper()):
            if candidate in names:
                return candidate
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


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


def _note(place: Place) -> str:
    if place.token.startswith("${"):
        return ", a placeholder that nobody filled in"
    enum = place.field.enum_type
    near = _nearest(place.token.strip("\"'"), [value.name for value in enum.values]) if enum is not None else None
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
            yield f"{line}:{column}: {place.path}: expected {_expected(place)}, got {place.token}"
