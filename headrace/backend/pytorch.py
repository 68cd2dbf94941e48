"""PyTorch: TorchScript files (`platform: pytorch_libtorch`), on the CPU, and on a GPU in CUDA graphs.

On a GPU each slot owns a static input for every input of the model, and one graph for each batch size that is used: 1,
2, 4 and every multiple of 4 up to the maximum. A batch of another size is computed as the next larger one. Graphs hold
computation only; copies stay outside. A shape that the config leaves open is only known with the first request of that
shape, which waits for its graphs.

Parameter in config.pbtxt: `channels_last` ("true": images are computed in that memory format).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.backend.base import DeviceInstance, ModelFile, Produced
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning

_SHAPE_SETS = 4
"""Shapes that a slot keeps buffers and graphs for; the one that was not used for longest goes first."""
_WARM_UP_RUNS = 3
_SPECIALISED_SHAPES = 20
"""Input shapes that TorchScript compiles fused kernels for. By default it gives up after two, and the graphs of all
other batch sizes are slower (two instances: 13.4 ms against 11.4 ms for 32 images of the founding report's detector).
"""


class TorchModel:
    """A TorchScript file. Instances on a GPU share one module: they only run it when they capture, one at a time."""

    signature: ModelSignature | None = None
    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile, torch: Any) -> None:
        self._path = file.path
        self._torch = torch
        torch.jit.set_fusion_strategy([("STATIC", _SPECIALISED_SHAPES)])
        self._on_device: dict[int, Any] = {}
        self._warm: set[tuple[int, int, tuple[Shape, ...]]] = set()
        """Device, batch size and shapes that the module has been compiled for."""

    def start_instance(self, spec: ModelSpec, threads: int) -> TorchInstance:
        """On the CPU."""
        self._torch.set_num_threads(threads)
        return TorchInstance(self._torch, self._load("cpu", spec), spec)

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:
        """On a GPU."""
        if device.index not in self._on_device:
            self._on_device[device.index] = self._load(f"cuda:{device.index}", spec)
        return TorchDeviceInstance(self._torch, self._on_device[device.index], spec, device, pinning, self._warm)

    def _load(self, where: str, spec: ModelSpec) -> Any:
        try:
            module = self._torch.jit.load(str(self._path), map_location=where).eval()
        except Exception as error:
            raise ConfigError(f"{self._path}: PyTorch cannot load it: {error}") from error
        if all(tensor.dtype.name == "FP16" for tensor in spec.inputs):
            module = module.half()
        return module.to(memory_format=self._torch.channels_last) if _channels_last(spec) else module


class TorchInstance:
    """A module on the CPU. It computes from memory that it is given; PyTorch allocates its outputs."""

    def __init__(self, torch: Any, module: Any, spec: ModelSpec) -> None:
        self._torch = torch
        self._module = module
        self._spec = spec

    def output_shapes(self, inputs: Sequence[TensorRef]) -> Sequence[Shape | None]:
        """Only execution tells."""
        del inputs
        return [None] * len(self._spec.outputs)

    def run(self, inputs: Sequence[TensorRef], outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """One call of the module."""
        tensors = [_from_host(self._torch, reference) for reference in inputs]
        with self._torch.inference_mode():
            results = _outputs(self._torch, self._module(*tensors), self._spec)
        produced = {}
        for at in outputs:
            dtype, tensor = self._spec.outputs[at].dtype, results[at]
            produced[at] = Produced(TensorRef(tensor.data_ptr(), dtype, tuple(tensor.shape)), tensor)
        return produced


@dataclass
class _ShapeSet:
    """What a slot has for inputs of one shape."""

    inputs: list[Any]
    graphs: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)
    """By batch size: the graph and its outputs."""


class TorchDeviceInstance:
    """A module on a GPU, with a stream of its own."""

    def __init__(
        self, torch: Any, module: Any, spec: ModelSpec, device: Device, pinning: Pinning, warm: set[Any]
    ) -> None:
        self._torch = torch
        self._module = module
        self._spec = spec
        self._pinning = pinning
        self._index = device.index
        self._warm = warm
        self._where = f"cuda:{device.index}"
        self._stream = torch.cuda.Stream(device=self._where)
        self._slots: dict[int, dict[tuple[Shape, ...], _ShapeSet]] = {}
        shapes = [tensor.dims for tensor in spec.inputs]
        if all(dim >= 0 for dims in shapes for dim in dims):
            self._prepare(tuple(shapes))

    def _prepare(self, shapes: tuple[Shape, ...]) -> None:
        """Graphs of all sizes for both slots, one after another, before anything is served."""
        for slot in (0, 1):
            shape_set = self._shape_set(slot, shapes)
            for rows in reversed(batch_sizes(self._spec.max_batch_size)):
                self._graph(shape_set, rows)

    def bind(self, slot: int, shapes: Sequence[Shape]) -> TorchBound:
        """The slot's buffers for these shapes."""
        batches = self._spec.max_batch_size > 0
        rows = shapes[0][0] if batches else 1
        dims = tuple(tuple(shape[1:]) if batches else tuple(shape) for shape in shapes)
        shape_set = self._shape_set(slot, dims)
        padded = next((size for size in batch_sizes(self._spec.max_batch_size) if size >= rows), rows)
        graph, outputs = self._graph(shape_set, padded)
        addresses = [tensor.data_ptr() for tensor in shape_set.inputs]
        return TorchBound(self, graph, outputs, addresses, rows if batches else None)

    def _shape_set(self, slot: int, dims: tuple[Shape, ...]) -> _ShapeSet:
        sets = self._slots.setdefault(slot, {})
        found = sets.pop(dims, None)
        if found is None:
            if len(sets) >= _SHAPE_SETS:
                sets.pop(next(iter(sets)))
            rows = [self._spec.max_batch_size] if self._spec.max_batch_size > 0 else []
            with self._pinning.quiet:
                tensors = [
                    self._torch.zeros(
                        [*rows, *own], dtype=_torch_type(self._torch, tensor.dtype.name), device=self._where
                    )
                    for own, tensor in zip(dims, self._spec.inputs, strict=True)
                ]
            found = _ShapeSet(tensors)
        sets[dims] = found
        return found

    def _graph(self, shape_set: _ShapeSet, rows: int) -> tuple[Any, list[Any]]:
        if rows not in shape_set.graphs:
            with self._pinning.quiet:
                shape_set.graphs[rows] = self._capture(shape_set, rows)
        return shape_set.graphs[rows]

    def _capture(self, shape_set: _ShapeSet, rows: int) -> tuple[Any, list[Any]]:
        torch = self._torch
        batches = self._spec.max_batch_size > 0
        inputs = [tensor[:rows] if batches else tensor for tensor in shape_set.inputs]
        with torch.cuda.stream(self._stream), torch.inference_mode():
            self._warm_up(inputs, rows)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._call(inputs)
        return graph, outputs

    def _warm_up(self, inputs: Sequence[Any], rows: int) -> None:
        """Lets TorchScript compile for these shapes, which takes its first runs; once for all slots and instances."""
        key = (self._index, rows, tuple(tuple(tensor.shape) for tensor in inputs))
        for _ in range(_WARM_UP_RUNS if key not in self._warm else 1):
            self._call(inputs)
        self._stream.synchronize()
        self._warm.add(key)

    def _call(self, inputs: Sequence[Any]) -> list[Any]:
        torch = self._torch
        if _channels_last(self._spec):
            inputs = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
        return _outputs(torch, self._module(*inputs), self._spec)

    def replay(self, graph: Any) -> None:
        """Puts the graph on this instance's stream."""
        with self._torch.cuda.stream(self._stream):
            graph.replay()

    @property
    def stream(self) -> int:
        """The `cudaStream_t`."""
        return int(self._stream.cuda_stream)

    @property
    def spec(self) -> ModelSpec:
        """The model's."""
        return self._spec


@dataclass(frozen=True)
class TorchBound:
    """A slot bound to a batch."""

    instance: TorchDeviceInstance
    graph: Any
    outputs: list[Any]
    inputs: Sequence[int]
    rows: int | None

    @property
    def stream(self) -> int:
        """The instance's."""
        return self.instance.stream

    def run(self) -> Sequence[TensorRef]:
        """Replays the graph."""
        self.instance.replay(self.graph)
        specs = self.instance.spec.outputs
        return [self._reference(output, tensor.dtype) for output, tensor in zip(self.outputs, specs, strict=True)]

    def _reference(self, output: Any, dtype: Any) -> TensorRef:
        shape = tuple(output.shape)
        return TensorRef(output.data_ptr(), dtype, shape if self.rows is None else (self.rows, *shape[1:]))


def batch_sizes(max_batch_size: int) -> list[int]:
    """The sizes that have a graph: 1, 2, 4 and every multiple of 4 up to the maximum."""
    if max_batch_size <= 0:
        return [1]
    sizes = {1, 2, *range(4, max_batch_size, 4), max_batch_size}
    return sorted(size for size in sizes if size <= max_batch_size)


def load(file: ModelFile) -> TorchModel:
    """Finds PyTorch and the file.

    Raises:
        ConfigError: when PyTorch is not installed or the file is not there.
    """
    if not file.path.exists():
        raise ConfigError(f"{file.path} does not exist")
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"backend 'pytorch' needs PyTorch: pip install torch ({error})") from error
    return TorchModel(file, torch)


def _channels_last(spec: ModelSpec) -> bool:
    return spec.parameters.get("channels_last", "false") == "true"


_TORCH_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}


def _torch_type(torch: Any, name: str) -> Any:
    if name not in _TORCH_NAMES:
        raise ConfigError(f"PyTorch has no arithmetic for {name}")
    return getattr(torch, _TORCH_NAMES[name])


def _outputs(torch: Any, result: Any, spec: ModelSpec) -> list[Any]:
    """The outputs, dense and of the config's types: a floating type may be another one, as a module that was made half
    may still compute its last operator in FP32; any other difference is an error.
    """
    return [_as_config(torch, tensor, spec, at).contiguous() for at, tensor in enumerate(_flatten(result, spec))]


def _as_config(torch: Any, tensor: Any, spec: ModelSpec, at: int) -> Any:
    wanted = spec.outputs[at]
    dtype = _torch_type(torch, wanted.dtype.name)
    if tensor.dtype != dtype and not (tensor.is_floating_point() and dtype.is_floating_point):
        expected = f"TYPE_{wanted.dtype.name} in its config"
        raise ConfigError(f"output '{wanted.name}' of model '{spec.name}' is {tensor.dtype}, but {expected}")
    return tensor.to(dtype)


def _flatten(result: Any, spec: ModelSpec) -> list[Any]:
    """The outputs in the config's order: a tensor, a sequence in order, or a dictionary by name."""
    if isinstance(result, dict):
        return [result[tensor.name] for tensor in spec.outputs]
    results = list(result) if isinstance(result, list | tuple) else [result]
    if len(results) < len(spec.outputs):
        counts = f"{len(results)} tensors, its config has {len(spec.outputs)} outputs"
        raise ConfigError(f"model '{spec.name}' returns {counts}")
    return results[: len(spec.outputs)]


def _from_host(torch: Any, reference: TensorRef) -> Any:
    """A tensor over memory that somebody else owns."""
    dtype = _torch_type(torch, reference.dtype.name)
    count = math.prod(reference.shape)
    if count == 0:
        return torch.empty(reference.shape, dtype=dtype)
    memory = (ctypes.c_byte * reference.nbytes).from_address(reference.address)
    return torch.frombuffer(memory, dtype=dtype, count=count).reshape(reference.shape)
