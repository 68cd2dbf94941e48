"""The options table as parameters of a Typer command."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from headrace.config.options import ServerOptions


def takes_server_options(run: Callable[[ServerOptions], None]) -> Callable[..., None]:
    """A Typer command with one option for each field of `ServerOptions`, and the repositories as arguments
    too.
    """

    def command(**values: Any) -> None:
        models = values.pop("models") or []
        repositories = (*models, *(values.pop("model_repository") or []))
        run(ServerOptions(model_repository=repositories, **values))

    command.__doc__ = run.__doc__
    argument = Annotated[list[Path] | None, typer.Argument(metavar="MODELS", help="Model repositories.")]
    parameters = [
        inspect.Parameter("models", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=argument)
    ]
    hints: dict[str, Any] = {**get_type_hints(ServerOptions), "model_repository": list[Path] | None}
    for row in fields(ServerOptions):
        repeatable = row.name == "model_repository"
        settings = dict(row.metadata)
        if hints[row.name] is bool and not settings.pop("flag", False):
            hints[row.name] = str
            settings.update(parser=_switch, metavar="true|false")
        option = typer.Option(
            f"--{row.name.replace('_', '-')}",
            envvar=f"HEADRACE_{row.name.upper()}",
            show_default=not repeatable,
            **settings,
        )
        parameters.append(_keyword(row.name, hints[row.name], option, None if repeatable else row.default))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _switch(text: str) -> bool:
    """A boolean as Triton spells it."""
    switches = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
    if str(text).lower() not in switches:
        raise typer.BadParameter(f"expected true, on, 1, false, off or 0, got '{text}'")
    return switches[str(text).lower()]


def _keyword(name: str, hint: Any, option: Any, default: Any) -> inspect.Parameter:
    annotation: Any = operator.getitem(Annotated, (hint, option))  # the subscript, of values known at run time only
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
