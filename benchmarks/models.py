"""The model repositories of both servers: the same names, shapes and batching rules."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnx import TensorProto, helper

BATCHING = "max_batch_size: 32\ndynamic_batching {}\n"
ALONE = "max_batch_size: 0\n"
ECHO = (
    'input { name: "INPUT0" data_type: TYPE_FP32 dims: 16 }\noutput { name: "OUTPUT0" data_type: TYPE_FP32 dims: 16 }\n'
)
REPORT = (
    'input {{ name: "images" data_type: TYPE_FP16 dims: [{batch}3, 384, 640] }}\n'
    'output {{ name: "output0" data_type: TYPE_FP16 dims: [{batch}84, 5040] }}\n'
)
ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }\n"

PYTHON_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        return responses
"""
PYTHON_SLICE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "images").as_numpy()
            part = np.ascontiguousarray(array.reshape(-1, 144, 5120)[:, :84, :5040])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("output0", part)]))
        return responses
"""


WIRE = {"megabyte": ("FP32", 262144), "numbers": ("FP32", 1500), "strings": ("STRING", 1000)}
"""Models that only pass on: what they are sent costs."""
CROWD = 200
"""Models that nobody asks."""


def _passes(dtype: str, count: int) -> str:
    return (
        f'input {{ name: "INPUT0" data_type: TYPE_{dtype} dims: {count} }}\n'
        f'output {{ name: "OUTPUT0" data_type: TYPE_{dtype} dims: {count} }}\n'
    )


def write_crowd(root: Path) -> Path:
    """The echo of Headrace, and many models beside it."""
    shutil.rmtree(root, ignore_errors=True)
    for name in ["echo", *(f"bystander_{number}" for number in range(CROWD))]:
        _write(root / name, 'backend: "identity"\n' + BATCHING + ECHO + ONE_INSTANCE)
    return root


def write_headrace(root: Path) -> Path:
    """Models of Headrace."""
    shutil.rmtree(root, ignore_errors=True)
    for name, (dtype, count) in WIRE.items():
        _write(root / name, 'backend: "identity"\n' + BATCHING + _passes(dtype, count) + ONE_INSTANCE)
    _write(root / "echo", 'backend: "identity"\n' + BATCHING + ECHO + ONE_INSTANCE)
    directory = _write(root / "echo_onnx", 'platform: "onnxruntime_onnx"\n' + BATCHING + ECHO + ONE_INSTANCE)
    _save(directory, [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], ("INPUT0", 1, [16]), ("OUTPUT0", 1, [16]))
    for name, rule, batch in (("slice_alone", ALONE, "-1, "), ("slice_batched", BATCHING, "")):
        directory = _write(root / name, rule + REPORT.format(batch=batch) + ONE_INSTANCE)
        _save_slice(directory)
    return root


def write_triton(root: Path) -> Path:
    """Models of the real Triton: Python ones, and the identity in C."""
    shutil.rmtree(root, ignore_errors=True)
    for name, (dtype, count) in WIRE.items():
        directory = _write(root / name, 'backend: "python"\n' + BATCHING + _passes(dtype, count) + ONE_INSTANCE)
        (directory / "model.py").write_text(PYTHON_ECHO)
    directory = _write(root / "echo_python", 'backend: "python"\n' + BATCHING + ECHO + ONE_INSTANCE)
    (directory / "model.py").write_text(PYTHON_ECHO)
    _write(root / "echo_c", 'backend: "identity_c"\n' + BATCHING + ECHO + ONE_INSTANCE)
    for name, rule, batch in (("slice_alone", ALONE, "-1, "), ("slice_batched", BATCHING, "")):
        directory = _write(root / name, 'backend: "python"\n' + rule + REPORT.format(batch=batch) + ONE_INSTANCE)
        (directory / "model.py").write_text(PYTHON_SLICE)
    return root


def _write(model: Path, config: str) -> Path:
    version = model / "1"
    version.mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)
    return version


def _save_slice(directory: Path) -> None:
    """Reshape to [-1, 144, 5120] and Slice to [84, 5040]: the founding report's bytes, and next to no arithmetic."""
    constants = [
        helper.make_tensor("shape", TensorProto.INT64, [3], [-1, 144, 5120]),
        helper.make_tensor("starts", TensorProto.INT64, [2], [0, 0]),
        helper.make_tensor("ends", TensorProto.INT64, [2], [84, 5040]),
        helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
    ]
    nodes = [
        helper.make_node("Reshape", ["images", "shape"], ["wide"]),
        helper.make_node("Slice", ["wide", "starts", "ends", "axes"], ["output0"]),
    ]
    half = TensorProto.FLOAT16
    _save(directory, nodes, ("images", half, [3, 384, 640]), ("output0", half, [84, 5040]), constants)


def _save(
    directory: Path,
    nodes: list[onnx.NodeProto],
    source: tuple[str, int, list[int]],
    result: tuple[str, int, list[int]],
    constants: list[onnx.TensorProto] | None = None,
) -> None:
    (tensor_in, tensor_out) = (
        helper.make_tensor_value_info(name, dtype, ["batch", *dims]) for name, dtype, dims in (source, result)
    )
    graph = helper.make_graph(nodes, directory.parent.name, [tensor_in], [tensor_out], constants or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, directory / "model.onnx")
