"""An instance of a TensorRT plan on a GPU: batches in slots, and a CUDA graph for each profile and shape.

Inputs are always copied to the slot's own buffers, also from a client's CUDA memory: TensorRT wants addresses that are
multiples of 256, and a graph fixed ones. A batch is computed as the next larger size that gets a graph. Where the
config knows the shapes they get their graphs at load, other shapes when they come the second time. There is none where
TensorRT must see values on the host (shape tensors, outputs whose shape depends on values), or where capturing fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.backend.base import BlockingInstance
from headrace.backend.torch_graphs import batch_sizes
from headrace.backend.trt_engine import Engine
from headrace.backend.trt_profiles import Profile, choose_profile, choose_rows
from headrace.backend.trt_slot import Known, Slot, SlotMaker, output_shape, set_shapes
from headrace.config.model import ModelSpec
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef, TensorSpec
from headrace.memory.device import Device, DeviceError, Graph
from headrace.memory.pinning import Pinning

_SLOTS = (0, 1)
NO_GRAPH = "cuda_graph"
"""The fall-back of a batch that would have had one, by its name in the metrics."""


class TensorRtInstance(BlockingInstance):
    """Contexts share one block of scratch memory, as they compute on one stream.

    TensorRT may wait for the device within a call, so it has a run thread (see `BlockingInstance`).
    """

    def __init__(
        self, plan: Engine, spec: ModelSpec, device: Device, pinning: Pinning, profiles: Sequence[Profile], graphs: bool
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._device = device
        self._pinning = pinning
        self._profiles = profiles
        self._wants_graphs = graphs
        self._can_capture = True
        self._host_inputs = [tensor for tensor in plan.inputs if tensor.on_host]
        self._sizes = batch_sizes(spec.max_batch_size) if spec.max_batch_size > 0 else []
        self._maker: SlotMaker | None = None
        self._slots: dict[int, Slot] = {}
        self._scratch = 0
        self._fallbacks: tuple[str, ...] = ()
        self.stream = device.stream()

    def prepare(self) -> None:
        """Contexts, buffers and, where the shapes are known, graphs of all sizes, the largest first."""
        size = max(1, int(self._plan.engine.device_memory_size_v2))
        self._scratch = self._device.allocate(size)
        handle = self._device.handle(self.stream)
        maker = SlotMaker(self._plan, self._spec, self._device, self._pinning, handle, (self._scratch, size))
        self._maker = maker
        for number in _SLOTS:
            self._slots[number] = maker.make(self._profiles)
        if self._host_inputs or any(slot.growing or slot.on_host for slot in self._slots.values()):
            self._wants_graphs = False
        dims = [tensor.backend_dims for tensor in self._spec.inputs]
        if self._wants_graphs and all(dim >= 0 for own in dims for dim in own):
            self._prepare_graphs(dims)

    def _prepare_graphs(self, dims: Sequence[Shape]) -> None:
        for rows in reversed(self._sizes) if self._sizes else [0]:
            shapes = [(rows, *own) if self._sizes else own for own in dims]
            try:
                profile, named = self._choose(shapes)
            except ConfigError:
                continue  # sizes that no profile takes: told when a batch of that size comes
            for number in _SLOTS:
                for _ in ("enqueued once with these shapes", "captured"):
                    self._run(number, profile, named)
                self._device.drain(self.stream)

    def _choose(self, shapes: Sequence[Shape]) -> tuple[Profile, dict[str, Shape]]:
        named = self._named(shapes)
        if not self._sizes:
            return choose_profile(self._profiles, named, {}), named
        return choose_rows(self._profiles, named, self._sizes, self._wants_graphs)

    def _named(self, shapes: Sequence[Shape]) -> dict[str, Shape]:
        return {tensor.name: tuple(shape) for tensor, shape in zip(self._spec.inputs, shapes, strict=True)}

    def bind(self, slot: int, shapes: Sequence[Shape]) -> TensorRtBound:
        """The slot's buffers. With values to come that are shapes, the profile is chosen when they are there."""
        profile, named = (None, self._named(shapes)) if self._host_inputs else self._choose(shapes)
        place = self._slots[slot]
        for tensor in self._spec.inputs:
            _check_room(tensor, named[tensor.name], place.capacities[tensor.name])
        rows = shapes[0][0] if self._sizes else None
        return TensorRtBound(
            self, slot, profile, named, rows, [place.addresses[tensor.name] for tensor in self._spec.inputs]
        )

    def compute(
        self, number: int, profile: Profile | None, shapes: Mapping[str, Shape], rows: int | None
    ) -> list[TensorRef]:
        """Puts a batch on the stream, and says where its outputs will be."""
        self._fallbacks = ()
        slot = self._slots[number]
        if profile is None:
            self._device.drain(self.stream)  # which waits for the copies of the values, too
            values = {one.spec.name: slot.values(one, shapes[one.spec.name]) for one in self._host_inputs}
            profile = choose_profile(self._profiles, shapes, values)
        known = self._run(number, profile, shapes)
        computed = next(iter(shapes.values()))[0] if rows is not None else None
        return [self._output(slot, tensor, known, rows, computed) for tensor in self._spec.outputs]

    def _run(self, number: int, profile: Profile, shapes: Mapping[str, Shape]) -> Known:
        slot, key = self._slots[number], (profile.index, tuple(shapes.values()))
        known = slot.known.get(key)
        if known is not None and known.graph is not None:
            known.graph.launch(self.stream)
        elif known is not None and self._wants_graphs and self._can_capture:
            self._execute_and_capture(slot, profile, shapes, known)
        else:
            context = self._execute(slot, profile, shapes)
            if known is None:
                known = Known(self._output_shapes(slot, context, shapes))
            if self._wants_graphs and not self._can_capture:
                self._fallbacks = (NO_GRAPH,)
        if not self._host_inputs:  # otherwise the shapes of outputs depend on more than the shapes of inputs
            slot.keep(key, known)
        return known

    def _output_shapes(self, slot: Slot, context: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Those that do not depend on values."""
        tensors = [tensor for tensor in self._plan.outputs if tensor.spec.name not in slot.growing]
        found = {tensor.spec.name: output_shape(context, tensor) for tensor in tensors}
        if self._sizes:
            rows = next(iter(shapes.values()))[0]
            for name, shape in found.items():
                _check_rows(name, shape, rows)
        return found

    def _execute(self, slot: Slot, profile: Profile, shapes: Mapping[str, Shape]) -> Any:
        context, wanted = slot.contexts[profile.index], tuple(shapes.values())
        if slot.shapes.pop(profile.index, None) != wanted or self._host_inputs:
            set_shapes(self._plan, context, shapes)
        slot.shapes[profile.index] = wanted
        self._enqueue(context)
        return context

    def _execute_and_capture(self, slot: Slot, profile: Profile, shapes: Mapping[str, Shape], known: Known) -> None:
        if known.context is None:
            assert self._maker is not None, "it was prepared"
            known.context = self._maker.context(slot, profile)
            set_shapes(self._plan, known.context, shapes)
        self._enqueue(known.context)
        known.graph = self._capture(known.context)
        if not self._can_capture:
            known.context = None

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._device.handle(self.stream)):
            why = "; ".join(self._plan.complaints.take()) or "it does not say why"
            raise RuntimeError(f"TensorRT could not execute a batch: {why}")

    def _capture(self, context: Any) -> Graph | None:
        """A graph of what was just executed; where there can be none the instance goes on without."""
        if self._is_capturable(context):
            try:
                with self._pinning.quiet:
                    return self._device.capture(self.stream, lambda: self._enqueue(context))
            except (DeviceError, RuntimeError) as error:
                self._can_capture = False
                self._pinning.tell_once(f"model '{self._spec.name}' is computed without CUDA graphs: {error}")
        self._fallbacks = (NO_GRAPH,)
        return None

    def _is_capturable(self, context: Any) -> bool:
        """TensorRT for RTX compiles kernels while it serves; until then it cannot be captured."""
        asks = getattr(context, "is_stream_capturable", None)
        return asks is None or bool(asks(self._device.handle(self.stream)))

    def _output(
        self, slot: Slot, tensor: TensorSpec, known: Known, rows: int | None, computed: int | None
    ) -> TensorRef:
        if tensor.name in slot.growing:
            allocator = slot.growing[tensor.name]
            address, shape, room = allocator.address, allocator.shape, allocator.capacity
            if computed is not None:
                _check_rows(tensor.name, shape, computed)
        else:
            address, shape, room = slot.addresses[tensor.name], known.outputs[tensor.name], slot.capacities[tensor.name]
        if rows is not None:
            shape = (rows, *shape[1:])
        _check_room(tensor, shape, room)
        return TensorRef(address, tensor.dtype, shape)

    def fallbacks(self) -> Sequence[str]:
        """That the last batch would have had a graph."""
        return self._fallbacks

    def close(self) -> None:
        """Frees contexts, graphs, buffers and scratch memory, and the plan with the last instance on its GPU."""
        for slot in self._slots.values():
            slot.close(self._device)
        self._slots.clear()
        if self._scratch:
            self._device.free(self._scratch)
            self._scratch = 0
        self._device.close(self.stream)
        self._maker = None
        del self._plan


@dataclass(frozen=True)
class TensorRtBound:
    """A slot bound to a batch."""

    instance: TensorRtInstance
    slot: int
    profile: Profile | None
    """`None` where it depends on values."""
    shapes: Mapping[str, Shape]
    """That it is computed with."""
    rows: int | None
    inputs: Sequence[int]

    @property
    def stream(self) -> Any:
        """The instance's."""
        return self.instance.stream

    def run(self) -> Sequence[TensorRef]:
        """Puts the computation on the stream."""
        return self.instance.compute(self.slot, self.profile, self.shapes, self.rows)


def _check_rows(name: str, shape: Shape, rows: int) -> None:
    if not shape or shape[0] != rows:
        raise RuntimeError(f"output '{name}' has the shape {list(shape)} for a batch of {rows} rows")


def _check_room(tensor: TensorSpec, shape: Shape, room: int) -> None:
    needed = TensorRef(0, tensor.dtype, shape).nbytes
    if needed > room:
        raise RuntimeError(f"'{tensor.name}' of shape {list(shape)} needs {needed} bytes, there are {room}")
