"""Moving a batch in CPU memory: the stages *input*, *infer* and *output* of its requests.

| batch | input | output |
| --- | --- | --- |
| one request | a view where it lies | computed in the client's region, or in the reply's buffer |
| several | one copy each; neighbours in memory are a view | one copy each into regions; replies share a buffer |

Fall-backs are counted by name: `unaligned_input`, `unaligned_output`, `output_allocated_by_backend`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

from headrace.backend.base import Inputs, Instance, Produced
from headrace.config.model import ModelSpec
from headrace.core.dtype import BYTES, Dtype
from headrace.core.tensor import Shape, TensorRef
from headrace.core.wire import Batch, Buffer, now
from headrace.memory.arena import allocate


class ForwardMover:
    """Outputs are inputs: nothing is executed."""

    def __init__(self, forwards: Mapping[int, int]) -> None:
        self._forwards = tuple(forwards.items())

    def __call__(self, batch: Batch) -> None:
        """Serves the batch."""
        ready = now()
        for output, source in self._forwards:
            batch.forward(output, source)
        batch.settle(ready, ready)


class HostMover:
    """Places a batch, has the instance run it, and hands the outputs out."""

    def __init__(self, instance: Instance, spec: ModelSpec) -> None:
        self._instance = instance
        self._inputs = [tensor.dtype for tensor in spec.inputs]
        self._outputs = [tensor.dtype for tensor in spec.outputs]

    def __call__(self, batch: Batch) -> None:
        """Serves the batch; raises what the instance raises."""
        inputs, _keep = self._place_inputs(batch)
        shapes = self._instance.output_shapes(inputs)
        places: dict[int, TensorRef | None] = {}
        buffers: dict[int, Buffer] = {}
        for at in batch.wanted():
            places[at] = self._place_output(batch, at, shapes[at], buffers)
        input_end = now()
        produced = self._instance.run(inputs, places)
        infer_end = now()
        for at, place in places.items():
            self._deliver(batch, at, produced.get(at), place, buffers.get(at))
        batch.settle(input_end, infer_end)

    def _place_inputs(self, batch: Batch) -> tuple[Inputs, Sequence[Buffer]]:
        keep: list[Buffer] = []
        given = [batch.given(at) for at in range(len(self._inputs))]
        inputs = [_place_input(batch, at, dtype, keep) if given[at] else None for at, dtype in enumerate(self._inputs)]
        return inputs, keep

    def _place_output(self, batch: Batch, at: int, shape: Shape | None, buffers: dict[int, Buffer]) -> TensorRef | None:
        if shape is None or self._outputs[at] is BYTES:
            return None
        reference = TensorRef(0, self._outputs[at], shape)
        target = batch.target(at, reference.nbytes)
        if target is not None:
            return TensorRef(target, reference.dtype, shape)
        buffers[at], reference = allocate(reference.dtype, shape)
        return reference

    def _deliver(
        self, batch: Batch, at: int, produced: Produced | None, place: TensorRef | None, buffer: Buffer | None
    ) -> None:
        if produced is not None and isinstance(produced.owner, Buffer):
            batch.scatter(at, list(produced.reference.shape), produced.owner)
        elif produced is not None:
            buffer, reference = allocate(produced.reference.dtype, produced.reference.shape)
            ctypes.memmove(reference.address, produced.reference.address, reference.nbytes)
            batch.fell_back("output_allocated_by_backend", reference.nbytes)
            batch.scatter(at, list(reference.shape), buffer)
        elif buffer is not None and place is not None:
            batch.scatter(at, list(place.shape), buffer)
        elif place is not None:
            batch.placed(at, list(place.shape))


def _place_input(batch: Batch, at: int, dtype: Dtype, keep: list[Buffer]) -> TensorRef:
    """Where an input of the whole batch lies; the buffer that it was copied into, if any, is added to `keep`."""
    shape, packed = batch.shape(at), batch.nbytes(at) if dtype is BYTES else 0
    address = batch.view(at)
    if address is None:
        buffer = Buffer(batch.nbytes(at))
        batch.gather(at, buffer)
        keep.append(buffer)
        address = buffer.address
    return TensorRef(address, dtype, shape, packed)
