"""The parts of a checked `ModelConfig` that the other rooms read, as frozen objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core.dtype import from_config_name
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig
from headrace.core.tensor import Shape, TensorSpec

_DATA_TYPES = ModelConfig.DESCRIPTOR.file.enum_types_by_name["DataType"]


@dataclass(frozen=True)
class ModelSignature:
    """What a model file says about itself. Dims are whole: a batch dimension is part of them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    defaulted: tuple[TensorSpec, ...] = ()
    """Inputs that the file has values for: a config may name them, and only they may be optional."""
    text_only: bool = False
    """BYTES elements must be UTF-8."""
    most_rows: int = 0
    """The largest batch that the file can take; 0: of any size."""
    remarks: tuple[str, ...] = ()
    """Sentences on what the file can do, for the log."""

    @property
    def can_batch(self) -> bool:
        """The first dimension of every input and output is free."""
        tensors = self.inputs + self.outputs
        return bool(tensors) and all(tensor.dims and tensor.dims[0] == -1 for tensor in tensors)


@dataclass(frozen=True)
class DynamicBatching:
    """`dynamic_batching` of the config."""

    preferred: tuple[int, ...]
    delay_us: int


@dataclass(frozen=True)
class ModelSpec:
    """A model as it will be served."""

    name: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batching: DynamicBatching | None
    instance_count: int
    parameters: dict[str, str]
    message: Any
    """The completed `ModelConfig`."""


def data_type_name(number: int) -> str:
    """`TYPE_FP32` of its number in the config; the number itself where no type has it."""
    known = _DATA_TYPES.values_by_number.get(number)
    return str(known.name if known is not None else number)


def data_type_number(config_name: str) -> int:
    """The number of `TYPE_FP32`."""
    return int(_DATA_TYPES.values_by_name[config_name].number)


def tensor_spec(tensor: Any, where: str, labels: tuple[str, ...] = ()) -> TensorSpec:
    """A `ModelInput` or `ModelOutput` as a `TensorSpec`.

    Raises:
        ConfigError: for TYPE_INVALID.
    """
    name = data_type_name(tensor.data_type)
    dtype = from_config_name(name)
    if dtype is None:
        raise ConfigError(f"{where} '{tensor.name}': data_type {name} is no type")
    dims: Shape = tuple(tensor.dims)
    reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    return TensorSpec(tensor.name, dtype, dims, reshape, getattr(tensor, "optional", False), labels)


def model_spec(message: Any, labels: Mapping[str, tuple[str, ...]] | None = None) -> ModelSpec:
    """Reads a completed and checked `ModelConfig`; `labels` are those of its outputs, by name."""
    labels = labels or {}
    batching = None
    if message.HasField("dynamic_batching"):
        rule = message.dynamic_batching
        batching = DynamicBatching(tuple(sorted(set(rule.preferred_batch_size))), rule.max_queue_delay_microseconds)
    return ModelSpec(
        name=message.name,
        backend=message.backend,
        max_batch_size=message.max_batch_size,
        inputs=tuple(tensor_spec(tensor, "input") for tensor in message.input),
        outputs=tuple(tensor_spec(tensor, "output", labels.get(tensor.name, ())) for tensor in message.output),
        batching=batching,
        instance_count=sum(group.count for group in message.instance_group),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        message=message,
    )
