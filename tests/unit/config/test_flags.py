"""Triton's flags through the command line: served, redirected, without effect, refused, unknown."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.options import takes_server_options
from headrace.config.flags import FLAGS, Fate, Flag
from headrace.config.options import ServerOptions, flag_of


def parse(*arguments: str) -> tuple[ServerOptions | None, list[str], str]:
    """Options, remarks and what was printed, on one line."""
    seen: list[tuple[ServerOptions, list[str]]] = []
    app = typer.Typer()
    app.command()(takes_server_options(lambda options, remarks: seen.append((options, remarks))))
    outcome = CliRunner().invoke(app, list(arguments))
    assert (outcome.exit_code == 0) == bool(seen)
    options, remarks = seen[0] if seen else (None, [])
    return options, remarks, re.sub(r"[│\s]+", " ", outcome.output)


def of(fate: Fate) -> list[Flag]:
    return [flag for flag in FLAGS.values() if flag.fate is fate]


def test_options_of_the_table_exist() -> None:
    options = {row.name for row in fields(ServerOptions)}
    for flag in [*of(Fate.SERVED), *of(Fate.REDIRECTED)]:
        assert flag.option in options, flag.name
    for flag in of(Fate.SERVED):
        assert flag_of(flag.option) == flag.name
    for flag in [*of(Fate.HINT), *of(Fate.REFUSED)]:
        assert flag.text, flag.name
        assert flag.name.removeprefix("--").replace("-", "_") not in options, f"{flag.name} is an option"


@pytest.mark.parametrize("flag", of(Fate.HINT), ids=lambda flag: flag.name)
def test_hints_are_accepted_and_told(flag: Flag) -> None:
    for arguments in ([f"{flag.name}=3"], [flag.name, "3"]):
        options, remarks, _ = parse(*arguments)
        assert options == ServerOptions()
        assert remarks == [f"{flag.name}=3 has no effect: {flag.text}"]


@pytest.mark.parametrize("flag", of(Fate.REFUSED), ids=lambda flag: flag.name)
def test_refused_flags_say_why(flag: Flag) -> None:
    options, _, printed = parse(f"{flag.name}=1")
    assert options is None
    assert flag.name in printed
    assert flag.text in printed


@pytest.mark.parametrize("flag", of(Fate.REFUSED), ids=lambda flag: flag.name)
def test_values_that_ask_for_nothing_are_accepted(flag: Flag) -> None:
    for value in [*flag.unless, *map(str.upper, flag.unless)]:
        assert parse(f"{flag.name}={value}")[:2] == (ServerOptions(), [])


def test_settings_of_backends() -> None:
    rows = ("onnxruntime,default-max-batch-size=3", "tensorflow,version=2")
    options, remarks, _ = parse(*(f"--backend-config={row}" for row in rows))
    assert options == ServerOptions(backend_config=rows)
    assert options.config_rules.backends.max_batch("onnxruntime", 4) == 3
    assert len(remarks) == 1
    assert "--backend-config=tensorflow,version=2 has no effect" in remarks[0]
    options, _, printed = parse("--backend-config=onnxruntime,default-max-batch=3")
    assert options is None
    assert "did you mean 'default-max-batch-size'?" in printed


def test_other_names() -> None:
    expected = ServerOptions(model_repository=(Path("a"), Path("b")), wire_threads=3)
    assert parse("--model-store=a", "--model-repository", "b", "--http-thread-count=3")[0] == expected


@pytest.mark.parametrize("text", ["true", "on", "1", "TRUE", "On", "false", "off", "0", "False", "OFF"])
def test_booleans_as_triton_spells_them(text: str) -> None:
    value = text.lower() in ("true", "on", "1")
    options, _, _ = parse(f"--allow-metrics={text}", "--strict-readiness", text, f"--allow-client-shm={text}")
    assert options == ServerOptions(
        allow_metrics=value, strict_readiness=value, allow_client_shm="true" if value else "false"
    )
    assert parse(f"--log-verbose={text}")[0] == ServerOptions(log_verbose=int(value))


def test_wrong_values_name_what_was_expected() -> None:
    for argument, words in [
        ("--log-verbose=two", "expected an integer from 0 on, true or false, got 'two'"),
        ("--log-verbose=-1", "expected an integer from 0 on, true or false, got '-1'"),
        ("--allow-client-shm=remote", "expected local, true, false, got 'remote'"),
        ("--allow-http=maybe", "expected true, on, 1, false, off or 0, got 'maybe'"),
        ("--model-control-mode=poll", "'poll' is not one of 'none', 'explicit'"),
        ("--http-thread-count=300", "Input should be less than or equal to 256"),
    ]:
        options, _, printed = parse(argument)
        assert options is None
        assert words in printed
        assert argument.partition("=")[0] in printed


@pytest.mark.parametrize("flag", FLAGS, ids=str)
def test_a_mistyped_flag_is_answered_with_the_right_name(flag: str) -> None:
    middle = len(flag) // 2
    wrong = flag[:middle] + flag[middle + 1 :]
    options, _, printed = parse(f"{wrong}=1")
    assert options is None
    assert f"No such option: {wrong}" in printed
    assert flag in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--load-model=m"], "--load-model needs --model-control-mode=explicit"),
        (["--model-control-mode=explicit"], "needs --load-model"),
        (["--model-control-mode=explicit", "--load-model=*", "--load-model=m"], "must be the only --load-model"),
        (["--allow-http=false", "--allow-grpc=off"], "nobody could ask"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other(arguments: list[str], words: str) -> None:
    options, _, printed = parse(*arguments)
    assert options is None
    assert words in printed
