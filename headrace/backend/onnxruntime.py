"""ONNX Runtime on the CPU, through IOBinding: it reads and writes the addresses it is given and copies
nothing.

The shape of an output comes from the file, where its free dimensions have the names of input dimensions.
Where they have not, ONNX Runtime allocates the output the first time; the shape is remembered for inputs of
that shape and the output bound to our memory from then on. Should a shape depend on values (NonZero, NMS), or
a file's names lie, ONNX Runtime refuses the bound one, and that output is never bound again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.backend.base import DeviceInstance, ModelFile, Produced
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.dtype import DTYPES, Dtype
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef, TensorSpec
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning

_ELEMENT_TYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
_BF16 = 16
"""`onnx.TensorProto.BFLOAT16`: NumPy has no such type, so its ONNX number is bound."""
_REMEMBERED_SHAPES = 256


class OnnxModel:
    """A model file; each instance has a session of its own, as threads are a property of sessions."""

    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile) -> None:
        self._path = file.path
        self._runtime = _import_runtime()
        session = self._open(threads=1)
        self.signature = ModelSignature(_specs(session.get_inputs()), _specs(session.get_outputs()))
        self._spare: Any | None = session
        forwarded = {tensor.name for tensor in self.signature.inputs} & {t.name for t in self.signature.outputs}
        if forwarded:
            # ONNX Runtime never writes such an output where it is bound, so a client would read what lay there before.
            names = ", ".join(map(repr, sorted(forwarded)))
            raise ConfigError(f"{self._path}: {names} is an input and an output; put an Identity between them")

    def start_instance(self, spec: ModelSpec, threads: int) -> OnnxInstance:
        """A session with `threads` threads within an operator."""
        spare, self._spare = self._spare, None
        session = spare if spare is not None and threads == 1 else self._open(threads)
        return OnnxInstance(session, spec)

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:  # noqa: ARG002
        """Not yet."""
        raise ConfigError(
            f"backend 'onnxruntime' is not served on a GPU yet (instance_group KIND_GPU of '{spec.name}')"
        )

    def _open(self, threads: int) -> Any:
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what it would log is in the exceptions that it raises
        try:
            return self._runtime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ConfigError(f"{self._path}: ONNX Runtime cannot load it: {error}") from error


class OnnxInstance:
    """One session and its binding."""

    def __init__(self, session: Any, spec: ModelSpec) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._inputs = [(tensor.name, _binding_type(tensor.dtype)) for tensor in spec.inputs]
        self._outputs = [(tensor.name, _binding_type(tensor.dtype)) for tensor in spec.outputs]
        self._specs = spec.outputs
        self._rules = _shape_rules(session, spec)
        self._learned: dict[tuple[Shape, ...], dict[int, Shape]] = {}
        self._value_dependent: set[int] = set()

    def output_shapes(self, inputs: Sequence[TensorRef]) -> Sequence[Shape | None]:
        """As the file's dimension names say, or as the last inputs of these shapes gave them."""
        known = self._learned.get(tuple(reference.shape for reference in inputs), {})
        return [
            None if at in self._value_dependent else known.get(at) or _apply(rule, inputs)
            for at, rule in enumerate(self._rules)
        ]

    def run(self, inputs: Sequence[TensorRef], outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """One call of the session."""
        binding = self._binding
        for (name, element_type), reference in zip(self._inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, element_type, reference.shape, reference.address)
        self._bind_outputs(outputs)
        try:
            self._session.run_with_iobinding(binding)
        except Exception:
            bound = [at for at, reference in outputs.items() if reference is not None]
            if not bound:
                raise
            # A bound shape may be the reason. Without any the error, if it is another, comes again.
            outputs = dict.fromkeys(outputs)
            self._bind_outputs(outputs)
            self._session.run_with_iobinding(binding)
            self._value_dependent.update(bound)
        produced = self._produced(inputs, outputs)
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        return produced

    def _bind_outputs(self, outputs: Mapping[int, TensorRef | None]) -> None:
        self._binding.clear_binding_outputs()
        for at, reference in outputs.items():
            name, element_type = self._outputs[at]
            if reference is None:
                self._binding.bind_output(name, "cpu")
            else:
                self._binding.bind_output(name, "cpu", 0, element_type, reference.shape, reference.address)

    def _produced(self, inputs: Sequence[TensorRef], outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        if all(reference is not None for reference in outputs.values()):
            return {}
        produced = {}
        for (at, place), value in zip(outputs.items(), self._binding.get_outputs(), strict=True):
            if place is None:
                shape = tuple(value.shape())
                produced[at] = Produced(TensorRef(value.data_ptr(), self._specs[at].dtype, shape), value)
        self._remember(tuple(reference.shape for reference in inputs), produced)
        return produced

    def _remember(self, inputs: tuple[Shape, ...], produced: Mapping[int, Produced]) -> None:
        if inputs not in self._learned and len(self._learned) >= _REMEMBERED_SHAPES:
            self._learned.pop(next(iter(self._learned)))
        known = self._learned.setdefault(inputs, {})
        known.update({at: output.reference.shape for at, output in produced.items()})


def load(file: ModelFile) -> OnnxModel:
    """Opens the model file.

    Raises:
        ConfigError: when ONNX Runtime is not installed, cannot read the file, or the file has types that are
        not served.
    """
    if not file.path.exists():
        raise ConfigError(f"{file.path} does not exist")
    return OnnxModel(file)


_Rule = list[int | tuple[int, int]] | None
"""Each dimension of an output: an extent, or the input and axis that have the same; `None` when the file does
not tell.
"""


def _shape_rules(session: Any, spec: ModelSpec) -> list[_Rule]:
    shapes = {tensor.name: tensor.shape for tensor in [*session.get_inputs(), *session.get_outputs()]}
    free = {
        dim: (number, axis)
        for number, tensor in enumerate(spec.inputs)
        for axis, dim in enumerate(shapes[tensor.name])
        if isinstance(dim, str)
    }
    return [_rule(shapes[tensor.name], free) for tensor in spec.outputs]


def _rule(shape: Sequence[int | str], free: Mapping[str, tuple[int, int]]) -> _Rule:
    rule: list[int | tuple[int, int]] = []
    for dim in shape:
        source = free.get(dim) if isinstance(dim, str) else dim
        if not isinstance(source, int | tuple) or source == -1:
            return None
        rule.append(source)
    return rule


def _apply(rule: _Rule, inputs: Sequence[TensorRef]) -> Shape | None:
    if rule is None:
        return None
    return tuple(dim if isinstance(dim, int) else inputs[dim[0]].shape[dim[1]] for dim in rule)


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"backend 'onnxruntime' needs ONNX Runtime: pip install 'headrace[onnx]' ({error})"
        ) from error
    return onnxruntime


def _binding_type(dtype: Dtype) -> Any:
    return _BF16 if dtype.name == "BF16" else dtype.numpy


def _specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(tensor) for tensor in tensors)


def _spec(tensor: Any) -> TensorSpec:
    name = _ELEMENT_TYPES.get(tensor.type)
    if name is None:
        raise ConfigError(f"tensor '{tensor.name}' has type {tensor.type}, which is not served yet")
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in tensor.shape)
    return TensorSpec(tensor.name, DTYPES[name], dims)
