"""`headrace serve`: start, show the models, serve until a signal, stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.options import takes_server_options
from headrace.config.options import ServerOptions
from headrace.core.errors import HeadraceError
from headrace.repository.lifecycle import ServedVersion, State
from headrace.server import Ports, Server

_LOOK_EVERY_S = 0.5


def serve_command() -> Callable[..., None]:
    """The Typer command."""
    return takes_server_options(serve)


def serve(options: ServerOptions, remarks: Sequence[str] = ()) -> None:
    """Serves the models of one or more repositories over HTTP and gRPC.

    Triton's flags are taken, too: docs/flags.md says what becomes of each.
    """
    if not options.model_repository:
        raise typer.BadParameter("no model repository: headrace serve MODELS, or --model-repository DIR")
    stop = _stop_event()
    try:
        server = Server(options)
    except HeadraceError as error:
        raise typer.BadParameter(error.message) from None
    for remark in remarks:
        server.log.event(remark)
    try:
        ports = server.start()
    except HeadraceError as error:
        server.log.error(error.message)
        raise typer.Exit(1) from None
    _show(server.models(), ports, options)
    if options.exit_on_error and (failure := server.first_failure()) is not None:
        server.log.error(f"{failure}; ending, as --exit-on-error=true says")
        server.stop()
        raise typer.Exit(1)
    while not stop.wait(_LOOK_EVERY_S):
        pass  # a kernel may hand the signal to another thread, which does not wake this one
    server.log.event("stopping: new requests are refused, those in flight are finished")
    if not server.stop():
        server.log.error(f"requests were still in flight after {options.exit_timeout_secs} s; exiting without them")
        os._exit(1)  # an engine still computes, and must not find the interpreter's end under it
    server.log.event("stopped")


def _stop_event() -> threading.Event:
    """Set by SIGTERM and SIGINT; a second signal ends the process at once."""
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _show(models: Sequence[ServedVersion], ports: Ports, options: ServerOptions) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a log file has no width; reasons shall stay on one line
    table = Table("model", "version", "state", "reason", title="Models", title_justify="left")
    for served in models:
        colour = "green" if served.state is State.READY else "red"
        table.add_row(served.name, str(served.version), f"[{colour}]{served.state}[/]", served.reason)
    console.print(table if models else "No models in the repository.")
    doors = [
        ("HTTP", options.http_address, ports.http),
        ("gRPC", options.grpc_address, ports.grpc),
        ("metrics", options.metrics_address or options.http_address, ports.metrics),
    ]
    opened = ", ".join(f"{door} on {_place(address, port)}" for door, address, port in doors if port is not None)
    console.print(f"Serving {opened}", highlight=False)


def _place(address: str, port: int) -> str:
    """As a client writes it; a socket of the file system has no port."""
    return f"{address}:{port}" if port else address
