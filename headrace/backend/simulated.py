"""A model that only takes time, on a device that only takes time (`headrace serve --simulate-gpus N`).

Parameters in config.pbtxt: `batch_us` (a batch of any size takes so many microseconds), `row_us` (and so many for each
row), `blocking` ("1": whoever starts the computation waits for its end, as with ONNX Runtime), `lost_gpu` and
`lost_after` (this GPU fails for good after so many batches of an instance, 0 by default). Its outputs are whatever
memory holds: it shows schedules, not results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.backend.base import BlockingInstance, DeviceInstance, Instance, ModelFile
from headrace.config.model import ModelSignature, ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning
from headrace.memory.simulated import SimulatedDevice, SimulatedStream


class SimulatedModel:
    """There is nothing to load."""

    signature: ModelSignature | None = None
    forwards: Mapping[int, int] = {}

    def start_instance(self, spec: ModelSpec, threads: int) -> Instance:  # noqa: ARG002
        """It has none on the CPU."""
        raise ConfigError(f"backend 'simulated' of '{spec.name}' runs on simulated GPUs only (--simulate-gpus)")

    def start_device_instance(self, spec: ModelSpec, device: Device, pinning: Pinning) -> DeviceInstance:  # noqa: ARG002
        """On a simulated device."""
        if not isinstance(device, SimulatedDevice):
            raise ConfigError(f"backend 'simulated' of '{spec.name}' needs a simulated GPU, not {device.name}")
        blocks = spec.parameters.get("blocking") == "1"
        return SimulatedBlockingInstance(spec, device) if blocks else SimulatedInstance(spec, device)


class SimulatedInstance:
    """Takes the device's compute unit for the time that the config says."""

    def __init__(self, spec: ModelSpec, device: SimulatedDevice) -> None:
        self._spec = spec
        self._device = device
        self._stream = device.stream()
        self._batch_us = float(spec.parameters.get("batch_us", "0"))
        self._row_us = float(spec.parameters.get("row_us", "0"))
        lost = spec.parameters.get("lost_gpu") == str(device.index)
        self._batches_left = int(spec.parameters.get("lost_after", "0")) if lost else None
        self._memory: dict[int, tuple[list[int], list[int]]] = {}

    def bind(self, slot: int, shapes: Sequence[Shape]) -> SimulatedBound:
        """Memory of the slot, for any shape."""
        if self._batches_left is not None:
            self._batches_left -= 1
            if self._batches_left < 0:
                self._device.lost_at = self._device.clock()
        rows = shapes[0][0] if self._spec.max_batch_size > 0 else 1
        if slot not in self._memory:
            size = 1 << 36  # addresses cost nothing
            inputs = [self._device.allocate(size) for _ in self._spec.inputs]
            self._memory[slot] = inputs, [self._device.allocate(size) for _ in self._spec.outputs]
        inputs, outputs = self._memory[slot]
        duration = int((self._batch_us + self._row_us * rows) * 1000)
        references = [
            TensorRef(address, tensor.dtype, self._shape(rows, tensor.backend_dims))
            for address, tensor in zip(outputs, self._spec.outputs, strict=True)
        ]
        return SimulatedBound(self._device, self._stream, inputs, references, duration)

    def _shape(self, rows: int, dims: Shape) -> Shape:
        fixed = tuple(max(1, dim) for dim in dims)
        return (rows, *fixed) if self._spec.max_batch_size > 0 else fixed

    def close(self) -> None:
        """Frees the slots' memory."""
        for addresses in self._memory.values():
            for address in (*addresses[0], *addresses[1]):
                self._device.free(address)
        self._memory.clear()
        self._device.close(self._stream)


class SimulatedBlockingInstance(SimulatedInstance, BlockingInstance):
    """The same, whose computation holds its thread."""

    def prepare(self) -> None:
        """Nothing to do."""

    def bind(self, slot: int, shapes: Sequence[Shape]) -> SimulatedBound:
        """As of the other."""
        return replace(super().bind(slot, shapes), blocks=True)

    def fallbacks(self) -> Sequence[str]:
        """None."""
        return ()


@dataclass(frozen=True)
class SimulatedBound:
    """A slot bound to a batch."""

    device: SimulatedDevice
    stream: SimulatedStream
    inputs: Sequence[int]
    outputs: Sequence[TensorRef]
    duration_ns: int
    blocks: bool = False

    def run(self) -> Sequence[Any]:
        """Takes its time."""
        self.device.compute(self.stream, self.duration_ns)
        if self.blocks:
            self.device.drain(self.stream)
        return self.outputs


def load(file: ModelFile) -> SimulatedModel:  # noqa: ARG001 - there is no file
    """The model, ready at once."""
    return SimulatedModel()
