"""A plan opened by TensorRT: what it says about its tensors and profiles, and why it could not be opened, in words."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.backend.trt_plan import Library, PlanHeader
from headrace.backend.trt_profiles import Profile, Range
from headrace.config.model import ModelSignature
from headrace.core.dtype import DTYPES
from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec

_FIRST_VERSION = {Library.TENSORRT: 10, Library.RTX: 1}
"""From here on execution contexts may share a profile (TensorRT 8 and 9 forbid it by default)."""
_MODULES = {Library.TENSORRT: ("tensorrt", "tensorrt_lean"), Library.RTX: ("tensorrt_rtx",)}
"""The lean runtime runs plans that were built version-compatible."""
_INSTALL = {Library.TENSORRT: "pip install tensorrt", Library.RTX: "pip install tensorrt-rtx-cu13"}
_TYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
    "UINT8": "UINT8",
}
_LINEAR = "row major linear"
"""How TensorRT describes the format that clients send."""


@dataclass(frozen=True)
class PlanTensor:
    """An input or output of a plan."""

    spec: TensorSpec
    """Dims are whole, -1 where the plan leaves them open."""
    is_input: bool
    on_host: bool
    """TensorRT reads or writes it in host memory: its values are shapes."""


@dataclass(frozen=True)
class Engine:
    """A plan on one GPU."""

    trt: Any
    """The library."""
    engine: Any
    """The `ICudaEngine`."""
    tensors: tuple[PlanTensor, ...]
    profiles: tuple[Profile, ...]
    complaints: Complaints

    @property
    def inputs(self) -> list[PlanTensor]:
        """In the order of the plan."""
        return [tensor for tensor in self.tensors if tensor.is_input]

    @property
    def outputs(self) -> list[PlanTensor]:
        """In the order of the plan."""
        return [tensor for tensor in self.tensors if not tensor.is_input]

    @property
    def signature(self) -> ModelSignature:
        """What the plan says about itself."""
        rows = max((profile.most_rows for profile in self.profiles), default=0)
        return ModelSignature(
            tuple(tensor.spec for tensor in self.inputs),
            tuple(tensor.spec for tensor in self.outputs),
            most_rows=rows,
            remarks=tuple(str(profile) for profile in self.profiles),
        )


class Complaints:
    """What TensorRT logged as errors, by thread: its calls only return that they failed."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def add(self, text: str) -> None:
        """One more of this thread."""
        self._list().append(text)

    def take(self) -> list[str]:
        """Those of this thread since the last call."""
        found = self._list()
        self._of_thread.found = []
        return found

    def _list(self) -> list[str]:
        if not hasattr(self._of_thread, "found"):
            self._of_thread.found = []
        found: list[str] = self._of_thread.found
        return found


def import_library(header: PlanHeader) -> Any:
    """The module that reads such plans.

    Raises:
        ConfigError: when it is not installed, or is too old.
    """
    name = header.library.value
    module = next((module for module in _MODULES[header.library] if _is_installed(module)), None)
    if module is None:
        other = next(library for library in Library if library is not header.library)
        has_other = any(map(_is_installed, _MODULES[other]))
        beside = f"; {other.value} is installed and cannot read it" if has_other else ""
        raise ConfigError(f"this is {header}, and {name} is not installed{beside}: {_INSTALL[header.library]}")
    try:
        trt = importlib.import_module(module)
    except (ImportError, OSError) as error:  # its shared libraries may be missing, or those of CUDA
        raise ConfigError(f"this is {header}, and '{module}' is installed but cannot be imported: {error}") from error
    first = _FIRST_VERSION[header.library]
    if int(str(trt.__version__).split(".")[0]) < first:
        raise ConfigError(f"{name} {trt.__version__} is installed; {first} or later is needed")
    return trt


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def load_plugins(paths: str) -> None:
    """Loads libraries of plugins, `;` between their paths; TensorRT finds what they register.

    Raises:
        ConfigError: naming the one that cannot be loaded.
    """
    for path in filter(None, paths.split(";")):
        try:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ConfigError(f"--backend-config=tensorrt,plugins={paths}: {path} cannot be loaded: {error}") from error


def make_runtime(trt: Any, complaints: Complaints) -> Any:
    """A `Runtime` whose errors go to `complaints`.

    Raises:
        ConfigError: when it cannot be made, because there is no GPU, say.
    """

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                complaints.add(msg)

    complaints.take()
    logger = Logger()
    try:
        runtime = trt.Runtime(logger)
    except Exception as error:
        raise ConfigError(_no_runtime(trt, [str(error), *complaints.take()])) from error
    if errors := complaints.take():
        # It makes an object also when it has failed. Each call of that ends the process, and so does freeing it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(runtime))
        raise ConfigError(_no_runtime(trt, errors))
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
    return runtime


def _no_runtime(trt: Any, errors: Sequence[str]) -> str:
    return f"TensorRT {trt.__version__} cannot start, it needs a GPU and its driver: {'; '.join(errors)}"


def open_plan(trt: Any, runtime: Any, complaints: Complaints, header: PlanHeader, data: bytes) -> Engine:
    """Deserializes a plan on the current GPU.

    Raises:
        ConfigError: when it cannot be used there, or has tensors that clients cannot send.
    """
    complaints.take()
    engine = runtime.deserialize_cuda_engine(data[header.offset :])
    errors = complaints.take()
    if engine is None:
        raise ConfigError(explain(header, str(trt.__version__), errors))
    names = [engine.get_tensor_name(at) for at in range(engine.num_io_tensors)]
    tensors: list[PlanTensor] = []
    problems: list[str] = []
    for name in names:
        try:
            tensors.append(_tensor(trt, engine, name))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    inputs = [tensor for tensor in tensors if tensor.is_input]
    profiles = tuple(_profile(engine, inputs, at) for at in range(max(1, engine.num_optimization_profiles)))
    return Engine(trt, engine, tuple(tensors), profiles, complaints)


def explain(header: PlanHeader, installed: str, errors: Sequence[str]) -> str:
    """Why a plan could not be opened, from what the library said."""
    text = "; ".join(errors) or "the library does not say why"
    for pattern, words in _REASONS:
        if found := re.search(pattern, text):
            groups = {key: value or "" for key, value in found.groupdict().items()}
            told = words.format(header=header, installed=installed, library=header.library.value, **groups)
            return f"{told} ({text})"
    return f"{header} cannot be opened by {header.library.value} {installed} ({text})"


_REASONS = (
    (
        r"expecting compute (?P<here>[\d.]*\d) got compute (?P<built>[\d.]*\d)",
        "the plan was built for another GPU, of compute capability {built}; this one has {here}: build it on such a "
        "GPU, or with --hardwareCompatibilityLevel",
    ),
    (
        r"cannot run on this GPU, which has compute capability (?P<here>[\d.]*\d)",
        "the plan was built for other GPUs; this one has compute capability {here}",
    ),
    (r"compute capability", "the plan was built for another GPU"),
    (
        r"library version|major version does not match|old deserialization call|Version tag",
        "this is {header}, and {installed} is installed: a plan runs with the very version that built it, unless it "
        "was built with --versionCompatible and is served with --backend-config=tensorrt,version-compatible=true",
    ),
    (r"[Ss]ize.*(blobSize|archive size|plan header)|END_OF_PLAN", "the plan is cut short, or damaged"),
    (r"magicTag", "the file is damaged, or is no plan of {library}"),
    (r"[Pp]latform", "the plan was built for another operating system or processor"),
    (r"cudaError|CUDA initialization", "{library} cannot reach a GPU"),
)
"""Texts of the library, and what they mean."""


def _tensor(trt: Any, engine: Any, name: str) -> PlanTensor:
    is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
    where = f"{'input' if is_input else 'output'} '{name}' of the plan"
    kind = engine.get_tensor_dtype(name).name
    if kind not in _TYPES:
        raise ConfigError(
            f"{where} is of type {kind}, which clients cannot send; served are {', '.join(_TYPES.values())}"
        )
    described = engine.get_tensor_format_desc(name)
    if not described.lower().startswith(_LINEAR):
        raise ConfigError(
            f"{where} has the format '{described}', which is not how clients lay out tensors; build it linear, "
            f"with --{'input' if is_input else 'output'}IOFormats=...:chw"
        )
    spec = TensorSpec(name, DTYPES[_TYPES[kind]], tuple(engine.get_tensor_shape(name)))
    return PlanTensor(spec, is_input, engine.get_tensor_location(name) == trt.TensorLocation.HOST)


def _profile(engine: Any, inputs: Sequence[PlanTensor], index: int) -> Profile:
    shapes = {tensor.spec.name: _shapes(engine, tensor, index) for tensor in inputs}
    values = {tensor.spec.name: _values(engine, tensor, index) for tensor in inputs if tensor.on_host}
    return Profile(index, shapes, values)


def _shapes(engine: Any, tensor: PlanTensor, index: int) -> Range:
    dims = tensor.spec.dims
    if -1 not in dims:  # a plan without dynamic shapes needs no profile, and may have none
        return Range(dims, dims, dims)
    return _range(engine.get_tensor_profile_shape(tensor.spec.name, index))


def _values(engine: Any, tensor: PlanTensor, index: int) -> Range:
    # The library's own names of these two arguments are the wrong way round.
    three = engine.get_tensor_profile_values(index, tensor.spec.name)
    if not three:
        raise ConfigError(f"profile {index} of the plan has no values for the shapes in input '{tensor.spec.name}'")
    return _range(three)


def _range(three: Sequence[Sequence[int]]) -> Range:
    smallest, tuned, largest = (tuple(int(dim) for dim in dims) for dims in three)
    return Range(smallest, tuned, largest)
