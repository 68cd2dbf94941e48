"""Verbs that need a header, here and at the real Triton."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests import models
from tests.servers import RunningServer

OPTIONS = (
    "--http-restricted-api=model-repository,metadata:secret=x",
    "--http-restricted-api=statistics:Other=y",
    "--grpc-restricted-protocol=model-repository,metadata:secret=x",
    "--grpc-restricted-protocol=inference,shared-memory:other=y",
)
OPEN, SHUT = {"triton-grpc-protocol-secret": "x"}, {"triton-grpc-protocol-secret": "z"}


@pytest.fixture(scope="module", params=["headrace", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request, tmp_path_factory) -> RunningServer:
    repository = tmp_path_factory.mktemp("models")
    if request.param == "oracle":
        models.oracle_identity(repository, "echo", "FP32", [-1], max_batch=4)
        return request.getfixturevalue("start_judge")(repository, *OPTIONS)
    models.identity(repository, "echo", "FP32", [-1], max_batch=4)
    return request.getfixturevalue("start")(repository, *OPTIONS)


def asked(server: RunningServer, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    body = b"" if method == "POST" else None
    request = urllib.request.Request(f"http://{server.http}{path}", method=method, headers=headers, data=body)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("method", "path", "header", "value"),
    [
        ("GET", "/v2", "secret", "x"),
        ("GET", "/v2/models/echo", "secret", "x"),
        ("POST", "/v2/repository/index", "secret", "x"),
        ("GET", "/v2/models/stats", "other", "y"),
    ],
)
def test_http_needs_the_header(server, method: str, path: str, header: str, value: str) -> None:
    for wrong in ({}, {header: "z"}, {header: ""}, {"wrong": value}):
        status, text = asked(server, method, path, wrong)
        assert status == 403
        assert "This API is restricted, expecting header '" in text
        assert header in text.lower()
    assert asked(server, method, path, {header: value})[0] == 200


def test_http_keeps_the_rest_open(server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/echo/ready", "/v2/models/echo/config"):
        assert asked(server, "GET", path, {})[0] == 200


def test_grpc_needs_the_header(server) -> None:
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for verb in (client.get_server_metadata, client.get_model_repository_index):
            for wrong in (None, SHUT):
                with pytest.raises(InferenceServerException, match="This protocol is restricted") as refused:
                    verb(headers=wrong)
                assert refused.value.status() == "StatusCode.UNAVAILABLE"
            verb(headers=OPEN)
        with pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-other'"):
            client.get_system_shared_memory_status(headers=OPEN)
        assert client.is_server_ready()
        assert client.get_model_config("echo").config.name == "echo"
