"""Buffers for batches and replies, out of the wire's pool: 64-byte aligned and used again."""

from __future__ import annotations

from headrace.core.dtype import Dtype
from headrace.core.tensor import Shape, TensorRef
from headrace.core.wire import Buffer


def allocate(dtype: Dtype, shape: Shape) -> tuple[Buffer, TensorRef]:
    """A buffer of just the bytes of a tensor, and the reference to it, which is valid as long as the buffer."""
    reference = TensorRef(0, dtype, shape)
    buffer = Buffer(reference.nbytes)
    return buffer, TensorRef(buffer.address, dtype, shape)
