"""Fields that are wrong, not served yet, or hints: each by its name."""

from __future__ import annotations

import pytest

from headrace.config.complete import complete_defaults
from headrace.config.validate import validate
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }'


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
        (f"dynamic_batching {{}} {IO}", "dynamic_batching needs max_batch_size"),
        (f"instance_group {{ count: -1 }} {IO}", "count must be within 1"),
        (f"instance_group {{ kind: KIND_GPU gpus: [0, 3] }} {IO}", "wants gpus [0, 3]; this server has none"),
        (f"instance_group {{ kind: KIND_GPU }} {IO}", "KIND_GPU wants gpus that there are not"),
        (f"instance_group [{{ kind: KIND_CPU }}, {{ kind: KIND_MODEL }}] {IO}", "all be of the same kind"),
        (f"instance_group {{ kind: KIND_CPU gpus: [0] }} {IO}", "KIND_CPU has no gpus"),
        (f'instance_group {{ profile: "0" }} {IO}', "profile is for TensorRT"),
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
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "batch_input"),
        ("batch_output {}", "batch_output"),
        ("response_cache { enable: true }", "response_cache"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled"),
        ('model_repository_agents { agents { name: "checksum" } }', "model_repository_agents"),
        ('model_operations { op_library_filename: "x.so" }', "model_operations"),
        ('input { name: "r" data_type: TYPE_FP32 dims: 4 reshape { shape: [2, 2] } }', "input 'r': reshape"),
        ('input { name: "r" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true }', "input 'r': allow_ragged_batch"),
        ('input { name: "r" data_type: TYPE_FP32 dims: 4 optional: true }', "input 'r': optional"),
        ("max_batch_size: 4 dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("max_batch_size: 4 dynamic_batching { priority_levels: 2 }", "dynamic_batching.priority_levels"),
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
        f"""optimization {{ priority: PRIORITY_MAX }} model_warmup {{ name: "w" }} metric_tags {{ key: "a" value: "b" }}
        parameters {{ key: "intra_op_thread_count" value {{ string_value: "4" }} }}
        instance_group {{ host_policy: "numa" rate_limiter {{}} }} {IO}"""
    )
    words = ["optimization", "model_warmup", "metric_tags", "parameters", "host_policy", "rate_limiter"]
    assert [word for word in words if not any(word in hint for hint in hints)] == []
    assert check(IO) == []
