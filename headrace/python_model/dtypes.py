"""Triton's element types, and what NumPy calls them."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
"""By the names of the config. BF16 has none."""
WIRE = {f"TYPE_{name}": name for name in ("BOOL", "FP16", "FP32", "FP64", "BF16")}
WIRE |= {f"TYPE_{sign}INT{bits}": f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
WIRE["TYPE_STRING"] = "BYTES"
"""Names of the protocol by names of the config."""
CONFIG_OF_WIRE = {wire: config for config, wire in WIRE.items()}
CONFIG_OF_NUMPY = {np.dtype(kind): name for name, kind in NUMPY.items()}


def config_name(dtype: Any) -> str:
    """`TYPE_FP32` of `float32`; TYPE_STRING of objects and of NumPy's strings.

    Raises:
        ValueError: for a type that Triton does not have.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "SUO":
        return "TYPE_STRING"
    if dtype not in CONFIG_OF_NUMPY:
        raise ValueError(f"Triton has no element type for NumPy's {dtype}")
    return CONFIG_OF_NUMPY[dtype]
