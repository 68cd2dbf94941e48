"""The `headrace` command and its subcommands."""

from __future__ import annotations

import typer

from headrace.cli.check import check_command
from headrace.cli.serve import serve_command

app = typer.Typer(
    name="headrace",
    help="An inference server that speaks Triton's protocol.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """An inference server that speaks Triton's protocol."""


app.command("serve")(serve_command())
app.command("check")(check_command)


def main() -> None:
    """Runs the command line."""
    app()
