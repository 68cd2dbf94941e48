"""The nearest valid name for one that is not: of a field, or of an enum's value."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.core.messages import ModelConfig

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


def field_hint(name: str, message: Any) -> str:
    """What was meant with a field that the message of this descriptor does not have."""
    names = list(message.fields_by_name)
    homes = sorted(set(_homes(name, ModelConfig.DESCRIPTOR, ())))
    near = nearest(name, names, cutoff=0.8 if homes else 0.6)
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


def nearest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """The name that was meant; `None` when none is as like as `cutoff` (0 to 1)."""
    for guess in (name, f"TYPE_{name}", f"KIND_{name}"):
        known = _OTHER_NAMES.get(guess.upper(), _OTHER_NAMES.get(guess, guess))
        for candidate in (known, known.upper()):
            if candidate in names:
                return candidate
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)
