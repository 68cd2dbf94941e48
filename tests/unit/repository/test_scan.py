"""Directories into models."""

from __future__ import annotations

import pytest

from headrace.core.errors import ConfigError
from headrace.repository.scan import scan


def test_models_versions_and_files(tmp_path) -> None:
    for folder in ("b/1", "b/10", "b/2", "b/02", "b/configs", "a/3", ".git/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README").write_text("")
    (tmp_path / "b" / "10" / "model.onnx").write_text("")
    first, second = scan([tmp_path])
    assert (first.name, second.name) == ("a", "b")
    assert second.versions() == [1, 2, 10]
    assert second.files(10) == {"model.onnx"}
    assert second.config_path == tmp_path / "b" / "config.pbtxt"


def test_two_repositories(tmp_path) -> None:
    (tmp_path / "x" / "m" / "1").mkdir(parents=True)
    (tmp_path / "y" / "n" / "1").mkdir(parents=True)
    assert [model.name for model in scan([tmp_path / "x", tmp_path / "y"])] == ["m", "n"]
    (tmp_path / "y" / "m" / "1").mkdir(parents=True)
    with pytest.raises(ConfigError, match="model 'm' is in two repositories"):
        scan([tmp_path / "x", tmp_path / "y"])
    with pytest.raises(ConfigError, match="is not a directory"):
        scan([tmp_path / "z"])
