"""Plans for the double of TensorRT (`tests/tensorrt_double`), and how they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import models

DOUBLE = Path(__file__).parent / "tensorrt_double"
VERSION = (10, 9, 0, 34)


def plan(description: dict[str, Any], version: tuple[int, ...] = VERSION) -> bytes:
    """A header as TensorRT's, as far as it is known, and the description."""
    text = json.dumps(description).encode()
    head = b"ftrt" + bytes(12) + (64 + len(text)).to_bytes(8, "little") + bytes(version)
    return head.ljust(64, b"\0") + text


def tensor(name: str, mode: str, shape: list[int | str], dtype: str = "FLOAT", **more: Any) -> dict[str, Any]:
    return {"name": name, "mode": mode, "shape": shape, "dtype": dtype, **more}


def affine(*profiles: dict[str, list[list[int]]], dims: tuple[int | str, ...] = (-1, 4), **more: Any) -> dict[str, Any]:
    """y = 2x + 1; each profile has the smallest, the tuned and the largest shape of x."""
    x = tensor("x", "INPUT", [dim if isinstance(dim, int) else -1 for dim in dims])
    y = tensor("y", "OUTPUT", [f"x.{at}" if dim == -1 else dim for at, dim in enumerate(dims)], of="x", does="affine")
    return {"tensors": [x, y], "profiles": [{"shapes": profile, "values": {}} for profile in profiles], **more}


def rows(least: int, tuned: int, most: int, *dims: int) -> dict[str, list[list[int]]]:
    """A profile of `affine` for so many rows."""
    return {"x": [[count, *(dims or (4,))] for count in (least, tuned, most)]}


def write(repository: Path, name: str, content: dict[str, Any] | bytes, config: str = "") -> None:
    """A model folder; without a config there is only the plan."""
    directory = models.write_config(repository, name, config) if config else repository / name / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.plan").write_bytes(content if isinstance(content, bytes) else plan(content))


def filled() -> dict[str, Any]:
    """y has the shape that the values of s say, filled with x."""
    return {
        "tensors": [
            tensor("x", "INPUT", [1]),
            tensor("s", "INPUT", [2], "INT32", location="HOST"),
            tensor("y", "OUTPUT", ["=s.0", "=s.1"], of="x", does="fill"),
        ],
        "profiles": [
            {"shapes": {"x": [[1]] * 3, "s": [[2]] * 3}, "values": {"s": [[1, 1], [2, 2], [4, 4]]}},
            {"shapes": {"x": [[1]] * 3, "s": [[2]] * 3}, "values": {"s": [[1, 1], [8, 8], [16, 16]]}},
        ],
    }


RTX_HEAD = bytes.fromhex(
    "76747274 00000000 0200000000000000 cc26020000000000 01070174 76747274 0800000000000000"
    "000000000000000000000000000000000000000000000000"
)
"""The first 64 bytes of a plan that TensorRT for RTX 1.7.1.116 built; it has 141004."""


def rtx_plan() -> bytes:
    """As long as its header says; what follows is not what was built."""
    return RTX_HEAD.ljust(141004, b"\0")


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
