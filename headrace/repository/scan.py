"""Directories into models: what is there, read and not judged."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError, told_together

_VERSION = re.compile(r"[1-9][0-9]*|0")
_MISNAMED = re.compile(r"(?i)(v|version)?[ _-]?[0-9]+([._][0-9]+)*")
_HIGHEST_VERSION = (1 << 63) - 1
"""Versions are signed 64-bit integers in config.pbtxt."""


@dataclass(frozen=True)
class FoundModel:
    """A model's directory."""

    directory: Path

    @property
    def name(self) -> str:
        """The directory's name is the model's; bytes that are no UTF-8, which nobody can ask for, are replaced."""
        return os.fsencode(self.directory.name).decode("utf-8", "replace")

    @property
    def config_path(self) -> Path:
        """Its config.pbtxt, which may not exist."""
        return self.directory / "config.pbtxt"

    def chosen_config(self, name: str) -> Path:
        """`configs/NAME.pbtxt` if there is one, otherwise config.pbtxt."""
        custom = self.directory / "configs" / f"{name}.pbtxt"
        return custom if name and custom.is_file() else self.config_path

    def versions(self) -> list[int]:
        """Version folders: integers without leading zeros, ascending; other folders are ignored."""
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if _is_version(name))

    def misnamed_versions(self) -> list[str]:
        """Folders whose names look like versions and are none, such as 'v1' or '01'."""
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(name for name in names if _MISNAMED.fullmatch(name) and not _is_version(name))

    def files(self, version: int) -> set[str]:
        """Names in a version folder."""
        return {path.name for path in (self.directory / str(version)).iterdir()}


def _is_version(name: str) -> bool:
    return _VERSION.fullmatch(name) is not None and int(name) <= _HIGHEST_VERSION


def scan(repositories: Sequence[Path]) -> list[FoundModel]:
    """The models of all repositories, by name.

    Raises:
        ConfigError: when a repository is no directory, or two have a model of the same name; with all such problems.
    """
    found: dict[str, FoundModel] = {}
    with told_together() as part:
        for repository in repositories:
            with part():
                for model in _models_in(repository):
                    with part():
                        _add(model, found)
    return sorted(found.values(), key=lambda model: model.name)


def _models_in(repository: Path) -> list[FoundModel]:
    if not repository.is_dir():
        raise ConfigError(f"model repository {repository} is not a directory")
    return [
        FoundModel(path) for path in sorted(repository.iterdir()) if path.is_dir() and not path.name.startswith(".")
    ]


def _add(model: FoundModel, found: dict[str, FoundModel]) -> None:
    if model.name in found:
        other = found[model.name].directory
        raise ConfigError(f"model '{model.name}' is in two repositories: {other} and {model.directory}")
    found[model.name] = model
