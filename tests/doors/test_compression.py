"""gzip and deflate both ways, with every client of `tritonclient`; what Triton does alike, it is asked, too."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio
import tritonclient.http as httpclient
import tritonclient.http.aio
from tritonclient.grpc import service_pb2

from tests import models
from tests.servers import RunningServer

ALGORITHMS = ("gzip", "deflate")
SMALL, LARGE = 8, 1 << 20
"""Elements: what the wire does itself, and what it hands to a thread."""
LIMIT = 8 << 20
"""Bytes of an HTTP body of the server under test."""
PACK = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
UNPACK = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    options = [f"--http-max-input-size={LIMIT}", "--max-in-flight-bytes=64000000"]
    return start(repository, "--grpc-infer-response-compression-level=low", *options)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [-1], max_batch=8)
    return start_judge(repository)


def tensor(client, elements: int):
    array = np.arange(elements, dtype=np.float32).reshape(1, elements)
    made = client.InferInput("INPUT0", [1, elements], "FP32")
    made.set_data_from_numpy(array)
    return made, array


def http_answer(server: RunningServer, made, algorithm: str) -> np.ndarray:
    with httpclient.InferenceServerClient(server.http) as client:
        both = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        return client.infer("echo", [made], **both).as_numpy("OUTPUT0")


def http_aio_answer(server: RunningServer, made, algorithm: str) -> np.ndarray:
    async def ask() -> np.ndarray:
        async with tritonclient.http.aio.InferenceServerClient(server.http) as client:
            both = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            return (await client.infer("echo", [made], **both)).as_numpy("OUTPUT0")

    return asyncio.run(ask())


def grpc_answer(server: RunningServer, made, algorithm: str) -> np.ndarray:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        return client.infer("echo", [made], compression_algorithm=algorithm).as_numpy("OUTPUT0")


def grpc_aio_answer(server: RunningServer, made, algorithm: str) -> np.ndarray:
    async def ask() -> np.ndarray:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            return (await client.infer("echo", [made], compression_algorithm=algorithm)).as_numpy("OUTPUT0")

    return asyncio.run(ask())


CLIENTS = [
    (httpclient, http_answer),
    (httpclient, http_aio_answer),
    (grpcclient, grpc_answer),
    (grpcclient, grpc_aio_answer),
]


@pytest.mark.parametrize("elements", [SMALL, LARGE])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("kind", "answer"), CLIENTS, ids=lambda part: getattr(part, "__name__", ""))
def test_every_client_compresses(server: RunningServer, kind, answer, algorithm: str, elements: int) -> None:
    made, array = tensor(kind, elements)
    np.testing.assert_array_equal(answer(server, made, algorithm), array)


@pytest.mark.oracle
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("kind", "answer"), CLIENTS, ids=lambda part: getattr(part, "__name__", ""))
def test_so_it_is_with_triton(judge: RunningServer, kind, answer, algorithm: str) -> None:
    made, array = tensor(kind, SMALL)
    np.testing.assert_array_equal(answer(judge, made, algorithm), array)


def body_of(elements: int) -> bytes:
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, elements], "data": [0] * elements}
    return json.dumps({"inputs": [data]}).encode()


def post(server: RunningServer, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest("POST", "/v2/models/echo/infer", skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(body)), **named}.items():
        connection.putheader(name, value)
    connection.endheaders(body)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, answer


ACCEPTED = [
    ("gzip", "gzip"),
    ("deflate", "deflate"),
    ("identity", None),
    ("", None),
    ("br", None),
    ("gzip;q=0.5, deflate;q=0.8", "deflate"),
    ("gzip;q=0.8, deflate;q=0.5", "gzip"),
    ("identity;q=1, gzip;q=0.5", None),
    ("gzip;q=0", None),
    ("br, gzip", "gzip"),
]


@pytest.mark.parametrize(("accept", "expected"), ACCEPTED)
def test_the_answer_is_compressed_as_the_client_weighs(
    server: RunningServer, accept: str, expected: str | None
) -> None:
    status, headers, answer = post(server, body_of(SMALL), Accept_Encoding=accept)
    assert (status, headers.get("content-encoding")) == (200, expected)
    assert json.loads(UNPACK[expected](answer))["outputs"][0]["data"] == [0] * SMALL


@pytest.mark.oracle
@pytest.mark.parametrize(("accept", "expected"), ACCEPTED)
def test_triton_weighs_alike(judge: RunningServer, accept: str, expected: str | None) -> None:
    status, headers, _ = post(judge, body_of(SMALL), Accept_Encoding=accept)
    assert (status, headers.get("content-encoding")) == (200, expected)


def cut(packed: bytes) -> bytes:
    return packed[:-4]


def damaged(packed: bytes) -> bytes:
    return packed[:12] + bytes(8) + packed[20:]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut, "ends early"),
        (damaged, "cannot be decompressed"),
        (lambda packed: packed + b"more", "goes on after its end"),
        (lambda _: b"", "ends early"),
        (lambda _: body_of(SMALL), "cannot be decompressed"),
    ],
)
def test_bad_bytes_are_told(server: RunningServer, algorithm: str, spoil, words: str) -> None:
    status, _, answer = post(server, spoil(PACK[algorithm](body_of(SMALL))), Content_Encoding=algorithm)
    assert (status, words in json.loads(answer)["error"]) == (400, True), answer


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip"])
def test_unknown_codings_are_refused(server: RunningServer, coding: str) -> None:
    status, headers, answer = post(server, body_of(SMALL), Content_Encoding=coding)
    assert (status, headers["accept-encoding"]) == (501, "gzip, deflate")
    assert "is not served; expected gzip, deflate or identity" in json.loads(answer)["error"]


@pytest.mark.oracle
def test_triton_refuses_unknown_codings_alike(judge: RunningServer) -> None:
    status, headers, _ = post(judge, body_of(SMALL), Content_Encoding="br")
    assert (status, headers["accept-encoding"]) == (501, "gzip, deflate")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bomb_ends_at_the_limit(server: RunningServer, algorithm: str) -> None:
    status, _, answer = post(server, PACK[algorithm](bytes(1 << 28)), Content_Encoding=algorithm)
    assert (status, f"holds over {LIMIT} bytes" in json.loads(answer)["error"]) == (400, True), answer


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_grpc_bomb_ends_at_the_bytes_in_flight(server: RunningServer, compression: grpc.Compression) -> None:
    bomb = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(1 << 28)])
    with grpc.insecure_channel(server.grpc, compression=compression) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(bomb.SerializeToString(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "--max-in-flight-bytes" in caught.value.details()


def test_grpc_replies_are_compressed_as_the_option_says(server: RunningServer) -> None:
    """And only for clients that accept it; the library does not tell, so that bytes are counted."""
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4 * LARGE)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, LARGE])
    plain_only = ("grpc.compression_enabled_algorithms_bitset", 1)
    for options, most in (([], LARGE), ([plain_only], 8 * LARGE)):
        with counting_relay(server.grpc) as (address, counted):
            with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1), *options]) as channel:
                call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
                reply = call(request.SerializeToString(), timeout=60)
            assert service_pb2.ModelInferResponse.FromString(reply).raw_output_contents == [bytes(4 * LARGE)]
            assert most // 100 < sum(counted) < most, "bytes of the reply on the connection"
    assert sum(counted) > 4 * LARGE


@contextmanager
def counting_relay(target: str) -> Iterator[tuple[str, list[int]]]:
    """An address that leads to the target, and what came back from there, in bytes."""
    counted: list[int] = []
    host, port = target.rsplit(":", 1)

    def carry(source: socket.socket, sink: socket.socket, note: Callable[[int], None]) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                note(len(chunk))
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            near = listener.accept()[0]
            far = socket.create_connection((host, int(port)))
            back = threading.Thread(target=carry, args=(far, near, counted.append))
            back.start()
            carry(near, far, lambda _: None)
            back.join()
            near.close()
            far.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", counted
        thread.join()


def test_control_calls_may_be_compressed(server: RunningServer) -> None:
    with grpc.insecure_channel(server.grpc, compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata")
        request = service_pb2.ModelMetadataRequest(name="echo").SerializeToString()
        assert service_pb2.ModelMetadataResponse.FromString(call(request, timeout=60)).name == "echo"
