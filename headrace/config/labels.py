"""Label files: names for the elements of an output, one a line, beside config.pbtxt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, told_together
from headrace.core.tensor import TensorSpec


def read_labels(config: Any, directory: Path) -> dict[str, tuple[str, ...]]:
    """The labels of the outputs that have a `label_filename`, by the output's name.

    Args:
        config: a `ModelConfig`.
        directory: the model's directory. A label file is in it, links followed.

    Raises:
        ConfigError: for every file that is elsewhere or cannot be read as UTF-8.
    """
    labels: dict[str, tuple[str, ...]] = {}
    with told_together() as part:
        for output in config.output:
            if output.label_filename:
                with part():
                    labels[output.name] = _read(directory, output.label_filename, output.name)
    return labels


def label_remarks(outputs: Sequence[TensorSpec]) -> Iterator[str]:
    """Outputs that have another number of elements than labels."""
    for output in outputs:
        elements = math.prod(output.dims)
        if output.labels and min(output.dims, default=1) > 0 and len(output.labels) != elements:
            yield f"output '{output.name}' has {len(output.labels)} labels for {elements} elements"


def _read(directory: Path, filename: str, output: str) -> tuple[str, ...]:
    where = f"output '{output}' has label_filename '{filename}'"
    try:
        path = (directory / filename).resolve()
        if not path.is_relative_to(directory.resolve()):
            raise ConfigError(f"{where}, which is outside of the model's directory")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where}, which cannot be read: {reason}") from error
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()
