"""config.pbtxt as people write it."""

from __future__ import annotations

import pytest

from headrace.config.pbtxt import read_config
from headrace.core.errors import ConfigError

FOUNDING_REPORT = """
name: "yolo"
platform: "tensorrt_plan"
max_batch_size: 32
input { name: "images" data_type: TYPE_FP16 dims: 3 dims: -1 dims: -1 }
output { name: "output0" data_type: TYPE_FP16 dims: 84 dims: -1 }
dynamic_batching { preferred_batch_size: 32 }
version_policy: {specific: {versions: 3}}
instance_group { count: 2 kind: KIND_GPU }
"""


def read(tmp_path, text: str):
    path = tmp_path / "config.pbtxt"
    path.write_text(text)
    return read_config(path)


def test_the_founding_reports_spelling(tmp_path) -> None:
    given = read(tmp_path, FOUNDING_REPORT)
    assert list(given.message.dynamic_batching.preferred_batch_size) == [32]
    assert list(given.message.version_policy.specific.versions) == [3]
    assert list(given.message.input[0].dims) == [3, -1, -1]
    assert given.sets_max_batch_size


def test_a_missing_file_is_an_empty_config(tmp_path) -> None:
    given = read_config(tmp_path / "config.pbtxt")
    assert given.message.ByteSize() == 0
    assert given.path is None
    assert not given.sets_max_batch_size


@pytest.mark.parametrize(
    ("text", "sets"), [("max_batch_size: 0", True), ("# max_batch_size: 4\nname: 'm'", False), ("", False)]
)
def test_a_written_0_is_told_from_none(tmp_path, text: str, sets: bool) -> None:
    assert read(tmp_path, text).sets_max_batch_size is sets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'name: "m"\nmax_batchsize: 4',
            "config.pbtxt:2:1: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?",
        ),
        ("input { dim: 3 }", "ModelInput has no field 'dim'; did you mean 'dims'?"),
        ("zzz: 3", "ModelConfig has no field 'zzz'; it has"),
        ("max_batch_size: 'four'", "config.pbtxt:1:17: "),
        ("input { data_type: FP32 }", 'Enum type "inference.DataType" has no value named FP32'),
        ("input {", "config.pbtxt:1:7"),
    ],
)
def test_mistakes_are_told_by_place_and_nearest_name(tmp_path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in caught.value.message


def test_a_file_that_is_no_text(tmp_path) -> None:
    (tmp_path / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "config.pbtxt")
