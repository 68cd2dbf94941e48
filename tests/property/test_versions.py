"""Version policies, whatever folders there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text
from headrace.repository.versions import choose_versions, missing_versions

FOLDERS = st.lists(st.integers(1, 99), unique=True, min_size=1)


def policy(text: str):
    config = ModelConfig()
    parse_text(f"version_policy: {{ {text} }}", config)
    return config.version_policy


@given(FOLDERS, st.integers(1, 9))
def test_latest_takes_the_highest(folders: list[int], count: int) -> None:
    assert choose_versions(policy(f"latest {{ num_versions: {count} }}"), folders) == sorted(folders)[-count:]


@given(FOLDERS)
def test_all_and_the_default(folders: list[int]) -> None:
    assert choose_versions(policy("all {}"), folders) == sorted(folders)
    assert choose_versions(policy(""), folders) == [max(folders)]


@given(FOLDERS, st.lists(st.integers(1, 99), unique=True, min_size=1, max_size=4))
def test_specific_takes_those_that_are_there_and_the_rest_is_told(folders: list[int], wanted: list[int]) -> None:
    specific = policy(f"specific: {{ versions: {wanted} }}")
    there = sorted(set(wanted) & set(folders))
    assert missing_versions(specific, folders) == sorted(set(wanted) - set(folders))
    if there:
        assert choose_versions(specific, folders) == there
    else:
        with pytest.raises(ConfigError, match="version directories are"):
            choose_versions(specific, folders)


@given(FOLDERS, st.sampled_from(["", "all {}", "latest { num_versions: 3 }"]))
def test_other_policies_miss_nothing(folders: list[int], text: str) -> None:
    assert missing_versions(policy(text), folders) == []


def test_no_folder_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no version directory"):
        choose_versions(policy(""), [])
