# ruff: noqa: ARG002 - what a `Device` is asked for
"""TensorRT plans on a device whose memory is the host's, with a double of the library: what comes out is looked at."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.backend.base import ModelFile
from headrace.backend.tensorrt import load
from headrace.backend.trt_instance import TensorRtInstance
from headrace.config.complete import complete_defaults, complete_from_signature
from headrace.config.model import ModelSpec, model_spec
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text
from headrace.memory.device import DeviceError
from headrace.memory.pinning import Pinning
from headrace.observe.logs import Log
from tests import models_tensorrt as models
from tests.models_tensorrt import affine, filled, rows, tensor


@dataclass
class HostGraph:
    work: list[Callable[[], None]]
    launches: int = 0
    closed: bool = False

    def launch(self, stream: int) -> None:
        assert not self.closed
        self.launches += 1
        for one in self.work:
            one()

    def close(self) -> None:
        self.closed = True


@dataclass
class HostDevice:
    """A `Device` whose memory is the host's, and whose streams do their work at once."""

    double: Any
    index: int = 0
    name: str = "host"
    engine_name: str = "cuda"
    graphs: list[HostGraph] = field(default_factory=list)
    blocks: dict[int, Any] = field(default_factory=dict)
    drained: int = 0
    open: int = 0

    def attach(self) -> None: ...

    def stream(self) -> int:
        self.open += 1
        return 7

    def handle(self, stream: int) -> int:
        return stream

    def close(self, *things: int) -> None:
        self.open -= len(things)

    def drain(self, stream: int) -> None:
        self.drained += 1

    def lock(self, address: int, nbytes: int) -> None:
        raise DeviceError("not here")

    def allocate(self, nbytes: int) -> int:
        block = (ctypes.c_byte * (nbytes + 256))()
        address = ctypes.addressof(block)
        address += -address % 256
        self.blocks[address] = block
        return address

    def free(self, address: int) -> None:
        del self.blocks[address]

    def capture(self, stream: int, work: Callable[[], None]) -> HostGraph:
        self.double.CAPTURED = captured = []
        try:
            work()
        finally:
            self.double.CAPTURED = None
        self.graphs.append(HostGraph(captured))
        return self.graphs[-1]


@pytest.fixture
def device(monkeypatch) -> Iterator[HostDevice]:
    monkeypatch.syspath_prepend(str(models.DOUBLE))
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
    import tensorrt

    assert tensorrt.__file__.startswith(str(models.DOUBLE))
    yield HostDevice(tensorrt)
    sys.modules.pop("tensorrt", None)


@dataclass
class Started:
    instance: TensorRtInstance
    spec: ModelSpec
    device: HostDevice
    log: list[str]

    def run(self, *arrays: np.ndarray, slot: int = 0) -> list[np.ndarray]:
        bound = self.instance.bind(slot, [array.shape for array in arrays])
        for address, array in zip(bound.inputs, arrays, strict=True):
            ctypes.memmove(address, np.ascontiguousarray(array).tobytes(), array.nbytes)
        return [
            np.frombuffer(ctypes.string_at(one.address, one.nbytes), one.dtype.numpy).reshape(one.shape)
            for one in bound.run()
        ]


class Lines(Log):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def event(self, text: str) -> None:
        self.lines.append(text)


def start(tmp_path, device: HostDevice, description: dict[str, Any], text: str = "", **changes: Any) -> Started:
    (tmp_path / "model.plan").write_bytes(models.plan(description))
    model = load(ModelFile(tmp_path, "model.plan"))
    config = ModelConfig(name="m", backend="tensorrt")
    parse_text(text, config)
    assert model.signature is not None
    complete_from_signature(config, model.signature, "max_batch_size" in text)
    complete_defaults(config, 1)
    log = Lines()
    spec = replace(model_spec(config), **changes)
    instance = model.start_device_instance(spec, device, Pinning([], log))
    assert isinstance(instance, TensorRtInstance)
    try:
        instance.prepare()
    except BaseException:
        instance.close()
        raise
    return Started(instance, spec, device, log.lines)


def batch(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4), np.float32)


def test_every_batch_size_in_both_slots_by_graphs(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, affine(rows(1, 4, 8)))
    assert len(device.graphs) == 2 * 4, "1, 2, 4 and 8 rows in two slots"
    for count in (1, 2, 3, 5, 8):
        for slot in (0, 1):
            x = batch(count, slot)
            np.testing.assert_array_equal(started.run(x, slot=slot)[0], x * 2 + 1)
    assert sum(graph.launches for graph in device.graphs) == 10
    assert started.instance.fallbacks() == ()


def test_slots_have_their_own_memory(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, affine(rows(1, 4, 8)))
    addresses = [started.instance.bind(slot, [(1, 4)]).inputs[0] for slot in (0, 1)]
    assert addresses[0] != addresses[1]
    assert all(address % 256 == 0 for address in addresses)


def test_a_plan_that_cannot_be_captured_computes_and_tells_once(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, affine(rows(1, 4, 8), capturable=False))
    for count in (1, 3, 8):
        np.testing.assert_array_equal(started.run(batch(count))[0], batch(count) * 2 + 1)
        assert started.instance.fallbacks() == ("cuda_graph",)
    assert len(started.log) == 1
    assert "computed without CUDA graphs: TensorRT could not execute a batch: operation not permitted" in started.log[0]


def test_graphs_can_be_switched_off(tmp_path, device: HostDevice) -> None:
    text = models.parameter("cuda_graphs", "false")
    started = start(tmp_path, device, affine(rows(1, 4, 8)), text)
    for _ in range(3):
        np.testing.assert_array_equal(started.run(batch(3))[0], batch(3) * 2 + 1)
    assert not device.graphs
    assert started.instance.fallbacks() == ()


def test_open_shapes_get_a_graph_when_they_come_again(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, affine(rows(1, 4, 8, 9) | {"x": [[1, 1], [4, 9], [8, 9]]}, dims=(-1, -1)))
    counts = []
    for _ in range(4):
        x = np.ones((2, 5), np.float32)
        np.testing.assert_array_equal(started.run(x)[0], x * 2 + 1)
        counts.append((len(device.graphs), sum(graph.launches for graph in device.graphs)))
    assert counts == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_graphs_of_odd_shapes_are_let_go_of(tmp_path, device: HostDevice) -> None:
    profile = {"x": [[1, 1], [1, 1], [1, 1000]]}
    started = start(tmp_path, device, affine(profile, dims=(-1, -1)), "max_batch_size: 1")
    for width in range(1, 101):
        for _ in range(2):
            started.run(np.ones((1, width), np.float32))
    assert sum(not graph.closed for graph in device.graphs) == 64
    assert started.run(np.ones((1, 1), np.float32))[0].tolist() == [[3]]


def test_a_batch_below_the_smallest_is_computed_with_more_rows(tmp_path, device: HostDevice) -> None:
    for switch in ("true", "false"):
        started = start(tmp_path, device, affine(rows(4, 8, 8)), models.parameter("cuda_graphs", switch))
        np.testing.assert_array_equal(started.run(batch(1))[0], batch(1) * 2 + 1)


def test_outputs_whose_shape_depends_on_values(tmp_path, device: HostDevice) -> None:
    description = affine({"x": [[1], [8], [1000]]}, dims=(-1,))
    description["tensors"].append(tensor("found", "OUTPUT", ["?"], of="x", does="nonzero"))
    started = start(tmp_path, device, description, "max_batch_size: 0")
    for count in (0, 3, 800, 5, 1000, 0):
        x = np.zeros(1000, np.float32)
        x[:count] = 7
        y, found = started.run(x)
        assert y.shape == (1000,)
        assert found.tolist() == [7] * count
    assert not device.graphs
    started.instance.close()
    assert not device.blocks


def test_memory_that_is_short_while_it_serves_costs_its_batch(tmp_path, device: HostDevice, monkeypatch) -> None:
    description = affine({"x": [[1], [8], [1000]]}, dims=(-1,))
    description["tensors"].append(tensor("found", "OUTPUT", ["?"], of="x", does="nonzero"))
    started = start(tmp_path, device, description, "max_batch_size: 0")
    whole, x = device.allocate, np.ones(1000, np.float32)

    def short(_: int) -> int:
        raise DeviceError("cudaMalloc on GPU 0: cudaErrorMemoryAllocation")

    monkeypatch.setattr(device, "allocate", short)
    with pytest.raises(RuntimeError, match=r"could not execute a batch: .*Requested amount of GPU memory"):
        started.run(x)
    monkeypatch.setattr(device, "allocate", whole)
    assert started.run(x)[1].shape == (1000,)


def test_an_output_that_is_no_batch_cannot_be_served_in_batches(tmp_path, device: HostDevice) -> None:
    description = affine(rows(1, 4, 8))
    description["tensors"].append(tensor("found", "OUTPUT", ["?"], of="x", does="nonzero"))
    with pytest.raises(ConfigError, match=r"output 'found' of model 'm' has the shape \[-1\], which depends on values"):
        start(tmp_path, device, description)
    assert not device.blocks
    description["tensors"][-1] = tensor("found", "OUTPUT", ["x.1"], of="x", does="affine") | {"shape": ["x.1"]}
    with pytest.raises(RuntimeError, match=r"output 'found' has the shape \[4\] for a batch of 8 rows"):
        start(tmp_path, device, description)
    assert not device.blocks


def test_values_that_are_shapes_choose_the_profile(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, filled(), "input { name: 'x' } input { name: 's' is_shape_tensor: true }")
    x = np.array([5], np.float32)
    for shape in ([2, 3], [4, 4], [9, 16], [1, 1]):
        (y,) = started.run(x, np.array(shape, np.int32))
        assert y.tolist() == np.full(shape, 5).tolist()
    assert device.drained
    with pytest.raises(ConfigError, match=r"no optimization profile takes x \[1\]; s \[2\]; values of s \[17, 1\]"):
        started.run(x, np.array([17, 1], np.int32))
    assert started.run(x, np.array([1, 2], np.int32))[0].shape == (1, 2), "the next batch is served"


def test_shapes_that_come_out(tmp_path, device: HostDevice) -> None:
    description = affine({"x": [[1, 1], [8, 8], [9, 9]]}, dims=(-1, -1))
    description["tensors"].append(tensor("shape", "OUTPUT", [2], "INT64", of="x", does="shape", location="HOST"))
    started = start(tmp_path, device, description, "max_batch_size: 0")
    assert started.run(np.ones((3, 4), np.float32))[1].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("description", "text", "words"),
    [
        (filled(), "input { name: 'x' is_shape_tensor: true } input { name: 's' }", "'x' has is_shape_tensor in the"),
        (affine(rows(1, 4, 8)), "instance_group { profile: '3' }", "wants profile 3, but the plan has 1, 0 to 0"),
        (affine(rows(1, 4, 8)), models.parameter("cuda_graphs", "1"), "expected true or false, got '1'"),
    ],
)
def test_configs_that_contradict_the_plan(tmp_path, device: HostDevice, description, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start(tmp_path, device, description, text)


def test_a_group_keeps_to_its_profiles(tmp_path, device: HostDevice) -> None:
    description = affine(rows(1, 2, 4), rows(5, 8, 16))
    started = start(tmp_path, device, description, "max_batch_size: 16 instance_group { gpus: 0 profile: '0' }")
    with pytest.raises(ConfigError, match=r"takes x \[9, 4\]. profile 0 takes x \[1, 4\] to \[4, 4\], tuned for"):
        started.run(batch(9))
    assert started.run(batch(3))[0].shape == (3, 4)


def test_memory_streams_and_graphs_are_given_back(tmp_path, device: HostDevice) -> None:
    started = start(tmp_path, device, affine(rows(1, 4, 8), rows(1, 8, 16)))
    assert device.blocks
    started.instance.close()
    assert (device.blocks, device.open) == ({}, 0)
    assert all(graph.closed for graph in device.graphs)


def test_memory_that_is_short_fails_the_load_and_leaves_nothing(tmp_path, device: HostDevice, monkeypatch) -> None:
    whole = device.allocate

    def short(nbytes: int) -> int:
        if len(device.blocks) == 3:
            raise DeviceError("cudaMalloc on GPU 0: cudaErrorMemoryAllocation")
        return whole(nbytes)

    monkeypatch.setattr(device, "allocate", short)
    with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
        start(tmp_path, device, affine(rows(1, 4, 8)))
    assert not device.blocks


def test_outputs_may_be_left_out_and_reordered(tmp_path, device: HostDevice) -> None:
    description = affine(rows(1, 4, 8))
    description["tensors"].append(tensor("z", "OUTPUT", ["x.0", 4], of="y", does="affine"))
    description["tensors"][-1]["of"] = "x"
    started = start(tmp_path, device, description, "output { name: 'z' } output { name: 'y' }")
    assert [one.name for one in started.spec.outputs] == ["z", "y"]
    assert len(started.run(batch(2))) == 2
    assert len(start(tmp_path, device, description, "output { name: 'z' }").run(batch(2))) == 1


def test_a_library_without_a_gpu_is_not_touched_again(tmp_path, device: HostDevice, monkeypatch) -> None:
    """The real one makes an object then, and ends the process at its first call."""

    class Broken:
        def __init__(self, logger) -> None:
            logger.log(device.double.ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")

        def __getattr__(self, name: str) -> None:
            raise AssertionError(f"{name}: this would have crashed")

    monkeypatch.setattr(device.double, "Runtime", Broken)
    with pytest.raises(ConfigError, match="cannot start, it needs a GPU and its driver: CUDA initialization failure"):
        start(tmp_path, device, affine(rows(1, 4, 8)))


def test_a_library_that_is_too_old(tmp_path, device: HostDevice, monkeypatch) -> None:
    monkeypatch.setattr(device.double, "__version__", "8.6.1")
    with pytest.raises(ConfigError, match=r"TensorRT 8.6.1 is installed; 10 or later is needed"):
        start(tmp_path, device, affine(rows(1, 4, 8)))


@pytest.mark.usefixtures("device")
def test_plugins_are_loaded_first(tmp_path) -> None:
    (tmp_path / "model.plan").write_bytes(models.plan(affine(rows(1, 4, 8))))
    settings = {"plugins": "libm.so.6", "version-compatible": "1"}
    assert load(ModelFile(tmp_path, "model.plan", settings))._runtime.engine_host_code_allowed
    with pytest.raises(ConfigError, match=r"plugins=libm.so.6;no.so: no.so cannot be loaded: no.so: cannot open"):
        load(ModelFile(tmp_path, "model.plan", {"plugins": "libm.so.6;no.so"}))
    assert not load(ModelFile(tmp_path, "model.plan"))._runtime.engine_host_code_allowed


@pytest.mark.usefixtures("device")
def test_the_lean_runtime_stands_in(tmp_path, monkeypatch) -> None:
    (tmp_path / "tensorrt_lean.py").write_text((models.DOUBLE / "tensorrt.py").read_text())
    (tmp_path / "model.plan").write_bytes(models.plan(affine(rows(1, 4, 8))))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(models.DOUBLE)])
    monkeypatch.delitem(sys.modules, "tensorrt")
    with pytest.raises(ConfigError, match=r"this is a plan of TensorRT 10.9.0.34, and TensorRT is not installed: pip"):
        load(ModelFile(tmp_path, "model.plan"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load(ModelFile(tmp_path, "model.plan")).signature is not None
    (tmp_path / "tensorrt_lean.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "tensorrt_lean")
    with pytest.raises(ConfigError, match=r"'tensorrt_lean' is installed but cannot be imported: libcudart.so.13"):
        load(ModelFile(tmp_path, "model.plan"))


def test_instances_on_a_gpu_share_the_plan_and_the_last_frees_it(tmp_path, device: HostDevice) -> None:
    (tmp_path / "model.plan").write_bytes(models.plan(affine(rows(1, 4, 8))))
    model = load(ModelFile(tmp_path, "model.plan"))
    spec = start(tmp_path, device, affine(rows(1, 4, 8))).spec
    instances = [model.start_device_instance(spec, device, Pinning([], Lines())) for _ in range(2)]
    engine = weakref.ref(model._on_device[0].engine)
    for instance in instances:
        assert engine() is not None
        instance.prepare()
        instance.close()
    device.graphs.clear()  # the double of a graph holds its context
    gc.collect()
    assert engine() is None
    assert not dict(model._on_device)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12), st.sampled_from([0, 1])), max_size=40), st.booleans())
def test_any_batches_in_any_order(tmp_path, device: HostDevice, batches, capturable: bool) -> None:
    """What fits a profile is computed, whatever came before in the slot; what does not is refused."""
    profiles = [{"x": [[1, 1], [2, 4], [4, 12]]}, {"x": [[2, 1], [8, 2], [8, 6]]}]
    started = start(tmp_path, device, affine(*profiles, dims=(-1, -1), capturable=capturable))
    for number, (count, width, slot) in enumerate(batches):
        x = np.random.default_rng(number).standard_normal((count, width), np.float32)
        if count <= 4 or (count <= 8 and width <= 6):
            np.testing.assert_array_equal(started.run(x, slot=slot)[0], x * 2 + 1)
        else:
            with pytest.raises(ConfigError, match="no optimization profile takes"):
                started.run(x, slot=slot)
    started.instance.close()
    assert not device.blocks
