"""A double of TensorRT's runtime, for machines without it: the folder on PYTHONPATH makes `import tensorrt` this.

It has the part of the library that Headrace uses, with the library's names (`api.json` is recorded from the real ones,
and a test compares), and insists on the library's rules. Its plans are a header and a description as JSON
(`tests/models_tensorrt.py` writes them). What it computes it computes in host memory, for devices whose memory that is
(`serve.py`).
"""

from __future__ import annotations

import copy
import ctypes
import json
import math
from enum import Enum

import numpy as np

__version__ = "10.9.0.34"
CAPTURED: list | None = None
"""Set by tests while they capture: work is checked, and put there instead of being done."""
_ALIGNMENT = 256
_HEADER = 64
_COMPUTE_CAPABILITY = "9.0"
_NUMPY = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "uint16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "FP8": "uint8",
}


class DataType(Enum):
    FLOAT = 0
    HALF = 1
    INT8 = 2
    INT32 = 3
    BOOL = 4
    UINT8 = 5
    FP8 = 6
    BF16 = 7
    INT64 = 8


class TensorIOMode(Enum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class TensorLocation(Enum):
    DEVICE = 0
    HOST = 1


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
    USER_MANAGED = 2


class ILogger:
    class Severity(Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self.made = True


class IOutputAllocator:
    def __init__(self) -> None:
        self.made = True


def init_libnvinfer_plugins(logger, namespace):
    assert logger.made
    assert namespace == ""
    return True


class Runtime:
    def __init__(self, logger) -> None:
        assert logger.made, "a logger that does not call its base class crashes the real library"
        self._logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine):
        data = bytes(serialized_engine)
        for error in _errors(data):
            self._logger.log(ILogger.Severity.ERROR, error)
            return None
        return ICudaEngine(json.loads(data[_HEADER:]), self._logger)


def _errors(data):
    """In the words of the real library."""
    if int.from_bytes(data[16:24], "little") != len(data):
        yield "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (plan.header.size == blobSize failed.)"
        return
    version = ".".join(map(str, data[24:28]))
    if version != __version__:
        yield (
            "The engine plan file is not compatible with this version of TensorRT, expecting library version "
            f"{__version__} got {version}, please rebuild."
        )
    built_for = json.loads(data[_HEADER:]).get("compute", _COMPUTE_CAPABILITY)
    if built_for != _COMPUTE_CAPABILITY:
        yield (
            "The engine plan file is generated on an incompatible device, expecting compute "
            f"{_COMPUTE_CAPABILITY} got compute {built_for}, please rebuild."
        )


class ICudaEngine:
    def __init__(self, description, logger) -> None:
        self._tensors = {tensor["name"]: tensor for tensor in description["tensors"]}
        self._profiles = description["profiles"]
        self._capturable = description.get("capturable", True)
        self._compiles = description.get("compiles", False)
        self._logger = logger
        self.num_io_tensors = len(self._tensors)
        self.num_optimization_profiles = len(self._profiles)
        self.device_memory_size_v2 = 1 << 20

    def get_tensor_name(self, index):
        return list(self._tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode[self._tensors[name]["mode"]]

    def get_tensor_dtype(self, name):
        return DataType[self._tensors[name]["dtype"]]

    def get_tensor_shape(self, name):
        return tuple(dim if isinstance(dim, int) else -1 for dim in self._tensors[name]["shape"])

    def get_tensor_location(self, name):
        return TensorLocation[self._tensors[name].get("location", "DEVICE")]

    def get_tensor_format_desc(self, name):
        return self._tensors[name].get("format", "Row major linear FP32 format")

    def get_tensor_profile_shape(self, name, profile_index):
        assert -1 in self.get_tensor_shape(name), "a plan without dynamic shapes need not have profiles"
        return [tuple(shape) for shape in self._profiles[profile_index]["shapes"][name]]

    def get_tensor_profile_values(self, name, profile_index):
        assert isinstance(name, int), "the real library takes the index first"
        return [list(values) for values in self._profiles[name]["values"][profile_index]]

    def create_execution_context(self, strategy=ExecutionContextAllocationStrategy.STATIC):
        return (_CompilingContext if self._compiles else IExecutionContext)(self, strategy)


class IExecutionContext:
    def __init__(self, engine, strategy) -> None:
        self._engine = engine
        self._has_memory = strategy is not ExecutionContextAllocationStrategy.USER_MANAGED
        self._profile = 0
        self._shapes = {}
        self._addresses = {}
        self._allocators = {}
        self._captured = False

    def _fail(self, text):
        self._engine._logger.log(ILogger.Severity.ERROR, text)
        return False

    def set_device_memory(self, memory, size):
        assert memory % _ALIGNMENT == 0
        assert size >= self._engine.device_memory_size_v2
        self._has_memory = True

    def set_optimization_profile_async(self, profile_index, stream_handle):
        assert stream_handle, "not the default stream"
        self._profile = profile_index
        self._shapes.clear()
        return True

    def set_input_shape(self, name, shape):
        assert not self._captured, "this spoils the graph that was captured from the context"
        low, _, high = self._engine._profiles[self._profile]["shapes"][name]
        if len(shape) != len(low) or not all(a <= dim <= b for a, dim, b in zip(low, shape, high, strict=True)):
            return self._fail(f"IExecutionContext::setInputShape: {name} {shape} is not within {low} and {high}")
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, memory):
        if memory % _ALIGNMENT and self._engine.get_tensor_location(name) is TensorLocation.DEVICE:
            return self._fail(f"IExecutionContext::setTensorAddress: {name} is not aligned to {_ALIGNMENT} bytes")
        self._addresses[name] = memory
        return True

    def set_output_allocator(self, name, output_allocator):
        assert output_allocator.made
        self._allocators[name] = output_allocator
        return True

    def infer_shapes(self):
        return [name for name in self._names("INPUT") if name not in self._shapes or self._lacks_values(name)]

    def _lacks_values(self, name):
        return self._engine.get_tensor_location(name) is TensorLocation.HOST and name not in self._addresses

    def _names(self, mode):
        return [name for name, tensor in self._engine._tensors.items() if tensor["mode"] == mode]

    def get_tensor_shape(self, name):
        if name in self._shapes:
            return self._shapes[name]
        return tuple(self._extent(dim) for dim in self._engine._tensors[name]["shape"])

    def _extent(self, dim):
        """A number, `x.1` (the second of x), `=s.0` (the first value of s), or `?`: only execution tells."""
        if isinstance(dim, int):
            return dim
        if dim == "?":
            return -1
        name, at = dim.lstrip("=").split(".")
        return int(self._read(name).reshape(-1)[int(at)]) if dim.startswith("=") else self._shapes[name][int(at)]

    def execute_async_v3(self, stream_handle):
        assert stream_handle, "not the default stream"
        if not self._has_memory:
            return self._fail("IExecutionContext::enqueueV3: no device memory")
        lacking = [name for name in self._engine._tensors if name not in {**self._addresses, **self._allocators}]
        if lacking or self.infer_shapes():
            return self._fail(f"IExecutionContext::enqueueV3: {lacking or self.infer_shapes()} not set")
        if CAPTURED is not None:
            return self._capture()
        assert not self._captured, "this spoils the graph that was captured from the context"
        return self._compute()

    def _capture(self):
        """Shapes and addresses are part of a graph."""
        if not self._engine._capturable:
            return self._fail("operation not permitted when stream is capturing")
        self._captured = True
        frozen = copy.copy(self)
        frozen._shapes, frozen._addresses = dict(self._shapes), dict(self._addresses)
        CAPTURED.append(frozen._compute)
        return True

    def _compute(self):
        for name in self._names("OUTPUT"):
            result = self._result(self._engine._tensors[name])
            if name in self._allocators:
                allocator = self._allocators[name]
                self._addresses[name] = allocator.reallocate_output_async(name, 0, result.nbytes, _ALIGNMENT, 1)
                if not self._addresses[name]:
                    return self._fail("IExecutionContext::enqueueV3: Requested amount of GPU memory could not be had")
                allocator.notify_shape(name, result.shape)
            else:
                result = np.resize(result, self.get_tensor_shape(name))
            ctypes.memmove(self._addresses[name], result.tobytes(), result.nbytes)
        return True

    def _result(self, tensor):
        source = self._read(tensor["of"])
        dtype = _NUMPY[tensor["dtype"]]
        match tensor["does"]:
            case "affine":
                return (source * 2 + 1).astype(dtype)
            case "nonzero":
                return source[source != 0].astype(dtype)
            case "shape":
                return np.array(source.shape, dtype)
            case "fill":
                return np.full(self.get_tensor_shape(tensor["name"]), source.reshape(-1)[0], dtype)
        raise ValueError(tensor["does"])

    def _read(self, name):
        tensor, shape = self._engine._tensors[name], self._shapes[name]
        dtype = np.dtype(_NUMPY[tensor["dtype"]])
        memory = (ctypes.c_byte * (math.prod(shape) * dtype.itemsize)).from_address(self._addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)


class _CompilingContext(IExecutionContext):
    """Of TensorRT for RTX, while it compiles kernels."""

    def is_stream_capturable(self, stream):
        assert stream, "not the default stream"
        return False
