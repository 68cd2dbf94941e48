"""The options table as parameters of a Typer command, and Triton's other flags beside it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from headrace.config.flags import Flag, judge, other_flags, other_names
from headrace.config.options import ServerOptions, flag_of
from headrace.core.errors import ConfigError

Run = Callable[[ServerOptions, list[str]], None]
"""Takes the options and what is to be logged about them."""
_SWITCHES = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
"""Booleans as Triton spells them."""


def takes_server_options(run: Run) -> Callable[..., None]:
    """A Typer command with one option for each field of `ServerOptions`, the repositories as arguments too, and
    every flag of Triton.
    """
    others = {_parameter_name(flag): flag.name for flag in other_flags()}
    repeatable = [row.name for row in fields(ServerOptions) if row.default == ()]

    def command(**values: Any) -> None:
        given = {others[name]: values.pop(name) or [] for name in others}
        values["model_repository"] = (*(values.pop("models") or []), *(values["model_repository"] or []))
        for name in repeatable:
            values[name] = tuple(values[name] or ())
        try:
            remarks = judge(given)
            options = ServerOptions(**values)
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
        run(options, [*remarks, *options.backends.remarks])

    command.__doc__ = run.__doc__
    argument = Annotated[list[Path] | None, typer.Argument(metavar="MODELS", help="Model repositories.")]
    parameters = [
        inspect.Parameter("models", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)
    ]
    hints = get_type_hints(ServerOptions)
    parameters += [_option(row, hints[row.name]) for row in fields(ServerOptions)]
    parameters += [_other(flag) for flag in other_flags()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _option(row: Field[Any], hint: Any) -> inspect.Parameter:
    settings: dict[str, Any] = dict(row.metadata)
    repeatable = get_origin(hint) is tuple
    switch = settings.pop("switch", False)
    if hint is bool and not settings.pop("flag", False):
        hint = str
        settings.update(parser=_switch, metavar="true|false")
    elif hint is int and switch:
        settings.update(parser=_level, metavar="INTEGER")
    elif switch:
        settings.update(parser=_choice_or_switch(hint), metavar="|".join(hint.__args__))
        hint = str
    if repeatable:
        hint = list[hint.__args__[0]] | None
    option = typer.Option(
        flag_of(row.name),
        *other_names(row.name),
        envvar=f"HEADRACE_{row.name.upper()}",
        show_default=not repeatable,
        **settings,
    )
    return _keyword(row.name, hint, option, None if repeatable else row.default)


def _other(flag: Flag) -> inspect.Parameter:
    """A flag of Triton that is no option: `judge` says what becomes of it."""
    return _keyword(_parameter_name(flag), list[str] | None, typer.Option(flag.name, hidden=True), None)


def _parameter_name(flag: Flag) -> str:
    return "triton_" + flag.name.strip("-").replace("-", "_")


def _switch(text: str) -> bool:
    if str(text).lower() not in _SWITCHES:
        raise typer.BadParameter(f"expected true, on, 1, false, off or 0, got '{text}'")
    return _SWITCHES[str(text).lower()]


def _level(text: str) -> int:
    """An integer, or a boolean for 1 and 0."""
    if str(text).isascii() and str(text).isdigit():
        return int(text)
    if str(text).lower() not in _SWITCHES:
        raise typer.BadParameter(f"expected an integer from 0 on, true or false, got '{text}'")
    return int(_SWITCHES[str(text).lower()])


def _choice_or_switch(hint: Any) -> Callable[[str], str]:
    """One of the words, or any spelling of the booleans among them."""
    words: Mapping[str, str] = {word: word for word in hint.__args__} | {
        spelling: str(value).lower() for spelling, value in _SWITCHES.items()
    }

    def parse(text: str) -> str:
        if str(text).lower() not in words:
            raise typer.BadParameter(f"expected {', '.join(hint.__args__)}, got '{text}'")
        return words[str(text).lower()]

    return parse


def _keyword(name: str, hint: Any, option: Any, default: Any) -> inspect.Parameter:
    annotation: Any = operator.getitem(Annotated, (hint, option))  # the subscript, of values known at run time only
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
