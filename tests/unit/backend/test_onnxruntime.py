"""The ONNX backend: what it refuses to load, how it makes its sessions, that it computes what ONNX Runtime computes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from headrace.backend.base import ModelFile
from headrace.backend.onnxruntime import OnnxInstance, OnnxModel, load
from headrace.config.model import data_type_number, model_spec
from headrace.core.dtype import DTYPES
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig
from headrace.core.tensor import TensorRef
from tests import models


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


DTYPE_OF = {dtype.numpy: dtype for dtype in DTYPES.values()}
SPLIT = (np.arange(12, dtype=np.float32).reshape(4, 3), np.array(2.0, np.float32))
"""Inputs of `split_model`."""


def split_model(repository) -> None:
    """A scalar input, two outputs whose shapes the file tells, and one whose shape depends on values."""
    half = helper.make_tensor("half", TensorProto.INT64, [2], [2, 2])
    nodes = [
        helper.make_node("Mul", ["X", "factor"], ["scaled"]),
        helper.make_node("Split", ["scaled", "half"], ["LOW", "HIGH"], axis=0),
        helper.make_node("NonZero", ["scaled"], ["WHERE"]),
    ]
    inputs = [("X", TensorProto.FLOAT, [4, "wide"]), ("factor", TensorProto.FLOAT, [])]
    outputs = [
        ("LOW", TensorProto.FLOAT, [2, "wide"]),
        ("HIGH", TensorProto.FLOAT, [2, "wide"]),
        ("WHERE", TensorProto.INT64, [2, "count"]),
    ]
    models.onnx_model(repository, "split", nodes, inputs, outputs, initializers=[half])


def split(tmp_path) -> OnnxModel:
    split_model(tmp_path)
    return load(ModelFile(tmp_path / "split" / "1", "model.onnx"))


def spec_of(model: OnnxModel, parameters: dict[str, str], level: int = 0):
    config = ModelConfig(name="split", backend="onnxruntime")
    for side, tensors in ((config.input, model.signature.inputs), (config.output, model.signature.outputs)):
        for tensor in tensors:
            side.add(name=tensor.name, data_type=data_type_number(tensor.dtype.config_name), dims=tensor.dims)
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    config.optimization.graph.level = level
    return model_spec(config)


def run(instance: OnnxInstance, arrays: tuple[np.ndarray, ...]) -> tuple[list[np.ndarray], set[int]]:
    """Outputs, placed as a mover places them, and which of them ONNX Runtime allocated."""
    inputs = [TensorRef(array.ctypes.data, DTYPE_OF[array.dtype], array.shape) for array in arrays]
    shapes = instance.output_shapes(inputs)
    outputs = [
        None if shape is None else np.full(shape, 77, spec.dtype.numpy)
        for shape, spec in zip(shapes, instance._specs, strict=True)
    ]
    places = {
        at: None if array is None else TensorRef(array.ctypes.data, instance._specs[at].dtype, array.shape)
        for at, array in enumerate(outputs)
    }
    produced = instance.run(inputs, places)
    for at, output in produced.items():
        outputs[at] = output.owner.numpy()
    return [array for array in outputs if array is not None], set(produced)


SETTINGS = [
    {},
    {"intra_op_thread_count": "3"},
    {"execution_mode": "1", "inter_op_thread_count": "2"},
    {"enable_mem_arena": "0", "enable_mem_pattern": "false"},
    {"memory.enable_memory_arena_shrinkage": "cpu:0"},
    {"share_session_between_instances": "true"},
    {"session.use_device_allocator_for_initializers": "1", "session.disable_prepacking": "1"},
    {"session.set_denormal_as_zero": "1", "session.intra_op.allow_spinning": "0"},
    {"session.dynamic_block_base": "4", "session.inter_op.allow_spinning": "0"},
    {"session.disable_quant_qdq": "1", "optimization.enable_gelu_approximation": "1"},
]


@pytest.mark.parametrize(("parameters", "level"), list(itertools.product(SETTINGS, [0, -1, 1, 2])), ids=str)
def test_answers_are_those_of_onnx_runtime(tmp_path, parameters: dict[str, str], level: int) -> None:
    model = split(tmp_path)
    spec = spec_of(model, parameters, level)
    direct = onnxruntime.InferenceSession(str(tmp_path / "split" / "1" / "model.onnx"))
    for instance in [model.start_instance(spec, 1), model.start_instance(spec, 2)]:
        for factor in (2.0, 0.0, 3.0, 3.0, 3.0):
            arrays = (SPLIT[0], np.array(factor, np.float32))
            outputs, _ = run(instance, arrays)
            expected = direct.run(None, dict(zip(("X", "factor"), arrays, strict=True)))
            for ours, theirs in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_settings_reach_the_session(tmp_path) -> None:
    model = split(tmp_path)
    parameters = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "session.disable_prepacking": "true",
    }
    options = model.start_instance(spec_of(model, parameters, level=1), 8)._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    usual = model.start_instance(spec_of(model, {}), 8)._session.get_session_options()
    assert (usual.intra_op_num_threads, usual.inter_op_num_threads) == (8, 1)
    assert usual.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def test_sessions_are_shared_when_the_config_wants_it(tmp_path) -> None:
    model = split(tmp_path)
    shared = spec_of(model, {"share_session_between_instances": "1"})
    assert model.start_instance(shared, 1)._session is model.start_instance(shared, 1)._session
    own = spec_of(model, {})
    assert model.start_instance(own, 1)._session is not model.start_instance(own, 1)._session


def test_bad_settings_are_refused_by_name(tmp_path) -> None:
    model = split(tmp_path)
    with pytest.raises(ConfigError, match="'execution_mode' must be 0 or 1, got 'parallel'"):
        model.start_instance(spec_of(model, {"execution_mode": "parallel"}), 1)


def test_outputs_are_bound_again_after_an_odd_request(tmp_path) -> None:
    """The count of what is not zero is the same but for one request."""
    model = split(tmp_path)
    instance = model.start_instance(spec_of(model, {}), 1)

    def allocated(factor: float) -> set[int]:
        return run(instance, (SPLIT[0], np.array(factor, np.float32)))[1]

    assert allocated(1) == {2}  # seen for the first time
    assert allocated(2) == set()
    assert allocated(0) == {0, 1, 2}  # the odd one: it ran twice, the second time with nothing bound
    assert [allocated(3) for _ in range(4)] == [{2}, {2}, set(), set()]


def test_a_file_whose_names_lie(tmp_path) -> None:
    """It says that the output has as many rows as the input, and it has twice as many."""
    nodes = [helper.make_node("Concat", ["X", "X"], ["Y"], axis=0)]
    tensor = (TensorProto.FLOAT, ["rows", 2])
    models.onnx_model(tmp_path, "doubled", nodes, [("X", *tensor)], [("Y", *tensor)])
    model = load(ModelFile(tmp_path / "doubled" / "1", "model.onnx"))
    instance = model.start_instance(spec_of(model, {}), 1)
    for rows in (1, 3):
        array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        results = [run(instance, (array,)) for _ in range(4)]
        for outputs, _ in results:
            np.testing.assert_array_equal(outputs[0], np.concatenate([array, array]))
        assert [allocated for _, allocated in results] == [{0}, {0}, set(), set()]


def test_a_request_that_fails_changes_nothing(tmp_path) -> None:
    models.gather(tmp_path, "gather")
    model = load(ModelFile(tmp_path / "gather" / "1", "model.onnx"))
    instance = model.start_instance(spec_of(model, {}), 1)
    good, bad = np.array([[1]]), np.array([[9]])
    assert run(instance, (good,))[1] == set()
    with pytest.raises(Exception, match="indices element out of data bounds"):
        run(instance, (bad,))
    outputs, allocated = run(instance, (good,))
    assert (outputs[0].tolist(), allocated) == ([[1.0]], set())
