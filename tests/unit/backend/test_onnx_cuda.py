"""ONNX Runtime's CUDA provider, played by its CPU provider on a device in host memory (`tests/onnx_double.py`)."""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from headrace.backend.base import ModelFile
from headrace.backend.engines import why_not_on_gpus
from headrace.backend.onnx_cuda import OnnxCudaInstance
from headrace.backend.onnxruntime import OnnxModel, find_libraries
from headrace.backend.torch_graphs import batch_sizes
from headrace.cli.check import check
from headrace.config.complete import complete_from_signature
from headrace.config.model import model_spec
from headrace.config.onnx_cuda import read_cuda_settings
from headrace.config.pbtxt import ConfigRules
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text
from headrace.memory.device import DeviceError
from headrace.memory.pinning import Pinning
from headrace.memory.simulated import SimulatedDevice
from headrace.observe.logs import Log
from tests import models, onnx_double
from tests.onnx_double import CudaRuntime, HostDevice

CYCLES = int(os.environ.get("HEADRACE_LOAD_CYCLES", "20"))


@pytest.mark.parametrize(
    ("double", "real", "methods"),
    [
        (onnx_double.Binding, onnxruntime.IOBinding, ["bind_input", "bind_output", "get_outputs"]),
        (onnx_double.Session, onnxruntime.InferenceSession, ["run_with_iobinding", "io_binding", "get_providers"]),
        (onnx_double.Session, onnxruntime.InferenceSession, ["get_inputs", "get_outputs"]),
    ],
)
def test_the_double_has_the_signatures_of_the_installed_package(double, real, methods) -> None:
    for method in methods:
        ours, theirs = (inspect.signature(getattr(kind, method)).parameters for kind in (double, real))
        assert list(ours) == list(theirs)
        assert [one.default for one in ours.values()] == [one.default for one in theirs.values()]


def test_the_installed_package_has_what_the_backend_uses() -> None:
    assert {"preload_dlls", "get_available_providers", "RunOptions", "InferenceSession"} <= set(dir(onnxruntime))
    assert {"data_ptr", "shape"} <= set(dir(onnxruntime.OrtValue))
    parameters = inspect.signature(onnxruntime.InferenceSession.__init__).parameters
    assert {"path_or_bytes", "sess_options", "providers", "kwargs"} <= set(parameters)
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "1")


class Served:
    """A model on a GPU, used as the pipeline uses it, on one thread."""

    def __init__(
        self, directory, name: str, config: str, runtime: CudaRuntime | None = None, options: str = ""
    ) -> None:
        self.runtime = runtime or CudaRuntime()
        self.device = HostDevice(0)
        self.said: list[str] = []
        log = Log()
        log.event = self.said.append  # type: ignore[method-assign]
        pinning = Pinning([self.device], log)
        self.model = OnnxModel(ModelFile(directory / name / "1", "model.onnx"))
        self.model._runtime = self.runtime
        message = ModelConfig()
        accelerator = (
            f'optimization {{ execution_accelerators {{ gpu_execution_accelerator {{ name: "cuda" {options} }} }} }}'
        )
        parse_text(
            f'name: "{name}" backend: "onnxruntime" instance_group {{ kind: KIND_GPU }} {config} {accelerator}', message
        )
        complete_from_signature(message, self.model.signature, sets_max_batch_size=True)
        self.spec = model_spec(message)
        instance = self.model.start_device_instance(self.spec, self.device, pinning)  # type: ignore[arg-type]
        assert isinstance(instance, OnnxCudaInstance)
        self.instance = instance
        self.slot = 0
        instance.prepare()

    def infer(self, *arrays: np.ndarray) -> list[np.ndarray]:
        self.slot = 1 - self.slot
        self.bound = self.instance.bind(self.slot, [array.shape for array in arrays])
        for array, address in zip(arrays, self.bound.inputs, strict=True):
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return [_read(output.address, output.shape, output.dtype.numpy) for output in self.bound.run()]


def _read(address: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(address, nbytes), dtype).reshape(shape)


def option(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value: "{value}" }}'


BATCHED = "max_batch_size: 8"


def test_batches_of_all_sizes_are_replays_on_the_slots_memory(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED)
    (session,) = served.runtime.sessions
    stream = str(served.device.handle(served.instance._stream))
    assert session.provider == {
        "device_id": "0",
        "enable_cuda_graph": "1",
        "has_user_compute_stream": "1",
        "user_compute_stream": stream,
    }
    captured = [run.graph for run in session.runs if run.graph != -1]
    assert len(captured) == len(set(captured)) == 2 * len([1, 2, 4, 8])
    warm, used = len(session.runs), served.device.used()
    for rows in [*range(1, 9), 3, 8]:
        array = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        (got,) = served.infer(array)
        np.testing.assert_allclose(got, array + 1)
        assert list(served.instance.fallbacks()) == []
    assert all(run.replayed for run in session.runs[warm:])
    assert served.device.used() == used
    assert served.said == []


def test_sizes_that_the_config_chooses(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    sizes = ' parameters { key: "cuda_graph_batch_sizes" value { string_value: "3" } }'
    served = Served(tmp_path, "m", BATCHED + sizes)
    (session,) = served.runtime.sessions
    assert len([run for run in session.runs if run.graph != -1]) == 2 * len([3, 8])
    for rows in (1, 3, 4, 8):
        array = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        np.testing.assert_allclose(served.infer(array)[0], array + 1)


def test_a_model_that_cannot_be_captured_is_computed_without_graphs(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    for runtime in (CudaRuntime(fails_captures=True), CudaRuntime(refuses_graphs=True)):
        served = Served(tmp_path, "m", BATCHED, runtime)
        assert len(served.said) == 1
        assert served.said[0].startswith("model 'm' is computed without CUDA graphs: ")
        last = runtime.sessions[-1]
        assert last.provider["enable_cuda_graph"] == "0"
        assert last.others == 0, "the spoiled session still holds its memory"
        (got,) = served.infer(np.ones((3, 4), np.float32))
        np.testing.assert_array_equal(got, np.full((3, 4), 2, np.float32))
        assert list(served.instance.fallbacks()) == ["cuda_graph"]
        assert all("gpu_graph_id" not in run.options for run in last.runs)


def test_a_model_that_computes_with_its_shapes_gets_a_session_for_each_size(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    runtime = CudaRuntime(needs_extents=True)
    served = Served(tmp_path, "m", BATCHED, runtime)
    assert served.said == []
    for rows in (8, 3, 1, 8):
        (got,) = served.infer(np.ones((rows, 4), np.float32))
        np.testing.assert_array_equal(got, np.full((rows, 4), 2, np.float32))
        assert list(served.instance.fallbacks()) == []
    graphs = [session for session in runtime.sessions if session.provider["enable_cuda_graph"] == "1"]
    assert len(graphs) == len(batch_sizes(8))
    assert all(session.runs[-1].replayed for session in graphs if len(session.runs) > 2)
    served.instance.close()
    assert served.device.used() == (0, 0)
    assert len(runtime.alive) == 0


def test_graphs_that_nobody_wants_are_no_fallback(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED, options=option("enable_cuda_graph", "0"))
    served.infer(np.ones((3, 4), np.float32))
    assert list(served.instance.fallbacks()) == []
    assert served.said == []


def test_the_library_may_have_a_stream_of_its_own(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED, options=option("has_user_compute_stream", "0"))
    (session,) = served.runtime.sessions
    np.testing.assert_array_equal(served.infer(np.ones((3, 4), np.float32))[0], np.full((3, 4), 2))
    assert session.provider == {"device_id": "0", "enable_cuda_graph": "1"}
    assert not any("disable_synchronize_execution_providers" in run.options for run in session.runs)


def test_the_library_may_compute_on_the_instances_stream(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    given = option("has_user_compute_stream", "1") + option("prefer_nhwc", "true") + option("gpu_mem_limit", "1024")
    served = Served(tmp_path, "m", BATCHED, options=given)
    (session,) = served.runtime.sessions
    (got,) = served.infer(np.ones((1, 4), np.float32))
    assert got.tolist() == [[2, 2, 2, 2]]
    assert session.provider == {
        "device_id": "0",
        "enable_cuda_graph": "1",
        "prefer_nhwc": "1",
        "gpu_mem_limit": "1024",
        "has_user_compute_stream": "1",
        "user_compute_stream": str(served.device.handle(served.bound.stream)),
    }
    assert all(run.options["disable_synchronize_execution_providers"] == "1" for run in session.runs)


def test_shapes_that_come_with_the_request(tmp_path) -> None:
    models.add_any(tmp_path, "m", "")
    served = Served(tmp_path, "m", BATCHED)
    (session,) = served.runtime.sessions
    assert session.runs == []
    for wide in [3, 5, 3, 7, 9, 11, 3, 0]:
        for rows in (1, 3, 3):
            array = np.random.default_rng(wide).standard_normal((rows, wide), np.float32)
            np.testing.assert_allclose(served.infer(array)[0], array + 1)
    buffers = [buffers for sets in served.instance._slots.values() for buffers in sets.values()]
    assert len(buffers) <= 2 * 4
    served.instance.close()
    assert served.device.used() == (0, 0)


def unnamed(tmp_path, name: str) -> None:
    """OUTPUT0 = INPUT0 twice, beside itself: a width that neither config nor file tells."""
    nodes = [helper.make_node("Concat", ["INPUT0", "INPUT0"], ["OUTPUT0"], axis=1)]
    inputs = [("INPUT0", TensorProto.FLOAT, ["batch", "any"])]
    models.onnx_model(tmp_path, name, nodes, inputs, [("OUTPUT0", TensorProto.FLOAT, ["batch", "twice"])])


def test_shapes_of_outputs_that_nobody_tells_are_learned_by_the_warm_up(tmp_path) -> None:
    unnamed(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED + ' input { name: "INPUT0" dims: 4 }')
    session, *asked = served.runtime.sessions
    assert [other.runs for other in asked] == [[], []], "one for each slot, which only tells the shape"
    warm = len(session.runs)
    for rows in (3, 8, 1):
        array = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        np.testing.assert_array_equal(served.infer(array)[0], np.concatenate([array, array], axis=1))
        assert list(served.instance.fallbacks()) == []
    assert all(run.replayed for run in session.runs[warm:])


@pytest.mark.parametrize("refuses", [False, True])
def test_shapes_that_depend_on_values(tmp_path, refuses: bool) -> None:
    models.nonzero(tmp_path, "m")
    served = Served(tmp_path, "m", "", CudaRuntime(refuses_graphs=refuses))
    for count in [3, 5, 0, 8, 8]:
        array = np.zeros(8, np.float32)
        array[:count] = 1
        assert served.infer(array)[0].tolist() == [list(range(count))]
    assert list(served.instance.fallbacks()) == ["cuda_graph", "output_allocated_by_backend"]
    tried = [run.graph for session in served.runtime.sessions for run in session.runs if run.graph not in (None, -1)]
    assert tried == [], "a graph would go on giving one batch's shape"
    served.instance.close()
    assert served.device.used() == (0, 0)


def test_only_outputs_that_depend_on_values_are_left_to_the_library(tmp_path) -> None:
    nodes = [helper.make_node("NonZero", ["X"], ["WHERE"]), helper.make_node("Neg", ["X"], ["NEGATED"])]
    outputs = [("WHERE", TensorProto.INT64, [1, "count"]), ("NEGATED", TensorProto.FLOAT, [8])]
    models.onnx_model(tmp_path, "m", nodes, [("X", TensorProto.FLOAT, [8])], outputs)
    served = Served(tmp_path, "m", "")
    places = set()
    for count in [3, 5, 0, 8]:
        array = np.zeros(8, np.float32)
        array[:count] = 1
        where, negated = served.infer(array)
        assert where.tolist() == [list(range(count))]
        np.testing.assert_array_equal(negated, -array)
        served.infer(array)
        places.add(served.bound.run()[1].address)
    own = {buffers.outputs[1] for sets in served.instance._slots.values() for buffers in sets.values()}
    assert places <= own


def test_a_batch_that_fails_says_why_and_costs_nobody_else_their_graphs(tmp_path) -> None:
    models.gather(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED)
    with pytest.raises(Exception, match="out of data bounds"):
        served.infer(np.array([[9]], np.int64))
    assert served.infer(np.array([[2]], np.int64))[0].tolist() == [[2.0]]
    assert served.said == []
    assert len(served.runtime.sessions) == 1


def test_graphs_end_where_the_library_keeps_too_many(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.backend.onnx_cuda._MOST_GRAPHS", 3)
    models.add_any(tmp_path, "m", "")
    served = Served(tmp_path, "m", BATCHED)
    for wide in range(1, 20):
        array = np.ones((1, wide), np.float32)
        assert served.infer(array)[0].tolist() == [[2.0] * wide]
    (session,) = served.runtime.sessions
    assert len({run.graph for run in session.runs} - {-1}) == 3
    assert list(served.instance.fallbacks()) == ["cuda_graph"]


def test_an_output_with_other_rows_than_the_batch(tmp_path) -> None:
    nodes = [helper.make_node("Concat", ["INPUT0", "INPUT0"], ["OUTPUT0"], axis=0)]
    inputs = [("INPUT0", TensorProto.FLOAT, ["batch", 2])]
    models.onnx_model(tmp_path, "m", nodes, inputs, [("OUTPUT0", TensorProto.FLOAT, ["other", 2])])
    with pytest.raises(ValueError, match=r"output 'OUTPUT0' has shape \[16, 2\] for a batch of 8, expected 8 rows"):
        Served(tmp_path, "m", BATCHED)


def test_memory_comes_back(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    for _ in range(CYCLES):
        served = Served(tmp_path, "m", BATCHED)
        served.infer(np.ones((3, 4), np.float32))
        served.instance.close()
        assert served.device.used() == (0, 0)
        assert len(served.runtime.alive) == 0


def two_inputs(tmp_path, name: str) -> None:
    nodes = [helper.make_node("Add", ["A", "B"], ["C"])]
    tensor = (TensorProto.FLOAT, ["batch", "any"])
    models.onnx_model(tmp_path, name, nodes, [("A", *tensor), ("B", *tensor)], [("C", *tensor)])


def test_a_shape_that_does_not_fit_costs_its_batch_and_no_memory(tmp_path) -> None:
    two_inputs(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED)
    small, large = np.ones((2, 10), np.float32), np.ones((2, 1000), np.float32)
    assert served.infer(small, small)[0].tolist() == (small + small).tolist()
    before = served.device.used()[0]
    for room in (1000, 33_000, 65_000):  # for no input, for one, for both and no output
        served.device.memory = before + room
        for _ in range(3):
            with pytest.raises(DeviceError, match="cudaErrorMemoryAllocation"):
                served.infer(large, large)
    served.device.memory = 1 << 62
    assert served.infer(large, large)[0].tolist() == (large + large).tolist()
    assert served.infer(small, small)[0].tolist() == (small + small).tolist()
    served.instance.close()
    assert served.device.used() == (0, 0)


def test_installations_that_cannot(tmp_path) -> None:
    models.add_one(tmp_path, "m")
    with pytest.raises(ConfigError, match=r"CUDAExecutionProvider did not start, as its libraries"):
        Served(tmp_path, "m", BATCHED, CudaRuntime(starts=False))
    with pytest.raises(ConfigError, match=r"KIND_GPU of 'm': this ONNX Runtime has no CUDAExecutionProvider"):
        Served(tmp_path, "m", BATCHED, onnxruntime)  # type: ignore[arg-type]
    served = Served(tmp_path, "m", BATCHED)
    with pytest.raises(ConfigError, match="KIND_GPU of 'm': ONNX Runtime cannot compute on a simulated GPU"):
        served.model.start_device_instance(served.spec, SimulatedDevice(0), Pinning([], Log()))


def test_cudnn_is_looked_for_beside_the_library_and_then_where_pytorch_has_it(monkeypatch) -> None:
    tried: list[str] = []

    class Finding(CudaRuntime):
        def preload_dlls(self) -> None:
            tried.append("packages")

    def load(name: str) -> None:
        tried.append(name)
        raise OSError

    monkeypatch.setattr("headrace.backend.onnxruntime.ctypes.CDLL", load)
    monkeypatch.setattr("headrace.backend.onnxruntime.importlib.import_module", tried.append)
    runtime = Finding()
    find_libraries(runtime)
    find_libraries(runtime)
    assert tried == ["packages", "libcudnn.so.9", "torch"]


def test_kind_auto_means_a_gpu_where_model_and_library_can(monkeypatch) -> None:
    config = ModelConfig(backend="onnxruntime")
    parse_text('input { name: "X" data_type: TYPE_FP32 }', config)
    assert why_not_on_gpus(config) == "this ONNX Runtime has no CUDAExecutionProvider (headrace[onnx-gpu])"
    monkeypatch.setitem(sys.modules, "onnxruntime", CudaRuntime())
    assert why_not_on_gpus(config) == ""
    parse_text('output { name: "Y" data_type: TYPE_STRING }', config)
    assert why_not_on_gpus(config) == "output 'Y' is TYPE_STRING"
    assert why_not_on_gpus(ModelConfig(backend="pytorch")) == ""


@pytest.mark.parametrize("group", ["", "instance_group { count: 1 }"])
def test_a_model_on_the_cpu_beside_a_gpu_is_told(tmp_path, group: str) -> None:
    models.add_one(tmp_path, "m", group)
    said = "instances are on the CPU, although there is a GPU: this ONNX Runtime has no CUDAExecutionProvider"
    for gpus, told in ((["a GPU"], True), ([], False)):
        (finding,) = check([tmp_path], gpus, ConfigRules())
        assert finding.problems == []
        assert any(said in remark for remark in finding.remarks) == told


def test_settings_are_read_from_both_places() -> None:
    config = ModelConfig()
    parse_text(
        'parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }'
        'parameters { key: "gpu_mem_limit" value { string_value: "7" } }'
        "optimization { execution_accelerators { gpu_execution_accelerator { "
        f'name: "cuda" {option("gpu_mem_limit", "8")} {option("enable_cuda_graph", "false")} }} }} }}',
        config,
    )
    settings = read_cuda_settings(config)
    assert (settings.graphs, settings.user_stream) == (False, True)
    assert settings.options == {"cudnn_conv_algo_search": "HEURISTIC", "gpu_mem_limit": "8"}


def test_everything_runs_on_one_thread_of_the_pipeline(tmp_path) -> None:
    from headrace.transfer.pipeline import Bookings, DevicePipeline

    models.add_one(tmp_path, "m")
    served = Served(tmp_path, "m", BATCHED)
    served.runtime.sessions[-1].runs.clear()
    pinning = Pinning([served.device], Log())  # type: ignore[list-item]
    instance = served.model.start_device_instance(served.spec, served.device, pinning)  # type: ignore[arg-type]
    pipeline = DevicePipeline("i", served.device, instance, served.spec, pinning, Bookings(), lambda _: None, print)  # type: ignore[arg-type]
    assert {run.thread for run in served.runtime.sessions[-1].runs} == {"i runs"}
    assert threading.current_thread().name != "i runs"
    pipeline.close()
    assert pipeline.join(30)
