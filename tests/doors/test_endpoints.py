"""Every call of the table: served where it says so, refused by name where not, and known to the real Triton."""

from __future__ import annotations

import http.client
import itertools
import re

import grpc
import pytest

from headrace.control.endpoints import ENDPOINTS, Endpoint
from headrace.core.messages import RPCS
from tests import models
from tests.servers import RunningServer


@pytest.fixture(scope="module")
def server(start, tmp_path_factory) -> RunningServer:
    models.identity(repository := tmp_path_factory.mktemp("models"), "echo", "FP32", [-1])
    return start(repository)


@pytest.fixture(scope="module")
def judge(start_judge, tmp_path_factory) -> RunningServer:
    models.oracle_identity(repository := tmp_path_factory.mktemp("oracle_models"), "echo", "FP32", [-1])
    return start_judge(repository)


def variants(template: str) -> list[tuple[str, str]]:
    """Methods and paths, with and without what may be missing."""
    method, path = template.split()
    parts = re.split(r"(\[.*?\])", path)
    chosen = itertools.product(*([part[1:-1], ""] if part.startswith("[") else [part] for part in parts))
    names = {"M": "echo", "V": "1", "R": "nothing"}
    return [(method, "/".join(names.get(word, word) for word in "".join(parts).split("/"))) for parts in chosen]


def ask(server: RunningServer, method: str, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    connection.request(method, path, b"{}" if method == "POST" else None)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def paths(endpoints: list[Endpoint]) -> list[object]:
    return [
        pytest.param(endpoint, method, path, id=f"{method} {path}")
        for endpoint in endpoints
        for template in endpoint.paths
        for method, path in variants(template)
    ]


@pytest.mark.parametrize(("endpoint", "method", "path"), paths(ENDPOINTS))
def test_a_path_is_served_or_refused_by_name(server: RunningServer, endpoint: Endpoint, method: str, path: str) -> None:
    status, text = ask(server, method, path)
    if endpoint.is_served():
        assert status not in (405, 501), text
        assert "Not Found" not in text
    else:
        assert (status, endpoint.verb in text) == (501, True)


@pytest.mark.oracle
@pytest.mark.parametrize(("endpoint", "method", "path"), paths(ENDPOINTS))
def test_a_path_is_tritons(judge: RunningServer, endpoint: Endpoint, method: str, path: str) -> None:  # noqa: ARG001
    status, text = ask(judge, method, path)
    assert status != 405, text
    assert "Not Found" not in text


@pytest.mark.parametrize("endpoint", [row for row in ENDPOINTS if row.over_grpc], ids=lambda row: row.verb)
def test_an_rpc_is_served_or_refused_by_name(server: RunningServer, endpoint: Endpoint) -> None:
    request, response = RPCS[endpoint.verb]
    streams = endpoint.verb == "ModelStreamInfer"
    with grpc.insecure_channel(server.grpc) as channel:
        kind = channel.stream_stream if streams else channel.unary_unary
        call = kind(
            f"/inference.GRPCInferenceService/{endpoint.verb}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            answer = call(iter([request()]) if streams else request(), timeout=30)
            if streams:
                list(answer)
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.UNIMPLEMENTED and endpoint.verb in error.details()
        else:
            refused = False
    assert refused != endpoint.is_served()
