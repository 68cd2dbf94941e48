"""Connections: pipelining, chunked bodies, limits, pauses, idle and dead ones, Unix sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2

from attacks import http2
from attacks.story import exchange
from tests import models
from tests.doors.asking import fp32_input
from tests.doors.clients import region
from tests.servers import RunningServer

LIMIT = 1 << 20
"""Bytes of an HTTP body of the server under test."""


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    return start(repository, f"--http-max-input-size={LIMIT}")


@pytest.fixture(scope="module")
def hasty(start, tmp_path_factory) -> RunningServer:
    """A server of little patience and little room."""
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    models.row_sums(repository, "sum")
    return start(repository, "--client-pause-secs=0.5", "--max-in-flight-bytes=30000000")


@pytest.fixture(scope="module")
def fleeting(start, tmp_path_factory) -> RunningServer:
    """A server that soon closes what is idle or dead."""
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1], max_batch=8)
    return start(repository, "--idle-timeout-secs=0.5", "--grpc-keepalive-time=100", "--grpc-keepalive-timeout=200")


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [-1], max_batch=8)
    return start_judge(repository)


def body_of(number: int = 0, elements: int = 4) -> bytes:
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, elements], "data": [number] * elements}
    return json.dumps({"id": str(number), "inputs": [data]}).encode()


def post_of(body: bytes, *headers: str) -> bytes:
    lines = ["POST /v2/models/echo/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=60)


def pipelined(server: RunningServer) -> list[str]:
    """The ids of the answers to 30 requests that were sent in one go."""
    with connect(server) as connection:
        connection.sendall(b"".join(post_of(body_of(number)) for number in range(30)))
        stream = connection.makefile("rb")
        return [json.loads(read_answer(stream)[1])["id"] for _ in range(30)]


def read_answer(stream) -> tuple[int, bytes]:
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()) != b"":
        name, value = line.split(b":", 1)
        length = int(value) if name.lower() == b"content-length" else length
    return status, stream.read(length)


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    assert pipelined(server) == [str(number) for number in range(30)]


@pytest.mark.oracle
def test_triton_answers_pipelined_requests_in_order(judge: RunningServer) -> None:
    assert pipelined(judge) == [str(number) for number in range(30)]


def chunked(server: RunningServer, chunks: Iterator[bytes]) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", "/v2/models/echo/infer", body=chunks, encode_chunked=True, headers={"te": "trailers"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


CHUNKS = [1, 7, 1000, 1 << 16]


@pytest.mark.parametrize("size", CHUNKS)
def test_bodies_may_come_in_chunks(server: RunningServer, size: int) -> None:
    body = body_of(3, elements=20_000 if size > 1 else 40)
    status, answer = chunked(server, (body[at : at + size] for at in range(0, len(body), size)))
    assert (status, set(answer["outputs"][0]["data"])) == (200, {3})


@pytest.mark.oracle
@pytest.mark.parametrize("size", CHUNKS)
def test_triton_takes_chunks(judge: RunningServer, size: int) -> None:
    test_bodies_may_come_in_chunks(judge, size)


def test_broken_chunks_are_refused(server: RunningServer) -> None:
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in (
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\n{}",
        b"-1\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}xx0\r\n\r\n",
    ):
        assert exchange(server.http, head + body, hang_up=False)[9:12] == b"400"
    both = post_of(body_of(), "Transfer-Encoding: chunked", "Connection: close")
    assert not exchange(server.http, both, hang_up=False).startswith(b"HTTP/1.1 200"), "two lengths were believed"


def test_connections_are_kept_as_their_version_says(server: RunningServer) -> None:
    with connect(server) as connection:
        stream = connection.makefile("rb")
        for number in range(20):
            connection.sendall(post_of(body_of(number)))
            assert json.loads(read_answer(stream)[1])["id"] == str(number)
        connection.sendall(post_of(body_of(), "Connection: close"))
        assert read_answer(stream)[0] == 200
        assert stream.read() == b""
    old = b"GET /v2/health/live HTTP/1.0\r\n\r\n"
    assert exchange(server.http, old, hang_up=False).startswith(b"HTTP/1.0 200")


def test_bodies_over_the_limit_are_refused(server: RunningServer) -> None:
    exact = body_of().ljust(LIMIT)
    with connect(server) as connection:
        connection.sendall(post_of(exact))
        assert read_answer(connection.makefile("rb"))[0] == 200
    with connect(server) as connection:
        connection.sendall(post_of(b"")[:-4].replace(b"Length: 0", b"Length: %d" % (LIMIT + 1)) + b"\r\n\r\n")
        status, answer = read_answer(connection.makefile("rb"))
        assert (status, f"is over the limit of {LIMIT}" in json.loads(answer)["error"]) == (400, True), answer
    status, answer = chunked(server, (exact[at : at + 1000] for at in range(0, LIMIT, 1000)))
    assert status == 200
    with connect(server) as connection:
        connection.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n" % (LIMIT + 1) + bytes(LIMIT + 1))
        status, answer = read_answer(connection.makefile("rb"))
        assert (status, f"over {LIMIT} bytes" in json.loads(answer)["error"]) == (400, True), answer


def test_a_pause_within_a_body_is_an_error(hasty: RunningServer) -> None:
    chunked_head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"
    for start in (post_of(body_of())[:-10], chunked_head):
        answer = exchange(hasty.http, start, hang_up=False)
        assert answer[9:12] == b"400"
        assert b"the request body did not go on for 0.5 s" in answer


def test_a_pause_within_a_message_is_an_error(hasty: RunningServer) -> None:
    with http2.Connection(hasty.grpc) as connection:
        for stream, start in ((1, b""), (3, b"\0\0"), (5, http2.message(bytes(10), 100))):
            connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers()))
            connection.send(http2.frame(http2.DATA, 0, stream, start))
            answer = connection.receive_until(http2.HEADERS)
            assert answer is not None
            assert answer[2] == stream


def test_a_connection_that_says_nothing_is_closed(hasty: RunningServer) -> None:
    for first in (b"", http2.PREFACE[:10]):
        exchange(hasty.grpc, first, hang_up=False)


def large_sum() -> tuple[str, bytes]:
    """A request of a few bytes whose reply weighs 24 MB: sums over an empty axis."""
    request = service_pb2.ModelInferRequest(model_name="sum", raw_input_contents=[b""])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[6_000_000, 0])
    body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [6_000_000, 0], "data": []}]}
    return json.dumps({**body, "parameters": {"binary_data_output": True}}), request.SerializeToString()


def until_overloaded(server: RunningServer, overloaded: bool) -> None:
    """Returns when a request of 8 MB finds room, or finds none; the test's timeout ends it otherwise."""
    array = np.zeros((1, 2_000_000), np.float32)
    with grpcclient.InferenceServerClient(server.grpc) as client:
        while True:
            try:
                client.infer("echo", [fp32_input(array)])
            except grpcclient.InferenceServerException as error:
                assert "overloaded" in str(error)  # noqa: PT017
                if overloaded:
                    return
            else:
                if not overloaded:
                    return


def test_replies_that_nobody_reads_are_booked_and_then_given_up(hasty: RunningServer) -> None:
    json_body, message = large_sum()
    with connect(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(post_of(json_body.encode()).replace(b"models/echo", b"models/sum"))
        until_overloaded(hasty, True)
        until_overloaded(hasty, False)
    with http2.Connection(hasty.grpc, {http2.INITIAL_WINDOW_SIZE: 0}) as connection:
        connection.send(http2.call(1, message))
        until_overloaded(hasty, True)
        reset = connection.receive_until(http2.RST_STREAM)
        assert reset is not None
        until_overloaded(hasty, False)


def test_idle_connections_are_closed_and_clients_do_not_notice(fleeting: RunningServer) -> None:
    with (
        grpcclient.InferenceServerClient(fleeting.grpc) as over_grpc,
        httpclient.InferenceServerClient(fleeting.http) as over_http,
    ):
        array = np.ones((1, 4), np.float32)
        tensor = httpclient.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(array)
        for _ in range(3):
            assert (over_grpc.infer("echo", [fp32_input(array)]).as_numpy("OUTPUT0") == array).all()
            assert (over_http.infer("echo", [tensor]).as_numpy("OUTPUT0") == array).all()
            assert exchange(fleeting.http, b"", hang_up=False) == b"", "closed without a word"
            with Pinged(fleeting.grpc) as idle:
                assert idle.ended() == "goodbye"


class Pinged(http2.Connection):
    """A connection that answers pings."""

    def ended(self) -> str:
        """How the server ended it: with a goodbye, or just so."""
        how = "dropped"
        while (got := self.receive()) is not None:
            kind, flags, _, payload = got
            if kind == http2.PING and not flags & http2.ACK:
                self.send(http2.frame(http2.PING, http2.ACK, 0, payload))
            if kind == http2.GOAWAY:
                how = "goodbye"
        return how


def test_pings_are_answered_and_dead_peers_are_dropped(fleeting: RunningServer) -> None:
    with http2.Connection(fleeting.grpc) as connection:
        connection.send(http2.frame(http2.PING, 0, 0, b"12345678"))
        while (got := connection.receive_until(http2.PING)) is not None:
            assert got[1] == 0 or got[3] == b"12345678"
            if got[1]:
                break
        assert got is not None, "the ping was not answered"
        while connection.receive() is not None:
            pass  # the server's own pings stay unanswered, and it closes


def test_tritonclients_own_pings_are_welcome(server: RunningServer) -> None:
    often = grpcclient.KeepAliveOptions(keepalive_time_ms=10, keepalive_permit_without_calls=True)
    with grpcclient.InferenceServerClient(server.grpc, keepalive_options=often) as client:
        array = np.ones((1, 4), np.float32)
        for _ in range(200):
            assert (client.infer("echo", [fp32_input(array)]).as_numpy("OUTPUT0") == array).all()


@pytest.mark.parametrize("slashes", ["", "//"])
def test_grpc_over_a_unix_socket(start, tmp_path, slashes: str) -> None:
    models.identity(tmp_path / "models", "echo", "FP32", [-1], max_batch=8)
    path = tmp_path / "grpc.sock"
    address = f"unix:{slashes}{path}"
    first = start(tmp_path / "models", f"--grpc-address={address}")
    ask_over(address)
    with pytest.raises(RuntimeError, match=r"cannot listen on unix:\S+ for grpc: Address already in use"):
        start(tmp_path / "models", f"--grpc-address={address}")
    ask_over(address)
    first.process.kill()
    first.process.wait()
    assert path.exists(), "killed, it leaves its socket"
    # What the other server left behind is replaced.
    second = start(tmp_path / "models", f"--grpc-address={address}")
    ask_over(address)
    assert second.stop() == 0
    assert not path.exists()


def ask_over(address: str) -> None:
    """Tensors in the message, and in a region: the peer is on this host."""
    with grpcclient.InferenceServerClient(address) as client:
        array = np.ones((1, 4), np.float32)
        assert (client.infer("echo", [fp32_input(array)]).as_numpy("OUTPUT0") == array).all()
        with region(client, 64) as (name, _):
            tensor = grpcclient.InferInput("INPUT0", [1, 4], "FP32")
            tensor.set_shared_memory(name, 16)
            assert client.infer("echo", [tensor]).as_numpy("OUTPUT0").shape == (1, 4)


def test_messages_of_hundreds_of_megabytes_pass(server: RunningServer) -> None:
    elements = 75_000_000
    request = service_pb2.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(4 * elements)])
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, elements])
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, unlimited) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        reply = call(request.SerializeToString(), timeout=100)
    assert len(reply) > 4 * elements


def test_calls_of_many_threads_share_a_connection(server: RunningServer) -> None:
    wrong: list[object] = []
    with grpcclient.InferenceServerClient(server.grpc) as client:

        def work(number: int) -> None:
            array = np.full((1, 50_000), number, np.float32)
            for _ in range(10):
                answer = client.infer("echo", [fp32_input(array)]).as_numpy("OUTPUT0")
                if not (answer == array).all():
                    wrong.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
