"""Element types: the protocol's names, config.pbtxt's names, sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Dtype:
    """An element type."""

    name: str
    """On the wire, such as FP16."""
    itemsize: int
    """Bytes; 0 for BYTES, whose elements tell their lengths themselves."""
    numpy: np.dtype
    """What NumPy holds it in. NumPy has no BF16: its bits travel as uint16."""

    @property
    def config_name(self) -> str:
        """As config.pbtxt spells it, such as TYPE_FP16."""
        return "TYPE_STRING" if self is BYTES else f"TYPE_{self.name}"


def _row(name: str, numpy_name: str) -> Dtype:
    dtype = np.dtype(numpy_name)
    return Dtype(name, dtype.itemsize, dtype)


DTYPES: dict[str, Dtype] = {
    row.name: row
    for row in [
        _row("BOOL", "bool"),
        _row("UINT8", "uint8"),
        _row("UINT16", "uint16"),
        _row("UINT32", "uint32"),
        _row("UINT64", "uint64"),
        _row("INT8", "int8"),
        _row("INT16", "int16"),
        _row("INT32", "int32"),
        _row("INT64", "int64"),
        _row("FP16", "float16"),
        _row("BF16", "uint16"),
        _row("FP32", "float32"),
        _row("FP64", "float64"),
    ]
}
"""Types of fixed size, by their names on the wire."""
BYTES = Dtype("BYTES", 0, np.dtype(object))
"""Strings of bytes. A tensor of them is its elements in row-major order: each 4 bytes of little-endian length and its
bytes.
"""


def from_config_name(config_name: str) -> Dtype | None:
    """The type of a `TYPE_…` name; `None` for TYPE_INVALID."""
    return BYTES if config_name == "TYPE_STRING" else DTYPES.get(config_name.removeprefix("TYPE_"))
