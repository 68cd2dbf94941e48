"""Triton's rule of which input or output of a PyTorch model a name of config.pbtxt means. Pure.

PyTorch models have positions, not names. Inputs by the first of these that holds for all of them, outputs by the last
two:

1. each name is an argument of `forward`;
2. each name ends with its position: `INPUT__0`;
3. the config lists them in the model's order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.core.errors import ConfigError

_NUMBERED = re.compile(r".+__(\d+)")


def input_positions(names: Sequence[str], arguments: Sequence[str]) -> list[int]:
    """Position in `forward` of each input of the config.

    Raises:
        ConfigError: when two inputs have one position, or one before the last is missing.
    """
    if arguments and all(name in arguments for name in names):
        positions = [list(arguments).index(name) for name in names]
    else:
        positions = _numbered(names)
    missing = sorted(set(range(len(names))) - set(positions))
    if missing:
        at = missing[0]
        argument = f", argument '{arguments[at]}'," if at < len(arguments) else ""
        raise ConfigError(f"no input of the config is at position {at}{argument} of 'forward'; it has {list(names)}")
    return positions


def output_positions(names: Sequence[str]) -> list[int]:
    """Position in what `forward` returns of each output of the config; some may be left out.

    Raises:
        ConfigError: when two outputs have one position.
    """
    positions = _numbered(names)
    if len(set(positions)) < len(positions):
        raise ConfigError(f"two outputs of the config have the same position: {list(names)}")
    return positions


def _numbered(names: Sequence[str]) -> list[int]:
    found = [_NUMBERED.fullmatch(name) for name in names]
    return [int(match[1]) if match else at for at, match in enumerate(found)] if all(found) else list(range(len(names)))
