"""ONNX Runtime fed with NumPy arrays, for what IOBinding cannot bind: strings, and inputs that the file has values for.

Inputs of fixed size are views of the memory that is given; ONNX Runtime allocates the outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.backend.base import Inputs, Produced
from headrace.config.model import ModelSpec
from headrace.core.dtype import BYTES, Dtype
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.core.wire import pack_strings, unpack_strings


def must_feed(spec: ModelSpec) -> bool:
    """Whether a model has something that cannot be bound."""
    strings = any(tensor.dtype is BYTES for tensor in spec.inputs + spec.outputs)
    return strings or any(tensor.optional for tensor in spec.inputs)


class FeedingInstance:
    """One session."""

    def __init__(self, session: Any, spec: ModelSpec, run_options: Any) -> None:
        self._session = session
        self._run_options = run_options
        self._inputs = [tensor.name for tensor in spec.inputs]
        self._outputs = spec.outputs
        for tensor in spec.inputs + spec.outputs:
            if tensor.dtype.name == "BF16":
                raise ConfigError(f"'{tensor.name}' is TYPE_BF16, which is not served beside TYPE_STRING or optional")

    def output_shapes(self, inputs: Inputs) -> Sequence[Shape | None]:
        """Only execution tells."""
        del inputs
        return [None] * len(self._outputs)

    def run(self, inputs: Inputs, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """One call of the session; an input that is missing has the file's value."""
        feeds = {
            name: _array(reference)
            for name, reference in zip(self._inputs, inputs, strict=True)
            if reference is not None
        }
        results = self._session.run([self._outputs[at].name for at in outputs], feeds, self._run_options)
        return {at: _produced(self._outputs[at].dtype, result) for at, result in zip(outputs, results, strict=True)}


def _array(reference: TensorRef) -> np.ndarray:
    if reference.dtype is BYTES:
        strings = unpack_strings(ctypes.string_at(reference.address, reference.nbytes))
        return np.array(strings, dtype=object).reshape(reference.shape)
    if reference.nbytes == 0:
        return np.empty(reference.shape, reference.dtype.numpy)
    memory = memoryview((ctypes.c_byte * reference.nbytes).from_address(reference.address))
    array: np.ndarray = np.frombuffer(memory, reference.dtype.numpy).reshape(reference.shape)
    return array


def _produced(dtype: Dtype, result: np.ndarray) -> Produced:
    if dtype is BYTES:
        buffer = pack_strings(result.ravel().tolist())
        return Produced(TensorRef(buffer.address, dtype, result.shape, buffer.nbytes), buffer)
    dense = np.ascontiguousarray(result)
    return Produced(TensorRef(dense.ctypes.data, dtype, result.shape), dense)
