"""Shapes that models have otherwise than clients, inputs that may be missing, and versions side by side."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.clients import DOORS, Door, region
from tests.doors.raw import post_json, tensor
from tests.servers import RunningServer

FLOAT = TensorProto.FLOAT
RESHAPED = [
    # name, max_batch_size, dims, reshape, a shape of a request, the shape that the model has of it
    ("square", 8, [4], [2, 2], [3, 4], [3, 2, 2]),
    ("scalar", 8, [1], [], [3, 1], [3]),
    ("free", 8, [2, 3, -1], [6, -1], [2, 2, 3, 5], [2, 6, 5]),
    ("column", 8, [-1], [-1, 1], [2, 7], [2, 7, 1]),
    ("whole", 0, [4], [2, 2], [4], [2, 2]),
]


def config_of(max_batch: int, dims: list[int], reshape: list[int]) -> str:
    own = f"data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {reshape} }}"
    output = f'output [ {{ name: "OUTPUT0" {own} }}, {{ name: "SHAPE" data_type: TYPE_INT64 dims: -1 }} ]'
    return f'max_batch_size: {max_batch} input {{ name: "INPUT0" {own} }} {output}'


OPTIONAL = """
max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: 2 }, { name: "B" data_type: TYPE_FP32 dims: 2 optional: true } ]
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 2 }
"""


def reshaping(repository: Path, name: str, max_batch: int, dims: list[int], reshape: list[int]) -> None:
    """OUTPUT0 = INPUT0 and, for each row, SHAPE = the shape that the model sees."""
    shape = [f"d{at}" if dim < 0 else dim for at, dim in enumerate(reshape)]
    shape = ["rows", *shape] if max_batch else shape
    nodes = [
        helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
        helper.make_node("Shape", ["INPUT0"], ["shape"]),
    ]
    initializers = []
    if max_batch:
        zero, one = (helper.make_tensor(n, TensorProto.INT64, [1], [v]) for n, v in (("zero", 0), ("one", 1)))
        initializers = [zero, one]
        nodes += [
            helper.make_node("Slice", ["shape", "zero", "one"], ["rows"]),
            helper.make_node("Unsqueeze", ["shape", "zero"], ["line"]),
            helper.make_node("Concat", ["rows", "one"], ["repeats"], axis=0),
            helper.make_node("Tile", ["line", "repeats"], ["SHAPE"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["shape"], ["SHAPE"]))
    sizes = ["rows", "rank"] if max_batch else ["rank"]
    models.onnx_model(
        repository,
        name,
        nodes,
        [("INPUT0", FLOAT, shape)],
        [("OUTPUT0", FLOAT, shape), ("SHAPE", TensorProto.INT64, sizes)],
        config_of(max_batch, dims, reshape),
        initializers,
    )


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    for name, max_batch, dims, reshape, *_ in RESHAPED:
        reshaping(repository, name, max_batch, dims, reshape)
    own = 'name: "{}" data_type: TYPE_FP32 dims: {} reshape {{ shape: {} }}'
    sides = f"input {{ {own.format('INPUT0', [4], [2, 2])} }} output {{ {own.format('OUTPUT0', [1, 4], [2, 2])} }}"
    models.write_config(repository, "echo", f'backend: "identity" max_batch_size: 8 {sides}')
    for name, extra in (("optional", ""), ("together", models.TOGETHER.format(size=4) + "instance_group { count: 1 }")):
        models.onnx_model(
            repository,
            name,
            [helper.make_node("Add", ["A", "B"], ["OUTPUT0"])],
            [("A", FLOAT, ["rows", 2]), ("B", FLOAT, ["others", 2])],
            [("OUTPUT0", FLOAT, ["rows", 2])],
            OPTIONAL + extra,
            [helper.make_tensor("B", FLOAT, [1, 2], [0.0, 0.0])],
        )
    for version in (1, 2, 10):
        versioned(repository, version)
    return start(repository)


def versioned(repository: Path, version: int) -> None:
    """OUTPUT0 = INPUT0 + the version."""
    number = helper.make_tensor("number", FLOAT, [1], [float(version)])
    nodes = [helper.make_node("Add", ["INPUT0", "number"], ["OUTPUT0"])]
    side = (FLOAT, ["rows", 1])
    text = "max_batch_size: 4 version_policy { all {} }"
    models.onnx_model(
        repository, "versioned", nodes, [("INPUT0", *side)], [("OUTPUT0", *side)], text, [number], version
    )


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    for name, max_batch, dims, reshape, *_ in RESHAPED:
        rows = "[list(x.shape)] * len(x)" if max_batch else "list(x.shape)"
        outputs = f'(lambda x: {{"OUTPUT0": x, "SHAPE": np.array({rows}, np.int64)}})(take("INPUT0"))'
        models.oracle_python(repository, name, config_of(max_batch, dims, reshape), outputs)
    added = '{"OUTPUT0": take("A") + (0 if take("B") is None else take("B"))}'
    models.oracle_python(repository, "optional", OPTIONAL, added)
    return start_judge(repository)


@pytest.mark.parametrize("door", DOORS[:3], ids=str)
@pytest.mark.parametrize(
    ("model", "shape", "seen"), [(row[0], *row[4:]) for row in RESHAPED], ids=[r[0] for r in RESHAPED]
)
def test_models_have_their_own_shapes(server: RunningServer, door: Door, model: str, shape, seen) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    answer = door.infer(server, model, {"INPUT0": array}, "FP32")
    np.testing.assert_array_equal(answer["OUTPUT0"], array)
    assert answer["SHAPE"].reshape(-1, len(seen))[0].tolist() == seen


@pytest.mark.oracle
@pytest.mark.parametrize(("model", "shape"), [(row[0], row[4]) for row in RESHAPED], ids=[row[0] for row in RESHAPED])
def test_reshapes_are_those_of_the_real_triton(server: RunningServer, judge: RunningServer, model: str, shape) -> None:
    request = {"inputs": [tensor("FP32", shape, list(range(int(np.prod(shape)))))]}
    ours, theirs = (post_json(each, model, request).json["outputs"] for each in (server, judge))
    assert sorted(ours, key=str) == sorted(theirs, key=str)


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_an_output_that_is_an_input_has_its_own_reshape(server: RunningServer, door: Door) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(door.infer(server, "echo", {"INPUT0": array}, "FP32")["OUTPUT0"], array[:, None])


def test_a_reshaped_output_is_computed_in_its_region(server: RunningServer) -> None:
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 64) as (name, handle):
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 16, 16)
        given = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
        given.set_data_from_numpy(array)
        answer = client.infer("square", [given], outputs=[wanted])
        assert list(answer.get_response().outputs[0].shape) == [1, 4]
        assert bytes(memoryview(handle._mpsm_handle.buf)[16:32]) == array.tobytes()


@pytest.mark.parametrize(
    ("model", "shape"), [("square", [1, 2, 2]), ("scalar", [3]), ("whole", [2, 2]), ("free", [1, 6, 5])]
)
def test_clients_have_the_shapes_of_dims(server: RunningServer, model: str, shape: list[int]) -> None:
    array = np.zeros(shape, np.float32)
    status, text = DOORS[2].error(server, model, {"INPUT0": array}, "FP32")
    assert (status, f"unexpected shape for input 'INPUT0' for model '{model}'" in text) == ("400", True)


A, B = tensor("FP32", [1, 2], [1.0, 2.0], "A"), tensor("FP32", [1, 2], [10.0, 20.0], "B")
C = tensor("FP32", [1, 2], [0.0, 0.0], "C")


@pytest.mark.oracle
@pytest.mark.parametrize(("inputs", "sums"), [([A], [1, 2]), ([A, B], [11, 22]), ([B, A], [11, 22])])
def test_an_optional_input_may_be_missing(server: RunningServer, judge: RunningServer, inputs, sums) -> None:
    for each in (server, judge):
        assert post_json(each, "optional", {"inputs": inputs}).json["outputs"][0]["data"] == sums


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "expected number of inputs between 1 and 2 but got 0"),
        ([A, B, C], "expected number of inputs between 1 and 2 but got 3"),
        ([A, C], "unexpected inference input 'C' for model 'optional'"),
    ],
)
def test_other_inputs_may_not(server: RunningServer, judge: RunningServer, inputs, words: str) -> None:
    for each in (server, judge):
        answer = post_json(each, "optional", {"inputs": inputs})
        assert (answer.status, words in answer.error) == (400, True), answer.text


def test_an_input_that_is_not_optional_may_not_be_missing(server: RunningServer) -> None:
    """The real Triton counts only, and runs the model without it."""
    answer = post_json(server, "optional", {"inputs": [B]})
    assert (answer.status, "missing required input(s) ['A']" in answer.error) == (400, True), answer.text


def test_requests_with_and_without_do_not_share_a_batch(server: RunningServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        futures = [submit(client, [A, B], rows=2), submit(client, [A], rows=2)]
        futures += [submit(client, [A, B], rows=2), submit(client, [A], rows=2)]
        assert not wait(futures, timeout=60).not_done
        sums = [future.result().as_numpy("OUTPUT0").tolist() for future in futures]
        batches = client.get_inference_statistics("together").model_stats[0].batch_stats
    assert sums == [[[11, 22]] * 2, [[1, 2]] * 2] * 2
    assert [(batch.batch_size, batch.compute_infer.count) for batch in batches] == [(4, 2)]


def submit(client, inputs: list[dict], rows: int):
    from concurrent.futures import Future

    future: Future = Future()
    tensors = []
    for given in inputs:
        made = grpcclient.InferInput(given["name"], [rows, 2], "FP32")
        made.set_data_from_numpy(np.array([given["data"]] * rows, np.float32))
        tensors.append(made)
    client.async_infer("together", tensors, lambda result, error: future.set_result(result or error))
    return future


@pytest.mark.parametrize("module", [httpclient, grpcclient], ids=["http", "grpc"])
def test_versions_are_served_side_by_side(server: RunningServer, module) -> None:
    address = server.http if module is httpclient else server.grpc
    with module.InferenceServerClient(address) as client:
        given = module.InferInput("INPUT0", [1, 1], "FP32")
        given.set_data_from_numpy(np.zeros((1, 1), np.float32))
        for asked, served in (("1", 1), ("2", 2), ("10", 10), ("", 10)):
            answer = client.infer("versioned", [given], model_version=asked)
            response = answer.get_response()
            version = response["model_version"] if module is httpclient else response.model_version
            assert (answer.as_numpy("OUTPUT0").item(), version) == (served, str(served))
        with pytest.raises(InferenceServerException, match="'versioned' version 3 is not found"):
            client.infer("versioned", [given], model_version="3")
