"""Completion: what a config leaves out is filled from the model file and from Triton's defaults.

Two steps: `complete_backend` before a backend has opened a file, `complete_from_signature`
after. A given value is never overwritten; where it contradicts the file, the error names both. One exception:
-1 over a fixed dimension of the file is accepted, and the file's dimension applies.
"""

from __future__ import annotations

from typing import Any

from headrace.config.model import ModelSignature, data_type_name, data_type_number
from headrace.config.pbtxt import GivenConfig
from headrace.core.errors import ConfigError, told_together
from headrace.core.messages import ModelConfig
from headrace.core.tensor import Shape, TensorSpec

PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
}
"""Triton's platforms and the backends behind them."""
DEFAULT_FILES = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "pytorch": "model.pt",
    "python": "model.py",
    "openvino": "model.xml",
}
PT2 = "model.pt2"
"""What PyTorch exports or compiles ahead of time."""
_KNOWN_FILES = {name: backend for backend, name in DEFAULT_FILES.items()} | {PT2: "pytorch"}
DEFAULT_MAX_BATCH = 4
"""Rows for a model that can batch and whose config does not say how many (Triton's `default-max-batch-size`).
"""
GPU_BACKENDS = ("onnxruntime", "pytorch", "python", "simulated", "tensorrt")
"""Backends that have instances on GPUs: KIND_AUTO means a GPU for them, if there is one."""
DEFAULT_CPU_INSTANCES = {"onnxruntime": 2}
"""Instances of a CPU group without `count`; 1 for backends not named."""


def check_name(given: GivenConfig, directory: str) -> None:
    """Raises `ConfigError` when the config has another name than the model's directory."""
    if given.message.name not in ("", directory):
        raise ConfigError(f"name '{given.message.name}' is not the name of its directory, '{directory}'")


def complete_backend(given: GivenConfig, directory: str, files: set[str]) -> Any:
    """A copy of the config with name, backend, platform and file name.

    Args:
        given: what the owner wrote.
        directory: name of the model's directory.
        files: names of the files in its newest version directory.

    Raises:
        ConfigError: when platform and backend contradict each other, or cannot be told.
    """
    config = ModelConfig()
    config.CopyFrom(given.message)
    config.name = directory
    if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
        raise ConfigError("ensemble_scheduling is not served yet")
    if config.platform and config.platform not in PLATFORMS:
        raise ConfigError(f"unknown platform '{config.platform}'; expected one of {', '.join(PLATFORMS)}, or a backend")
    of_platform = PLATFORMS.get(config.platform, "")
    if of_platform and config.backend and config.backend != of_platform:
        raise ConfigError(
            f"platform '{config.platform}' belongs to backend '{of_platform}', but backend '{config.backend}' is given"
        )
    config.backend = config.backend or of_platform or _backend_of(files, config.default_model_filename)
    if not config.backend:
        found = ", ".join(sorted(files)) or "no file"
        raise ConfigError(
            f"must specify 'platform' or 'backend' for model '{directory}': its version directory has {found}, "
            f"expected one of {', '.join(_KNOWN_FILES)}"
        )
    if not config.platform:
        config.platform = next((name for name, backend in PLATFORMS.items() if backend == config.backend), "")
    if not config.default_model_filename:
        config.default_model_filename = _default_file(config, files)
    return config


def _default_file(config: Any, files: set[str]) -> str:
    """The backend's; PyTorch's other one where the platform or the directory says so."""
    usual = DEFAULT_FILES.get(config.backend, "")
    if config.backend == "pytorch" and (config.platform == "torch_aoti" or usual not in files) and PT2 in files:
        return PT2
    return usual


def _backend_of(files: set[str], filename: str) -> str:
    suffixes = {name.rsplit(".")[-1]: backend for name, backend in _KNOWN_FILES.items()}
    if filename:
        return suffixes.get(filename.rsplit(".")[-1], "")
    return next((backend for name, backend in _KNOWN_FILES.items() if name in files), "")


def complete_from_signature(
    config: Any, signature: ModelSignature, sets_max_batch_size: bool, default_max_batch: int = DEFAULT_MAX_BATCH
) -> None:
    """Fills inputs, outputs and batching in place from what the model file says.

    Raises:
        ConfigError: when given values contradict the file, with each of them.
    """
    _complete_batching(config, signature, sets_max_batch_size, default_max_batch)
    batches = config.max_batch_size > 0
    if batches and not signature.can_batch:
        fixed = next(t for t in signature.inputs + signature.outputs if not t.dims or t.dims[0] != -1)
        raise ConfigError(
            f"max_batch_size is {config.max_batch_size}, but the model does not batch: the first dimension of "
            f"'{fixed.name}' is {fixed.dims[0] if fixed.dims else 'missing'}, not free, in its shape {list(fixed.dims)}"
        )
    with told_together() as part:
        with part():
            _check_rows(config.max_batch_size, signature)
        with part():
            _complete_tensors(
                config.input, signature.inputs, "input", batches, all_needed=True, more=signature.defaulted
            )
        with part():
            _complete_tensors(config.output, signature.outputs, "output", batches, all_needed=False)


def _check_rows(max_batch_size: int, signature: ModelSignature) -> None:
    if signature.most_rows and max_batch_size > signature.most_rows:
        what = f"max_batch_size is {max_batch_size}, but the model file takes {signature.most_rows} rows at most"
        raise ConfigError(": ".join([what, ". ".join(signature.remarks)]))


def _complete_batching(config: Any, signature: ModelSignature, sets_max_batch_size: bool, default: int) -> None:
    if sets_max_batch_size or config.max_batch_size > 0 or not signature.can_batch:
        return
    ranks = {tensor.name: len(tensor.dims) for tensor in signature.inputs + signature.outputs}
    if any(len(tensor.dims) == ranks.get(tensor.name) for tensor in [*config.input, *config.output]):
        return  # dims are given with the batch dimension: the owner means shapes that are whole
    default = signature.most_rows or default
    config.max_batch_size = default
    if default > 1 and not config.WhichOneof("scheduling_choice"):
        config.dynamic_batching.SetInParent()


def _complete_tensors(
    given: Any,
    found: tuple[TensorSpec, ...],
    side: str,
    batches: bool,
    all_needed: bool,
    more: tuple[TensorSpec, ...] = (),
) -> None:
    by_name = {tensor.name: tensor for tensor in found + more}
    if not given:
        for tensor in found:
            given.add(
                name=tensor.name,
                data_type=data_type_number(tensor.dtype.config_name),
                dims=tensor.dims[batches:],
            )
        return
    with told_together() as part:
        for tensor in given:
            with part():
                _complete_tensor(tensor, by_name, side, batches)
            with part():
                if getattr(tensor, "optional", False) and tensor.name not in {other.name for other in more}:
                    raise ConfigError(f"{side} '{tensor.name}' is optional, but the model file has no value for it")
        missing = {tensor.name for tensor in found} - {tensor.name for tensor in given}
        if missing and all_needed:
            there = ", ".join(map(repr, sorted(missing)))
            raise ConfigError(f"{side} {there} of the model file is missing in the config")


def _complete_tensor(tensor: Any, by_name: dict[str, TensorSpec], side: str, batches: bool) -> None:
    where = f"{side} '{tensor.name}'"
    if tensor.name not in by_name:
        raise ConfigError(f"{where} is not in the model file, which has {', '.join(map(repr, by_name))}")
    found = by_name[tensor.name]
    with told_together() as part:
        with part():
            _complete_type(tensor, found, where)
        with part():
            _complete_dims(tensor, found.dims[batches:], where, ", without the batch dimension" if batches else "")


def _complete_type(tensor: Any, found: TensorSpec, where: str) -> None:
    if not tensor.data_type:
        tensor.data_type = data_type_number(found.dtype.config_name)
    if data_type_name(tensor.data_type) != found.dtype.config_name:
        raise ConfigError(
            f"{where} has data_type {data_type_name(tensor.data_type)} in the config, "
            f"but {found.dtype.config_name} in the model file"
        )


def _complete_dims(tensor: Any, dims: Shape, where: str, note: str) -> None:
    given = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
    if not given and not tensor.HasField("reshape"):
        given.extend(dims)
    if len(given) != len(dims) or any(
        ours not in (-1, theirs) and theirs != -1 for ours, theirs in zip(given, dims, strict=True)
    ):
        field = "reshape" if tensor.HasField("reshape") else "dims"
        raise ConfigError(f"{where} has {field} {list(given)} in the config, but {list(dims)} in the model file{note}")
    if not tensor.HasField("reshape"):
        given[:] = [theirs if ours == -1 else ours for ours, theirs in zip(given, dims, strict=True)]


def complete_defaults(config: Any, gpus: int = 0, auto_gpu: bool = True) -> None:
    """Fills in place what Triton fills for every model: version policy, preferred sizes, instance groups.

    Args:
        config: a `ModelConfig` with its backend.
        gpus: how many GPUs there are.
        auto_gpu: KIND_AUTO may mean one.
    """
    if not config.version_policy.WhichOneof("policy_choice"):
        config.version_policy.latest.num_versions = 1
    if (
        config.HasField("dynamic_batching")
        and not config.dynamic_batching.preferred_batch_size
        and config.max_batch_size
    ):
        config.dynamic_batching.preferred_batch_size.append(config.max_batch_size)
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(field):
            getattr(config.optimization, field).enable = True
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        _complete_kind(group, config.backend, gpus, auto_gpu)


def is_auto(config: Any) -> bool:
    """Whether the config leaves it open if instances are on GPUs."""
    groups = config.instance_group
    return not groups or any(group.kind == type(group).KIND_AUTO for group in groups)


def _complete_kind(group: Any, backend: str, gpus: int, auto_gpu: bool) -> None:
    kinds = type(group)
    if group.kind == kinds.KIND_AUTO:
        on_gpu = auto_gpu and backend in GPU_BACKENDS and gpus > 0 and all(gpu < gpus for gpu in group.gpus)
        group.kind = kinds.KIND_GPU if on_gpu else kinds.KIND_CPU
    if group.kind == kinds.KIND_GPU and not group.gpus:
        group.gpus.extend(range(gpus))
    if not group.count:
        group.count = 1 if group.kind == kinds.KIND_GPU else DEFAULT_CPU_INSTANCES.get(backend, 1)
