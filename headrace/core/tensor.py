"""Descriptions of tensors, and references to the memory they are in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.core.dtype import Dtype

Shape = tuple[int, ...]

HOST = -1
"""The home of requests whose tensors are in host memory, or in that of several devices (`HOST` in `src/pending.rs`)."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a model."""

    name: str
    dtype: Dtype
    dims: Shape
    """Without the batch dimension of a batching model; -1 where any extent is accepted."""
    reshape: Shape | None = None
    """What the backend sees instead of `dims`, if it is another shape of as many elements."""
    optional: bool = False
    """The input may be left out."""
    labels: tuple[str, ...] = ()
    """Names of the output's elements, for classification; there may be fewer than elements."""

    @property
    def backend_dims(self) -> Shape:
        """Dims as the backend has them."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor where it lies. Whoever made the reference keeps the memory valid."""

    address: int
    dtype: Dtype
    shape: Shape
    packed: int = 0
    """Bytes of a BYTES tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.packed or math.prod(self.shape) * self.dtype.itemsize
