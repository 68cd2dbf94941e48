"""`headrace check`: what is wrong with the models of a repository, without serving them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.config.pbtxt import ConfigRules
from headrace.core.errors import ConfigError
from headrace.memory import cuda
from headrace.observe.logs import Log
from headrace.repository.prepare import Survey, prepare, survey
from headrace.repository.scan import FoundModel, scan


@dataclass
class Finding:
    """What there is to say about a version of a model, or about a model none of whose versions can be told."""

    model: str
    """Empty for what concerns the repositories."""
    version: int | None = None
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Accepted, but not used or perhaps not what was meant."""
    completed: list[str] = field(default_factory=list)
    """Fields of the config that are filled in."""


def check_command(
    models: Annotated[list[Path], typer.Argument(metavar="MODELS", help="Model repositories.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON object.")] = False,
    gpus: Annotated[
        int | None, typer.Option(help="Check for a server with so many GPUs, not for this machine.", min=0, max=64)
    ] = None,
    disable_auto_complete_config: Annotated[
        bool, typer.Option("--disable-auto-complete-config", help="As of serve.")
    ] = False,
    model_config_name: Annotated[str, typer.Option(help="As of serve.", metavar="NAME")] = "",
) -> None:
    """Checks the models of one or more repositories without serving them; exits with 1 when something is wrong.

    Configs are read and completed, model files are opened; no instance is started.
    """
    rules = ConfigRules(auto_complete=not disable_auto_complete_config, name=model_config_name)
    findings = check(models, _gpu_names(gpus), rules)
    ok = not any(finding.problems for finding in findings)
    if as_json:
        print(json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _show(findings)
    if not ok:
        raise typer.Exit(1)


def check(repositories: Sequence[Path], gpus: Sequence[str], rules: ConfigRules) -> list[Finding]:
    """All problems of all models.

    Args:
        repositories: directories of models.
        gpus: names of the GPUs of the server that shall serve them.
        rules: how it reads configs.
    """
    try:
        found = scan(repositories)
    except (ConfigError, OSError) as error:
        return [Finding("", problems=_texts(error))]
    return [finding for model in found for finding in _check_model(model, gpus, rules)]


def _check_model(found: FoundModel, gpus: Sequence[str], rules: ConfigRules) -> list[Finding]:
    try:
        known = survey(found, rules)
    except (ConfigError, OSError) as error:
        return [Finding(found.name, problems=_texts(error))]
    return [_check_version(found, version, known, gpus, rules) for version in known.versions]


def _check_version(found: FoundModel, version: int, known: Survey, gpus: Sequence[str], rules: ConfigRules) -> Finding:
    finding = Finding(found.name, version, remarks=[*known.remarks])
    try:
        prepared = prepare(found, version, known.given, gpus, rules, Log())
    except Exception as error:  # noqa: BLE001 - an engine may raise anything; it is a problem of this model
        finding.problems += _texts(error)
    else:
        finding.remarks += prepared.remarks
        finding.completed += prepared.completed
    return finding


def _texts(error: Exception) -> list[str]:
    return list(error.problems) if isinstance(error, ConfigError) else [str(error) or repr(error)]


def _gpu_names(count: int | None) -> list[str]:
    if count is not None:
        return [f"GPU {index} of another machine" for index in range(count)]
    return [device.name for device in cuda.find_devices()[0]]


def _show(findings: Sequence[Finding]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a log file has no width
    table = Table("model", "version", "state", "what", title="Check", title_justify="left")
    for finding in findings:
        state = f"[red]{len(finding.problems)} wrong[/]" if finding.problems else "[green]good[/]"
        lines = [f"[red]{escape(problem)}[/]" for problem in finding.problems]
        lines += [f"[yellow]{escape(remark)}[/]" for remark in finding.remarks]
        if finding.completed:
            lines.append(f"[dim]filled in: {', '.join(finding.completed)}[/]")
        version = "" if finding.version is None else str(finding.version)
        table.add_row(escape(finding.model), version, state, "\n".join(lines))
    console.print(table if findings else "No models in the repository.")
    wrong = sum(len(finding.problems) for finding in findings)
    console.print(f"{wrong} problem{'s' * (wrong != 1)} in {len({finding.model for finding in findings})} models.")
