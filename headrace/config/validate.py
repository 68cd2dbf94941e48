"""Checks of a completed `ModelConfig`: what contradicts itself (`rules.py`), what is not served yet, what is a hint.

A field that would change results or accepted requests and is not served fails the model by name. A hint is
accepted and listed, so that the log can say once that it has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.config import onnx_settings
from headrace.config.model import ModelSignature, data_type_name
from headrace.config.rules import problems_of
from headrace.core.errors import ConfigError

READ_PARAMETERS = {
    "onnxruntime": onnx_settings.KEYS,
    "pytorch": ("fp16", "channels_last", "cuda_graphs", "cuda_graph_batch_sizes", "compile"),
    "tensorrt": ("cuda_graphs",),
    "simulated": ("batch_us", "row_us", "blocking", "lost_gpu", "lost_after"),
}
"""Parameters that backends read."""
STRING_BACKENDS = ("identity", "onnxruntime")
"""Backends that take and give BYTES tensors."""
OPTIONAL_BACKENDS = ("onnxruntime",)
"""Backends that do without an input."""


def validate(config: Any, gpus: Sequence[str] = (), signature: ModelSignature | None = None) -> list[str]:
    """Checks the config and returns its hints: sentences on fields that are accepted and have no, or less, effect.

    Args:
        config: a completed `ModelConfig`.
        gpus: names of the GPUs that there are.
        signature: what the model file says, where there is one that does.

    Raises:
        ConfigError: naming every field that is wrong or not served.
    """
    not_served = (f"{field} is not served yet" for field in _not_served(config))
    of_backend = onnx_settings.problems_of_settings(config) if config.backend == "onnxruntime" else ()
    problems = [*problems_of(config, gpus, signature), *of_backend, *not_served]
    if problems:
        raise ConfigError(*problems)
    return [f"{field} is accepted and has no effect here" for field in _hints(config)] + list(_remarks(config))


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
    if config.cc_model_filenames and any(group.kind == type(group).KIND_GPU for group in config.instance_group):
        yield "cc_model_filenames with instances on GPUs"  # another file: other results
    for side, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            yield from (f"{side} '{tensor.name}': {field}" for field in _tensor_features(tensor, config.backend))
    yield from (f"dynamic_batching.{field}" for field in _queue_features(config.dynamic_batching))
    for group in config.instance_group:
        yield from (f"instance_group '{group.name}': {field}" for field in _group_features(group))


def _group_features(group: Any) -> Iterator[str]:
    if group.kind == type(group).KIND_MODEL:
        yield "KIND_MODEL"
    for field in ("passive", "secondary_devices"):
        if getattr(group, field):
            yield field


def _tensor_features(tensor: Any, backend: str) -> Iterator[str]:
    for field in ("is_shape_tensor", "is_non_linear_format_io", "allow_ragged_batch"):
        if getattr(tensor, field, False) and (field, backend) != ("is_shape_tensor", "tensorrt"):
            yield field
    if getattr(tensor, "optional", False) and backend not in OPTIONAL_BACKENDS:
        yield f"optional by backend '{backend}'"
    if data_type_name(tensor.data_type) == "TYPE_STRING" and backend not in STRING_BACKENDS:
        yield f"TYPE_STRING by backend '{backend}'"


def _queue_features(batching: Any) -> Iterator[str]:
    for field in ("priority_levels", "priority_queue_policy"):
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


def _optimization_hints(config: Any) -> Iterator[str]:
    for field, value in config.optimization.ListFields():
        if field.name in ("graph", "execution_accelerators") and config.backend == "onnxruntime":
            continue
        if field.name == "cuda" and config.backend == "tensorrt":  # its graphs are there anyway
            yield from (f"optimization.cuda.{one.name}" for one, _ in value.ListFields() if one.name != "graphs")
        elif not field.name.endswith("_pinned_memory") or not value.enable:  # true is the default, and what is done
            yield f"optimization.{field.name}"


def _hints(config: Any) -> Iterator[str]:
    yield from _optimization_hints(config)
    if config.HasField("model_metrics"):
        yield "model_metrics"
    for field in ("model_warmup", "cc_model_filenames", "runtime"):
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


def _remarks(config: Any) -> Iterator[str]:
    if config.HasField("dynamic_batching") and config.max_batch_size == 0:
        yield "dynamic_batching has no effect, because max_batch_size is 0"
    if config.dynamic_batching.preserve_ordering:
        yield (
            "dynamic_batching.preserve_ordering is accepted; answers may leave in another order when several instances "
            "or several shapes are at work"
        )
