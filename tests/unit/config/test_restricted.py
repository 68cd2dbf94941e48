"""The options of restricted verbs."""

from __future__ import annotations

import pytest

from headrace.config.options import ServerOptions
from headrace.core.errors import ConfigError


def test_one_row_for_each_category() -> None:
    options = ServerOptions(
        http_restricted_api=("health,metadata:Secret=x=y", "trace:other=z"), grpc_restricted_protocol=("logging:Key=v",)
    )
    secret = [("health", "secret", "x=y"), ("metadata", "secret", "x=y")]
    assert options.restricted_http == [*secret, ("trace", "other", "z")]
    assert options.restricted_grpc == [("logging", "triton-grpc-protocol-key", "v")]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nonsense:a=b", "unknown category 'nonsense'; there is health, metadata"),
        ("health", "expected <category>"),
        ("health:a", "expected <category>"),
        ("health:=b", "expected <category>"),
        ("health:a=", "expected <category>"),
        ("health:a b=c", "expected <category>"),
        ("health,health:a=b", "category 'health' is restricted by two options"),
    ],
)
def test_what_is_wrong_is_said(value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        ServerOptions(http_restricted_api=(value,))
    assert f"--http-restricted-api={value}: " in str(refused.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"grpc_use_ssl": True}, "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key"),
        ({"grpc_use_ssl_mutual": True, "grpc_server_cert": "c", "grpc_server_key": "k"}, "needs --grpc-root-cert"),
        (
            {"grpc_use_ssl": True, "grpc_server_cert": "c", "grpc_server_key": "k", "grpc_address": "unix:/s"},
            "is for ports, and --grpc-address=unix:/s is none",
        ),
    ],
)
def test_tls_needs_its_files(options, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ServerOptions(**options)
