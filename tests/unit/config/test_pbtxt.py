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
        ("input { shape: 3 }", "config.pbtxt:1:9: ModelInput has no field 'shape'; did you mean 'dims'?"),
        ("inputs { }", "did you mean 'input'?"),
        ("preferred_batch_size: 4", "it is a field of dynamic_batching and sequence_batching.oldest"),
        ("max_batch_size: 'four'", "config.pbtxt:1:17: max_batch_size: expected an integer, got 'four'"),
        ("max_batch_size: ${rows}", "got ${rows}, a placeholder that nobody filled in"),
        ("max_batch_size: 3000000000", "expected an integer within -2147483648 and 2147483647, got 3000000000"),
        ("input { dims: [1, -1, x] }", "config.pbtxt:1:23: input.dims: expected an integer, got x"),
        ("input { data_type: FP32 }", "got FP32; did you mean TYPE_FP32?"),
        ("input { data_type: TYPE_FLOAT32 }", "config.pbtxt:1:20: input.data_type: expected one of TYPE_INVALID,"),
        ("input { data_type: TYPE_FLOAT32 }", "got TYPE_FLOAT32; did you mean TYPE_FP32?"),
        ('input { data_type: "TYPE_FP32" }', 'got "TYPE_FP32"; did you mean TYPE_FP32?'),
        ("input {\n data_type: 77 }", "config.pbtxt:2:13: input.data_type: expected one of TYPE_INVALID,"),
        ("input {\n data_type: 99999999999 }", "config.pbtxt:2:13: input.data_type: expected one of TYPE_INVALID,"),
        ("name: 'm' input { data_type: 0x" + "f" * 4000 + " }", "config.pbtxt:1:30: input.data_type: expected one of"),
        ("instance_group { kind: gpu }", "got gpu; did you mean KIND_GPU?"),
        ("name: yolo", "name: expected a string in quotes, got yolo"),
        ("name: 'a'\nname: 'b'", "config.pbtxt:2:7: name is given twice"),
        (
            "dynamic_batching {} ensemble_scheduling {}",
            "ensemble_scheduling is given beside another of dynamic_batching",
        ),
        ("dynamic_batching { preserve_ordering: yes }", "expected true or false, got yes"),
        ("input: 3", "input: expected { … }, got 3"),
        ('parameters { "a": "b" }', 'config.pbtxt:1:14: parameters: expected { key: … value: … }, got "a"'),
        ("output { dims: 1 }\ninput {\n dims: 3", "the text ends, and input of line 2 is not closed"),
        ('name: "yolo', "config.pbtxt:1:7: String missing ending quote"),
        ("input {", "config.pbtxt:1:7"),
    ],
)
def test_mistakes_are_told_by_place_and_nearest_name(tmp_path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert words in caught.value.message


def test_all_mistakes_are_told_at_once(tmp_path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(
            tmp_path,
            """max_batch_size: x  # the first
            input [ { dims: [a, 3, b] }, { dimz { c: [3] } data_type: FP32 } ]
            name: 5, platform: "onnxruntime_onnx"
            instance_group { kind: GPU count: "2" }""",
        )
    places = [problem.split("config.pbtxt:")[1].split(": ")[:2] for problem in caught.value.problems]
    assert places == [
        ["1:17", "max_batch_size"],
        ["2:30", "input.dims"],
        ["2:36", "input.dims"],
        ["2:44", "ModelInput has no field 'dimz'; did you mean 'dims'?"],
        ["2:71", "input.data_type"],
        ["3:19", "name"],
        ["4:36", "instance_group.kind"],
        ["4:47", "instance_group.count"],
    ]


def test_a_byte_order_mark_is_no_mistake(tmp_path) -> None:
    (tmp_path / "config.pbtxt").write_bytes(b"\xef\xbb\xbfname: 'm'")
    assert read_config(tmp_path / "config.pbtxt").message.name == "m"


@pytest.mark.parametrize("number", ["0xb", "11"])
def test_numbers_of_enums_are_read_as_protobuf_reads_them(tmp_path, number: str) -> None:
    message = read(tmp_path, f"input {{ data_type: {number} }}").message
    assert message.input[0].data_type == 11


@pytest.mark.parametrize("text", ["name: 'max_batch_size: 4'", "parameters { key: 'max_batch_size:' }"])
def test_a_name_in_a_string_is_no_field(tmp_path, text: str) -> None:
    assert not read(tmp_path, text).sets_max_batch_size


def test_a_hash_in_a_string_is_no_comment(tmp_path) -> None:
    assert read(tmp_path, "name: '#' max_batch_size: 0").sets_max_batch_size


def test_a_file_that_is_no_text(tmp_path) -> None:
    (tmp_path / "config.pbtxt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "config.pbtxt")
