"""The pipeline of a device instance: three streams, two slots, and a thread that waits for their ends.

An engine whose call blocks has a run thread beside: it asks for the computation and puts the copies out behind it,
while the feeding thread already puts the next batch's copies in.

While one slot computes, the other is filled, or its outputs leave. The host only puts work on streams; tensors in
page-locked or device memory are never touched by the CPU. Stage times are those of the device's own events: *input* is
the copy to the device, *infer* the computation, *output* the copy back, and every wait between them is *queue*.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.backend.base import BlockingInstance, Bound, DeviceInstance
from headrace.config.model import ModelSpec
from headrace.core.errors import Kind
from headrace.core.tensor import HOST, Shape, TensorRef
from headrace.core.wire import Batch, Buffer
from headrace.memory.device import Copy, Device, DeviceError
from headrace.memory.pinning import Pinning

SLOTS = 2
"""One computes while the other is filled: 0.996 of the engine's own rate; a third adds nothing (measured)."""


@dataclass
class Slot:
    """A place in the pipeline, with its events."""

    number: int
    input_start: Any
    input_end: Any
    infer_start: Any
    infer_end: Any
    output_end: Any

    def events(self) -> tuple[Any, ...]:
        """All of them."""
        return self.input_start, self.input_end, self.infer_start, self.infer_end, self.output_end


@dataclass
class InFlight:
    """A batch that is on the streams."""

    slot: Slot
    batch: Batch
    outputs: Mapping[int, Shape] = field(default_factory=dict)
    stages: dict[int, Buffer | None] = field(default_factory=dict)
    kept: list[Buffer] = field(default_factory=list)
    """Staging buffers of inputs, until the copy from them is done."""
    streams: list[Any] = field(default_factory=list)
    """Where something of it was put, so far."""
    bound: Bound | None = None
    error: BaseException | None = None
    computing: bool = True
    """Counted as booked."""

    def raise_error(self) -> None:
        """Raises what went wrong when it was put on the streams."""
        if self.error is not None:
            raise self.error


class Bookings:
    """Batches of one model on one device whose computation has not ended, counted over all its instances there.

    They share the device's compute: while one of them computes, a partial batch of another would gain nothing.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def add(self, change: int) -> None:
        """One more, or one less."""
        with self._lock:
            self._count += change

    def count(self) -> int:
        """How many there are."""
        with self._lock:
            return self._count


class HandOver(Protocol):
    """What `queue.SimpleQueue` is: passes things from one thread to another."""

    def put(self, item: Any) -> None:
        """Adds the item."""

    def get(self) -> Any:
        """Waits for the oldest item."""


class DevicePipeline:
    """Takes batches from the feeding thread and settles them on its own.

    Raises:
        Exception: whatever a blocking engine raised when it was prepared.
    """

    def __init__(
        self,
        name: str,
        device: Device,
        instance: DeviceInstance | BlockingInstance,
        spec: ModelSpec,
        pinning: Pinning,
        bookings: Bookings,
        nudge: Callable[[int], None],
        on_failure: Callable[[str, BaseException], None],
        hand_over: Callable[[], HandOver] = queue.SimpleQueue,
    ) -> None:
        self._name = name
        self._device = device
        self._instance = instance
        self._input_count = len(spec.inputs)
        self._pinning = pinning
        self._nudge = nudge
        self._on_failure = on_failure
        self._in, self._out = device.stream(), device.stream()
        self._lost = ""
        self._slots = [Slot(number, *(device.event() for _ in range(5))) for number in range(SLOTS)]
        self._free = hand_over()
        for slot in self._slots:
            self._free.put(slot)
        self._flying = self._bound = hand_over()
        self._bookings = bookings
        self._blocking = instance if isinstance(instance, BlockingInstance) else None
        if self._blocking is not None:
            self._bound = hand_over()
            self._start_run_thread(self._blocking)
        self._thread = threading.Thread(target=self._complete, name=f"{name} ends", daemon=True)
        self._thread.start()

    def _start_run_thread(self, instance: BlockingInstance) -> None:
        prepared: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(
            target=self._run_batches, args=(instance, prepared), name=f"{self._name} runs", daemon=True
        ).start()
        error = prepared.get()
        if error is not None:
            self._give_back()
            raise error

    def free_slot(self) -> Slot:
        """Waits until there is a slot for another batch."""
        slot: Slot = self._free.get()
        return slot

    def lost(self) -> str:
        """Why the device cannot serve any more; empty while it can."""
        return self._lost

    def booked(self) -> int:
        """Batches on the device whose computation has not ended, of all instances of the model."""
        return self._bookings.count()

    def book(self) -> None:
        """Announces a batch for `start`, before it leaves the queue: other instances must not think that the device
        runs dry when they see what is left there.
        """
        self._bookings.add(1)

    def unbook(self) -> None:
        """There was no such batch."""
        self._bookings.add(-1)

    def close(self) -> None:
        """Ends the thread when all batches are settled; `join` waits for it."""
        self._bound.put(None)

    def join(self, timeout: float) -> bool:
        """Waits for the end of the thread; false when it still runs after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def start(self, slot: Slot, batch: Batch) -> None:
        """Puts a batch that was booked on the streams, or its copies in when the engine blocks."""
        flight = InFlight(slot, batch)
        self._try(self._enqueue_input, flight)
        if self._blocking is None:
            self._try(self._enqueue_rest, flight)
        self._bound.put(flight)

    def _run_batches(self, instance: BlockingInstance, prepared: queue.SimpleQueue[BaseException | None]) -> None:
        try:
            self._device.attach()
            instance.prepare()
        except BaseException as error:  # noqa: BLE001 - an engine may raise anything; the model does not load
            prepared.put(error)
            return
        prepared.put(None)
        while (flight := self._bound.get()) is not None:
            self._try(self._enqueue_rest, flight)
            for name in instance.fallbacks() if flight.error is None else ():
                flight.batch.fell_back(name, 0)
            self._flying.put(flight)
        self._flying.put(None)

    def _try(self, step: Callable[[InFlight], None], flight: InFlight) -> None:
        """What fails costs this batch only."""
        if flight.error is not None:
            return
        try:
            self._device.attach()
            step(flight)
        except BaseException as error:  # noqa: BLE001 - an engine, a driver or the extension may raise anything
            flight.error = error

    def _enqueue_input(self, flight: InFlight) -> None:
        device, slot, batch = self._device, flight.slot, flight.batch
        shapes = [batch.shape(at) for at in range(self._input_count)]
        if batch.home not in (HOST, device.index):
            batch.fell_back("peer", 0)
        flight.bound = bound = self._instance.bind(slot.number, shapes)
        flight.streams = [self._in, bound.stream, self._out]
        device.record(slot.input_start, self._in)
        device.copy(self._in, self._copies_in(flight, bound.inputs))
        device.record(slot.input_end, self._in)

    def _enqueue_rest(self, flight: InFlight) -> None:
        device, slot, bound = self._device, flight.slot, flight.bound
        assert bound is not None, "its inputs were put on a stream"
        device.wait(bound.stream, slot.input_end)
        device.record(slot.infer_start, bound.stream)
        outputs = bound.run()
        device.record(slot.infer_end, bound.stream)
        device.wait(self._out, slot.infer_end)
        device.copy(self._out, self._copies_out(flight, outputs))
        device.record(slot.output_end, self._out)

    def _copies_in(self, flight: InFlight, places: Sequence[int]) -> list[Copy]:
        copies: list[Copy] = []
        for at, target in enumerate(places):
            stage = None
            nbytes = flight.batch.pageable_bytes(at)
            if nbytes:
                stage = self._pinning.staging(nbytes)
                flight.kept.append(stage)
                flight.batch.fell_back("staged_input", 0)
            offset = 0
            for address, length in flight.batch.sources(at, stage):
                copies.append((target + offset, address, length))
                offset += length
        return copies

    def _copies_out(self, flight: InFlight, outputs: Sequence[TensorRef]) -> list[Copy]:
        copies: list[Copy] = []
        shapes: dict[int, Shape] = {}
        rows = flight.batch.rows
        for at in flight.batch.wanted():
            reference = outputs[at]
            row_bytes = reference.nbytes // max(1, rows)
            stage = None
            if flight.batch.needs_stage(at, row_bytes):
                stage = self._pinning.staging(reference.nbytes)
                flight.batch.fell_back("staged_output", 0)
            flight.stages[at] = stage
            shapes[at] = reference.shape
            copies += [
                (address, reference.address + offset, length)
                for offset, address, length in flight.batch.targets(at, row_bytes, stage)
            ]
        flight.outputs = shapes
        return copies

    def _complete(self) -> None:
        self._device.attach()
        while (flight := self._flying.get()) is not None:
            self._finish(flight)
        self._give_back()

    def _give_back(self) -> None:
        """Frees what the instance and the pipeline hold of the device."""
        try:
            self._device.attach()
            self._instance.close()
            self._device.close(self._in, self._out, *(event for slot in self._slots for event in slot.events()))
        except Exception as error:  # noqa: BLE001 - an engine may raise anything; a lost device takes nothing back
            self._pinning.tell_once(f"instance '{self._name}' could not give its memory back: {error}")

    def _finish(self, flight: InFlight) -> None:
        slot, batch, device = flight.slot, flight.batch, self._device
        try:
            flight.raise_error()
            device.synchronize(slot.infer_end)
            self._compute_ended(flight)
            device.synchronize(slot.output_end)
            flight.kept.clear()
            for at, shape in flight.outputs.items():
                batch.deliver(at, list(shape), flight.stages[at])
            batch.settle_spans(
                device.elapsed_ns(slot.input_start, slot.input_end),
                device.elapsed_ns(slot.infer_start, slot.infer_end),
                device.elapsed_ns(slot.infer_end, slot.output_end),
            )
        except BaseException as error:  # noqa: BLE001 - the boundary to engines and drivers: it costs this batch
            self._drain(flight)
            batch.fail(Kind.INTERNAL, f"instance '{self._name}' failed: {error}")
            self._on_failure(self._name, error)
            self._lost = device.lost()
            self._nudge(self._device.index)
        finally:
            self._compute_ended(flight)
            self._free.put(slot)

    def _drain(self, flight: InFlight) -> None:
        """What was put on the streams before something failed still moves the batch's memory: it is waited for."""
        for stream in flight.streams:
            with suppress(DeviceError):
                self._device.drain(stream)

    def _compute_ended(self, flight: InFlight) -> None:
        if not flight.computing:
            return
        flight.computing = False
        self._bookings.add(-1)
        self._nudge(self._device.index)
