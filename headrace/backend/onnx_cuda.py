"""ONNX Runtime on a GPU, through IOBinding on memory that each slot owns: nothing is copied by the library.

A slot has static inputs and outputs, and one binding for each batch size that is used (`batch_sizes`); a batch of
another size is computed as the next larger one. With CUDA graphs each binding has a `gpu_graph_id` of its own: the
library captures its first run and replays it from then on, on the thread that captured, so everything runs on the
instance's run thread. A model that computes with its own shapes has operators on the CPU, which no graph holds: each
batch size gets a session of its own then, in which shapes are numbers. One that cannot be captured even so gets a
session without graphs.

The library's call blocks, and computes on a stream of its own: the run thread waits for the inputs, and the stream that
the pipeline sees only carries the times. With `has_user_compute_stream` the library computes on that stream, and need
not wait for the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.backend.base import BlockingInstance
from headrace.backend.onnx_shapes import Rule, apply_rule, binding_type, shape_rules
from headrace.backend.torch_graphs import batch_sizes
from headrace.config.model import ModelSpec
from headrace.config.onnx_cuda import CudaSettings
from headrace.core.errors import ConfigError
from headrace.core.tensor import Shape, TensorRef
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning

PROVIDER = "CUDAExecutionProvider"
_SLOTS = (0, 1)
_SHAPE_SETS = 4
"""Shapes that a slot keeps memory and bindings for; the one that was not used for longest goes first."""
_MOST_GRAPHS = 256
"""Of an instance: the library keeps each until the session ends, also those of shapes that nobody sends any more."""
_NO_GRAPH = -1
"""The annotation of runs that are neither captured nor replayed."""

OpenSession = Callable[[Mapping[str, str], Mapping[str, int]], Any]
"""Makes a session with these options of the CUDA provider, and extents of dimensions that the file has names for."""


@dataclass
class _Call:
    """A session with everything bound for one slot, shape and batch size."""

    session: Any
    binding: Any
    options: Any
    places: list[TensorRef | None]
    """Of the outputs; `None`: the library allocates it, in each run."""
    is_graph: bool


@dataclass
class _Buffers:
    """What a slot has for inputs of one shape."""

    dims: tuple[Shape, ...]
    """Of the inputs, without the batch dimension."""
    inputs: list[int]
    outputs: dict[int, int] = field(default_factory=dict)
    """Addresses by position, as they turn out to be needed."""
    learned: dict[int, Shape] = field(default_factory=dict)
    """Dims of outputs, without the batch dimension, that only a run told."""
    calls: dict[int, _Call] = field(default_factory=dict)
    """By batch size."""
    produced: list[Any] = field(default_factory=list)
    """Outputs of the last run that the library allocated."""


class OnnxCudaInstance(BlockingInstance):
    """A session and its slots."""

    def __init__(
        self,
        runtime: Any,
        open_session: OpenSession,
        spec: ModelSpec,
        device: Device,
        pinning: Pinning,
        settings: CudaSettings,
    ) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._spec = spec
        self._device = device
        self._pinning = pinning
        self._settings = settings
        self._graphs = settings.graphs
        self._captured = 0
        """Graphs so far; the number of the next is its annotation."""
        self._batches = spec.max_batch_size > 0
        self._sizes = list(settings.sizes) or batch_sizes(spec.max_batch_size)
        self._stream = device.stream()
        self._session: Any = None
        self._sized: dict[tuple[tuple[Shape, ...], int], Any] = {}
        """Sessions for one shape and batch size."""
        self._by_size = False
        """Graphs need a session for each batch size."""
        self._rules: list[Rule] = []
        self._slots: dict[int, dict[tuple[Shape, ...], _Buffers]] = {slot: {} for slot in _SLOTS}
        self._loose: set[int] = set()
        """Outputs whose shape depends on values."""
        self._fallbacks: list[str] = []

    def prepare(self) -> None:
        """Opens the session, and warms up both slots with all sizes when the config has the shapes."""
        self._open_with_or_without_graphs()
        self._rules = shape_rules(self._session, self._spec)
        dims = tuple(tensor.backend_dims for tensor in self._spec.inputs)
        if any(dim < 0 for shape in dims for dim in shape):
            return
        for slot in _SLOTS:
            buffers = self._buffers(slot, dims)
            for rows in reversed(self._sizes):
                self.compute(buffers, rows)
        self._device.drain(self._stream)

    def bind(self, slot: int, shapes: Sequence[Shape]) -> OnnxBound:
        """The slot's memory for these shapes."""
        rows = shapes[0][0] if self._batches else 1
        dims = tuple(tuple(shape[1:]) if self._batches else tuple(shape) for shape in shapes)
        padded = next((size for size in self._sizes if size >= rows), rows)
        return OnnxBound(self, self._stream, self._buffers(slot, dims), rows if self._batches else None, padded)

    def fallbacks(self) -> Sequence[str]:
        """`cuda_graph` where a graph was wanted and there is none, `output_allocated_by_backend`."""
        return self._fallbacks

    def close(self) -> None:
        """Ends the session, then frees what it was bound to."""
        self._forget_calls()
        self._sized.clear()
        self._session = None
        for sets in self._slots.values():
            while sets:
                self._free(sets.popitem()[1])
        self._device.close(self._stream)

    def compute(self, buffers: _Buffers, rows: int) -> list[TensorRef]:
        """Runs a batch of one of the sizes; on the run thread. Returns the outputs with all its rows."""
        call = buffers.calls.get(rows)
        call = self._run_first(buffers, rows) if call is None else self._run_again(call, buffers, rows)
        allocated = [at for at, place in enumerate(call.places) if place is None]
        no_graph = self._settings.graphs and not call.is_graph
        self._fallbacks = ["cuda_graph"] * no_graph + ["output_allocated_by_backend"] * bool(allocated)
        if not allocated:
            return [place for place in call.places if place is not None]
        buffers.produced = call.binding.get_outputs()
        return [place or self._produced(buffers, rows, at) for at, place in enumerate(call.places)]

    def _run_first(self, buffers: _Buffers, rows: int) -> _Call:
        """A plain run first: it tells what is wrong with the inputs and which shapes outputs have, so that what fails
        after it failed because of the graph.
        """
        call = self._run_plain(buffers, rows)
        if self._learn(buffers, rows, call):
            call = self._run_plain(buffers, rows)
        if self._graphs and self._may_be_captured(buffers, call):
            del call  # it would keep its session, should there be another
            call = self._capture(buffers, rows)
        buffers.calls[rows] = call
        return call

    def _run_plain(self, buffers: _Buffers, rows: int) -> _Call:
        call = self._bind(buffers, rows, _NO_GRAPH)
        try:
            self._run(call)
        except Exception:
            if all(place is None for place in call.places):
                raise
            return self._run_loose(buffers, rows)
        return call

    def _run_again(self, call: _Call, buffers: _Buffers, rows: int) -> _Call:
        try:
            self._run(call)
        except Exception:
            if call.is_graph or all(place is None for place in call.places):
                raise
            return self._run_loose(buffers, rows)
        return call

    def _run_loose(self, buffers: _Buffers, rows: int) -> _Call:
        """After a run that failed: the bound shape of an output may be the reason. If it is not, the error comes
        again.
        """
        call = self._bind(buffers, rows, _NO_GRAPH, bound=False)
        self._run(call)
        for at, value in enumerate(call.binding.get_outputs()):
            known = self._output_dims(buffers, rows, at)
            if known is not None and tuple(value.shape()) != self._whole(rows, known):
                self._loose.add(at)
                self._forget_calls()
        return call

    def _run(self, call: _Call) -> None:
        if not self._settings.user_stream:
            self._device.drain(self._stream)  # the library computes on a stream that knows nothing of the copies
        for at, place in enumerate(call.places):
            if place is None:
                call.binding.bind_output(self._spec.outputs[at].name, self._device.engine_name, self._device.index)
        call.session.run_with_iobinding(call.binding, call.options)

    def _learn(self, buffers: _Buffers, rows: int, call: _Call) -> bool:
        """Takes in which shapes the outputs have that nobody told; true when more could be bound than was."""
        unbound = {at for at, place in enumerate(call.places) if place is None} - self._loose
        if unbound and self._graphs:
            self._loose |= self._depend_on_values(unbound, buffers, rows)
            unbound -= self._loose
        values = call.binding.get_outputs() if unbound else []
        for at in unbound:
            buffers.learned[at] = self._without_rows(at, rows, tuple(values[at].shape()))
        return bool(unbound)

    def _depend_on_values(self, outputs: set[int], buffers: _Buffers, rows: int) -> set[int]:
        """Those whose shape is open even when those of all inputs are numbers: a graph would go on giving the shape
        that the batch had with which it was captured.
        """
        session = self._open(False, self._extents(buffers, rows))
        shapes = {tensor.name: tensor.shape for tensor in session.get_outputs()}
        names = {at: self._spec.outputs[at].name for at in outputs}
        return {at for at, name in names.items() if not all(isinstance(dim, int) for dim in shapes[name])}

    def _capture(self, buffers: _Buffers, rows: int) -> _Call:
        self._captured += 1
        call: _Call | None = None
        session: Any = None
        try:
            session = self._session_of_size(buffers, rows) if self._by_size else self._session
            call = self._bind(buffers, rows, self._captured, session=session)
            with self._pinning.quiet:
                self._run(call)
        except Exception as error:  # noqa: BLE001 - the library may raise anything; the session may be spoiled
            why = str(error)
        else:
            return call
        call = session = None  # what is left of it would keep its session
        self._give_graphs_up(why)
        return self._run_plain(buffers, rows)

    def _may_be_captured(self, buffers: _Buffers, call: _Call) -> bool:
        empty = any(dim == 0 for shape in buffers.dims for dim in shape)
        return None not in call.places and not empty and self._captured < _MOST_GRAPHS

    def _open_with_or_without_graphs(self) -> None:
        """The library refuses a session with graphs when some of the model's operators are not on the GPU."""
        try:
            self._session = self._open(self._graphs)
        except Exception:
            if not self._graphs:
                raise
            self._session = self._open(False)
            self._by_size = True

    def _session_of_size(self, buffers: _Buffers, rows: int) -> Any:
        key = buffers.dims, rows
        if key not in self._sized:
            self._sized[key] = self._open(True, self._extents(buffers, rows))
        return self._sized[key]

    def _extents(self, buffers: _Buffers, rows: int) -> dict[str, int]:
        """Of the dimensions that the file has names for."""
        shapes = self._input_shapes(buffers, rows)
        by_name = {tensor.name: shape for tensor, shape in zip(self._spec.inputs, shapes, strict=True)}
        return {
            dim: extent
            for tensor in self._session.get_inputs()
            for dim, extent in zip(tensor.shape, by_name.get(tensor.name, ()), strict=False)
            if isinstance(dim, str)
        }

    def _give_graphs_up(self, why: str) -> None:
        self._graphs = False
        self._forget_calls()
        self._sized.clear()
        self._session = None
        self._session = self._open(False)
        self._pinning.tell_once(f"model '{self._spec.name}' is computed without CUDA graphs: {why}")

    def _open(self, graphs: bool, extents: Mapping[str, int] | None = None) -> Any:
        options = {
            **self._settings.options,
            "device_id": str(self._device.index),
            "enable_cuda_graph": "1" if graphs else "0",
        }
        if self._settings.user_stream:
            options |= {
                "has_user_compute_stream": "1",
                "user_compute_stream": str(self._device.handle(self._stream)),
            }
        return self._open_session(options, extents or {})

    def _bind(self, buffers: _Buffers, rows: int, graph: int, bound: bool = True, session: Any = None) -> _Call:
        session = session or self._session
        binding, where = session.io_binding(), (self._device.engine_name, self._device.index)
        inputs = zip(self._spec.inputs, buffers.inputs, self._input_shapes(buffers, rows), strict=True)
        for tensor, address, shape in inputs:
            binding.bind_input(tensor.name, *where, binding_type(tensor.dtype), shape, address)
        places: list[TensorRef | None] = []
        for at, tensor in enumerate(self._spec.outputs):
            dims = self._output_dims(buffers, rows, at) if bound else None
            places.append(None if dims is None else self._place(buffers, rows, at, dims))
            place = places[-1]
            if place is None:
                binding.bind_output(tensor.name, *where)
            else:
                element = binding_type(tensor.dtype)
                binding.bind_output(tensor.name, *where, element, place.shape, place.address)
        return _Call(session, binding, self._run_options(graph), places, graph != _NO_GRAPH)

    def _run_options(self, graph: int) -> Any:
        options = self._runtime.RunOptions()
        if self._graphs and (graph != _NO_GRAPH or not self._by_size):
            options.add_run_config_entry("gpu_graph_id", str(graph))
        if self._settings.user_stream:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return options

    def _place(self, buffers: _Buffers, rows: int, at: int, dims: Shape) -> TensorRef:
        """Static memory of an output, for all batch sizes."""
        dtype = self._spec.outputs[at].dtype
        if at not in buffers.outputs:
            largest = max(rows, *self._sizes)
            with self._pinning.quiet:
                buffers.outputs[at] = self._device.allocate(TensorRef(0, dtype, self._whole(largest, dims)).nbytes)
        return TensorRef(buffers.outputs[at], dtype, self._whole(rows, dims))

    def _output_dims(self, buffers: _Buffers, rows: int, at: int) -> Shape | None:
        """Dims of an output without the batch dimension: as the config says, the file, or a run."""
        if at in self._loose:
            return None
        dims = self._spec.outputs[at].backend_dims
        if all(dim >= 0 for dim in dims):
            return dims
        shape = apply_rule(self._rules[at], self._input_shapes(buffers, rows))
        return buffers.learned.get(at) if shape is None else shape[self._batches :]

    def _produced(self, buffers: _Buffers, rows: int, at: int) -> TensorRef:
        value, tensor = buffers.produced[at], self._spec.outputs[at]
        shape = tuple(value.shape())
        self._without_rows(at, rows, shape)
        return TensorRef(value.data_ptr(), tensor.dtype, shape)

    def _without_rows(self, at: int, rows: int, shape: Shape) -> Shape:
        if self._batches and shape[:1] != (rows,):
            name = self._spec.outputs[at].name
            raise ValueError(f"output '{name}' has shape {list(shape)} for a batch of {rows}, expected {rows} rows")
        return shape[self._batches :]

    def _whole(self, rows: int, dims: Shape) -> Shape:
        return (rows, *dims) if self._batches else dims

    def _input_shapes(self, buffers: _Buffers, rows: int) -> list[Shape]:
        return [self._whole(rows, dims) for dims in buffers.dims]

    def _buffers(self, slot: int, dims: tuple[Shape, ...]) -> _Buffers:
        """Of a slot that is free, so that none of its memory is in use."""
        sets = self._slots[slot]
        found = sets.pop(dims, None)
        if found is None:
            if len(sets) >= _SHAPE_SETS:
                self._free(sets.pop(next(iter(sets))))
            found = _Buffers(dims, [])
            try:
                self._allocate_inputs(found)
            except BaseException:
                self._free(found)
                raise
        sets[dims] = found
        return found

    def _allocate_inputs(self, buffers: _Buffers) -> None:
        with self._pinning.quiet:
            for tensor, dims in zip(self._spec.inputs, buffers.dims, strict=True):
                whole = TensorRef(0, tensor.dtype, self._whole(self._sizes[-1], dims))
                buffers.inputs.append(self._device.allocate(whole.nbytes))

    def _free(self, buffers: _Buffers) -> None:
        buffers.calls.clear()
        buffers.produced.clear()
        with self._pinning.quiet:
            for address in (*buffers.inputs, *buffers.outputs.values()):
                self._device.free(address)

    def _forget_calls(self) -> None:
        for sets in self._slots.values():
            for buffers in list(sets.values()):  # the feeding thread may bring in another meanwhile
                buffers.calls.clear()


@dataclass(frozen=True)
class OnnxBound:
    """A slot bound to a batch."""

    instance: OnnxCudaInstance
    stream: Any
    buffers: _Buffers
    rows: int | None
    """`None`: the model has no batch dimension."""
    padded: int

    @property
    def inputs(self) -> Sequence[int]:
        """The slot's."""
        return self.buffers.inputs

    def run(self) -> Sequence[TensorRef]:
        """Computes; returns the rows of the batch and not those that it was padded with."""
        outputs = self.instance.compute(self.buffers, self.padded)
        if self.rows is None:
            return outputs
        return [TensorRef(output.address, output.dtype, (self.rows, *output.shape[1:])) for output in outputs]


def check_provider(runtime: Any, spec: ModelSpec, device: Device) -> None:
    """Raises `ConfigError` when the installed library is for the CPU only, or the device for no engine."""
    if not device.engine_name:
        raise ConfigError(f"instance_group KIND_GPU of '{spec.name}': ONNX Runtime cannot compute on a {device.name}")
    there = runtime.get_available_providers()
    if PROVIDER not in there:
        raise ConfigError(
            f"instance_group KIND_GPU of '{spec.name}': this ONNX Runtime has no {PROVIDER}, but {', '.join(there)}: "
            "pip uninstall onnxruntime, then pip install 'headrace[onnx-gpu]'"
        )
