"""config.pbtxt into a `ModelConfig` message."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config.backend_config import BackendConfig
from headrace.config.mistakes import parse_config
from headrace.config.textproto import places
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig


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
    backends: BackendConfig = field(default_factory=BackendConfig)


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
    message, problems = parse_config(text)
    if problems:
        raise ConfigError(*(f"{path}:{problem}" for problem in problems))
    written = {place.path for place in places(text, ModelConfig.DESCRIPTOR) if place.is_name}
    return GivenConfig(message, path, sets_max_batch_size="max_batch_size" in written)
