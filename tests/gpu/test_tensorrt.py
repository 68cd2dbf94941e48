"""TensorRT plans on a GPU that the library takes, and CUDA graphs without an engine on any."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper

from headrace.backend import tensorrt
from headrace.backend.base import ModelFile
from headrace.backend.trt_engine import Complaints, make_runtime, open_plan
from headrace.backend.trt_plan import Library, PlanHeader
from headrace.core.errors import ConfigError
from headrace.memory.cuda import find_devices
from headrace.memory.device import Device, DeviceError
from tests import models_tensorrt as models
from tests.doors.asking import ask
from tests.metrics import read_metric
from tests.servers import RunningServer

DEVICES, WHY_NONE = find_devices()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not DEVICES, reason=WHY_NONE)]


def library() -> Any:
    """The full TensorRT, or TensorRT for RTX."""
    for name in ("tensorrt", "tensorrt_rtx"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    pytest.skip("neither tensorrt nor tensorrt-rtx is installed")


def build(*profiles: tuple[int, int, int]) -> bytes:
    """y = relu(x) for FP32[N, 64], with a profile for each range of N."""
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    trt = library()
    builder = trt.Builder(trt.Logger())
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, trt.Logger()).parse(model.SerializeToString())
    config = builder.create_builder_config()
    for rows in profiles:
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *((count, 64) for count in rows))
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        pytest.skip(f"{trt.__name__} {trt.__version__} builds nothing for {DEVICES[0].name}")
    return bytes(memoryview(plan))


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    folder = repository / "relu" / "1"
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(build((1, 4, 8), (1, 32, 32)))
    try:
        tensorrt.load(ModelFile(folder, "model.plan"))
    except ConfigError as error:
        pytest.skip(str(error))
    return start(repository)


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def test_batches_of_many_clients_are_what_the_plan_computes(client, server: RunningServer) -> None:
    assert client.get_model_config("relu").config.max_batch_size == 32
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((1 + number % 32, 64), np.float32) for number in range(300)]
    futures = [ask(client, "relu", array, name="x", output="y")[0] for array in arrays]
    assert not wait(futures, timeout=60).not_done
    for array, future in zip(arrays, futures, strict=True):
        np.testing.assert_array_equal(future.result(), np.maximum(array, 0))
    counted = read_metric(server, "headrace_transfer_fallback_total", model="relu", name="cuda_graph")
    assert counted == 0, server.log.read_text()


def test_a_plan_that_was_damaged_is_an_error(tmp_path) -> None:
    plan = build((1, 4, 8))
    for name, data in {"short": plan[:-100], "header": plan[:28]}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError):
            tensorrt.load(ModelFile(Path(tmp_path), name))


def test_the_lean_runtime_refuses_what_is_no_plan_of_its_own() -> None:
    trt = pytest.importorskip("tensorrt_lean_bindings", reason="the lean runtime is not installed")
    complaints = Complaints()
    runtime = make_runtime(trt, complaints)
    header = PlanHeader(Library.TENSORRT, "10.9.0.34")
    for data in (models.plan(models.affine(models.rows(1, 4, 8))), models.rtx_plan(), b"ftrt" + bytes(1000), b"ftrt"):
        with pytest.raises(ConfigError):
            open_plan(trt, runtime, complaints, header, data)


@pytest.fixture
def device() -> Device:
    DEVICES[0].attach()
    return DEVICES[0]


def test_a_graph_does_its_work_with_each_launch_and_not_before(device: Device) -> None:
    stream = device.stream()
    source, middle, target = (device.allocate(256) for _ in range(3))
    host = (ctypes.c_byte * 256)(*([7] * 256))
    device.copy(stream, [(source, ctypes.addressof(host), 256)])
    device.drain(stream)

    def work() -> None:
        device.copy(stream, [(middle, source, 256)])
        device.copy(stream, [(target, middle, 256)])

    graph = device.capture(stream, work)
    for launches, expected in ((0, 0), (1, 7), (1, 7)):
        for _ in range(launches):
            graph.launch(stream)
        device.copy(stream, [(ctypes.addressof(host), target, 256)])
        device.drain(stream)
        assert set(host) == {expected}
    graph.close()
    device.close(stream)
    for address in (source, middle, target):
        device.free(address)


def test_what_cannot_be_captured_leaves_the_stream_as_it_was(device: Device) -> None:
    stream = device.stream()
    address = device.allocate(256)
    host = (ctypes.c_byte * 256)()
    with pytest.raises(DeviceError):
        device.capture(stream, lambda: device.drain(stream))
    device.copy(stream, [(address, ctypes.addressof(host), 256)])
    device.drain(stream)
    assert device.lost() == ""
    device.capture(stream, lambda: device.copy(stream, [(address, address + 128, 128)])).close()
    device.close(stream)
    device.free(address)
