"""Files that are refused before PyTorch is asked."""

from __future__ import annotations

import zipfile

import pytest

from headrace.backend.torch_programs import Layout, open_program
from headrace.core.errors import ConfigError


def test_a_package_is_refused_by_name(tmp_path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/aotinductor/model/wrapper.so", b"")
    with pytest.raises(ConfigError, match="a package that AOTInductor compiled, which is not served"):
        open_program(None, path, "cpu", Layout(half=False, channels_last=False))


def test_a_file_that_is_none_is_named(tmp_path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"model\.pt2: PyTorch cannot load it for cpu"):
        open_program(None, path, "cpu", Layout(half=False, channels_last=False))
