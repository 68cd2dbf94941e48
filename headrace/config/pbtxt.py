"""config.pbtxt into a `ModelConfig` message, by protobuf's text format."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from headrace.core.errors import ConfigError
from headrace.core.messages import POOL, ModelConfig, parse_text


@dataclass(frozen=True)
class GivenConfig:
    """What the owner of a model wrote."""

    message: Any
    """A `ModelConfig`."""
    path: Path | None
    """The file, or `None` where there is none and everything is to be completed."""
    sets_max_batch_size: bool
    """`max_batch_size` is written: proto3 cannot tell a 0 that is written from one that is not."""


def read_config(path: Path) -> GivenConfig:
    """Reads a config file; one that does not exist is an empty config.

    Raises:
        ConfigError: with file, line, column and, for an unknown field, the nearest valid name.
    """
    if not path.exists():
        return GivenConfig(ModelConfig(), None, sets_max_batch_size=False)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    message = ModelConfig()
    try:
        parse_text(text, message)
    except text_format.ParseError as error:
        raise ConfigError(f"{path}:{_explain(error)}") from error
    written = re.search(r"(?m)^[^#\n]*\bmax_batch_size\s*:", text) is not None
    return GivenConfig(message, path, sets_max_batch_size=written)


def _explain(error: text_format.ParseError) -> str:
    """The parser's text with, for an unknown name, the nearest valid one."""
    text = re.sub(r"^\d+:\d+\s*:\s*", "", str(error))
    place = f"{error.GetLine()}:{error.GetColumn()}"
    unknown = re.search(r'Message type "([\w.]+)" has no field named "(\w+)"', text)
    if unknown is None:
        return f"{place}: {text}"
    message_name, field = unknown.groups()
    names = list(POOL.FindMessageTypeByName(message_name).fields_by_name)
    near = difflib.get_close_matches(field, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(sorted(names))}"
    return f"{place}: {message_name.removeprefix('inference.')} has no field '{field}'; {hint}"
