"""Real TensorRT libraries, in a Python of their own (`make tensorrt`): they run without a GPU as far as building.

As a program: `build ONNX PLAN NAME=MIN:OPT:MAX ...` builds a plan of TensorRT for RTX with one profile;
`load PLAN` opens one as the server does, and prints what it says about itself or why it cannot; `lean` starts the
lean runtime as the server would, and prints why it cannot.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(os.environ.get("HEADRACE_TENSORRT", ".tensorrt")).absolute() / "bin" / "python"
ROOT = Path(__file__).parent.parent
REASON = f"there is no {PYTHON}: make tensorrt"


def run(*arguments: str | Path) -> str:
    """Runs this file, or another, with that Python; what it printed."""
    command = [str(PYTHON), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def build(onnx: str, plan: str, *ranges: str) -> None:
    import tensorrt_rtx as trt

    builder = trt.Builder(trt.Logger())
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, trt.Logger())
    assert parser.parse_from_file(onnx), [parser.get_error(at).desc() for at in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for text in ranges:
        name, _, shapes = text.partition("=")
        profile.set_shape(name, *(tuple(map(int, shape.split("x"))) for shape in shapes.split(":")))
    config.add_optimization_profile(profile)
    Path(plan).write_bytes(memoryview(builder.build_serialized_network(network, config)))


def load(plan: str) -> None:
    from headrace.backend import tensorrt
    from headrace.backend.base import ModelFile
    from headrace.core.errors import ConfigError

    try:
        print(tensorrt.load(ModelFile(Path(plan).parent, Path(plan).name)).signature)
    except ConfigError as error:
        print(error)


def lean() -> None:
    import tensorrt_lean_bindings as trt

    from headrace.backend.trt_engine import Complaints, make_runtime
    from headrace.core.errors import ConfigError

    try:
        print(make_runtime(trt, Complaints()))
    except ConfigError as error:
        print(error)


def without_installing() -> None:
    """That Python need not have Headrace installed: only what the backend imports."""
    import importlib.metadata

    importlib.metadata.version = lambda name: "0"  # type: ignore[assignment] # noqa: ARG005


if __name__ == "__main__":
    without_installing()
    {"build": build, "load": load, "lean": lean}[sys.argv[1]](*sys.argv[2:])
