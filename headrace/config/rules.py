"""The rules of a completed `ModelConfig`: everything in it that contradicts itself, field by field. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.config.model import ModelSignature, data_type_name

_MAX_INSTANCES = 1024
_TAG = re.compile(r"[a-zA-Z0-9_]*")
_IMAGE_RANK = 3
_OWN_OF_TENSORRT = {"is_shape_tensor": "shape tensors", "is_non_linear_format_io": "vectorised formats"}


def problems_of(config: Any, gpus: Sequence[str], signature: ModelSignature | None = None) -> Iterator[str]:
    """What is wrong, each with its field.

    Args:
        config: a completed `ModelConfig`.
        gpus: names of the GPUs that there are.
        signature: what the model file says, where there is one that does; it may have scalars.
    """
    if config.max_batch_size < 0:
        yield f"max_batch_size must not be negative, got {config.max_batch_size}"
    scalars = {tensor.name for tensor in signature.inputs + signature.outputs} if signature is not None else set()
    for side, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            yield f"model must have at least one {side}"
        yield from _name_problems(side, tensors)
        for tensor in tensors:
            yield from (f"{side} '{tensor.name}' {what}" for what in _tensor_problems(tensor, config, scalars))
    yield from _ragged_problems(config)
    yield from _batching_problems(config)
    for group in config.instance_group:
        yield from (f"instance_group '{group.name}': {what}" for what in _group_problems(group, config.backend, gpus))
    if len({group.kind for group in config.instance_group}) > 1:
        yield "instance groups of one model must all be of the same kind"
    yield from _metric_problems(config)
    for sample in config.model_warmup:
        yield from (f"model_warmup '{sample.name}': {what}" for what in _warmup_problems(sample, config))
    if config.response_cache.enable and config.model_transaction_policy.decoupled:
        yield "response_cache and model_transaction_policy.decoupled exclude each other"


def _name_problems(side: str, tensors: Any) -> Iterator[str]:
    names = [tensor.name for tensor in tensors]
    if "" in names:
        yield f"{side} must have a name"
    yield from (f"{side} '{name}' is given twice" for name in sorted(set(names)) if name and names.count(name) > 1)


def _tensor_problems(tensor: Any, config: Any, scalars: set[str]) -> Iterator[str]:
    dims = list(tensor.dims)
    if not tensor.data_type:
        yield "must have a data_type"
    if not dims and tensor.name not in scalars:
        yield "must have dims"
    if _has_wrong_extent(dims):
        yield f"dims must be at least 1, or -1 for any extent, got {dims}"
    if tensor.HasField("reshape"):
        yield from _reshape_problems(dims, list(tensor.reshape.shape), config.max_batch_size)
    image_format = getattr(tensor, "format", 0)
    if image_format and len(dims) != _IMAGE_RANK:
        name = type(tensor).Format.Name(image_format)
        yield f"has format {name}, which needs {_IMAGE_RANK} dims, got {dims}"
    for field, what in _OWN_OF_TENSORRT.items():
        if getattr(tensor, field) and config.backend != "tensorrt":
            yield f"has {field}, but {what} are for TensorRT models only"


def _has_wrong_extent(dims: list[int]) -> bool:
    return any(dim == 0 or dim < -1 for dim in dims)


def _reshape_problems(dims: list[int], shape: list[int], max_batch_size: int) -> Iterator[str]:
    if _has_wrong_extent(shape):
        yield f"reshape must be at least 1, or -1 for any extent, got {shape}"
    elif not shape and max_batch_size == 0:
        yield "has an empty reshape, which needs max_batch_size to be at least 1"
    elif not _has_wrong_extent(dims) and not may_reshape(dims, shape):
        yield f"has dims {dims}, which cannot be reshaped to {shape}: other elements"


def may_reshape(dims: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether shapes have as many elements: between free extents (-1), which stay in order, as a whole."""
    return _products(dims) == _products(shape)


def _products(dims: Sequence[int]) -> list[int]:
    free = [at for at, dim in enumerate(dims) if dim == -1]
    return [math.prod(dims[start + 1 : end]) for start, end in zip([-1, *free], [*free, len(dims)], strict=True)]


def _batching_problems(config: Any) -> Iterator[str]:
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if not 0 < size <= config.max_batch_size:
            yield f"preferred_batch_size {size} must be within 1 and max_batch_size {config.max_batch_size}"
    levels = batching.priority_levels
    if not levels:
        return
    default = batching.default_priority_level
    if not 1 <= default <= levels:
        yield f"default_priority_level must be within 1 and priority_levels {levels}, got {default}"
    wrong = sorted(level for level in batching.priority_queue_policy if not 1 <= level <= levels)
    if wrong:
        yield f"priority_queue_policy is for levels within 1 and priority_levels {levels}, got {wrong}"
    if batching.preserve_ordering and levels > 1:
        yield f"preserve_ordering and priority_levels {levels} exclude each other"


def _ragged_problems(config: Any) -> Iterator[str]:
    inputs, outputs = {tensor.name for tensor in config.input}, {tensor.name for tensor in config.output}
    for helper in config.batch_input:
        where = f"batch_input for {list(helper.target_name)}:"
        if len(helper.source_input) != 1:
            yield f"{where} expected one source_input, got {list(helper.source_input)}"
        yield from (f"{where} source_input '{name}' is no input" for name in helper.source_input if name not in inputs)
        if data_type_name(helper.data_type) not in ("TYPE_INT32", "TYPE_FP32"):
            yield f"{where} data_type must be TYPE_INT32 or TYPE_FP32, got {data_type_name(helper.data_type)}"
    for helper in config.batch_output:
        where = f"batch_output for {list(helper.target_name)}:"
        if len(helper.source_input) != 1:
            yield f"{where} expected one source_input, got {list(helper.source_input)}"
        yield from (f"{where} source_input '{name}' is no input" for name in helper.source_input if name not in inputs)
        yield from (f"{where} target_name '{name}' is no output" for name in helper.target_name if name not in outputs)


def _group_problems(group: Any, backend: str, gpus: Sequence[str]) -> Iterator[str]:
    if not 1 <= group.count <= _MAX_INSTANCES:
        yield f"count must be within 1 and {_MAX_INSTANCES}, got {group.count}"
    kind = type(group).Kind.Name(group.kind)
    if kind != "KIND_GPU" and group.gpus:
        yield f"{kind} has no gpus, got {list(group.gpus)}"
    if kind == "KIND_GPU":
        there = ", ".join(f"{index} ({name})" for index, name in enumerate(gpus)) or "none"
        wrong = [gpu for gpu in group.gpus if not 0 <= gpu < len(gpus)]
        if wrong or not group.gpus:
            yield f"KIND_GPU wants gpus {wrong or 'that there are not'}; this server has {there}"
    if group.profile and backend != "tensorrt":
        yield f"profile is for TensorRT models only, got {list(group.profile)}"
    wrong_profiles = [profile for profile in group.profile if not profile.isdecimal()]
    if wrong_profiles and backend == "tensorrt":
        yield f"profile must be numbers of profiles, such as '0', got {wrong_profiles}"


def _metric_problems(config: Any) -> Iterator[str]:
    for tag in sorted(config.metric_tags):
        if not _TAG.fullmatch(tag):
            yield f"metric_tags: '{tag}' cannot be a label, which has ASCII letters, digits and '_' only"
    for control in config.model_metrics.metric_control:
        family = control.metric_identifier.family
        if not family:
            yield "model_metrics: metric_identifier must have a family"
        if not control.histogram_options.buckets:
            yield f"model_metrics '{family}': histogram_options must have buckets"


def _warmup_problems(sample: Any, config: Any) -> Iterator[str]:
    inputs = {tensor.name: tensor for tensor in config.input}
    unknown = sorted(sample.inputs.keys() - inputs.keys())
    if unknown:
        yield f"inputs {unknown} are no inputs of the model, which has {sorted(inputs)}"
    missing = sorted(name for name, tensor in inputs.items() if name not in sample.inputs and not tensor.optional)
    if missing:
        yield f"inputs {missing} of the model are missing"
    for name in sorted(sample.inputs.keys() & inputs.keys()):
        yield from (f"input '{name}' {what}" for what in _sample_problems(sample.inputs[name], inputs[name]))


def _sample_problems(given: Any, tensor: Any) -> Iterator[str]:
    if given.data_type != tensor.data_type:
        yield f"has data_type {data_type_name(given.data_type)}, the model {data_type_name(tensor.data_type)}"
    dims, wanted = list(given.dims), list(tensor.dims)
    if len(dims) != len(wanted) or any(theirs not in (-1, ours) for ours, theirs in zip(dims, wanted, strict=True)):
        yield f"has dims {dims}, the model {wanted}"
    if given.WhichOneof("input_data_type") is None:
        yield "needs one of zero_data, random_data and input_data_file"
