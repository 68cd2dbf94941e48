"""What a config leaves out, and what contradicts the model file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.config.complete import check_name, complete_backend, complete_defaults, complete_from_signature
from headrace.config.model import ModelSignature, model_spec
from headrace.config.pbtxt import GivenConfig
from headrace.config.validate import validate
from headrace.core.dtype import DTYPES
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text
from headrace.core.tensor import TensorSpec

FP32 = DTYPES["FP32"]
BATCHING = ModelSignature(
    (TensorSpec("x", FP32, (-1, 3, -1)),), (TensorSpec("y", FP32, (-1, 8)), TensorSpec("z", FP32, (-1,)))
)
FIXED = ModelSignature((TensorSpec("x", FP32, (1, 3)),), (TensorSpec("y", FP32, (1, 8)),))


def given(text: str = "") -> GivenConfig:
    message = ModelConfig()
    parse_text(text, message)
    return GivenConfig(message, None, "max_batch_size" in text)


def complete(text: str, signature: ModelSignature):
    config = given(text)
    check_name(config, "m")
    message = complete_backend(config, "m", {"model.onnx"})
    complete_from_signature(message, signature, config.sets_max_batch_size)
    complete_defaults(message)
    return message


def test_everything_comes_from_the_file() -> None:
    spec = model_spec(complete("", BATCHING))
    assert (spec.name, spec.backend, spec.max_batch_size) == ("m", "onnxruntime", 4)
    assert spec.inputs == (TensorSpec("x", FP32, (3, -1)),)
    assert spec.outputs == (TensorSpec("y", FP32, (8,)), TensorSpec("z", FP32, ()))
    assert spec.batching is not None
    assert (spec.batching.preferred, spec.batching.delay_us) == ((4,), 0)
    assert spec.message.platform == "onnxruntime_onnx"
    assert spec.message.default_model_filename == "model.onnx"
    assert spec.message.version_policy.latest.num_versions == 1
    assert [(group.name, group.count) for group in spec.message.instance_group] == [("m", 2)]


def test_a_model_that_cannot_batch() -> None:
    spec = model_spec(complete("", FIXED))
    assert spec.max_batch_size == 0
    assert spec.batching is None
    assert spec.inputs[0].dims == (1, 3)


def test_given_values_stay() -> None:
    spec = model_spec(complete('max_batch_size: 0 instance_group { name: "g" count: 3 }', BATCHING))
    assert spec.max_batch_size == 0
    assert spec.inputs[0].dims == (-1, 3, -1)
    assert [(group.name, group.count) for group in spec.message.instance_group] == [("g", 3)]
    assert model_spec(complete("max_batch_size: 16", BATCHING)).batching is None


def test_dims_with_the_batch_dimension_mean_whole_shapes() -> None:
    spec = model_spec(complete('input { name: "x" data_type: TYPE_FP32 dims: [-1, 3, -1] }', BATCHING))
    assert spec.max_batch_size == 0


def test_a_fixed_dimension_of_the_file_fills_a_free_one_of_the_config() -> None:
    spec = model_spec(complete('max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [-1, 7] }', BATCHING))
    assert spec.inputs[0].dims == (3, 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "other"', "name 'other' is not the name of its directory, 'm'"),
        ('platform: "caffe"', "unknown platform 'caffe'"),
        (
            'platform: "onnxruntime_onnx" backend: "python"',
            "platform 'onnxruntime_onnx' belongs to backend 'onnxruntime'",
        ),
        ('input { name: "q" }', "input 'q' is not in the model file, which has 'x'"),
        ('output { name: "q" }', "output 'q' is not in the model file, which has 'y', 'z'"),
        (
            'input { name: "x" data_type: TYPE_INT8 }',
            "data_type TYPE_INT8 in the config, but TYPE_FP32 in the model file",
        ),
        ('input { name: "x" dims: [4, -1] }', "dims [4, -1] in the config, but [3, -1] in the model file"),
        ('input { name: "x" dims: [3] }', "dims [3] in the config, but [3, -1] in the model file"),
    ],
)
def test_contradictions_name_both(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        complete(text, BATCHING)
    assert words in caught.value.message


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        complete(
            'input { name: "x" data_type: TYPE_INT8 dims: 3 } output { name: "q" } output { name: "y" dims: 7 }',
            BATCHING,
        )
    assert [problem.split(" has ")[0] for problem in caught.value.problems[:2]] == ["input 'x'", "input 'x'"]
    assert "output 'q' is not in the model file" in caught.value.problems[2]
    assert "output 'y' has dims [7] in the config, but [8] in the model file" in caught.value.problems[3]
    assert len(caught.value.problems) == 4


def test_a_reshape_is_what_the_file_has() -> None:
    text = 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 9 reshape { shape: %s } }'
    (tensor,) = model_spec(complete(text % "[3, 3]", BATCHING)).inputs
    assert (tensor.dims, tensor.reshape) == ((9,), (3, 3))
    with pytest.raises(
        ConfigError, match=r"input 'x' has reshape \[9\] in the config, but \[3, -1\] in the model file"
    ):
        complete(text % "9", BATCHING)


def test_an_optional_input_is_one_in_the_spec() -> None:
    text = 'max_batch_size: 4 input { name: "x" } input { name: "v" optional: true }'
    defaulted = ModelSignature(BATCHING.inputs, BATCHING.outputs, defaulted=(TensorSpec("v", FP32, (-1, 2)),))
    spec = model_spec(complete(text, defaulted))
    assert [tensor.optional for tensor in spec.inputs] == [False, True]
    assert spec.inputs[1].dims == (2,)
    with pytest.raises(ConfigError, match="'x' is optional, but the model file has no value for it"):
        complete('max_batch_size: 4 input { name: "x" optional: true }', BATCHING)


def test_batching_of_a_model_that_cannot() -> None:
    with pytest.raises(ConfigError, match="the first dimension of 'x' is 1, not free"):
        complete("max_batch_size: 8", FIXED)


def test_a_backend_that_cannot_be_told() -> None:
    with pytest.raises(ConfigError, match=r"must specify 'platform' or 'backend' for model 'm': .* has readme.txt"):
        complete_backend(given(), "m", {"readme.txt"})
    assert complete_backend(given('default_model_filename: "net.onnx"'), "m", {"net.onnx"}).backend == "onnxruntime"


@pytest.mark.parametrize(("text", "rows"), [("", 8), ("max_batch_size: 3", 3), ("max_batch_size: 8", 8)])
def test_a_file_that_knows_its_largest_batch(text: str, rows: int) -> None:
    config = complete(text, replace(BATCHING, most_rows=8))
    assert config.max_batch_size == rows
    assert config.HasField("dynamic_batching") == (not text)
    with pytest.raises(ConfigError, match="max_batch_size is 9, but the model file takes 8 rows at most: as built"):
        complete("max_batch_size: 9", replace(BATCHING, most_rows=8, remarks=("as built",)))


def test_cuda_graphs_of_tensorrt_are_no_hint() -> None:
    hints = validate(
        complete('backend: "tensorrt" optimization { cuda { graphs: true busy_wait_events: true } }', FIXED)
    )
    assert [hint for hint in hints if "optimization" in hint] == [
        "optimization.cuda.busy_wait_events is accepted and has no effect here"
    ]
