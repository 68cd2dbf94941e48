"""What the first bytes of a plan tell without TensorRT: which library built it, and whether the file is whole.

Layouts, as far as they are known: files of TensorRT begin with `ftrt` and those of TensorRT for RTX with `vtrt`; both
have the version that built them in bytes 24 to 27, the latter their own size in bytes 16 to 23. Ultralytics' files have
a length and so many bytes of JSON before the plan. Pure.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import Enum

from headrace.core.errors import ConfigError

_HEADER = 28
_TENSORRT, _RTX, _OLD = b"ftrt", b"vtrt", b"ptrt"
_FIRST_MAJOR_OF_TENSORRT = 8
"""TensorRT for RTX counts from 1; a TensorRT that has these headers is 8.6 or later."""


class Library(Enum):
    """Who reads a plan."""

    TENSORRT = "TensorRT"
    RTX = "TensorRT for RTX"


@dataclass(frozen=True)
class PlanHeader:
    """What is known of a plan before it is opened."""

    library: Library
    version: str
    """Of the library that built it, such as 10.9.0.34."""
    offset: int = 0
    """Where the plan begins in its file."""

    def __str__(self) -> str:
        return f"a plan of {self.library.value} {self.version}"


def read_header(data: bytes) -> PlanHeader:
    """Reads the header of a plan file.

    Raises:
        ConfigError: for what is no plan, is too old or is cut short.
    """
    offset = _metadata_length(data)
    head = data[offset : offset + _HEADER]
    if head[:4] == _OLD:
        raise ConfigError("the plan was built by a TensorRT before 8.6; plans of TensorRT 10 and later are served")
    if head[:4] not in (_TENSORRT, _RTX):
        raise ConfigError(f"the file is no TensorRT plan: it begins with {head[:8]!r}, not with 'ftrt' or 'vtrt'")
    if len(head) < _HEADER:
        raise ConfigError(f"the plan is cut short: the file has {len(data)} bytes, a header alone {_HEADER}")
    version = ".".join(map(str, head[24:28]))
    if head[:4] == _TENSORRT:
        return PlanHeader(Library.TENSORRT, version, offset)
    (size,) = struct.unpack_from("<Q", head, 16)
    if size != len(data) - offset:
        what = "cut short" if size > len(data) - offset else "followed by other bytes"
        raise ConfigError(f"the plan is {what}: its header tells {size} bytes, the file has {len(data) - offset}")
    is_rtx = head[24] < _FIRST_MAJOR_OF_TENSORRT
    return PlanHeader(Library.RTX if is_rtx else Library.TENSORRT, version, offset)


def _metadata_length(data: bytes) -> int:
    """Bytes before the plan."""
    if len(data) < 5 or data[4] != ord("{"):
        return 0
    (length,) = struct.unpack_from("<I", data)
    try:
        json.loads(data[4 : 4 + length])
    except ValueError:
        return 0
    return int(4 + length)
