"""TensorRT (`platform: tensorrt_plan`): `model.plan`, built by TensorRT 10 or later, or by TensorRT for RTX, on GPUs.

What a file is can be told without the library (`trt_plan.py`); the library opens it (`trt_engine.py`), profiles are
chosen in `trt_profiles.py`, batches run in `trt_instance.py`.

Parameter in config.pbtxt: `cuda_graphs`, "true" (by default) or "false". `instance_group.profile` lists the profiles
that instances use; by default all, and each batch the one that suits its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

from headrace.backend.base import DeviceInstance, Instance, ModelFile
from headrace.backend.trt_engine import Complaints, Engine, import_library, load_plugins, make_runtime, open_plan
from headrace.backend.trt_instance import TensorRtInstance
from headrace.backend.trt_plan import read_header
from headrace.backend.trt_profiles import Profile
from headrace.config.backend_config import PLUGINS, VERSION_COMPATIBLE
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.errors import ConfigError
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning


class TensorRtModel:
    """A plan file. It is opened once for what it says, and once on each GPU that serves it; instances share that."""

    forwards: Mapping[int, int] = {}

    def __init__(self, file: ModelFile) -> None:
        self._path = file.path
        plan = self._path.read_bytes()
        self._header = read_header(plan)
        self._trt = import_library(self._header)
        load_plugins(file.settings.get(PLUGINS, ""))
        self._complaints = Complaints()
        self._runtime = make_runtime(self._trt, self._complaints)
        if file.settings.get(VERSION_COMPATIBLE) == "1":
            self._runtime.engine_host_code_allowed = True
        self._on_device: WeakValueDictionary[int, Engine] = WeakValueDictionary()
        """The last instance to close frees it."""
        self.signature: ModelSignature | None = self._open(plan).signature

    def _open(self, plan: bytes) -> Engine:
        return open_plan(self._trt, self._runtime, self._complaints, self._header, plan)

    def start_instance(self, spec: ModelSpec, threads: int) -> Instance:  # noqa: ARG002
        """It has none on the CPU."""
        raise ConfigError(f"model '{spec.name}': TensorRT runs on GPUs only, its instances must be of KIND_GPU")

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:
        """On a GPU."""
        if not device.engine_name:
            raise ConfigError(f"instance_group KIND_GPU of '{spec.name}': TensorRT cannot compute on a {device.name}")
        device.attach()
        engine = self._on_device.get(device.index)
        if engine is None:
            engine = self._on_device[device.index] = self._open(self._path.read_bytes())
        _check_shape_tensors(engine, spec)
        profiles = _chosen(engine.profiles, spec, device.index)
        return TensorRtInstance(engine, spec, device, pinning, profiles, _wants_graphs(spec))


def load(file: ModelFile) -> TensorRtModel:
    """Reads the plan and finds its library.

    Raises:
        ConfigError: when the file is not there, is no plan, or cannot be opened here.
    """
    if not file.path.exists():
        raise ConfigError(f"{file.path} does not exist")
    try:
        return TensorRtModel(file)
    except ConfigError as error:
        raise ConfigError(*(f"{file.path}: {problem}" for problem in error.problems)) from error


def _chosen(profiles: tuple[Profile, ...], spec: ModelSpec, device: int) -> list[Profile]:
    """Those that the groups on this device list, in the order of the plan; all where a group lists none."""
    groups = [group for group in spec.message.instance_group if device in group.gpus]
    for group in groups:
        wrong = [number for number in group.profile if int(number) >= len(profiles)]
        if wrong:
            there = f"the plan has {len(profiles)}, 0 to {len(profiles) - 1}"
            raise ConfigError(f"instance_group '{group.name}' wants profile {', '.join(wrong)}, but {there}")
    if not all(group.profile for group in groups):
        return list(profiles)
    wanted = {int(number) for group in groups for number in group.profile}
    return [profile for profile in profiles if profile.index in wanted]


def _check_shape_tensors(engine: Engine, spec: ModelSpec) -> None:
    on_host = {tensor.spec.name for tensor in engine.tensors if tensor.on_host}
    problems = [
        f"'{tensor.name}' has is_shape_tensor in the config, but is none in the plan"
        for tensor in [*spec.message.input, *spec.message.output]
        if tensor.is_shape_tensor and tensor.name not in on_host
    ]
    if on_host and spec.max_batch_size > 0:
        problems.append(f"{', '.join(map(repr, sorted(on_host)))} hold shapes: max_batch_size must be 0")
    if problems:
        raise ConfigError(*problems)


def _wants_graphs(spec: ModelSpec) -> bool:
    text = spec.parameters.get("cuda_graphs", "true")
    if text not in ("true", "false"):
        raise ConfigError(f"parameter 'cuda_graphs' of model '{spec.name}': expected true or false, got '{text}'")
    return text == "true"
