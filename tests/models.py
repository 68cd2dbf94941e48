"""Model repositories for tests."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

ORACLE_IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
        return answers
"""


ORACLE_PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            def take(name):
                tensor = pb_utils.get_input_tensor_by_name(request, name)
                return None if tensor is None else tensor.as_numpy()

            outputs = EXECUTE
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in outputs.items()]))
        return answers
"""


def identity(repository: Path, name: str, dtype: str, dims: list[int], max_batch: int = 8, extra: str = "") -> None:
    """The built-in identity."""
    write_config(repository, name, 'backend: "identity"\n' + io_config(dtype, dims, max_batch, extra))


def oracle_identity(
    repository: Path, name: str, dtype: str, dims: list[int], max_batch: int = 8, extra: str = ""
) -> None:
    """The same, as a Python model of the real Triton."""
    write_config(repository, name, 'backend: "python"\n' + io_config(dtype, dims, max_batch, extra))
    (repository / name / "1" / "model.py").write_text(ORACLE_IDENTITY)


def oracle_python(repository: Path, name: str, config: str, execute: str) -> None:
    """A Python model of the real Triton; `execute` is an expression for its outputs by name, where
    `take(name)` is an input, or `None` if it is missing.
    """
    directory = write_config(repository, name, f'backend: "python"\n{config}')
    (directory / "model.py").write_text(ORACLE_PYTHON.replace("EXECUTE", execute))


def io_config(dtype: str, dims: list[int], max_batch: int, extra: str) -> str:
    sides = "\n".join(
        f'{side} {{ name: "{tensor}" data_type: TYPE_{dtype} dims: {dims} }}'
        for side, tensor in (("input", "INPUT0"), ("output", "OUTPUT0"))
    )
    return f"max_batch_size: {max_batch}\n{sides}\n{extra}\n"


def write_config(repository: Path, name: str, text: str, version: int = 1) -> Path:
    directory = repository / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(text)
    return directory


def onnx_model(
    repository: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[tuple[str, int, list[int | str | None]]],
    outputs: list[tuple[str, int, list[int | str | None]]],
    config: str | None = None,
    initializers: list[onnx.TensorProto] | None = None,
    version: int = 1,
    opsets: dict[str, int] | None = None,
) -> None:
    """An ONNX model, with a config.pbtxt if one is given."""
    directory = repository / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*row) for row in inputs],
        [helper.make_tensor_value_info(*row) for row in outputs],
        initializers or [],
    )
    imports = [helper.make_opsetid(*row) for row in (opsets or {"": 17}).items()]
    model = helper.make_model(graph, opset_imports=imports)
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, directory / "model.onnx")
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def add_one(repository: Path, name: str, config: str | None = None) -> None:
    """OUTPUT0 = INPUT0 + 1 for FP32 [batch, 4]."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [helper.make_node("Add", ["INPUT0", "one"], ["OUTPUT0"])]
    tensor = (TensorProto.FLOAT, ["batch", 4])
    onnx_model(repository, name, nodes, [("INPUT0", *tensor)], [("OUTPUT0", *tensor)], config, [one])


def gather(repository: Path, name: str, config: str | None = None) -> None:
    """OUTPUT0 = table[INPUT0] for INT64 [batch, 1] and a table of 4 rows: an index out of it makes the engine raise."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [4], [0.0, 1.0, 2.0, 3.0])
    nodes = [helper.make_node("Gather", ["table", "INPUT0"], ["OUTPUT0"])]
    inputs = [("INPUT0", TensorProto.INT64, ["batch", 1])]
    onnx_model(repository, name, nodes, inputs, [("OUTPUT0", TensorProto.FLOAT, ["batch", 1])], config, [table])


def nonzero(repository: Path, name: str) -> None:
    """OUTPUT0 = indices of the elements of INPUT0 that are not zero: a shape that depends on values."""
    nodes = [helper.make_node("NonZero", ["INPUT0"], ["OUTPUT0"])]
    outputs = [("OUTPUT0", TensorProto.INT64, [1, "count"])]
    onnx_model(repository, name, nodes, [("INPUT0", TensorProto.FLOAT, [8])], outputs, "max_batch_size: 0")


def spin(repository: Path, name: str, config: str | None = None) -> None:
    """OUTPUT0 = INPUT0 after as many rounds of a loop as INPUT0 [1] says: an engine that hangs as long as is wished."""
    flag = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["more_out"]), helper.make_node("Neg", ["x"], ["x_out"])],
        "body",
        [flag("round", TensorProto.INT64, []), flag("more", TensorProto.BOOL, []), flag("x", TensorProto.INT64, [1])],
        [flag("more_out", TensorProto.BOOL, []), flag("x_out", TensorProto.INT64, [1])],
    )
    nodes = [
        helper.make_node("Squeeze", ["INPUT0"], ["rounds"]),
        helper.make_node("Loop", ["rounds", "", "INPUT0"], ["looped"], body=body),
        helper.make_node("Abs", ["looped"], ["OUTPUT0"]),
    ]
    tensor = (TensorProto.INT64, [1])
    onnx_model(repository, name, nodes, [("INPUT0", *tensor)], [("OUTPUT0", *tensor)], config)


TOGETHER = "dynamic_batching {{ preferred_batch_size: {size} max_queue_delay_microseconds: 600000000 }}"
"""Requests wait, for ten minutes if need be, until `size` rows are there: a test has all the time to look."""


def add_any(repository: Path, name: str, config: str) -> None:
    """OUTPUT0 = INPUT0 + 1 for FP32 [batch, any]."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [helper.make_node("Add", ["INPUT0", "one"], ["OUTPUT0"])]
    tensor = (TensorProto.FLOAT, ["batch", "any"])
    onnx_model(repository, name, nodes, [("INPUT0", *tensor)], [("OUTPUT0", *tensor)], config, [one])


def row_sums(repository: Path, name: str) -> None:
    """OUTPUT0 [rows] = sums of the rows of INPUT0 [rows, any]: rows of no elements weigh nothing and have a sum."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [helper.make_node("ReduceSum", ["INPUT0", "axes"], ["OUTPUT0"], keepdims=0)]
    inputs = [("INPUT0", TensorProto.FLOAT, ["rows", "any"])]
    outputs = [("OUTPUT0", TensorProto.FLOAT, ["rows"])]
    onnx_model(repository, name, nodes, inputs, outputs, "max_batch_size: 0", [axes])


def transpose(repository: Path, name: str) -> None:
    """OUTPUT0 = INPUT0 transposed, for FP32 [16, 16]: an engine that writes over its input is wrong."""
    nodes = [helper.make_node("Transpose", ["INPUT0"], ["OUTPUT0"], perm=[1, 0])]
    tensor = (TensorProto.FLOAT, [16, 16])
    onnx_model(repository, name, nodes, [("INPUT0", *tensor)], [("OUTPUT0", *tensor)], "max_batch_size: 0")
