"""What a config may set of ONNX Runtime's CUDA provider, in the words of Triton's accelerator `cuda`:

    optimization { execution_accelerators { gpu_execution_accelerator {
      name: "cuda" parameters { key: "prefer_nhwc" value: "1" } } } }

One table, from which options are read, what is wrong with them is told, and their part of `docs/onnx.md` is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config.model import data_type_name
from headrace.config.nearest import nearest
from headrace.config.settings import ON_OFF, Setting, read_entry, read_sizes

ACCELERATOR = "cuda"
_GRAPH, _USER_STREAM = "enable_cuda_graph", "has_user_compute_stream"


def _number(text: str) -> str:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return text


def _one_of(*names: str) -> Callable[[str], str]:
    """One of the names, or its number, which is what Triton's deprecated `parameters` have."""
    known = {name: name for name in names} | {str(number): name for number, name in enumerate(names)}
    return lambda text: known[text]


_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
_EXTENSIONS = ("kNextPowerOfTwo", "kSameAsRequested")
OPTIONS = (
    Setting(_GRAPH, ON_OFF, read_entry, "1", "Compute in CUDA graphs, one for each slot and batch size."),
    Setting("prefer_nhwc", ON_OFF, read_entry, "0", "Compute images with channels last."),
    Setting(
        _USER_STREAM,
        ON_OFF,
        read_entry,
        "1",
        "Compute on the instance's own stream and do not wait for the end; with 0 its run thread waits, on a core.",
    ),
    Setting(
        "cudnn_conv_algo_search",
        "EXHAUSTIVE, HEURISTIC or DEFAULT",
        _one_of(*_SEARCHES),
        "EXHAUSTIVE",
        "How algorithms of convolutions are chosen, for each batch size.",
    ),
    Setting("cudnn_conv_use_max_workspace", ON_OFF, read_entry, "1", "Any workspace for algorithms of convolutions."),
    Setting("cudnn_conv1d_pad_to_nc1d", ON_OFF, read_entry, "0", "Pad inputs of 1-D convolutions to [N,C,1,D]."),
    Setting("fuse_conv_bias", ON_OFF, read_entry, "0", "Fuse convolutions with what follows them, at run time."),
    Setting("use_tf32", ON_OFF, read_entry, "1", "Multiply FP32 in TF32."),
    Setting("gpu_mem_limit", "a number of bytes", _number, "all", "Limit of the arena of each instance."),
    Setting(
        "arena_extend_strategy",
        " or ".join(_EXTENSIONS),
        _one_of(*_EXTENSIONS),
        "kNextPowerOfTwo",
        "How the arena grows.",
    ),
    Setting("do_copy_in_default_stream", ON_OFF, read_entry, "1", "Copy in the stream that computes."),
    Setting("use_ep_level_unified_stream", ON_OFF, read_entry, "0", "One stream for all runs of a session."),
    Setting("tunable_op_enable", ON_OFF, read_entry, "0", "Use tuned kernels."),
    Setting("tunable_op_tuning_enable", ON_OFF, read_entry, "0", "Tune kernels while running."),
    Setting("tunable_op_max_tuning_duration_ms", "a number", _number, "0", "Limit of tuning one kernel; 0 is none."),
    Setting("enable_skip_layer_norm_strict_mode", ON_OFF, read_entry, "0", "Exact SkipLayerNormalization."),
    Setting("sdpa_kernel", "a number", _number, "0", "Kernels of attention, a bit mask."),
)
_BY_KEY = {option.key: option for option in OPTIONS}
DEPRECATED = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
"""Those that may be in `parameters` of the config, too."""
SIZES = "cuda_graph_batch_sizes"
"""Of `parameters`: ours, and PyTorch models have it, too."""
_SERVER_GIVES = {
    "device_id": "instance_group.gpus chooses the device",
    "user_compute_stream": f"'{_USER_STREAM}' 1 has it compute on a stream of the server",
}
_WHERE = "optimization.execution_accelerators.gpu_execution_accelerator"


@dataclass(frozen=True)
class CudaSettings:
    """How sessions on a GPU are made."""

    graphs: bool = True
    user_stream: bool = True
    sizes: tuple[int, ...] = ()
    """Batch sizes that are computed as they are, ascending; empty: by the rule."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Other options of the provider."""


def read_cuda_settings(config: Any) -> CudaSettings:
    """The settings of a `ModelConfig` without problems."""
    given = {key: config.parameters[key].string_value for key in DEPRECATED if key in config.parameters}
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        given |= accelerator.parameters
    values = {key: _BY_KEY[key].read(value) for key, value in given.items()}
    graphs, user_stream = values.pop(_GRAPH, "1"), values.pop(_USER_STREAM, "1")
    sizes = (
        read_sizes(config.parameters[SIZES].string_value, config.max_batch_size) if SIZES in config.parameters else ()
    )
    return CudaSettings(graphs == "1", user_stream == "1", tuple(sizes), values)


def needs_cpu(config: Any) -> str:
    """What a `ModelConfig` has that ONNX models have on the CPU only; empty when it has nothing of the kind."""
    for side, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if data_type_name(tensor.data_type) == "TYPE_STRING":
                return f"{side} '{tensor.name}' is TYPE_STRING"
            if getattr(tensor, "optional", False):
                return f"{side} '{tensor.name}' is optional"
    return ""


def problems_of_cuda(config: Any) -> Iterator[str]:
    """What is wrong with the settings of a `ModelConfig`, each with its key."""
    on_gpu = any(group.kind == type(group).KIND_GPU for group in config.instance_group)
    if on_gpu and (why := needs_cpu(config)):
        yield f"instance_group is KIND_GPU, but {why}, which ONNX models have on the CPU only"
    for key in (*DEPRECATED, SIZES):
        if key in config.parameters:
            problem = _parameter_problem(key, config) if on_gpu else "is for GPUs, and no instance_group is on one"
            if problem:
                yield f"parameters '{key}' {problem}"
    yield from _accelerator_problems(config.optimization.execution_accelerators, on_gpu)


def _parameter_problem(key: str, config: Any) -> str:
    value = config.parameters[key].string_value
    if key != SIZES:
        return "" if _BY_KEY[key].accepts(value) else f"must be {_BY_KEY[key].expects}, got '{value}'"
    try:
        read_sizes(value, config.max_batch_size)
    except ValueError as error:
        return f"is wrong: {error}"
    return ""


def _accelerator_problems(accelerators: Any, on_gpu: bool) -> Iterator[str]:
    names = [accelerator.name for accelerator in accelerators.gpu_execution_accelerator]
    if names.count(ACCELERATOR) > 1:
        yield f"{_WHERE} '{ACCELERATOR}' is given {names.count(ACCELERATOR)} times"
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name != ACCELERATOR:
            yield f"{_WHERE} '{accelerator.name}' is not served, only '{ACCELERATOR}' is"
        elif not on_gpu:
            yield f"{_WHERE} '{ACCELERATOR}' is for GPUs, and no instance_group is on one"
        else:
            yield from (f"{_WHERE} '{ACCELERATOR}': {what}" for what in _option_problems(accelerator.parameters))
    for accelerator in accelerators.cpu_execution_accelerator:
        yield f"optimization.execution_accelerators.cpu_execution_accelerator '{accelerator.name}' is not served"


def _option_problems(parameters: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(parameters.items()):
        option = _BY_KEY.get(key)
        if key in _SERVER_GIVES:
            yield f"'{key}' cannot be set: {_SERVER_GIVES[key]}"
        elif option is None:
            near = nearest(key, list(_BY_KEY))
            yield f"unknown parameter '{key}'; " + (
                f"did you mean '{near}'?" if near else f"there are {', '.join(sorted(_BY_KEY))}"
            )
        elif not option.accepts(value):
            yield f"parameter '{key}' must be {option.expects}, got '{value}'"


def rows() -> str:
    """The table of `docs/onnx.md`."""
    return "\n".join(f"| `{row.key}` | {row.expects} | {row.default} | {row.text} |" for row in OPTIONS)
