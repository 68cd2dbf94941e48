"""The table of backends, by the names that config.pbtxt uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.backend import identity, onnxruntime, python, pytorch, simulated, tensorrt
from headrace.backend.base import Load
from headrace.core.errors import ConfigError

ENGINES: dict[str, Load] = {
    "identity": identity.load,
    "onnxruntime": onnxruntime.load,
    "python": python.load,
    "pytorch": pytorch.load,
    "simulated": simulated.load,
    "tensorrt": tensorrt.load,
}
_WHY_NOT_ON_GPUS: dict[str, Callable[[Any], str]] = {"onnxruntime": onnxruntime.why_not_on_gpus}
LATER = ("openvino",)


def why_not_on_gpus(config: Any) -> str:
    """Why KIND_AUTO of a `ModelConfig` means the CPU although there is a GPU: the engine, or the model, is for CPUs."""
    return _WHY_NOT_ON_GPUS.get(config.backend, lambda _: "")(config)


def find_engine(backend: str) -> Load:
    """How to load a model of this backend.

    Raises:
        ConfigError: for one that is not served.
    """
    if backend in ENGINES:
        return ENGINES[backend]
    served = ", ".join(ENGINES)
    if backend in LATER:
        raise ConfigError(f"backend '{backend}' is not served yet; served are {served}")
    raise ConfigError(f"unknown backend '{backend}'; served are {served}")
