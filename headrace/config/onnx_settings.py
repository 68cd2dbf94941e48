"""What a config may set of ONNX Runtime, in the words of Triton's backend: `parameters` and `optimization.graph`.

One table, from which the settings are read, what is wrong with them is told, and the page is written:

    python -m headrace.config.onnx_settings > docs/onnx.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.config import onnx_cuda
from headrace.config.settings import ON_OFF, Setting, read_entry, read_switch
from headrace.core.errors import ConfigError

_MAX_THREADS = 1024
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_ONLY_ARENA = "cpu:0"
"""ONNX Runtime has this one on the CPU; it fails every run that is to shrink another."""
GRAPH_LEVELS = {0: "all", -1: "basic", 1: "extended", 2: "none"}
"""`optimization.graph.level` and which optimizations of the graph are made."""


def _threads(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_THREADS:
        raise ValueError(text)
    return int(text)


def _mode(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _arena(text: str) -> str:
    return {_ONLY_ARENA: _ONLY_ARENA}[text]


def _block(text: str) -> str:
    return str(_threads(text))


_COUNT = f"a number within 0 and {_MAX_THREADS}"
SETTINGS = (
    Setting(
        "intra_op_thread_count",
        _COUNT,
        _threads,
        "0",
        "Threads within an operator, of each instance; 0 is its share of the cores.",
    ),
    Setting(
        "inter_op_thread_count",
        _COUNT,
        _threads,
        "0",
        "Threads across operators when `execution_mode` is 1; 0 is its share of the cores.",
    ),
    Setting("execution_mode", "0 or 1", _mode, "0", "0 executes one operator after another, 1 branches in parallel."),
    Setting("enable_mem_arena", ON_OFF, read_switch, "1", "Keep memory in an arena."),
    Setting("enable_mem_pattern", ON_OFF, read_switch, "1", "Plan memory for shapes that came before."),
    Setting(
        _SHRINKAGE,
        f"{_ONLY_ARENA}, the only arena there is",
        _arena,
        "",
        "Give memory of the arena back after each batch.",
    ),
    Setting(
        "share_session_between_instances",
        ON_OFF,
        read_switch,
        "0",
        "Instances share weights and threads of one session.",
    ),
    Setting(
        "session.use_device_allocator_for_initializers", ON_OFF, read_entry, "0", "Weights do not lie in the arena."
    ),
    Setting("session.disable_prepacking", ON_OFF, read_entry, "0", "Do not pack weights when the model loads."),
    Setting("session.set_denormal_as_zero", ON_OFF, read_entry, "0", "Compute with zeros for denormal numbers."),
    Setting(
        "session.intra_op.allow_spinning", ON_OFF, read_entry, "1", "Threads within an operator spin while they wait."
    ),
    Setting(
        "session.inter_op.allow_spinning", ON_OFF, read_entry, "1", "Threads across operators spin while they wait."
    ),
    Setting(
        "session.dynamic_block_base", _COUNT, _block, "0", "Divide work into ever smaller blocks; 0 into equal ones."
    ),
    Setting("session.disable_quant_qdq", ON_OFF, read_entry, "0", "Leave quantise and dequantise pairs as they are."),
    Setting("optimization.enable_gelu_approximation", ON_OFF, read_entry, "0", "Approximate GELU, for speed."),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}
KEYS = (*_BY_KEY, *onnx_cuda.DEPRECATED, onnx_cuda.SIZES)
"""Keys of `parameters` that are not ignored."""


@dataclass(frozen=True)
class OnnxSettings:
    """How sessions of a model are made."""

    intra_op_threads: int = 0
    inter_op_threads: int = 0
    parallel: bool = False
    mem_arena: bool = True
    mem_pattern: bool = True
    shrink: str = ""
    """The arenas to give memory back from after each batch."""
    share_session: bool = False
    graph_level: int = 0
    entries: tuple[tuple[str, str], ...] = ()
    """Session config entries."""

    @property
    def shrink_entry(self) -> tuple[str, str]:
        """The run config entry of `shrink`."""
        return _SHRINKAGE, self.shrink


def read_settings(config: Any) -> OnnxSettings:
    """The settings of a `ModelConfig`.

    Raises:
        ConfigError: with everything that is wrong with them.
    """
    problems = list(problems_of_settings(config))
    if problems:
        raise ConfigError(*problems)
    values = {
        setting.key: setting.read(config.parameters[setting.key].string_value)
        for setting in SETTINGS
        if setting.key in config.parameters
    }
    return OnnxSettings(
        intra_op_threads=values.get("intra_op_thread_count", 0),
        inter_op_threads=values.get("inter_op_thread_count", 0),
        parallel=values.get("execution_mode", False),
        mem_arena=values.get("enable_mem_arena", True),
        mem_pattern=values.get("enable_mem_pattern", True),
        shrink=values.get(_SHRINKAGE, ""),
        share_session=values.get("share_session_between_instances", False),
        graph_level=config.optimization.graph.level,
        entries=tuple((key, value) for key, value in values.items() if key.startswith(("session.", "optimization."))),
    )


def problems_of_settings(config: Any) -> Iterator[str]:
    """What is wrong with the settings of a `ModelConfig`, each with its key."""
    for key in sorted(config.parameters):
        value = config.parameters[key].string_value
        if key in _BY_KEY and not _BY_KEY[key].accepts(value):
            yield f"parameters '{key}' must be {_BY_KEY[key].expects}, got '{value}'"
    if _SHRINKAGE in config.parameters and _is_off(config, "enable_mem_arena"):
        yield f"parameters '{_SHRINKAGE}' needs the arena that 'enable_mem_arena' 0 switches off"
    level = config.optimization.graph.level
    if level not in GRAPH_LEVELS:
        levels = ", ".join(f"{number} ({what})" for number, what in GRAPH_LEVELS.items())
        yield f"optimization.graph.level must be one of {levels}, got {level}"
    yield from onnx_cuda.problems_of_cuda(config)


def _is_off(config: Any, key: str) -> bool:
    return key in config.parameters and config.parameters[key].string_value.lower() in ("0", "false")


def page() -> str:
    """`docs/onnx.md`."""
    rows = [f"| `{row.key}` | {row.expects} | {row.default} | {row.text} |" for row in SETTINGS]
    levels = ", ".join(f"{number} {what}" for number, what in GRAPH_LEVELS.items())
    return _PAGE.format(rows="\n".join(rows), levels=levels, cuda=onnx_cuda.rows())


_PAGE = """# ONNX models

<!-- Written by `python -m headrace.config.onnx_settings`: change headrace/config/onnx_settings.py instead. -->

    pip install 'headrace[onnx]'        # for CPUs, or, instead of it, 'headrace[onnx-gpu]'
    MODELS/NAME/1/model.onnx

A `config.pbtxt` is needed for what the file does not say; `headrace check MODELS` tells what is filled in. A
file whose inputs and outputs all have a free first dimension is batched. Each instance is a session of its own: on
the CPU on its share of the cores, on a GPU on streams and device memory of its own.

Outputs are computed where the client wants them when their shape is known before: it is when their free
dimensions have the names of dimensions of inputs, and for shapes of inputs that were seen before. Where the
shape depends on values (NonZero, NMS) the output is copied once, and `headrace_transfer_fallback_total` counts
it (`output_allocated_by_backend`).

## Settings

As Triton's backend has them. A value that is not expected fails the model when it loads; a key that is not here
has no effect and is logged.

    parameters {{ key: "intra_op_thread_count" value {{ string_value: "4" }} }}
    optimization {{ graph {{ level: 1 }} }}

| `parameters` | expected | default | |
| --- | --- | --- | --- |
{rows}

`optimization.graph.level` chooses which optimizations of the graph are made: {levels}.

## On GPUs

`instance_group {{ kind: KIND_GPU }}`, or none at all where there is a GPU and ONNX Runtime has its CUDA provider, which
`onnxruntime-gpu` brings (it and `onnxruntime` overwrite each other: install one). Inputs and outputs are bound to
device memory that each slot owns, so that copies of the next batch run while this one computes; the library's call
blocks, on a thread of its own. A batch is computed as the next larger of the sizes 1, 2, 4 and every multiple of 4 up
to the maximum, or of those that `cuda_graph_batch_sizes` in `parameters` lists ("8,16,32": fewer load faster). All
sizes are warmed up, and captured as CUDA graphs, when the model loads; where the config leaves a shape open, with its
first request. A model that cannot be captured is computed without graphs; that is logged once, and
`headrace_transfer_fallback_total` counts its batches (`cuda_graph`).

Outputs whose shape neither config nor file tells take the shape that the warm-up gave; where that turns out to depend
on values, ONNX Runtime allocates them on the device (`output_allocated_by_backend`), and there is no graph.
TYPE_STRING and optional inputs are for the CPU only: refused by name with KIND_GPU.

    optimization {{ execution_accelerators {{ gpu_execution_accelerator {{
      name: "cuda" parameters {{ key: "prefer_nhwc" value: "1" }} }} }} }}

| parameter of `cuda` | expected | default | |
| --- | --- | --- | --- |
{cuda}

The accelerators `tensorrt` and `openvino` are refused by name. `parameters` of the config itself, Triton's deprecated
place for four of these options, is read, too. `share_session_between_instances` has no effect on GPUs.

## Of the server

`--backend-config=onnxruntime,default-max-batch-size=8` is the `max_batch_size` of models that can
batch and whose config does not say (4; with 0 or 1 they do not batch), and
`--backend-config=onnxruntime,enable-global-threadpool=1` has all sessions share the threads of one pool, of
`intra_op_thread_count` and `inter_op_thread_count` threads (also of `--backend-config`; 0 is all cores). Then the
models' own numbers of threads have no effect.
"""


if __name__ == "__main__":
    print(page(), end="")
