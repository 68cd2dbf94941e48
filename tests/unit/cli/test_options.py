"""The command line is made from the options table."""

from __future__ import annotations

from pathlib import Path

import typer
from typer.testing import CliRunner

from headrace.cli.options import takes_server_options
from headrace.config.options import ServerOptions


def parse(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, ServerOptions | None]:
    seen: list[ServerOptions] = []
    app = typer.Typer()
    app.command()(takes_server_options(lambda options, _: seen.append(options)))
    outcome = CliRunner().invoke(app, list(arguments), env=environment)
    return outcome.exit_code, outcome.output, seen[0] if seen else None


def test_tritons_spelling() -> None:
    _, _, options = parse(
        "a", "--model-repository", "b", "--model-repository=c", "--http-port", "1", "--strict-readiness=off"
    )
    assert options == ServerOptions(
        model_repository=(Path("a"), Path("b"), Path("c")), http_port=1, strict_readiness=False
    )


def test_a_flag_takes_no_value() -> None:
    assert parse("--disable-auto-complete-config", "a")[2] == ServerOptions(
        model_repository=(Path("a"),), disable_auto_complete_config=True
    )
    environment = {"HEADRACE_DISABLE_AUTO_COMPLETE_CONFIG": "1"}
    assert parse(environment=environment)[2] == ServerOptions(disable_auto_complete_config=True)


def test_defaults_and_environment() -> None:
    assert parse()[2] == ServerOptions()
    environment = {"HEADRACE_GRPC_PORT": "7", "HEADRACE_STRICT_READINESS": "false"}
    assert parse(environment=environment)[2] == ServerOptions(grpc_port=7, strict_readiness=False)


def test_wrong_values_are_told() -> None:
    for argument, words in [
        ("--grpc-port=70000", "65535"),
        ("--strict-readiness=maybe", "expected true, on, 1, false, off or 0"),
        ("--allow-client-shm=yes", "local"),
        ("--grpc-prot=1", "No such option"),
    ]:
        code, output, options = parse(argument)
        assert (code, options) == (2, None)
        assert words in output


def test_every_option_is_described() -> None:
    for flag, _, text in ServerOptions().describe():
        assert text.endswith("."), flag
