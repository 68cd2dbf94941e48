"""What a config sets of ONNX Runtime's CUDA provider: read, or refused by name."""

from __future__ import annotations

import pytest

from headrace.config.onnx_cuda import DEPRECATED, OPTIONS, read_cuda_settings
from headrace.config.onnx_settings import problems_of_settings
from headrace.core.messages import ModelConfig

ON_GPU = 'backend: "onnxruntime" instance_group { kind: KIND_GPU gpus: 0 }'
GOOD = {
    "1, true, 0 or false": {"0": "0", "1": "1", "true": "1", "False": "0"},
    "a number of bytes": {"0": "0", "123456789012": "123456789012"},
    "a number": {"16": "16"},
    "EXHAUSTIVE, HEURISTIC or DEFAULT": {"EXHAUSTIVE": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "kNextPowerOfTwo or kSameAsRequested": {"kSameAsRequested": "kSameAsRequested", "0": "kNextPowerOfTwo"},
}
BAD = ["", "-1", "yes", "1.0", "heuristic", " 1", "٣"]


def config(accelerator: str, parameters: dict[str, str], group: str = ON_GPU, deprecated: dict[str, str] | None = None):
    from headrace.core.messages import parse_text

    message = ModelConfig()
    parse_text(group, message)
    given = message.optimization.execution_accelerators.gpu_execution_accelerator.add(name=accelerator)
    for key, value in parameters.items():
        given.parameters[key] = value
    for key, value in (deprecated or {}).items():
        message.parameters[key].string_value = value
    return message


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_values_of_each_option(option) -> None:
    places = [lambda value: config("cuda", {option.key: value})]
    if option.key in DEPRECATED:
        places.append(lambda value: config("cuda", {}, deprecated={option.key: value}))
    for place in places:
        for text, value in GOOD[option.expects].items():
            assert list(problems_of_settings(place(text))) == []
            settings = read_cuda_settings(place(text))
            found = {
                "enable_cuda_graph": "1" if settings.graphs else "0",
                "has_user_compute_stream": "1" if settings.user_stream else "0",
                **settings.options,
            }
            assert found[option.key] == value
        for text in BAD:
            (problem,) = problems_of_settings(place(text))
            assert problem.endswith(f"'{option.key}' must be {option.expects}, got '{text}'")


@pytest.mark.parametrize(
    ("accelerator", "parameters", "words"),
    [
        ("cuda", {"prefer_nwhc": "1"}, "'cuda': unknown parameter 'prefer_nwhc'; did you mean 'prefer_nhwc'?"),
        ("cuda", {"qqqq": "1"}, "unknown parameter 'qqqq'; there are arena_extend_strategy, cudnn_conv1d_pad_to_nc1d,"),
        ("cuda", {"device_id": "1"}, "'device_id' cannot be set: instance_group.gpus chooses the device"),
        ("cuda", {"user_compute_stream": "1"}, "'has_user_compute_stream' 1 has it compute on a stream of the server"),
        ("tensorrt", {}, "gpu_execution_accelerator 'tensorrt' is not served, only 'cuda' is"),
    ],
)
def test_what_is_refused(accelerator: str, parameters: dict[str, str], words: str) -> None:
    (problem,) = problems_of_settings(config(accelerator, parameters))
    assert words in problem


def test_what_only_gpus_have_and_what_they_have_not() -> None:
    on_cpu = 'backend: "onnxruntime" instance_group { kind: KIND_CPU }'
    (problem,) = problems_of_settings(config("cuda", {}, on_cpu))
    assert problem.endswith("'cuda' is for GPUs, and no instance_group is on one")
    twice = config("cuda", {})
    twice.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
    (problem,) = problems_of_settings(twice)
    assert problem.endswith("'cuda' is given 2 times")
    strings = config("cuda", {}, ON_GPU + ' output { name: "Y" data_type: TYPE_STRING }')
    (problem,) = problems_of_settings(strings)
    assert problem.startswith(
        "instance_group is KIND_GPU, but output 'Y' is TYPE_STRING, which ONNX models have on the"
    )
    optional = config("cuda", {}, ON_GPU + ' input { name: "X" data_type: TYPE_FP32 optional: true }')
    (problem,) = problems_of_settings(optional)
    assert problem.startswith("instance_group is KIND_GPU, but input 'X' is optional")


def test_batch_sizes() -> None:
    for text, sizes in {"1,8": (1, 8), " 4 , 2": (2, 4, 8), "3": (3, 8)}.items():
        message = config("cuda", {}, ON_GPU + " max_batch_size: 8", {"cuda_graph_batch_sizes": text})
        assert list(problems_of_settings(message)) == []
        assert read_cuda_settings(message).sizes == sizes
    for text in ("", "0", "9", "1,", "a", "-1"):
        message = config("cuda", {}, ON_GPU + " max_batch_size: 8", {"cuda_graph_batch_sizes": text})
        (problem,) = problems_of_settings(message)
        assert problem.endswith(f"expected sizes from 1 to max_batch_size 8, such as '1,8', got '{text}'")
