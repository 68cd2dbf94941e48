"""What models import as `triton_python_backend_utils`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .dtypes import NUMPY, config_name
from .errors import TritonError, TritonModelException
from .model_config import ModelConfig
from .requests import InferenceRequest, InferenceResponse, InferenceTrace, find
from .side import Logger, MetricFamily
from .tensors import Tensor, deserialize, serialize

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceTrace",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "Tensor",
    "TritonError",
    "TritonModelException",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_CPU_PINNED, TRITONSERVER_MEMORY_GPU = range(3)
TRITON_STRING_TO_NUMPY = NUMPY
_NUMBERS = ["TYPE_INVALID", "TYPE_BOOL", *(f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64))]
_NUMBERS += [f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)]
_NUMBERS += ["TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"]
_directory = ""


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The request's input of this name; `None` when there is none."""
    return find(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The response's output of this name; `None` when there is none."""
    return find(inference_response.output_tensors(), name)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The properties of an input; `None` when there is none of this name."""
    return _named(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The properties of an output; `None` when there is none of this name."""
    return _named(model_config, "output", name)


def _named(model_config: dict[str, Any], side: str, name: str) -> dict[str, Any] | None:
    rows = model_config.get(side, [])
    return next((row for row in rows if row["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the config says that the model is decoupled."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """`numpy.float32` of `TYPE_FP32`."""
    return NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """NumPy's type of a number of the config's data types."""
    return NUMPY[_NUMBERS[data_type]]


def numpy_to_triton_type(data_type: Any) -> int:
    """The number of the config's data type of one of NumPy's."""
    return _NUMBERS.index(config_name(data_type))


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | None:
    """Strings as the protocol has them: each with its length in front."""
    return serialize(input_tensor) if input_tensor.size else None


def deserialize_bytes_tensor(encoded_tensor: bytes) -> np.ndarray[Any, Any]:
    """The strings of `serialize_byte_tensor`."""
    return np.array(deserialize(bytes(encoded_tensor)), dtype=np.object_)


def get_model_dir() -> str:
    """The directory of the model's version."""
    return _directory


class MemoryType:
    """Where tensors may be."""

    TRITONSERVER_MEMORY_CPU = TRITONSERVER_MEMORY_CPU
    TRITONSERVER_MEMORY_GPU = TRITONSERVER_MEMORY_GPU


class PreferredMemory:
    """Where a model wants the outputs of another; accepted, and without use until models can call others."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.type, self.device_id = preferred_memory_type, preferred_device_id


def _later(what: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise TritonModelException(f"pb_utils.{what} is not served yet")

    return refuse


load_model, unload_model, is_model_ready = map(_later, ("load_model", "unload_model", "is_model_ready"))
