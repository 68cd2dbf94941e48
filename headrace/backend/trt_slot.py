"""What a slot of a TensorRT instance has: static buffers, and an execution context for each profile.

A buffer is as large as the largest profile wants it, at most as many rows as `max_batch_size`; it is made when the
model loads, so that nothing is allocated while it serves. The exception are outputs whose shape depends on values:
TensorRT asks for their memory when it knows how much.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.backend.trt_engine import Engine, PlanTensor
from headrace.backend.trt_profiles import Profile
from headrace.config.model import ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape
from headrace.core.wire import Buffer
from headrace.memory.device import Device, DeviceError, Graph
from headrace.memory.pinning import Pinning

_SHAPES = 64
"""Of batches that a slot remembers; the one that was not used for longest goes first."""

Key = tuple[int, tuple[Shape, ...]]
"""Index of the profile and shapes of the inputs."""


@dataclass
class Known:
    """What is known of batches of one shape."""

    outputs: Mapping[str, Shape]
    """Shapes of those that do not depend on values."""
    context: Any = None
    """Of the graph alone: what changes a context spoils the graphs that were captured from it."""
    graph: Graph | None = None
    """Once there is one."""


@dataclass
class Slot:
    """Buffers and contexts for one batch."""

    addresses: dict[str, int] = field(default_factory=dict)
    """Of all tensors but those in `growing`."""
    capacities: dict[str, int] = field(default_factory=dict)
    on_device: list[int] = field(default_factory=list)
    """Addresses to be freed."""
    on_host: dict[str, Buffer] = field(default_factory=dict)
    """Page-locked memory of inputs and outputs whose values are shapes."""
    growing: dict[str, Any] = field(default_factory=dict)
    """`OutputAllocator`s of outputs whose shape depends on values."""
    contexts: dict[int, Any] = field(default_factory=dict)
    """By profile, for batches without a graph."""
    shapes: dict[int, tuple[Shape, ...]] = field(default_factory=dict)
    """What the context of a profile was last set to."""
    known: dict[Key, Known] = field(default_factory=dict)

    def keep(self, key: Key, known: Known) -> None:
        """Remembers a shape as the one used last."""
        self.known.pop(key, None)
        if len(self.known) >= _SHAPES:
            oldest = self.known.pop(next(iter(self.known)))
            if oldest.graph is not None:
                oldest.graph.close()
        self.known[key] = known

    def values(self, tensor: PlanTensor, shape: Shape) -> Shape:
        """What an input in host memory holds."""
        count = math.prod(shape)
        kind = ctypes.c_int64 if tensor.spec.dtype.itemsize == ctypes.sizeof(ctypes.c_int64) else ctypes.c_int32
        return tuple((kind * count).from_address(self.addresses[tensor.spec.name]))

    def close(self, device: Device) -> None:
        """Gives back everything."""
        for known in self.known.values():
            if known.graph is not None:
                known.graph.close()
        self.known.clear()
        self.contexts.clear()
        for address in [*self.on_device, *(one.address for one in self.growing.values() if one.address)]:
            device.free(address)
        self.on_device.clear()
        self.growing.clear()
        self.on_host.clear()


class SlotMaker:
    """Makes the slots of an instance."""

    def __init__(
        self, plan: Engine, spec: ModelSpec, device: Device, pinning: Pinning, stream: int, scratch: tuple[int, int]
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._device = device
        self._pinning = pinning
        self._stream = stream
        self._scratch = scratch

    def make(self, profiles: Sequence[Profile]) -> Slot:
        """A slot for these profiles.

        Raises:
            ConfigError: when TensorRT refuses something, or the model cannot be served with its config.
            DeviceError: when memory is short.
        """
        slot = Slot()
        try:
            self._fill(slot, profiles)
        except BaseException:
            slot.close(self._device)
            raise
        return slot

    def _fill(self, slot: Slot, profiles: Sequence[Profile]) -> None:
        for tensor in self._plan.inputs:
            largest = max((self._largest(profile)[tensor.spec.name] for profile in profiles), key=math.prod)
            self._allocate(slot, tensor, math.prod(largest))
        sizes: dict[str, int] = {}
        for profile in profiles:
            slot.contexts[profile.index] = context = self._new_context(slot, profile)
            for tensor, shape in self._output_shapes(context, self._largest(profile)):
                if -1 in shape:
                    slot.growing.setdefault(tensor.spec.name, make_allocator(self._plan.trt, self._device))
                sizes[tensor.spec.name] = max(sizes.get(tensor.spec.name, 0), math.prod(shape))
        for tensor in self._plan.outputs:
            if tensor.spec.name not in slot.growing:
                self._allocate(slot, tensor, sizes[tensor.spec.name])
        for context in slot.contexts.values():
            self._bind_outputs(slot, context)

    def context(self, slot: Slot, profile: Profile) -> Any:
        """One more context for the slot's buffers.

        Raises:
            ConfigError: when TensorRT refuses something.
        """
        context = self._new_context(slot, profile)
        self._bind_outputs(slot, context)
        return context

    def _allocate(self, slot: Slot, tensor: PlanTensor, elements: int) -> None:
        name, nbytes = tensor.spec.name, max(1, elements * tensor.spec.dtype.itemsize)
        if tensor.on_host:
            slot.on_host[name] = self._pinning.staging(nbytes)
            slot.addresses[name] = slot.on_host[name].address
        else:
            slot.addresses[name] = self._device.allocate(nbytes)
            slot.on_device.append(slot.addresses[name])
        slot.capacities[name] = nbytes

    def _largest(self, profile: Profile) -> dict[str, Shape]:
        """Shapes of the largest batch."""
        most = self._spec.max_batch_size
        shapes = {name: range_.largest for name, range_ in profile.shapes.items()}
        if most <= 0:
            return shapes
        return {name: (max(min(shape[0], most), profile.least_rows), *shape[1:]) for name, shape in shapes.items()}

    def _new_context(self, slot: Slot, profile: Profile) -> Any:
        """A context whose memory is the instance's scratch memory: its slots compute one after another."""
        trt, name = self._plan.trt, self._spec.name
        context = self._plan.engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if context is None:
            raise ConfigError(self._refused(f"makes no execution context for model '{name}'"))
        context.set_device_memory(*self._scratch)
        if any(-1 in tensor.spec.dims for tensor in self._plan.inputs):  # otherwise there may be no profile
            taken = context.set_optimization_profile_async(profile.index, self._stream)
            self._must(taken, f"optimization profile {profile.index}")
        for tensor in self._plan.inputs:
            if tensor.on_host:
                self._write(slot, tensor, profile.values[tensor.spec.name].largest)
            self._set_address(slot, context, tensor)
        return context

    def _set_address(self, slot: Slot, context: Any, tensor: PlanTensor) -> None:
        name = tensor.spec.name
        self._must(context.set_tensor_address(name, slot.addresses[name]), f"the buffer of '{name}'")

    def _write(self, slot: Slot, tensor: PlanTensor, values: Shape) -> None:
        kind = ctypes.c_int64 if tensor.spec.dtype.itemsize == ctypes.sizeof(ctypes.c_int64) else ctypes.c_int32
        (kind * len(values)).from_address(slot.addresses[tensor.spec.name])[:] = values

    def _output_shapes(self, context: Any, largest: Mapping[str, Shape]) -> list[tuple[PlanTensor, Shape]]:
        set_shapes(self._plan, context, largest)
        shapes = [(tensor, output_shape(context, tensor)) for tensor in self._plan.outputs]
        for tensor, shape in shapes:
            if self._spec.max_batch_size > 0 and (not shape or shape[0] == -1):
                raise ConfigError(
                    f"output '{tensor.spec.name}' of model '{self._spec.name}' has the shape {list(shape)}, which "
                    "depends on values and not on the rows of a batch: max_batch_size must be 0"
                )
        return shapes

    def _bind_outputs(self, slot: Slot, context: Any) -> None:
        for tensor in self._plan.outputs:
            name = tensor.spec.name
            if name in slot.growing:
                self._must(context.set_output_allocator(name, slot.growing[name]), f"the allocator of '{name}'")
            else:
                self._set_address(slot, context, tensor)

    def _must(self, taken: bool, what: str) -> None:
        if not taken:
            raise ConfigError(self._refused(f"does not take {what} of model '{self._spec.name}'"))

    def _refused(self, what: str) -> str:
        return f"{self._plan.trt.__name__} {what}: {'; '.join(self._plan.complaints.take()) or 'it does not say why'}"


def set_shapes(plan: Engine, context: Any, shapes: Mapping[str, Shape]) -> None:
    """Sets the shapes of the inputs, and has those of the outputs inferred.

    Raises:
        ConfigError: when TensorRT refuses them.
    """
    for name, shape in shapes.items():
        if not context.set_input_shape(name, shape):
            why = "; ".join(plan.complaints.take())
            raise ConfigError(f"TensorRT does not take input '{name}' of shape {list(shape)}: {why}")
    if missing := context.infer_shapes():
        raise ConfigError(f"TensorRT cannot infer shapes, it lacks {missing}: {'; '.join(plan.complaints.take())}")


def output_shape(context: Any, tensor: PlanTensor) -> Shape:
    """The shape of an output for the inputs that are set; -1 where it depends on values."""
    return tuple(int(dim) for dim in context.get_tensor_shape(tensor.spec.name))


def make_allocator(trt: Any, device: Device) -> Any:
    """An `IOutputAllocator` of one output: memory that grows, and the shape that it turned out to have."""

    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.address, self.capacity = 0, 0
            self.shape: Shape = ()

        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:  # noqa: ARG002
            if size > self.capacity or not self.address:  # also an empty output has an address
                try:
                    self._grow(size)
                except DeviceError:  # it may not leave a callback; TensorRT fails then, and the caller tells
                    return 0
            return self.address

        def _grow(self, size: int) -> None:
            if self.address:  # the slot's last batch is done: nobody uses it
                device.free(self.address)
            self.address, self.capacity = 0, 0
            self.address = device.allocate(size)
            self.capacity = size

        def reallocate_output_async(
            self,
            tensor_name: str,
            memory: int,
            size: int,
            alignment: int,
            stream: int,  # noqa: ARG002
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:  # noqa: ARG002
            self.shape = tuple(int(dim) for dim in shape)

    return OutputAllocator()
