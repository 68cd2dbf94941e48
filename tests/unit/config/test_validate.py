"""Fields that are wrong, not served yet, or hints: each by its name."""

from __future__ import annotations

import pytest

from headrace.config.complete import complete_defaults
from headrace.config.validate import validate
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'
TENSOR = 'input {{ name: "z" data_type: TYPE_FP32 {} }}'


def warm_up(key: str, value: str) -> str:
    return f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "{key}" value {{ {value} }} }} }} {IO}'


def check(text: str) -> list[str]:
    config = ModelConfig()
    parse_text(text, config)
    config.name, config.backend = "m", "identity"
    complete_defaults(config)
    return validate(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"max_batch_size: -1 {IO}", "max_batch_size must not be negative"),
        ("max_batch_size: 1", "at least one input"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 1 }', "at least one output"),
        (IO + 'input { name: "x" data_type: TYPE_FP32 dims: 1 }', "input 'x' is given twice"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 dims: 0 }', "input 'z' dims must be at least 1"),
        (IO + 'input { name: "z" dims: 1 }', "input 'z' must have a data_type"),
        (IO + "input { data_type: TYPE_FP32 dims: 1 }", "input must have a name"),
        (f"max_batch_size: 4 dynamic_batching {{ preferred_batch_size: 5 }} {IO}", "preferred_batch_size 5"),
        (
            f"dynamic_batching {{ preferred_batch_size: 1 }} {IO}",
            "preferred_batch_size 1 must be within 1 and max_batch",
        ),
        (f"instance_group {{ count: -1 }} {IO}", "count must be within 1"),
        (f"instance_group {{ kind: KIND_GPU gpus: [0, 3] }} {IO}", "wants gpus [0, 3]; this server has none"),
        (f"instance_group {{ kind: KIND_GPU }} {IO}", "KIND_GPU wants gpus that there are not"),
        (f"instance_group [{{ kind: KIND_CPU }}, {{ kind: KIND_MODEL }}] {IO}", "all be of the same kind"),
        (f"instance_group {{ kind: KIND_CPU gpus: [0] }} {IO}", "KIND_CPU has no gpus"),
        (f"instance_group {{ kind: KIND_MODEL gpus: [1] }} {IO}", "KIND_MODEL has no gpus, got [1]"),
        (IO + 'metric_tags { key: "a b" value: "c" }', "metric_tags: 'a b' cannot be a label"),
        (f'instance_group {{ profile: "0" }} {IO}', "profile is for TensorRT"),
        (IO + 'input { name: "z" data_type: TYPE_FP32 }', "input 'z' must have dims"),
        (IO + 'output { name: "z" data_type: TYPE_FP32 }', "output 'z' must have dims"),
        (IO + TENSOR.format("dims: 4 format: FORMAT_NHWC"), "input 'z' has format FORMAT_NHWC, which needs 3 dims"),
        (IO + TENSOR.format("dims: 4 is_shape_tensor: true"), "shape tensors are for TensorRT models only"),
        (
            IO + TENSOR.format("dims: 4 is_non_linear_format_io: true"),
            "vectorised formats are for TensorRT models only",
        ),
        (IO + TENSOR.format("dims: 4 reshape { shape: [2, 3] }"), "dims [4], which cannot be reshaped to [2, 3]"),
        (IO + TENSOR.format("dims: 4 reshape { shape: [4, 0] }"), "reshape must be at least 1, or -1"),
        (IO + TENSOR.format("dims: 1 reshape { }"), "empty reshape, which needs max_batch_size"),
        (f"batch_input {{ target_name: 'b' data_type: TYPE_FP32 source_input: ['x', 'x'] }} {IO}", "one source_input"),
        (f"batch_input {{ data_type: TYPE_FP32 source_input: 'q' }} {IO}", "source_input 'q' is no input"),
        (
            f"batch_input {{ data_type: TYPE_INT8 source_input: 'x' }} {IO}",
            "must be TYPE_INT32 or TYPE_FP32, got TYPE_INT8",
        ),
        (f"batch_output {{ target_name: 'q' source_input: 'x' }} {IO}", "target_name 'q' is no output"),
        (f"batch_output {{ target_name: 'y' source_input: 'y' }} {IO}", "source_input 'y' is no input"),
        (f"batch_output {{ target_name: 'y' }} {IO}", "expected one source_input, got []"),
        (
            f"max_batch_size: 4 dynamic_batching {{ priority_levels: 2 }} {IO}",
            "default_priority_level must be within 1",
        ),
        (
            f"max_batch_size: 4 dynamic_batching {{ priority_levels: 2 default_priority_level: 1 "
            f"priority_queue_policy {{ key: 3 value {{}} }} }} {IO}",
            "priority_queue_policy is for levels within 1 and priority_levels 2, got [3]",
        ),
        (
            f"max_batch_size: 4 dynamic_batching {{ priority_levels: 2 default_priority_level: 1 "
            f"preserve_ordering: true }} {IO}",
            "preserve_ordering and priority_levels 2 exclude each other",
        ),
        (f"model_metrics {{ metric_control {{ histogram_options {{ buckets: 1 }} }} }} {IO}", "must have a family"),
        (
            f"model_metrics {{ metric_control {{ metric_identifier {{ family: 'f' }} }} }} {IO}",
            "model_metrics 'f': histogram_options must have buckets",
        ),
        (
            f"model_transaction_policy {{ decoupled: true }} response_cache {{ enable: true }} {IO}",
            "exclude each other",
        ),
        (warm_up("q", "data_type: TYPE_FP32 dims: 4 zero_data: true"), "inputs ['q'] are no inputs"),
        (
            warm_up("q", "data_type: TYPE_FP32 dims: 4 zero_data: true"),
            "inputs ['x'] of the model are",
        ),
        (
            warm_up("x", "data_type: TYPE_INT8 dims: 4 zero_data: true"),
            "input 'x' has data_type TYPE_INT8, the model TYPE_FP32",
        ),
        (warm_up("x", "data_type: TYPE_FP32 dims: 5 zero_data: true"), "has dims [5], the model [4]"),
        (warm_up("x", "data_type: TYPE_FP32 dims: 4"), "needs one of zero_data, random_data"),
    ],
)
def test_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(text)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("sequence_batching {}", "sequence_batching"),
        ("ensemble_scheduling {}", "ensemble_scheduling"),
        ("batch_input { target_name: 'b' data_type: TYPE_INT32 source_input: 'x' }", "batch_input"),
        ("batch_output { target_name: 'y' source_input: 'x' }", "batch_output"),
        ("response_cache { enable: true }", "response_cache"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ('model_repository_agents { agents { name: "checksum" } }', "model_repository_agents"),
        ('model_operations { op_library_filename: "x.so" }', "model_operations"),
        ('input { name: "r" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true }', "input 'r': allow_ragged_batch"),
        (
            'input { name: "r" data_type: TYPE_FP32 dims: 4 optional: true }',
            "input 'r': optional by backend 'identity'",
        ),
        (
            "max_batch_size: 4 dynamic_batching { priority_levels: 2 default_priority_level: 2 }",
            "dynamic_batching.priority_levels",
        ),
        (
            "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
            "default_queue_policy.max_queue_size",
        ),
        ("instance_group { kind: KIND_MODEL }", "KIND_MODEL"),
        ("instance_group { passive: true }", "passive"),
    ],
)
def test_what_is_not_served_yet(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(f"{text} {IO}")
    assert field in caught.value.message
    assert caught.value.message.endswith("is not served yet")


def test_hints_are_listed() -> None:
    hints = check(
        f"""optimization {{ priority: PRIORITY_MAX }} runtime: "r"
        parameters {{ key: "intra_op_thread_count" value {{ string_value: "4" }} }}
        instance_group {{ host_policy: "numa" rate_limiter {{}} }} cc_model_filenames {{ key: "9.0" value: "a" }}
        {warm_up("x", "data_type: TYPE_FP32 dims: 4 zero_data: true")}"""
    )
    words = ["optimization", "model_warmup", "runtime", "parameters", "host_policy", "rate_limiter", "cc_model"]
    assert [word for word in words if not any(word in hint for hint in hints)] == []
    assert check(IO) == []


def test_what_is_less_than_it_says() -> None:
    assert check(f"dynamic_batching {{}} {IO}") == ["dynamic_batching has no effect, because max_batch_size is 0"]
    (remark,) = check(f"max_batch_size: 4 dynamic_batching {{ preserve_ordering: true }} {IO}")
    assert remark.startswith("dynamic_batching.preserve_ordering is accepted; answers may leave in another order")


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check(f"max_batch_size: -1 response_cache {{ enable: true }} {TENSOR.format('')} {IO}")
    assert caught.value.problems == (
        "max_batch_size must not be negative, got -1",
        "input 'z' must have dims",
        "response_cache is not served yet",
    )
    assert caught.value.message == "; ".join(caught.value.problems)


def test_another_file_for_a_gpu_is_not_ignored() -> None:
    config = ModelConfig()
    parse_text(f'instance_group {{ kind: KIND_GPU }} cc_model_filenames {{ key: "9.0" value: "a" }} {IO}', config)
    complete_defaults(config, gpus=1)
    with pytest.raises(ConfigError, match="cc_model_filenames with instances on GPUs is not served yet"):
        validate(config, ["a GPU"])
