"""Version policies: which of the version folders are served. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.errors import ConfigError


def choose_versions(policy: Any, present: Sequence[int]) -> list[int]:
    """The versions to serve, ascending.

    Args:
        policy: a `ModelVersionPolicy`; latest 1 when nothing is set.
        present: the version folders.

    Raises:
        ConfigError: when there is none, or a specific one is missing.
    """
    if not present:
        raise ConfigError("there is no version directory, expected one such as '1'")
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return sorted(present)
    if choice == "specific":
        wanted = sorted(set(policy.specific.versions))
        missing = [version for version in wanted if version not in present]
        if missing or not wanted:
            raise ConfigError(f"version_policy wants versions {wanted}, version directories are {sorted(present)}")
        return wanted
    count = policy.latest.num_versions or 1
    return sorted(present)[-count:]
