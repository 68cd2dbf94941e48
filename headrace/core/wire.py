"""The Rust wire. No other module imports the extension."""

from headrace._wire import (
    Batch,
    Buffer,
    Call,
    Intake,
    Process,
    Statistics,
    Wire,
    WireError,
    descriptors,
    error_table,
    histogram_bounds,
    now,
    pack_strings,
    unpack_strings,
)

__all__ = [
    "Batch",
    "Buffer",
    "Call",
    "Intake",
    "Process",
    "Statistics",
    "Wire",
    "WireError",
    "descriptors",
    "error_table",
    "histogram_bounds",
    "now",
    "pack_strings",
    "unpack_strings",
]
