"""What the ONNX backend refuses to load."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from headrace.backend.base import ModelFile
from headrace.backend.onnxruntime import load
from headrace.core.errors import ConfigError


def test_an_output_that_is_an_input(tmp_path) -> None:
    """ONNX Runtime never writes it where it is bound, so it would hold what another client left there."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("X", "Y")]
    graph = helper.make_graph([helper.make_node("Neg", ["X"], ["Y"])], "g", tensors[:1], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="'X' is an input and an output"):
        load(ModelFile(tmp_path, "model.onnx"))


def test_files_that_are_none(tmp_path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(ModelFile(tmp_path, "model.onnx"))
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ConfigError, match="ONNX Runtime cannot load it"):
        load(ModelFile(tmp_path, "model.onnx"))
