"""The health service of gRPC: what the real Triton answers, and what a probe needs beyond that."""

from __future__ import annotations

import grpc
import pytest

from tests import models
from tests.servers import RunningServer

SERVING, NOT_SERVING, SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
KNOWN = ("", "inference.GRPCInferenceService")


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    models.identity(repository, "echo", "FP32", [-1])
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("oracle_models")
    models.oracle_identity(repository, "echo", "FP32", [-1])
    return start_judge(repository)


def request(service: str) -> bytes:
    """A HealthCheckRequest."""
    return b"\x0a" + bytes([len(service)]) + service.encode() if service else b""


def check(server: RunningServer, message: bytes, **options: object) -> bytes:
    with grpc.insecure_channel(server.grpc, **options) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(message, timeout=30)


@pytest.mark.parametrize("service", KNOWN)
def test_a_ready_server_serves(server: RunningServer, service: str) -> None:
    assert check(server, request(service)) == SERVING
    assert check(server, request(service), compression=grpc.Compression.Gzip) == SERVING


@pytest.mark.oracle
@pytest.mark.parametrize("service", KNOWN)
def test_triton_serves_alike(judge: RunningServer, service: str) -> None:
    assert check(judge, request(service)) == SERVING


def test_a_server_that_is_not_ready_does_not_serve(start, tmp_path) -> None:
    models.write_config(tmp_path, "broken", 'backend: "nothing"')
    server = start(tmp_path)
    assert check(server, b"") == NOT_SERVING
    with grpc.insecure_channel(server.grpc) as channel:
        statuses = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
        assert next(statuses) == NOT_SERVING
        statuses.cancel()


def test_unknown_services_and_verbs_are_told(server: RunningServer) -> None:
    for message, code, words in [
        (request("nothing"), "NOT_FOUND", "unknown service 'nothing'; expected"),
        (b"\xff", "INVALID_ARGUMENT", "failed to parse HealthCheckRequest"),
        (request("n") * 2000, "INVALID_ARGUMENT", "over the limit of 4096"),
    ]:
        with pytest.raises(grpc.RpcError) as caught:
            check(server, message)
        assert (caught.value.code().name, words in caught.value.details()) == (code, True), caught.value
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_watch_tells_every_change_and_the_end(start, tmp_path) -> None:
    models.identity(tmp_path, "echo", "FP32", [-1])
    server = start(tmp_path)
    with grpc.insecure_channel(server.grpc) as channel:
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        known, unknown = watch(request(KNOWN[1]), timeout=60), watch(request("nothing"), timeout=60)
        assert next(known) == SERVING
        assert next(unknown) == SERVICE_UNKNOWN
        assert server.stop() == 0
        with pytest.raises(grpc.RpcError) as caught:
            assert set(known) <= {NOT_SERVING}
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "Server is stopping"
