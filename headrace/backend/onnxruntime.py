"""ONNX Runtime on the CPU, through IOBinding: it reads and writes the addresses it is given and copies
nothing. GPUs are in `onnx_cuda.py`.

The shape of an output comes from the file, where its free dimensions have the names of input dimensions.
Where they have not, ONNX Runtime allocates the output the first time; the shape is remembered for inputs of
that shape (`shape_memory.py`) and the output bound to our memory from then on. Should it turn out to be another,
because it depends on values (NonZero, NMS) or a file's names lie, ONNX Runtime refuses the bound one, and
allocates it in a second run.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from headrace.backend.base import DeviceInstance, Inputs, Instance, ModelFile, Produced
from headrace.backend.onnx_cuda import PROVIDER as CUDA
from headrace.backend.onnx_cuda import OnnxCudaInstance, check_provider
from headrace.backend.onnx_feeds import FeedingInstance, must_feed
from headrace.backend.onnx_shapes import apply_rule, binding_type, shape_rules
from headrace.backend.shape_memory import ShapeMemory
from headrace.config.backend_config import POOL, POOL_SIZES
from headrace.config.model import ModelSignature, ModelSpec
from headrace.config.onnx_cuda import needs_cpu, read_cuda_settings
from headrace.config.onnx_settings import OnnxSettings, read_settings
from headrace.core.dtype import BYTES, DTYPES
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef, TensorSpec
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning

CPU = "CPUExecutionProvider"
_CUDNN = "libcudnn.so.9"
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
    "tensor(string)": "BYTES",
}


class OnnxModel:
    """A model file; each instance has a session of its own, unless its config wants them to share one."""

    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile) -> None:
        self._path = file.path
        self._runtime = _import_runtime()
        self._pooled = file.settings.get(POOL) == "1"
        if self._pooled:
            _make_pool(self._runtime, *(int(file.settings.get(key, "0")) for key in POOL_SIZES))
        self._made = (OnnxSettings(), 1)
        session = self._open(*self._made)
        self.signature = ModelSignature(
            _specs(session.get_inputs()),
            _specs(session.get_outputs()),
            defaulted=_specs(session.get_overridable_initializers()),
            text_only=True,
        )
        self._spare: Any | None = session
        forwarded = {tensor.name for tensor in self.signature.inputs} & {t.name for t in self.signature.outputs}
        if forwarded:
            # ONNX Runtime never writes such an output where it is bound, so a client would read what lay there before.
            names = ", ".join(map(repr, sorted(forwarded)))
            raise ConfigError(f"{self._path}: {names} is an input and an output; put an Identity between them")

    def start_instance(self, spec: ModelSpec, threads: int) -> Instance:
        """A session, with `threads` threads where the config does not say how many."""
        settings = read_settings(spec.message)
        session = self._session(settings, threads)
        start = FeedingInstance if must_feed(spec) else OnnxInstance
        return start(session, spec, self._run_options(settings))

    def _session(self, settings: OnnxSettings, threads: int) -> Any:
        spare = self._spare if self._made == (settings, threads) else None
        if spare is None:
            spare = self._open(settings, threads)
        self._made = (settings, threads)
        self._spare = spare if settings.share_session else None
        return spare

    def _run_options(self, settings: OnnxSettings) -> Any:
        if not settings.shrink:
            return None
        options = self._runtime.RunOptions()
        options.add_run_config_entry(*settings.shrink_entry)
        return options

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:
        """A session on the device; what it computes on the CPU takes one thread."""
        check_provider(self._runtime, spec, device)
        find_libraries(self._runtime)
        self._spare = None  # the session that told the signature
        settings = read_settings(spec.message)

        def open_session(provider: Mapping[str, str], extents: Mapping[str, int]) -> Any:
            session = self._open(settings, 1, [(CUDA, dict(provider)), CPU], extents)
            if CUDA not in session.get_providers():
                raise ConfigError(
                    f"{self._path}: ONNX Runtime's {CUDA} did not start, as its libraries of CUDA or cuDNN are not "
                    "found: try python -c 'import onnxruntime; onnxruntime.preload_dlls()'"
                )
            return session

        return OnnxCudaInstance(self._runtime, open_session, spec, device, pinning, read_cuda_settings(spec.message))

    def _open(
        self,
        settings: OnnxSettings,
        threads: int,
        providers: Sequence[Any] = (CPU,),
        extents: Mapping[str, int] | None = None,
    ) -> Any:
        options = self._session_options(settings, threads)
        for name, extent in (extents or {}).items():
            options.add_free_dimension_override_by_name(name, extent)
        try:
            return self._runtime.InferenceSession(
                str(self._path), options, providers=list(providers), enable_fallback=0
            )
        except Exception as error:
            raise ConfigError(f"{self._path}: ONNX Runtime cannot load it: {error}") from error

    def _session_options(self, settings: OnnxSettings, threads: int) -> Any:
        runtime = self._runtime
        options = runtime.SessionOptions()
        options.intra_op_num_threads = settings.intra_op_threads or threads
        options.inter_op_num_threads = (settings.inter_op_threads or threads) if settings.parallel else 1
        mode = runtime.ExecutionMode
        options.execution_mode = mode.ORT_PARALLEL if settings.parallel else mode.ORT_SEQUENTIAL
        options.enable_cpu_mem_arena = settings.mem_arena
        options.enable_mem_pattern = settings.mem_pattern
        level = runtime.GraphOptimizationLevel
        options.graph_optimization_level = {
            0: level.ORT_ENABLE_ALL,
            -1: level.ORT_ENABLE_BASIC,
            1: level.ORT_ENABLE_EXTENDED,
            2: level.ORT_DISABLE_ALL,
        }[settings.graph_level]
        for key, value in settings.entries:
            options.add_session_config_entry(key, value)
        options.use_per_session_threads = not self._pooled
        options.log_severity_level = 4  # what it would log is in the exceptions that it raises
        return options


class OnnxInstance:
    """A session and a binding of its own."""

    def __init__(self, session: Any, spec: ModelSpec, run_options: Any) -> None:
        self._session = session
        self._run_options = run_options
        self._binding = session.io_binding()
        self._inputs = [(tensor.name, binding_type(tensor.dtype)) for tensor in spec.inputs]
        self._outputs = [(tensor.name, binding_type(tensor.dtype)) for tensor in spec.outputs]
        self._specs = spec.outputs
        self._rules = shape_rules(session, spec)
        self._memory = ShapeMemory()

    def output_shapes(self, inputs: Inputs) -> Sequence[Shape | None]:
        """As the file's dimension names say, or as inputs of these shapes gave them."""
        inputs = _all_given(inputs)
        shapes = _shapes(inputs)
        return [self._memory.guess(shapes, at, apply_rule(rule, shapes)) for at, rule in enumerate(self._rules)]

    def run(self, inputs: Inputs, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """One call of the session, or two when the shape of an output was not as thought."""
        inputs, binding = _all_given(inputs), self._binding
        for (name, element_type), reference in zip(self._inputs, inputs, strict=True):
            binding.bind_input(name, "cpu", 0, element_type, reference.shape, reference.address)
        try:
            bound = self._run_bound(outputs)
            produced = self._produced(bound)
        finally:
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()
        for at, output in produced.items():
            place = outputs[at]
            self._memory.learn(_shapes(inputs), at, output.reference.shape, None if place is None else place.shape)
        return produced

    def _run_bound(self, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, TensorRef | None]:
        """Runs, and returns the places that outputs were bound to in the run that succeeded."""
        self._bind_outputs(outputs)
        try:
            self._session.run_with_iobinding(self._binding, self._run_options)
        except Exception:
            if all(place is None for place in outputs.values()):
                raise
            # A bound shape may be the reason. Without any the error, if it is another, comes again.
            outputs = dict.fromkeys(outputs)
            self._bind_outputs(outputs)
            self._session.run_with_iobinding(self._binding, self._run_options)
        return outputs

    def _bind_outputs(self, outputs: Mapping[int, TensorRef | None]) -> None:
        self._binding.clear_binding_outputs()
        for at, reference in outputs.items():
            name, element_type = self._outputs[at]
            if reference is None:
                self._binding.bind_output(name, "cpu")
            else:
                self._binding.bind_output(name, "cpu", 0, element_type, reference.shape, reference.address)

    def _produced(self, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        if all(reference is not None for reference in outputs.values()):
            return {}
        produced = {}
        for (at, place), value in zip(outputs.items(), self._binding.get_outputs(), strict=True):
            if place is None:
                shape = tuple(value.shape())
                produced[at] = Produced(TensorRef(value.data_ptr(), self._specs[at].dtype, shape), value)
        return produced


def _all_given(inputs: Inputs) -> Sequence[TensorRef]:
    """Models with optional inputs have another kind of instance."""
    return [reference for reference in inputs if reference is not None]


def load(file: ModelFile) -> OnnxModel:
    """Opens the model file.

    Raises:
        ConfigError: when ONNX Runtime is not installed, cannot read the file, or the file has types that are
        not served.
    """
    if not file.path.exists():
        raise ConfigError(f"{file.path} does not exist")
    return OnnxModel(file)


def _shapes(inputs: Sequence[TensorRef]) -> tuple[Shape, ...]:
    return tuple(reference.shape for reference in inputs)


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError(
            f"backend 'onnxruntime' needs ONNX Runtime: pip install 'headrace[onnx]' ({error})"
        ) from error
    return onnxruntime


@functools.cache
def find_libraries(runtime: Any) -> None:
    """CUDA's and cuDNN's, where the loader of the system would not look: in packages beside ONNX Runtime, or, should
    cuDNN not be there, wherever PyTorch has them.
    """
    if hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()
    try:
        ctypes.CDLL(_CUDNN)
    except OSError:
        with suppress(ImportError):
            importlib.import_module("torch")


def why_not_on_gpus(config: Any) -> str:
    """The installed ONNX Runtime has no CUDA provider, or the model something that needs the CPU; empty otherwise."""
    try:
        there = _import_runtime().get_available_providers()
    except ConfigError as error:
        return str(error)
    return needs_cpu(config) if CUDA in there else f"this ONNX Runtime has no {CUDA} (headrace[onnx-gpu])"


@functools.cache
def _make_pool(runtime: Any, intra_op_threads: int, inter_op_threads: int) -> None:
    """One pool of threads for all sessions of the process: ONNX Runtime makes it once and refuses another."""
    runtime.set_global_thread_pool_sizes(intra_op_threads, inter_op_threads)


def _specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(tensor) for tensor in tensors)


def _spec(tensor: Any) -> TensorSpec:
    name = _ELEMENT_TYPES.get(tensor.type)
    if name is None:
        raise ConfigError(f"tensor '{tensor.name}' has type {tensor.type}, which is not served yet")
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in tensor.shape)
    return TensorSpec(tensor.name, BYTES if name == "BYTES" else DTYPES[name], dims)
