"""The contract of every backend.

A backend is a module function `load(ModelFile) -> Model`. A `Model` is one version of a model in memory; its
instances execute batches, one thread each. Engines are imported inside `load`, so that a server without them
starts and says what is missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning


@dataclass(frozen=True)
class ModelFile:
    """Where a model version is on disk."""

    directory: Path
    """The version directory."""
    filename: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """What `--backend-config` sets for its backend."""

    @property
    def path(self) -> Path:
        """The model file. A directory of its name may hold it, beside the files that it refers to."""
        path = self.directory / self.filename
        return path / path.name if path.is_dir() else path


@dataclass(frozen=True)
class Produced:
    """An output that the backend allocated itself, because its shape was not known before."""

    reference: TensorRef
    owner: Any
    """Keeps the memory valid. A `Buffer` of just these bytes is given on without a copy."""


Inputs = Sequence[TensorRef | None]
"""Of a batch; `None` for an optional one that its requests came without."""


class Instance(Protocol):
    """Executes batches, one at a time."""

    def output_shapes(self, inputs: Inputs) -> Sequence[Shape | None]:
        """Shape of each output of the model for such inputs; `None` where only execution will tell. Places are made for
        outputs of fixed size only: the backend allocates BYTES.
        """

    def run(self, inputs: Inputs, outputs: Mapping[int, TensorRef | None]) -> Mapping[int, Produced]:
        """Executes one batch.

        Args:
            inputs: one for each input of the model, in its order.
            outputs: where to put the outputs that are wanted, by position; `None`: the backend allocates.

        Returns:
            The outputs that the backend allocated. It may decline a place, when the shape turned out to be
            another, by returning the output here.

        Raises:
            Exception: anything; the requests of the batch fail with its text.
        """


class Bound(Protocol):
    """A slot of a device instance, bound to the shapes of one batch."""

    @property
    def stream(self) -> Any:
        """Where the computation runs."""

    @property
    def inputs(self) -> Sequence[int]:
        """Device addresses that the inputs must be copied to, in order."""

    def run(self) -> Sequence[TensorRef]:
        """Puts the computation on the stream and returns the outputs: device memory, until the slot is bound again."""


class DeviceInstance(Protocol):
    """Executes batches on a device, asynchronously, in slots that own static buffers."""

    def bind(self, slot: int, shapes: Sequence[Shape]) -> Bound:
        """Chooses the slot's buffers for inputs of these shapes; the slot is free, its last batch is done.

        Raises:
            Exception: anything; the requests of the batch fail with its text.
        """

    def close(self) -> None:
        """Frees the device memory that it holds; all its batches are done and none comes any more."""


class BlockingInstance(ABC):
    """A `DeviceInstance` whose computation may hold the thread that asks for it until the device is done.

    The pipeline gives it a run thread, on which `prepare` and `Bound.run` are called and nothing else, so that the next
    batch is copied in meanwhile. `bind` is called on the feeding thread and must not wait for the device.
    """

    @abstractmethod
    def prepare(self) -> None:
        """Loads and warms up, before anything is served.

        Raises:
            Exception: anything; the model does not load, with its text.
        """

    @abstractmethod
    def bind(self, slot: int, shapes: Sequence[Shape]) -> Bound:
        """As of `DeviceInstance`."""

    @abstractmethod
    def fallbacks(self) -> Sequence[str]:
        """Names of the slower ways that the last run had to take, for the counter."""

    @abstractmethod
    def close(self) -> None:
        """As of `DeviceInstance`."""


class Model(Protocol):
    """One version of a model in memory."""

    @property
    def signature(self) -> ModelSignature | None:
        """What the model file says about itself; `None` when it says nothing and the config must."""

    @property
    def forwards(self) -> Mapping[int, int]:
        """Outputs that *are* an input, by position: nothing is executed for them. Usually empty."""

    def start_instance(self, spec: ModelSpec, threads: int) -> Instance:
        """A new instance that uses about `threads` CPU threads."""

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:
        """A new instance on a device.

        Raises:
            ConfigError: when the backend has none.
        """


Load = Callable[[ModelFile], Model]
