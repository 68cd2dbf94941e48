"""Directories into models: what is there, read and not judged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ConfigError

_VERSION = re.compile(r"[1-9][0-9]*|0")


@dataclass(frozen=True)
class FoundModel:
    """A model's directory."""

    directory: Path

    @property
    def name(self) -> str:
        """The directory's name is the model's."""
        return self.directory.name

    @property
    def config_path(self) -> Path:
        """Its config.pbtxt, which may not exist."""
        return self.directory / "config.pbtxt"

    def versions(self) -> list[int]:
        """Version folders: integers without leading zeros, ascending; other folders are ignored."""
        names = [path.name for path in self.directory.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if _VERSION.fullmatch(name))

    def files(self, version: int) -> set[str]:
        """Names in a version folder."""
        return {path.name for path in (self.directory / str(version)).iterdir()}


def scan(repositories: Sequence[Path]) -> list[FoundModel]:
    """The models of all repositories, by name.

    Raises:
        ConfigError: when a repository is no directory, or two have a model of the same name.
    """
    found: dict[str, FoundModel] = {}
    for repository in repositories:
        if not repository.is_dir():
            raise ConfigError(f"model repository {repository} is not a directory")
        for path in sorted(repository.iterdir()):
            if not path.is_dir() or path.name.startswith("."):
                continue
            if path.name in found:
                raise ConfigError(
                    f"model '{path.name}' is in two repositories: {found[path.name].directory} and {path}"
                )
            found[path.name] = FoundModel(path)
    return sorted(found.values(), key=lambda model: model.name)
