"""What a config sets of ONNX Runtime: read, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.onnx_settings import (
    GRAPH_LEVELS,
    SETTINGS,
    OnnxSettings,
    page,
    problems_of_settings,
    read_settings,
)
from headrace.config.validate import validate
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig

GOOD = {
    "1, true, 0 or false": ["0", "1", "true", "False"],
    "0 or 1": ["0", "1"],
    "a number within 0 and 1024": ["0", "1", "1024"],
    "cpu:0, the only arena there is": ["cpu:0"],
}
BAD = ["", "2000", "-1", "yes", "1.0", "gpu:0", "cpu:0;gpu:0", " 1", "٣"]


def config(parameters: dict[str, str], level: int = 0):
    message = ModelConfig(name="m", backend="onnxruntime")
    for key, value in parameters.items():
        message.parameters[key].string_value = value
    message.optimization.graph.level = level
    return message


def test_nothing_set() -> None:
    assert read_settings(ModelConfig()) == OnnxSettings()
    assert ModelConfig() == ModelConfig.FromString(ModelConfig().SerializeToString())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_values_of_each_key(setting) -> None:
    for value in GOOD[setting.expects]:
        assert list(problems_of_settings(config({setting.key: value}))) == []
    for value in BAD:
        problems = list(problems_of_settings(config({setting.key: value})))
        assert problems == [f"parameters '{setting.key}' must be {setting.expects}, got '{value}'"]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_each_key_changes_something(setting) -> None:
    read = [read_settings(config({setting.key: value})) for value in GOOD[setting.expects]]
    assert any(settings != OnnxSettings() for settings in read)


@pytest.mark.parametrize("level", [-2, 3, 99])
def test_graph_levels(level: int) -> None:
    for good in GRAPH_LEVELS:
        assert read_settings(config({}, good)).graph_level == good
    (problem,) = problems_of_settings(config({}, level))
    assert problem.endswith(f"must be one of 0 (all), -1 (basic), 1 (extended), 2 (none), got {level}")


def test_contradictions_and_what_is_for_other_engines() -> None:
    message = config({"cudnn_conv_algo_search": "0", "enable_mem_arena": "0", "execution_mode": "2"}, level=7)
    message.parameters["memory.enable_memory_arena_shrinkage"].string_value = "cpu:0"
    message.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    message.optimization.execution_accelerators.cpu_execution_accelerator.add(name="openvino")
    with pytest.raises(ConfigError) as refused:
        read_settings(message)
    for words in (
        "'cudnn_conv_algo_search' is for GPUs, and no instance_group is on one",
        "'execution_mode' must be 0 or 1, got '2'",
        "needs the arena",
        "got 7",
        "'tensorrt' is not served",
        "'openvino' is not served",
    ):
        assert sum(words in problem for problem in refused.value.problems) == 1


def test_validation_reads_them() -> None:
    message = config({"intra_op_thread_count": "2", "mine": "x"}, level=1)
    for side in (message.input, message.output):
        side.add(name="X", data_type=11, dims=[1])
    message.instance_group.add(name="m", count=1, kind=message.instance_group.add().KIND_CPU)
    del message.instance_group[0]
    assert validate(message) == ["parameters 'mine' is accepted and has no effect here"]
    message.parameters["intra_op_thread_count"].string_value = "many"
    with pytest.raises(ConfigError, match="'intra_op_thread_count' must be a number within 0 and 1024, got 'many'"):
        validate(message)


def test_the_page_is_what_the_table_writes() -> None:
    assert Path("docs/onnx.md").read_text() == page()
