"""TensorRT plans through the doors, with a double of the library on GPUs whose memory is the host's: one asked by many,
and two with every config and every mistake.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from tests import models_tensorrt as models
from tests.doors.asking import ask
from tests.doors.clients import region
from tests.metrics import read_metric
from tests.models_tensorrt import affine, rows, tensor
from tests.servers import RunningServer, start_headrace

GPU = "backend: 'tensorrt' "
HALF = {
    "tensors": [
        tensor("images", "INPUT", [-1, 3, 384, 640], "HALF"),
        tensor("output0", "OUTPUT", ["images.0", 84, 5040], "HALF", of="images", does="affine"),
    ],
    "profiles": [
        {"shapes": {"images": [[1, 3, 384, 640], [4, 3, 384, 640], [8, 3, 384, 640]]}, "values": {}},
        {"shapes": {"images": [[1, 3, 384, 640], [32, 3, 384, 640], [32, 3, 384, 640]]}, "values": {}},
    ],
}
TYPES = ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8"]
EVERY = {
    "tensors": [tensor(kind, "INPUT", [-1, 2], kind) for kind in TYPES]
    + [tensor(f"to_{kind}", "OUTPUT", [f"{kind}.0", 2], kind, of=kind, does="affine") for kind in TYPES],
    "profiles": [{"shapes": {kind: [[1, 2], [4, 2], [4, 2]] for kind in TYPES}, "values": {}}],
}
WIDE = affine(rows(1, 4, 8, 4), rows(1, 2, 2, 100), dims=(-1, -1))


def write_models(repository: Path) -> None:
    models.write(repository, "detector", HALF)
    models.write(repository, "every", EVERY)
    models.write(repository, "wide", WIDE)
    models.write(repository, "alone", affine({"x": [[2, 4], [2, 4], [2, 4]]}, dims=(2, 4)))
    models.write(repository, "few", affine(rows(4, 8, 8)), GPU + "max_batch_size: 8 dynamic_batching {}")
    models.write(repository, "stubborn", affine(rows(1, 8, 8), compiles=True))
    group = "instance_group { profile: ['1'] }"
    models.write(repository, "second", affine(rows(1, 2, 4), rows(5, 8, 16)), GPU + group)
    models.write(repository, "no_such", affine(rows(1, 2, 4)), GPU + group)
    models.write(repository, "too_many", affine(rows(1, 4, 8)), GPU + "max_batch_size: 64")
    models.write(repository, "cpu", affine(rows(1, 4, 8)), GPU + "instance_group { kind: KIND_CPU }")
    models.write(repository, "type", affine(rows(1, 4, 8)), GPU + "input { name: 'x' data_type: TYPE_FP16 dims: 4 }")
    models.write(repository, "switch", affine(rows(1, 4, 8)), GPU + models.parameter("cuda_graphs", "no"))
    models.write(repository, "version", models.plan(affine(rows(1, 4, 8)), (10, 3, 0, 26)))
    models.write(repository, "gpu", affine(rows(1, 4, 8), compute="8.6"))
    models.write(repository, "cut", models.plan(affine(rows(1, 4, 8)))[:-1])
    models.write(repository, "onnx", b"\x08\x08\x12\x07pytorch" + bytes(100))
    models.write(repository, "rtx", models.rtx_plan())
    models.write(repository, "fp8", described("x", dtype="FP8"))
    models.write(repository, "hwc8", described("y", format="Channel major FP16 format where C % 8 == 0 (kHWC8)"))
    models.write(repository, "shapes", models.filled(), GPU + "max_batch_size: 4")


def described(name: str, **more: str) -> dict:
    description = affine(rows(1, 4, 8))
    return {**description, "tensors": [one | (more if one["name"] == name else {}) for one in description["tensors"]]}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository)
    log = tmp_path_factory.mktemp("log") / "server.log"
    options = ("--strict-readiness=false",)
    running = start_headrace(repository, log, *options, module="tests.tensorrt_double.serve", DOUBLE_GPUS="2")
    yield running
    assert running.stop() == 0, log.read_text()


def test_simulated_gpus_are_refused_by_name(start, tmp_path_factory) -> None:
    """The real library would reach for addresses that there are not."""
    repository = tmp_path_factory.mktemp("models")
    models.write(repository, "m", affine(rows(1, 4, 8)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{models.DOUBLE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        server = start(repository, "--simulate-gpus=1", "--strict-readiness=false")
    assert "KIND_GPU of 'm': TensorRT cannot compute on a simulated GPU" in server.log.read_text()


@pytest.fixture
def client(server: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(server.grpc) as connected:
        yield connected


def test_the_config_is_completed_from_the_plan(client) -> None:
    config = client.get_model_config("detector", as_json=True)["config"]
    assert (config["platform"], config["backend"], config["default_model_filename"]) == (
        "tensorrt_plan",
        "tensorrt",
        "model.plan",
    )
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (32, [32])
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["input"]] == [
        ("images", "TYPE_FP16", ["3", "384", "640"])
    ]
    assert [(one["name"], one["data_type"], one["dims"]) for one in config["output"]] == [
        ("output0", "TYPE_FP16", ["84", "5040"])
    ]
    assert [(group["kind"], group["gpus"]) for group in config["instance_group"]] == [("KIND_GPU", [0, 1])]
    types = [one["data_type"] for one in client.get_model_config("every", as_json=True)["config"]["input"]]
    assert types == [f"TYPE_{name}" for name in ("FP32", "FP16", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8")]
    alone = client.get_model_config("alone", as_json=True)["config"]
    assert "max_batch_size" not in alone
    assert alone["input"][0]["dims"] == ["2", "4"]


def test_the_log_has_the_profiles(server: RunningServer) -> None:
    log = server.log.read_text()
    assert "model 'detector': profile 0 takes images [1, 3, 384, 640] to [8, 3, 384, 640], tuned for [4, 3" in log
    assert "model 'detector': profile 1 takes images [1, 3, 384, 640] to [32, 3, 384, 640], tuned for [32, 3" in log


def test_requests_are_answered_in_batches(client) -> None:
    futures = [ask(client, "wide", np.ones((1, 4), np.float32), name="x", output="y")[0] for _ in range(100)]
    assert not wait(futures, timeout=60).not_done
    assert all(future.result().shape == (1, 4) for future in futures)
    row = client.get_inference_statistics("wide").model_stats[0]
    assert row.inference_count == 100
    assert row.execution_count < 100


@pytest.mark.parametrize(
    ("model", "shape"), [("alone", (2, 4)), ("few", (1, 4)), ("few", (7, 4)), ("second", (6, 4)), ("wide", (2, 100))]
)
def test_shapes_that_a_profile_takes(client, model: str, shape: tuple[int, ...]) -> None:
    for _ in range(3):
        assert ask(client, model, np.ones(shape, np.float32), name="x", output="y")[0].result(60).shape == shape


def test_a_shape_that_no_profile_takes_names_all_profiles(client) -> None:
    with pytest.raises(InferenceServerException) as raised:
        ask(client, "wide", np.ones((3, 100), np.float32), name="x", output="y")[0].result(60)
    for words in (
        "no optimization profile takes x [3, 100]",
        "profile 0 takes x [1, 4] to [8, 4], tuned for [4, 4]",
        "profile 1 takes x [1, 100] to [2, 100], tuned for [2, 100]",
    ):
        assert words in str(raised.value)


def test_batches_without_a_graph_are_counted(client, server: RunningServer) -> None:
    ask(client, "stubborn", np.ones((1, 4), np.float32), name="x", output="y")[0].result(60)
    assert read_metric(server, "headrace_transfer_fallback_total", model="stubborn", name="cuda_graph") == 1
    assert read_metric(server, "headrace_transfer_fallback_total", model="few", name="cuda_graph") == 0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_such", "instance_group 'no_such_0' wants profile 1, but the plan has 1, 0 to 0"),
        (
            "too_many",
            "max_batch_size is 64, but the model file takes 8 rows at most: profile 0 takes x [1, 4] to [8, 4]",
        ),
        ("cpu", "TensorRT runs on GPUs only, its instances must be of KIND_GPU"),
        ("type", "input 'x' has data_type TYPE_FP16 in the config, but TYPE_FP32 in the model file"),
        ("switch", "parameter 'cuda_graphs' of model 'switch': expected true or false, got 'no'"),
        ("version", "this is a plan of TensorRT 10.3.0.26, and 10.9.0.34 is installed: a plan runs with the very"),
        ("gpu", "the plan was built for another GPU, of compute capability 8.6; this one has 9.0"),
        ("cut", "model.plan: the plan is cut short, or damaged"),
        ("onnx", "the file is no TensorRT plan: it begins with"),
        ("rtx", "this is a plan of TensorRT for RTX 1.7.1.116, and TensorRT for RTX is not installed; TensorRT is"),
        ("fp8", "input 'x' of the plan is of type FP8, which clients cannot send; served are FP32, FP16"),
        ("hwc8", "output 'y' of the plan has the format 'Channel major FP16 format where C % 8 == 0 (kHWC8)'"),
        ("shapes", "max_batch_size is 4, but the model does not batch"),
    ],
)
def test_what_is_wrong_is_said(client, model: str, words: str) -> None:
    reasons = {row.name: row.reason for row in client.get_model_repository_index().models}
    assert words in reasons[model]


@pytest.fixture(scope="module")
def computing(tmp_path_factory) -> Iterator[RunningServer]:
    """A server whose GPU computes."""
    repository = tmp_path_factory.mktemp("models")
    for name, graphs, capturable in (("graphs", "true", True), ("plain", "false", True), ("stubborn", "true", False)):
        description = affine(rows(1, 4, 8), rows(1, 16, 16), capturable=capturable)
        group = "instance_group { count: 2 }"
        models.write(repository, name, description, GPU + group + models.parameter("cuda_graphs", graphs))
    models.write(repository, "every", EVERY)
    models.write(repository, "wide", WIDE)
    models.write(repository, "fill", models.filled())
    found = affine({"x": [[8], [8], [8]]}, dims=(8,))
    found["tensors"].append(tensor("found", "OUTPUT", ["?"], of="x", does="nonzero"))
    models.write(repository, "found", found)
    log = tmp_path_factory.mktemp("log") / "server.log"
    running = start_headrace(repository, log, module="tests.tensorrt_double.serve")
    yield running
    assert running.stop() == 0, log.read_text()


@pytest.fixture
def asking(computing: RunningServer) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(computing.grpc) as connected:
        yield connected


@pytest.mark.parametrize("model", ["graphs", "plain", "stubborn"])
def test_batches_of_many_clients_are_what_the_plan_computes(asking, computing: RunningServer, model: str) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((1 + number % 16, 4), np.float32) for number in range(200)]
    futures = [ask(asking, model, array, name="x", output="y")[0] for array in arrays]
    assert not wait(futures, timeout=60).not_done
    for array, future in zip(arrays, futures, strict=True):
        np.testing.assert_array_equal(future.result(), array * 2 + 1)
    counted = read_metric(computing, "headrace_transfer_fallback_total", model=model, name="cuda_graph")
    executions = asking.get_inference_statistics(model).model_stats[0].execution_count
    assert counted == (executions if model == "stubborn" else 0)
    told = computing.log.read_text().count(f"model '{model}' is computed without CUDA graphs: TensorRT could not")
    assert told == (model == "stubborn")


def test_open_shapes_come_and_come_again(asking) -> None:
    for width in (4, 100, 4, 100, 4, 100):
        array = np.random.default_rng(width).standard_normal((2, width), np.float32)
        np.testing.assert_array_equal(ask(asking, "wide", array, name="x", output="y")[0].result(60), array * 2 + 1)


def test_system_regions_in_and_out_are_not_touched_by_the_cpu(asking, computing: RunningServer) -> None:
    copied = "headrace_transfer_copied_bytes_total"
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with region(asking, 4096) as (name, handle):
        shm.set_shared_memory_region(handle, [array], 20)  # TensorRT wants multiples of 256, clients need not
        given = grpcclient.InferInput("x", [3, 4], "FP32")
        given.set_shared_memory(name, array.nbytes, 20)
        wanted = grpcclient.InferRequestedOutput("y")
        wanted.set_shared_memory(name, array.nbytes, 1004)
        before = read_metric(computing, copied, model="graphs")
        asking.infer("graphs", [given], outputs=[wanted])
        np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, [3, 4], 1004), array * 2 + 1)
        assert read_metric(computing, copied, model="graphs") == before


def test_every_type(asking) -> None:
    names = [
        ("FP32", np.float32),
        ("FP16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("INT8", np.int8),
        ("INT32", np.int32),
    ]
    names += [("INT64", np.int64), ("BOOL", np.bool_), ("UINT8", np.uint8)]
    inputs, arrays = [], {}
    for kind, (name, dtype) in zip(TYPES, names, strict=True):
        arrays[kind] = np.array([[0, 1], [3, 40]]).astype(dtype)
        inputs.append(grpcclient.InferInput(kind, [2, 2], name))
        inputs[-1].set_data_from_numpy(arrays[kind])
    result = asking.infer("every", inputs)
    for kind in set(TYPES) - {"BF16"}:
        np.testing.assert_array_equal(result.as_numpy(f"to_{kind}"), (arrays[kind] * 2 + 1).astype(arrays[kind].dtype))
    assert result.get_output("to_BF16").datatype == "BF16"


def test_values_that_are_shapes(asking) -> None:
    value = grpcclient.InferInput("x", [1], "FP32")
    value.set_data_from_numpy(np.array([5], np.float32))
    shape = grpcclient.InferInput("s", [2], "INT32")
    for wanted in ([2, 3], [16, 16], [1, 1]):
        shape.set_data_from_numpy(np.array(wanted, np.int32))
        assert asking.infer("fill", [value, shape]).as_numpy("y").tolist() == np.full(wanted, 5).tolist()
    shape.set_data_from_numpy(np.array([17, 1], np.int32))
    with pytest.raises(InferenceServerException, match=r"no optimization profile takes .*values of s \[17, 1\]"):
        asking.infer("fill", [value, shape])


def test_outputs_whose_shape_depends_on_values(asking) -> None:
    for count in (3, 0, 8, 5):
        array = np.zeros(8, np.float32)
        array[:count] = 1
        assert ask(asking, "found", array, name="x", output="found")[0].result(60).tolist() == [1] * count
