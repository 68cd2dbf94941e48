"""Checks of a completed `ModelConfig`: what contradicts itself, what is not served yet, what is only a hint.

A field that would change results or accepted requests and is not served fails the model by name. A hint is
accepted and listed, so that the log can say once that it has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.core.errors import ConfigError

_MAX_INSTANCES = 1024
READ_PARAMETERS = {
    "pytorch": ("fp16", "channels_last", "cuda_graphs"),
    "simulated": ("batch_us", "row_us", "lost_gpu", "lost_after"),
}
"""Parameters that backends read."""


def validate(config: Any, gpus: Sequence[str] = ()) -> list[str]:
    """Checks the config and returns its hints: fields that are accepted and have no effect.

    Args:
        config: a completed `ModelConfig`.
        gpus: names of the GPUs that there are.

    Raises:
        ConfigError: naming the first field that is wrong or not served.
    """
    for problem in _problems(config, gpus):
        raise ConfigError(problem)
    for field in _not_served(config):
        raise ConfigError(f"{field} is not served yet")
    return list(_hints(config))


def _problems(config: Any, gpus: Sequence[str]) -> Iterator[str]:
    if config.max_batch_size < 0:
        yield f"max_batch_size must not be negative, got {config.max_batch_size}"
    for side, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            yield f"model must have at least one {side}"
        yield from _tensor_problems(side, tensors)
    for size in config.dynamic_batching.preferred_batch_size:
        if not 0 < size <= config.max_batch_size:
            yield f"preferred_batch_size {size} must be within 1 and max_batch_size {config.max_batch_size}"
    if config.HasField("dynamic_batching") and config.max_batch_size == 0:
        yield "dynamic_batching needs max_batch_size to be at least 1"
    for group in config.instance_group:
        yield from _group_problems(group, gpus)
    kinds = {group.kind for group in config.instance_group}
    if len(kinds) > 1:
        yield "instance groups of one model must all be of the same kind"


def _tensor_problems(side: str, tensors: Any) -> Iterator[str]:
    seen = set()
    for tensor in tensors:
        if not tensor.name:
            yield f"{side} must have a name"
        if tensor.name in seen:
            yield f"{side} '{tensor.name}' is given twice"
        seen.add(tensor.name)
        if not tensor.data_type:
            yield f"{side} '{tensor.name}' must have a data_type"
        for dim in tensor.dims:
            if dim == 0 or dim < -1:
                dims = list(tensor.dims)
                yield f"{side} '{tensor.name}' dims must be at least 1, or -1 for any extent, got {dims}"


def _group_problems(group: Any, gpus: Sequence[str]) -> Iterator[str]:
    where = f"instance_group '{group.name}'"
    if not 1 <= group.count <= _MAX_INSTANCES:
        yield f"{where}: count must be within 1 and {_MAX_INSTANCES}, got {group.count}"
    if group.kind == type(group).KIND_CPU and group.gpus:
        yield f"{where}: KIND_CPU has no gpus, got {list(group.gpus)}"
    if group.kind == type(group).KIND_GPU:
        there = ", ".join(f"{index} ({name})" for index, name in enumerate(gpus)) or "none"
        wrong = [gpu for gpu in group.gpus if not 0 <= gpu < len(gpus)]
        if wrong or not group.gpus:
            yield f"{where}: KIND_GPU wants gpus {wrong or 'that there are not'}; this server has {there}"
    if group.profile:
        yield f"{where}: profile is for TensorRT models only"


_MODEL_FEATURES: dict[str, Callable[[Any], Any]] = {
    "sequence_batching": lambda config: config.HasField("sequence_batching"),
    "ensemble_scheduling": lambda config: config.HasField("ensemble_scheduling"),
    "batch_input": lambda config: config.batch_input,
    "batch_output": lambda config: config.batch_output,
    "response_cache": lambda config: config.response_cache.enable,
    "model_transaction_policy.decoupled": lambda config: config.model_transaction_policy.decoupled,
    "model_repository_agents": lambda config: config.model_repository_agents.agents,
    "model_operations.op_library_filename": lambda config: config.model_operations.op_library_filename,
}
"""Fields that change results or accepted requests, and whether a config uses them."""


def _not_served(config: Any) -> Iterator[str]:
    yield from (field for field, used in _MODEL_FEATURES.items() if used(config))
    for side, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            yield from (f"{side} '{tensor.name}': {field}" for field in _tensor_features(tensor))
    yield from (f"dynamic_batching.{field}" for field in _queue_features(config.dynamic_batching))
    for group in config.instance_group:
        yield from (f"instance_group '{group.name}': {field}" for field in _group_features(group))


def _group_features(group: Any) -> Iterator[str]:
    if group.kind == type(group).KIND_MODEL:
        yield "KIND_MODEL"
    for field in ("passive", "secondary_devices"):
        if getattr(group, field):
            yield field


def _tensor_features(tensor: Any) -> Iterator[str]:
    if tensor.HasField("reshape"):
        yield "reshape"
    for field in ("is_shape_tensor", "is_non_linear_format_io", "allow_ragged_batch", "optional"):
        if getattr(tensor, field, False):
            yield field


def _queue_features(batching: Any) -> Iterator[str]:
    for field in ("preserve_ordering", "priority_levels", "priority_queue_policy"):
        if getattr(batching, field):
            yield field
    policy = batching.default_queue_policy
    for field in (
        "timeout_action",
        "default_timeout_microseconds",
        "allow_timeout_override",
        "max_queue_size",
    ):
        if getattr(policy, field):
            yield f"default_queue_policy.{field}"


def _hints(config: Any) -> Iterator[str]:
    for field in ("optimization", "model_metrics"):
        if config.HasField(field):
            yield field
    for field in ("model_warmup", "metric_tags", "cc_model_filenames", "runtime"):
        if getattr(config, field):
            yield field
    read = READ_PARAMETERS.get(config.backend, ())
    yield from (f"parameters '{key}'" for key in sorted(config.parameters) if key not in read)
    for group in config.instance_group:
        yield from (
            f"instance_group '{group.name}': {field}"
            for field in ("host_policy", "rate_limiter")
            if (group.HasField(field) if field == "rate_limiter" else getattr(group, field))
        )
    for tensor in config.input:
        if tensor.format:
            yield f"input '{tensor.name}': format"
    for tensor in config.output:
        if tensor.label_filename:
            yield f"output '{tensor.name}': label_filename"
