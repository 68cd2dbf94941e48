"""PyTorch models on a GPU: static inputs and CUDA graphs for each slot.

Each slot owns a static input for every input of the model, and one graph for each batch size that is used: by default
1, 2, 4 and every multiple of 4 up to the maximum. A batch of another size is computed as the next larger one. Graphs
hold computation only; copies stay outside. A shape that the config leaves open is only known with the first request of
that shape, which waits for its graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.config.model import ModelSpec
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.pinning import Pinning

_SHAPE_SETS = 4
"""Shapes that a slot keeps buffers and graphs for; the one that was not used for longest goes first."""
_WARM_UP_RUNS = 3

_FREE_STREAMS: dict[str, list[Any]] = {}
"""Of each device, those that no instance has. PyTorch keeps workspaces of libraries (34 MiB on an H200) for each stream
until the process ends, so loads go on with the streams of what was unloaded.
"""

WarmShapes = set[tuple[Shape, ...]]
"""Input shapes that a program on a device has been compiled for."""


@dataclass
class _ShapeSet:
    """What a slot has for inputs of one shape."""

    inputs: list[Any]
    graphs: dict[int, tuple[Any, list[Any]]] = field(default_factory=dict)
    """By batch size: the graph and its outputs."""
    results: list[Any] = field(default_factory=list)
    """Without graphs: the outputs of the batch that the slot is bound to."""


class TorchDeviceInstance:
    """A model on a GPU, with a stream of its own."""

    def __init__(
        self,
        torch: Any,
        call: Callable[[Sequence[Any]], list[Any]],
        spec: ModelSpec,
        types: Sequence[Any],
        sizes: Sequence[int],
        device: int,
        pinning: Pinning,
        warm: WarmShapes | None,
    ) -> None:
        self._torch = torch
        self._call = call
        self._spec = spec
        self._types = types
        self._pinning = pinning
        self._warm = warm
        self._where = f"cuda:{device}"
        free = _FREE_STREAMS.setdefault(self._where, [])
        self._stream = free.pop() if free else torch.cuda.Stream(device=self._where)
        self._sizes = list(sizes)
        self._slots: dict[int, dict[tuple[Shape, ...], _ShapeSet]] = {}
        shapes = tuple(tensor.backend_dims for tensor in spec.inputs)
        if warm is not None and all(dim >= 0 for dims in shapes for dim in dims):
            self._prepare(shapes)

    def _prepare(self, shapes: tuple[Shape, ...]) -> None:
        """Graphs of all sizes for both slots, one after another, before anything is served. A size that the program
        refuses (an exported one may be made for some sizes only) is computed as the next larger one; the maximum must
        work.
        """
        for slot in (0, 1):
            shape_set = self._shape_set(slot, shapes)
            for rows in reversed(self._sizes.copy()):
                try:
                    self._graph(shape_set, rows)
                except Exception:
                    if rows == self._sizes[-1] or shape_set.graphs.get(rows) is not None:
                        raise
                    self._sizes.remove(rows)

    def bind(self, slot: int, shapes: Sequence[Shape]) -> TorchBound:
        """The slot's buffers for these shapes."""
        batches = self._spec.max_batch_size > 0
        rows = shapes[0][0] if batches else 1
        dims = tuple(tuple(shape[1:]) if batches else tuple(shape) for shape in shapes)
        shape_set = self._shape_set(slot, dims)
        addresses = [tensor.data_ptr() for tensor in shape_set.inputs]
        if self._warm is None:
            return TorchBound(self, lambda: self._run(shape_set, rows), addresses, rows if batches else None)
        padded = next((size for size in self._sizes if size >= rows), rows)
        graph, outputs = self._graph(shape_set, padded)
        return TorchBound(self, lambda: self._replay(graph, outputs), addresses, rows if batches else None)

    def _shape_set(self, slot: int, dims: tuple[Shape, ...]) -> _ShapeSet:
        sets = self._slots.setdefault(slot, {})
        found = sets.pop(dims, None)
        if found is None:
            if len(sets) >= _SHAPE_SETS:
                sets.pop(next(iter(sets)))
            rows = [self._spec.max_batch_size] if self._spec.max_batch_size > 0 else []
            with self._pinning.quiet:
                found = _ShapeSet(
                    [
                        self._torch.zeros([*rows, *own], dtype=dtype, device=self._where)
                        for own, dtype in zip(dims, self._types, strict=True)
                    ]
                )
        sets[dims] = found
        return found

    def _graph(self, shape_set: _ShapeSet, rows: int) -> tuple[Any, list[Any]]:
        if rows not in shape_set.graphs:
            with self._pinning.quiet:
                shape_set.graphs[rows] = self._capture(self._rows(shape_set, rows))
        return shape_set.graphs[rows]

    def _rows(self, shape_set: _ShapeSet, rows: int) -> list[Any]:
        return [tensor[:rows] if self._spec.max_batch_size > 0 else tensor for tensor in shape_set.inputs]

    def _capture(self, inputs: list[Any]) -> tuple[Any, list[Any]]:
        torch = self._torch
        with torch.cuda.stream(self._stream), torch.inference_mode():
            self._warm_up(inputs)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._call(inputs)
        return graph, outputs

    def _warm_up(self, inputs: list[Any]) -> None:
        """Lets TorchScript compile for these shapes, which takes its first runs; once for all slots and instances."""
        assert self._warm is not None
        key = tuple(tuple(tensor.shape) for tensor in inputs)
        for _ in range(1 if key in self._warm else _WARM_UP_RUNS):
            self._call(inputs)
        self._stream.synchronize()
        self._warm.add(key)

    def _run(self, shape_set: _ShapeSet, rows: int) -> list[Any]:
        with self._torch.cuda.stream(self._stream), self._torch.inference_mode():
            shape_set.results = self._call(self._rows(shape_set, rows))
        return shape_set.results

    def _replay(self, graph: Any, outputs: list[Any]) -> list[Any]:
        with self._torch.cuda.stream(self._stream):
            graph.replay()
        return outputs

    def close(self) -> None:
        """Lets go of graphs, buffers and the program; PyTorch gives the device what nothing uses any more."""
        self._stream.synchronize()
        with self._pinning.quiet:
            self._slots.clear()
            del self._call
            self._torch.cuda.empty_cache()
        _FREE_STREAMS[self._where].append(self._stream)

    @property
    def stream(self) -> int:
        """The `cudaStream_t`."""
        return int(self._stream.cuda_stream)

    @property
    def spec(self) -> ModelSpec:
        """The model's."""
        return self._spec


@dataclass(frozen=True)
class TorchBound:
    """A slot bound to a batch."""

    instance: TorchDeviceInstance
    compute: Callable[[], list[Any]]
    inputs: Sequence[int]
    rows: int | None

    @property
    def stream(self) -> int:
        """The instance's."""
        return self.instance.stream

    def run(self) -> Sequence[TensorRef]:
        """Puts the computation on the stream."""
        outputs, specs = self.compute(), self.instance.spec.outputs
        return [self._reference(output, tensor.dtype) for output, tensor in zip(outputs, specs, strict=True)]

    def _reference(self, output: Any, dtype: Any) -> TensorRef:
        shape = tuple(output.shape)
        return TensorRef(output.data_ptr(), dtype, shape if self.rows is None else (self.rows, *shape[1:]))


def batch_sizes(max_batch_size: int) -> list[int]:
    """The sizes that have a graph: 1, 2, 4 and every multiple of 4 up to the maximum."""
    if max_batch_size <= 0:
        return [1]
    sizes = {1, 2, *range(4, max_batch_size, 4), max_batch_size}
    return sorted(size for size in sizes if size <= max_batch_size)
