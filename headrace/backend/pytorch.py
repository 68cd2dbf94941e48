"""PyTorch (`platform: pytorch_libtorch`): `model.pt` and `model.pt2`, on the CPU and on GPUs.

What the files hold is in `torch_programs.py`, names are in `torch_naming.py`, GPUs in `torch_graphs.py`.

Parameters in config.pbtxt, each "true" or "false": `fp16` (weights of a TorchScript file are made half; by default when
all inputs are FP16), `channels_last` (images are computed in that memory format), `cuda_graphs` (by default; without
them a compiled model is called for every batch), `compile` (by Inductor, `torch_compiled.py`). Another,
`cuda_graph_batch_sizes`, lists sizes such as "1,8,32": batches of other sizes are computed as the next larger one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from headrace.backend.base import DeviceInstance, Inputs, ModelFile, Produced
from headrace.backend.torch_graphs import TorchDeviceInstance, WarmShapes, batch_sizes
from headrace.backend.torch_naming import input_positions, output_positions
from headrace.backend.torch_programs import Layout, Program, open_program
from headrace.config.model import ModelSignature, ModelSpec
from headrace.config.settings import read_sizes
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning

_SPECIALISED_SHAPES = 20
"""Input shapes that TorchScript compiles fused kernels for. By default it gives up after two, and the graphs of all
other batch sizes are slower (two instances: 13.4 ms against 11.4 ms for 32 images of the founding report's detector).
"""


@dataclass(frozen=True)
class Call:
    """A program with the names of a config: inputs in the config's order in, outputs in the config's order out."""

    torch: Any
    program: Program
    spec: ModelSpec
    channels_last: bool
    order: Sequence[int]
    """The config's input at each position of `forward`."""
    results: Sequence[int]
    """Position in what `forward` returns of each output of the config."""

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, dense and of the config's types."""
        if self.channels_last:
            layout = self.torch.channels_last
            inputs = [x.contiguous(memory_format=layout) if x.dim() == 4 else x for x in inputs]
        returned = self.program.call(*(inputs[at] for at in self.order))
        return [self._as_config(at, tensor).contiguous() for at, tensor in enumerate(self._pick(returned))]

    def _pick(self, returned: Any) -> list[Any]:
        """The config's outputs of a tensor, a sequence, or a dictionary by name."""
        if isinstance(returned, dict):
            return [self._named(returned, tensor.name) for tensor in self.spec.outputs]
        tensors = list(returned) if isinstance(returned, list | tuple) else [returned]
        if len(tensors) <= max(self.results):
            name = self.spec.outputs[self.results.index(max(self.results))].name
            counts = f"position {max(self.results)}, but the model returns {len(tensors)} tensors"
            raise ConfigError(f"output '{name}' of model '{self.spec.name}' is at {counts}")
        return [tensors[at] for at in self.results]

    def _named(self, returned: dict[str, Any], name: str) -> Any:
        if name not in returned:
            raise ConfigError(f"model '{self.spec.name}' returns no '{name}', but {sorted(returned)}")
        return returned[name]

    def _as_config(self, at: int, tensor: Any) -> Any:
        """A floating type may be another one, as a module that was made half may still compute its last operator in
        FP32; any other difference is an error.
        """
        wanted = self.spec.outputs[at]
        dtype = torch_type(self.torch, wanted.dtype.name)
        if tensor.dtype != dtype and not (tensor.is_floating_point() and dtype.is_floating_point):
            expected = f"TYPE_{wanted.dtype.name} in its config"
            raise ConfigError(f"output '{wanted.name}' of model '{self.spec.name}' is {tensor.dtype}, but {expected}")
        return tensor.to(dtype)


class TorchModel:
    """A model file. Instances on a GPU share what was opened: they only run it when they capture, one at a time."""

    signature: ModelSignature | None = None
    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile, torch: Any) -> None:
        self._path = file.path
        self._torch = torch
        torch.jit.set_fusion_strategy([("STATIC", _SPECIALISED_SHAPES)])
        self._on_device: WeakValueDictionary[int, Call] = WeakValueDictionary()
        """Programs by device; its instances keep one alive, so that the last to close frees it."""
        self._warm: dict[int, WarmShapes] = {}

    def start_instance(self, spec: ModelSpec, threads: int) -> TorchInstance:
        """On the CPU."""
        _switch(spec, "cuda_graphs", default=True)
        self._torch.set_num_threads(threads)
        return TorchInstance(self._torch, self._open("cpu", spec), spec)

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:
        """On a GPU."""
        call = self._on_device.get(device.index)
        if call is None:
            call = self._open(f"cuda:{device.index}", spec)
            self._on_device[device.index], self._warm[device.index] = call, set()
        warm = self._warm[device.index]
        graphs = _switch(spec, "cuda_graphs", default=True)
        if not graphs and not call.program.is_compiled:
            raise ConfigError(f"{self._path}: an exported program on a GPU needs 'cuda_graphs'")
        types = [torch_type(self._torch, tensor.dtype.name) for tensor in spec.inputs]
        sizes = _graph_sizes(spec)
        return TorchDeviceInstance(
            self._torch, call, spec, types, sizes, device.index, pinning, warm if graphs else None
        )

    def _open(self, where: str, spec: ModelSpec) -> Call:
        half = _switch(spec, "fp16", default=all(tensor.dtype.name == "FP16" for tensor in spec.inputs))
        channels_last = _switch(spec, "channels_last", default=False)
        compiled = _switch(spec, "compile", default=False)
        if compiled and where == "cpu":
            raise ConfigError(f"parameter 'compile' of model '{spec.name}' is for instances on GPUs (KIND_GPU)")
        program = open_program(self._torch, self._path, where, Layout(half, channels_last, compiled))
        positions = input_positions([tensor.name for tensor in spec.inputs], program.arguments)
        order = sorted(range(len(positions)), key=positions.__getitem__)
        results = output_positions([tensor.name for tensor in spec.outputs])
        return Call(self._torch, program, spec, channels_last, order, results)


class TorchInstance:
    """A model on the CPU. It computes from memory that it is given; PyTorch allocates its outputs."""

    def __init__(self, torch: Any, call: Call, spec: ModelSpec) -> None:
        self._torch = torch
        self._call = call
        self._spec = spec

    def output_shapes(self, inputs: Inputs) -> Sequence[Shape | None]:
        """Only execution tells."""
        del inputs
        return [None] * len(self._spec.outputs)

    def run(self, inputs: Inputs, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """One call of the model."""
        tensors = [_from_host(self._torch, reference) for reference in inputs if reference is not None]
        with self._torch.inference_mode():
            results = self._call(tensors)
        produced = {}
        for at in outputs:
            dtype, tensor = self._spec.outputs[at].dtype, results[at]
            produced[at] = Produced(TensorRef(tensor.data_ptr(), dtype, tuple(tensor.shape)), tensor)
        return produced


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


def _switch(spec: ModelSpec, name: str, default: bool) -> bool:
    text = spec.parameters.get(name, str(default).lower())
    if text not in ("true", "false"):
        raise ConfigError(f"parameter '{name}' of model '{spec.name}': expected true or false, got '{text}'")
    return text == "true"


def _graph_sizes(spec: ModelSpec) -> list[int]:
    """Batch sizes that have a graph; few when each has to be compiled for most of a minute."""
    largest = spec.max_batch_size
    text = spec.parameters.get("cuda_graph_batch_sizes")
    if text is None:
        is_slow = _switch(spec, "compile", default=False)
        return (
            sorted({max(1, largest // part) for part in (1, 2, 4, largest or 1)}) if is_slow else batch_sizes(largest)
        )
    try:
        return read_sizes(text, largest)
    except ValueError as error:
        raise ConfigError(f"parameter 'cuda_graph_batch_sizes' of model '{spec.name}': {error}") from None


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


def torch_type(torch: Any, name: str) -> Any:
    """The `torch.dtype` of a dtype's name.

    Raises:
        ConfigError: for one that PyTorch does not have.
    """
    if name not in _TORCH_NAMES:
        raise ConfigError(f"PyTorch has no arithmetic for {name}")
    return getattr(torch, _TORCH_NAMES[name])


def _from_host(torch: Any, reference: TensorRef) -> Any:
    """A tensor over memory that somebody else owns."""
    dtype = torch_type(torch, reference.dtype.name)
    count = math.prod(reference.shape)
    if count == 0:
        return torch.empty(reference.shape, dtype=dtype)
    memory = (ctypes.c_byte * reference.nbytes).from_address(reference.address)
    return torch.frombuffer(memory, dtype=dtype, count=count).reshape(reference.shape)
