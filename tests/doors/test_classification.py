"""Classes in place of an output: the largest elements of each row, with their labels, as the real Triton has them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio

from tests import models
from tests.doors.raw import call, message, post_json, refusal, tensor
from tests.servers import RunningServer

LABELS = "cat\ndog\n\nbird\n"
MODELS = [
    ("scores", "FP32", "[-1]", 8),
    ("whole", "FP32", "[2, -1]", 0),
    ("plane", "FP32", "[2, 3]", 8),
    ("counts", "INT32", "[-1]", 8),
    ("bytes", "UINT8", "[-1]", 8),
    ("large", "INT64", "[-1]", 8),
    ("doubles", "FP64", "[-1]", 8),
    ("flags", "BOOL", "[-1]", 8),
    ("halves", "FP16", "[-1]", 8),
    ("texts", "STRING", "[-1]", 8),
]


def repository_of(root: Path, backend: str, write_model) -> Path:
    for name, dtype, dims, max_batch in MODELS:
        sides = (f'{{ name: "{side}" data_type: TYPE_{dtype} dims: {dims}' for side in ("INPUT0", "OUTPUT0"))
        text = 'backend: "{}" max_batch_size: {} input {} }} output {} label_filename: "labels.txt" }}'
        directory = models.write_config(root, name, text.format(backend, max_batch, *sides))
        (root / name / "labels.txt").write_text(LABELS)
        write_model(directory)
    return root


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    return start(repository_of(tmp_path_factory.mktemp("models"), "identity", lambda _: None))


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    def write_model(directory: Path) -> None:
        (directory / "model.py").write_text(models.ORACLE_IDENTITY)

    return start_judge(repository_of(tmp_path_factory.mktemp("oracle_models"), "python", write_model))


def classes_of(count: object, **parameters: object) -> list[dict]:
    return [{"name": "OUTPUT0", "parameters": {"classification": count, **parameters}}]


SCORES = [0.1, 3.5, 2, 3.5, -1]
CASES = {
    "three": ("scores", tensor("FP32", [1, 5], SCORES), classes_of(3)),
    "more than there are": ("scores", tensor("FP32", [1, 5], SCORES), classes_of(9)),
    "of every row": ("scores", tensor("FP32", [2, 3], [1, 2, 3, 6, 5, 4]), classes_of(2)),
    "of the whole tensor": ("whole", tensor("FP32", [2, 3], [1, 2, 3, 6, 5, 4]), classes_of(2)),
    "of a plane": ("plane", tensor("FP32", [1, 2, 3], [1, 2, 3, 6, 5, 4]), classes_of(4)),
    "of integers": ("counts", tensor("INT32", [1, 5], [1, -2, 7, 7, 100]), classes_of(5)),
    "of small integers": ("bytes", tensor("UINT8", [1, 3], [1, 255, 3]), classes_of(2)),
    "of large integers": ("large", tensor("INT64", [1, 3], [2**53 + 1, 2, -3]), classes_of(3)),
    "of doubles": ("doubles", tensor("FP64", [1, 3], [1e300, 1 / 3, -0.0]), classes_of(3)),
    "as binary": ("scores", tensor("FP32", [1, 5], SCORES), classes_of(2, binary_data=True)),
    "as json": ("scores", tensor("FP32", [1, 5], SCORES), classes_of(2, binary_data=False)),
}


@pytest.mark.oracle
@pytest.mark.parametrize(("model", "given", "outputs"), CASES.values(), ids=CASES)
def test_classes_are_those_of_the_real_triton(
    server: RunningServer, judge: RunningServer, model, given, outputs
) -> None:
    ours, theirs = (post_json(each, model, {"inputs": [given], "outputs": outputs}) for each in (server, judge))
    assert (ours.status, ours.json, ours.binary) == (200, theirs.json, theirs.binary)


@pytest.mark.oracle
def test_classes_over_grpc_are_those_of_the_real_triton(server: RunningServer, judge: RunningServer) -> None:
    given = ("INPUT0", "FP32", [2, 3], {"fp32_contents": [1, 2, 3, 6, 5, 4]})
    request = message("scores", given, outputs=(("OUTPUT0", {"classification": 2}),))
    assert call(server, request) == call(judge, request)


@pytest.mark.parametrize("module", [httpclient, grpcclient], ids=["http", "grpc"])
def test_clients_ask_for_classes(server: RunningServer, module) -> None:
    address = server.http if module is httpclient else server.grpc
    with module.InferenceServerClient(address) as client:
        answer = client.infer("scores", asked(module), outputs=[module.InferRequestedOutput("OUTPUT0", class_count=2)])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), [[b"9.000000:3:bird", b"2.500000:1:dog"]])


@pytest.mark.parametrize("module", [httpaio, grpcaio], ids=["http", "grpc"])
def test_asyncio_clients_ask_for_classes(server: RunningServer, module) -> None:
    address = server.http if module is httpaio else server.grpc

    async def ask():
        async with module.InferenceServerClient(address) as client:
            outputs = [module.InferRequestedOutput("OUTPUT0", class_count=1)]
            return (await client.infer("scores", asked(module), outputs=outputs)).as_numpy("OUTPUT0")

    np.testing.assert_array_equal(asyncio.run(ask()), [[b"9.000000:3:bird"]])


def asked(module) -> list:
    given = module.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(np.array([[0, 2.5, 1, 9]], np.float32))
    return [given]


def test_what_crashes_the_real_triton(server: RunningServer) -> None:
    """Classes of no elements, and of strings, end its process; NaNs make its order undefined."""
    answer = post_json(server, "scores", {"inputs": [tensor("FP32", [1, 0], [])], "outputs": classes_of(3)})
    assert answer.json["outputs"] == [{"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 0], "data": []}]
    answer = post_json(server, "texts", {"inputs": [tensor("BYTES", [1, 1], ["a"])], "outputs": classes_of(1)})
    assert (answer.status, "due to unsupported type 'BYTES'" in answer.error) == (400, True)
    given = tensor("FP32", [1, 4], ["NaN", 1, "Infinity", "-Infinity"])
    answer = post_json(server, "scores", {"inputs": [given], "outputs": classes_of(4)})
    assert answer.json["outputs"][0]["data"] == ["inf:2", "1.000000:1:dog", "-inf:3:bird", "nan:0:cat"]


def test_a_count_over_32_bits_is_a_large_one(server: RunningServer) -> None:
    """The real Triton cuts its upper bits off."""
    answer = post_json(server, "scores", {"inputs": [tensor("FP32", [1, 2], [1, 2])], "outputs": classes_of(2**40)})
    assert answer.json["outputs"][0]["data"] == ["2.000000:1:dog", "1.000000:0:cat"]


WRONG = [
    ("flags", tensor("BOOL", [1, 2], [True, False]), 1, "due to unsupported type 'BOOL'", 400),
    ("scores", tensor("FP32", [1, 2], [1, 2]), -1, "'classification'", 500),
    ("scores", tensor("FP32", [1, 2], [1, 2]), "2", "'classification'", 500),
    ("scores", tensor("FP32", [1, 2], [1, 2]), 2.5, "'classification'", 500),
    ("scores", tensor("FP32", [1, 2], [1, 2]), True, "'classification'", 500),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("model", "given", "count", "words", "theirs"), WRONG)
def test_wrong_counts_and_types(
    server: RunningServer, judge: RunningServer, model, given, count, words, theirs
) -> None:
    """Its 500 for a client's mistake is a 400 here."""
    for each, status in ((server, 400), (judge, theirs)):
        answer = post_json(each, model, {"inputs": [given], "outputs": classes_of(count)})
        assert (answer.status, words in answer.error) == (status, True), answer.text


@pytest.mark.oracle
@pytest.mark.parametrize("count", [0, -1, "2", True, 2.5])
def test_wrong_counts_over_grpc(server: RunningServer, judge: RunningServer, count: object) -> None:
    given = ("INPUT0", "FP32", [1, 2], {"fp32_contents": [1, 2]})
    request = message("scores", given, outputs=(("OUTPUT0", {"classification": count}),))
    for each in (server, judge):
        code, text = refusal(each, request)
        assert (code, "'classification' parameter" in text) == ("INVALID_ARGUMENT", True), text


@pytest.mark.oracle
def test_classes_do_not_go_to_regions(server: RunningServer, judge: RunningServer) -> None:
    own = {"classification": 2, "shared_memory_region": "r", "shared_memory_byte_size": 64}
    request = message("scores", ("INPUT0", "FP32", [1, 2], {"fp32_contents": [1, 2]}), outputs=(("OUTPUT0", own),))
    for each in (server, judge):
        code, text = refusal(each, request)
        assert (code, "can't set both 'shared_memory_region' and 'classification'" in text) == (
            "INVALID_ARGUMENT",
            True,
        )
        body = {"inputs": [tensor("FP32", [1, 2], [1, 2])], "outputs": [{"name": "OUTPUT0", "parameters": own}]}
        answer = post_json(each, "scores", body)
        assert (answer.status, "can't set both 'shared_memory_region' and 'classification'" in answer.error) == (
            400,
            True,
        )
