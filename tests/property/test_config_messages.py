"""Any `ModelConfig` is completed and checked to a spec, or refused with reasons; never anything else."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.config.complete import complete_backend, complete_defaults, complete_from_signature
from headrace.config.model import ModelSignature, model_spec
from headrace.config.pbtxt import GivenConfig
from headrace.config.validate import validate
from headrace.core.dtype import DTYPES
from headrace.core.errors import ConfigError
from headrace.core.messages import ModelConfig, parse_text, to_json
from headrace.core.tensor import TensorSpec

BUDGET = settings(max_examples=300, deadline=None)
FIXED = TensorSpec("y", DTYPES["FP32"], (2, 8))
SIGNATURES = [
    None,
    ModelSignature((TensorSpec("x", DTYPES["FP32"], (-1, 3)),), (TensorSpec("y", DTYPES["INT8"], (-1,)),)),
    ModelSignature((TensorSpec("x", DTYPES["FP32"], (-1, 3)),), (FIXED,)),
    ModelSignature((TensorSpec("x", DTYPES["FP32"], ()),), ()),
]
STRINGS = st.sampled_from(["", "x", "y", "m", "identity", "onnxruntime", "onnxruntime_onnx", "0", "\u00e4 b"])
GOOD = """
backend: "identity" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 3 }
"""


def numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([max(low, -1), 0, 1, 2, 8, low, high]), st.integers(low, high))


def values(field: Any, depth: int) -> st.SearchStrategy[Any] | None:
    if field.message_type is not None:
        return messages(field.message_type, depth - 1) if depth else None
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    return {
        field.CPPTYPE_STRING: STRINGS,
        field.CPPTYPE_BOOL: st.booleans(),
        field.CPPTYPE_FLOAT: st.floats(width=32),
        field.CPPTYPE_DOUBLE: st.floats(),
        field.CPPTYPE_UINT32: numbers(0, 2**bits - 1),
        field.CPPTYPE_UINT64: numbers(0, 2**bits - 1),
    }.get(field.cpp_type, numbers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))


@st.composite
def messages(draw: st.DrawFn, descriptor: Any, depth: int = 4) -> dict[str, Any]:
    """A message with some of its fields, as its class takes them."""
    if not descriptor.fields:
        return {}
    fields = draw(st.lists(st.sampled_from(list(descriptor.fields)), max_size=5, unique_by=lambda field: field.name))
    message = {}
    for field in fields:
        strategy = values(field, depth)
        if strategy is None or (
            field.containing_oneof and {one.name for one in field.containing_oneof.fields} & set(message)
        ):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            values_of = values(value, depth)
            message[field.name] = (
                draw(st.dictionaries(values(key, depth), values_of, max_size=2)) if values_of is not None else {}
            )
        elif field.is_repeated:
            message[field.name] = draw(st.lists(strategy, max_size=3))
        else:
            message[field.name] = draw(strategy)
    return message


def judge(config: Any, signature: ModelSignature | None, gpus: int) -> None:
    given_config = GivenConfig(config, None, sets_max_batch_size=bool(config.max_batch_size))
    try:
        completed = complete_backend(given_config, "m", {"model.onnx"})
        if signature is not None:
            complete_from_signature(completed, signature, given_config.sets_max_batch_size)
        complete_defaults(completed, gpus)
        remarks = validate(completed, [f"GPU {index}" for index in range(gpus)], signature)
        spec = model_spec(completed)
    except ConfigError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.problems
        assert all(problem.strip() for problem in refused.problems)
        return
    assert all(isinstance(remark, str) for remark in remarks)
    assert spec.max_batch_size >= 0
    assert spec.instance_count >= 1
    assert spec.inputs
    assert spec.outputs
    again = ModelConfig()
    again.CopyFrom(completed)
    complete_defaults(again, gpus)
    assert again == completed, "completion is finished"
    to_json(completed)


@BUDGET
@given(messages(ModelConfig.DESCRIPTOR), st.sampled_from(SIGNATURES), st.integers(0, 2))
def test_any_message(fields: dict[str, Any], signature: ModelSignature | None, gpus: int) -> None:
    judge(ModelConfig(**fields), signature, gpus)


@BUDGET
@given(messages(ModelConfig.DESCRIPTOR), st.sampled_from(SIGNATURES), st.integers(0, 2))
@example({}, None, 0)
def test_any_addition_to_a_good_config(fields: dict[str, Any], signature: ModelSignature | None, gpus: int) -> None:
    config = ModelConfig()
    parse_text(GOOD, config)
    config.MergeFrom(ModelConfig(**{name: value for name, value in fields.items() if name not in ("name", "backend")}))
    judge(config, signature, gpus)
