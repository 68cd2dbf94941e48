"""BYTES tensors through every door, in batches and through ONNX Runtime; malformed ones are refused as by Triton."""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import Future, wait

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
import tritonclient.http.aio as httpaio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests import models
from tests.doors.asking import until_waiting
from tests.doors.clients import DOORS, Door, packed, region
from tests.servers import RunningServer

TEXTS = ["", "a", "two words", 'quotes " and \\', "ünïcode ☃", "new\nline\x00null", "x" * 500]


def array(elements: list[object], *shape: int) -> np.ndarray:
    objects = np.empty(len(elements), dtype=object)
    objects[:] = [element.encode() if isinstance(element, str) else element for element in elements]
    return objects.reshape(shape or (1, len(elements)))


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "STRING", [-1], max_batch=64)
    models.identity(repository, "whole", "STRING", [-1, -1], max_batch=0)
    models.identity(repository, "gather", "STRING", [-1], max_batch=6, extra=models.TOGETHER.format(size=6))
    strings, numbers = (TensorProto.STRING, ["batch", "any"]), (TensorProto.INT64, ["batch", "any"])
    models.onnx_model(
        repository,
        "copy",
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [("INPUT0", *strings)],
        [("OUTPUT0", *strings)],
        "max_batch_size: 6 " + models.TOGETHER.format(size=6) + "instance_group { count: 1 }",
    )
    models.onnx_model(
        repository,
        "encode",
        [
            helper.make_node(
                "LabelEncoder",
                ["INPUT0"],
                ["OUTPUT0"],
                domain="ai.onnx.ml",
                keys_strings=["cat", "dog", "ünï"],
                values_int64s=[1, 2, 3],
                default_int64=-1,
            )
        ],
        [("INPUT0", *strings)],
        [("OUTPUT0", *numbers)],
        "max_batch_size: 8",
        opsets={"": 17, "ai.onnx.ml": 3},
    )
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "STRING", [-1], max_batch=64)
    models.oracle_identity(repository, "whole", "STRING", [-1, -1], max_batch=0)
    return start_judge(repository)


@pytest.mark.parametrize("door", DOORS, ids=str)
def test_strings_come_back(server: RunningServer, door: Door) -> None:
    for texts in (array(TEXTS), array(TEXTS * 2, 2, 7), array([""]), array(["a"] * 64, 64, 1)):
        answer = door.infer(server, "echo", {"INPUT0": texts}, "BYTES")["OUTPUT0"]
        np.testing.assert_array_equal(answer, texts)


@pytest.mark.oracle
@pytest.mark.parametrize("door", DOORS, ids=str)
def test_strings_come_back_as_from_the_real_triton(server: RunningServer, judge: RunningServer, door: Door) -> None:
    texts = array(TEXTS * 2, 2, 7)
    ours = door.infer(server, "echo", {"INPUT0": texts}, "BYTES")["OUTPUT0"]
    theirs = door.infer(judge, "echo", {"INPUT0": texts}, "BYTES")["OUTPUT0"]
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("door", DOORS[1:], ids=str)
def test_bytes_that_are_no_text_come_back(server: RunningServer, door: Door) -> None:
    binary = array([b"\xff\x00\xfe", bytes(range(256)), b"\xc3"])
    np.testing.assert_array_equal(door.infer(server, "echo", {"INPUT0": binary}, "BYTES")["OUTPUT0"], binary)


def test_bytes_that_are_no_text_can_not_be_json(server: RunningServer) -> None:
    """The real Triton sends them as they are, which no JSON reader reads."""
    with httpclient.InferenceServerClient(server.http) as client:
        tensor = httpclient.InferInput("INPUT0", [1, 1], "BYTES")
        tensor.set_data_from_numpy(array([b"\xff"]))
        with pytest.raises(InferenceServerException, match="an element is no UTF-8") as caught:
            client.infer("echo", [tensor], outputs=[httpclient.InferRequestedOutput("OUTPUT0", binary_data=False)])
    assert caught.value.status() == "400"


@pytest.mark.parametrize("door", DOORS[:3], ids=str)
def test_no_strings_at_all(server: RunningServer, door: Door) -> None:
    answer = door.infer(server, "echo", {"INPUT0": np.empty((2, 0), dtype=object)}, "BYTES")["OUTPUT0"]
    assert answer.shape == (2, 0)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1, max_size=9))
def test_any_text_comes_back(server: RunningServer, texts: list[str]) -> None:
    for door in DOORS:
        answer = door.infer(server, "whole", {"INPUT0": array(texts)}, "BYTES")["OUTPUT0"]
        np.testing.assert_array_equal(answer, array(texts))


def asked(client_module, texts: np.ndarray):
    tensor = client_module.InferInput("INPUT0", list(texts.shape), "BYTES")
    tensor.set_data_from_numpy(texts)
    return [tensor]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_asyncio_clients(server: RunningServer, kind: str) -> None:
    module, address = (httpaio, server.http) if kind == "http" else (grpcaio, server.grpc)

    async def ask() -> np.ndarray:
        async with module.InferenceServerClient(address) as client:
            return (await client.infer("echo", asked(module, array(TEXTS)))).as_numpy("OUTPUT0")

    np.testing.assert_array_equal(asyncio.run(ask()), array(TEXTS))


MALFORMED = [
    ("too few", [1, 3], [b"ab", b"cd"], b"", "expected 3 string elements"),
    ("too many", [1, 1], [b"ab", b"cd"], b"", "unexpected number of string elements"),
    ("none", [1, 1], [], b"", "expected 1 string elements"),
    ("cut length", [1, 2], [b"ab"], b"\x01\x00", "incomplete string length indicator"),
    ("cut content", [1, 2], [b"ab"], b"\x05\x00\x00\x00abc", "incomplete string data for inference input 'INPUT0'"),
    ("huge length", [1, 1], [], b"\xff\xff\xff\xff", "incomplete string data for inference input 'INPUT0'"),
    ("huge shape", [1, 2**40], [b"ab"], b"", "expected 1099511627776 string elements"),
    ("huge number", [1, 2**62, 2**62], [b"ab"], b"", "unexpected shape"),
]


def refusal(server: RunningServer, kind: str, shape: list[int], content: bytes) -> tuple[str, str]:
    """Status, as HTTP has it, and text."""
    module, address = (httpclient, server.http) if kind == "binary" else (grpcclient, server.grpc)
    with module.InferenceServerClient(address) as client, region(client, 4096) as (name, handle):
        tensor = module.InferInput("INPUT0", shape, "BYTES")
        if kind == "region":
            memoryview(handle._mpsm_handle.buf)[: len(content)] = content
            tensor.set_shared_memory(name, len(content) or 1)
        elif kind == "binary":
            tensor._raw_data = content
            tensor._parameters["binary_data_size"] = len(content)
        else:
            tensor._raw_content = content
        with pytest.raises(InferenceServerException) as caught:
            client.infer("echo", [tensor])
    return str(caught.value.status()).replace("StatusCode.INVALID_ARGUMENT", "400"), caught.value.message()


@pytest.mark.parametrize("kind", ["binary", "grpc", "region"])
@pytest.mark.parametrize(
    ("shape", "elements", "tail", "words"), [row[1:] for row in MALFORMED], ids=[r[0] for r in MALFORMED]
)
def test_malformed_tensors_are_refused(server: RunningServer, kind: str, shape, elements, tail, words: str) -> None:
    content = b"".join(struct.pack("<I", len(element)) + element for element in elements) + tail
    if not content and kind == "region":
        words = "incomplete string length indicator"  # no part of a region has no bytes
    status, text = refusal(server, kind, shape, content)
    assert (status, words in text) == ("400", True), text


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["binary", "grpc", "region"])
@pytest.mark.parametrize(
    ("shape", "elements", "tail", "words"), [row[1:] for row in MALFORMED], ids=[r[0] for r in MALFORMED]
)
def test_malformed_tensors_are_refused_by_the_real_triton(judge, kind: str, shape, elements, tail, words: str) -> None:
    content = b"".join(struct.pack("<I", len(element)) + element for element in elements) + tail
    if not content and kind == "region":
        words = "incomplete string length indicator"
    status, text = refusal(judge, kind, shape, content)
    assert (status, words in text) == ("400", True), text


@pytest.mark.parametrize("model", ["gather", "copy"])
def test_a_batch_is_gathered_and_scattered_by_elements(server: RunningServer, model: str) -> None:
    parts = [array(["a", "bcd", ""]), array(["ü" * 300, "e", "f", "", "h", "i"], 2, 3), array(list("123456789"), 3, 3)]
    with grpcclient.InferenceServerClient(server.grpc) as client:
        before = executions(client, model)
        futures = [submit(client, model, part) for part in parts]
        assert not wait(futures, timeout=60).not_done
        for future, part in zip(futures, parts, strict=True):
            np.testing.assert_array_equal(future.result().as_numpy("OUTPUT0"), part)
        assert executions(client, model) - before == 1


def test_outputs_of_a_batch_go_to_their_regions(server: RunningServer) -> None:
    parts = [array(["a", "bcd"]), array(["longer", "", "e", "f"], 2, 2), array(list("uvwxyz"), 3, 2)]
    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 300) as (name, handle):
        wanted = [grpcclient.InferRequestedOutput("OUTPUT0") for _ in parts]
        for at, output in enumerate(wanted):
            output.set_shared_memory(name, 100, 100 * at)
        futures = [submit(client, "copy", part, [output]) for part, output in zip(parts, wanted, strict=True)]
        assert not wait(futures, timeout=60).not_done
        assert all(future.exception() is None for future in futures)
        for at, part in enumerate(parts):
            content = packed(part)
            assert bytes(memoryview(handle._mpsm_handle.buf)[100 * at :][: len(content)]) == content


@pytest.mark.parametrize("model", ["gather", "copy"])
def test_a_client_that_writes_over_its_strings_harms_nobody(server: RunningServer, model: str) -> None:
    """They were copied and checked before: what comes later is never parsed."""
    first, second = array(["abc", "de"]), array(list("uvwxyz12"), 4, 2)
    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 64) as (name, handle):
        memory = memoryview(handle._mpsm_handle.buf)
        memory[: len(packed(first))] = packed(first)
        given = grpcclient.InferInput("INPUT0", [1, 2], "BYTES")
        given.set_shared_memory(name, len(packed(first)))
        hostile = submit_tensors(client, model, [given])
        until_waiting(server, model, 1)
        memory[:64] = b"\xff" * 64
        futures = [submit(client, model, second), submit(client, model, array(["x", "y"]))]
        assert not wait([hostile, *futures], timeout=60).not_done
        np.testing.assert_array_equal(hostile.result().as_numpy("OUTPUT0"), first)
        np.testing.assert_array_equal(futures[0].result().as_numpy("OUTPUT0"), second)
        del memory


def test_a_region_that_is_too_small_for_the_strings(server: RunningServer) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client, region(client, 64) as (name, _):
        wanted = grpcclient.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory(name, 8)
        with pytest.raises(InferenceServerException, match="should be at least 9 bytes"):
            client.infer("echo", asked(grpcclient, array(["abcde"])), outputs=[wanted])


def submit(client, model: str, texts: np.ndarray, outputs=None):
    return submit_tensors(client, model, asked(grpcclient, texts), outputs)


def submit_tensors(client, model: str, tensors: list, outputs=None):
    future: Future = Future()

    def done(result, error) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    client.async_infer(model, tensors, done, outputs=outputs)
    return future


def executions(client, model: str) -> int:
    return client.get_inference_statistics(model).model_stats[0].execution_count


@pytest.mark.parametrize("door", DOORS[:3], ids=str)
def test_onnx_reads_strings(server: RunningServer, door: Door) -> None:
    answer = door.infer(server, "encode", {"INPUT0": array(["dog", "ünï", "", "cat"], 2, 2)}, "BYTES")["OUTPUT0"]
    np.testing.assert_array_equal(answer, [[2, 3], [-1, 1]])


def test_onnx_takes_text_only_and_the_one_who_sends_other_bytes_is_told(server: RunningServer) -> None:
    words = "is not UTF-8, which its backend needs"
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match=words) as caught,
    ):
        client.infer("encode", asked(grpcclient, array([b"\xff"])))
    assert "INVALID_ARGUMENT" in str(caught.value.status())
