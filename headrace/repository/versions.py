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
        ConfigError: when there is none to serve.
    """
    if not present:
        raise ConfigError("there is no version directory, expected one such as '1'")
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return sorted(present)
    if choice == "specific":
        chosen = sorted(set(policy.specific.versions) & set(present))
        if not chosen:
            wanted = sorted(set(policy.specific.versions))
            raise ConfigError(f"version_policy wants versions {wanted}, version directories are {sorted(present)}")
        return chosen
    count = policy.latest.num_versions or 1
    return sorted(present)[-count:]


def missing_versions(policy: Any, present: Sequence[int]) -> list[int]:
    """The versions that a specific policy names and that have no folder; the others are served all the same."""
    return sorted(set(policy.specific.versions) - set(present))
