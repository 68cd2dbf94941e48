"""What an ONNX file says about the shapes of its outputs: dimensions with the name of an input's dimension. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.config.model import ModelSpec
from headrace.core.dtype import Dtype
from headrace.core.tensor import Shape

_BF16 = 16
"""`onnx.TensorProto.BFLOAT16`: NumPy has no such type, so its ONNX number is bound."""

Rule = list[int | tuple[int, int]] | None
"""Each dimension of an output: an extent, or the input and axis that have the same; `None` when the file does
not tell.
"""


def binding_type(dtype: Dtype) -> Any:
    """The element type as IOBinding takes it."""
    return _BF16 if dtype.name == "BF16" else dtype.numpy


def shape_rules(session: Any, spec: ModelSpec) -> list[Rule]:
    """The rule of each output of the config."""
    shapes = {tensor.name: tensor.shape for tensor in [*session.get_inputs(), *session.get_outputs()]}
    free = {
        dim: (number, axis)
        for number, tensor in enumerate(spec.inputs)
        for axis, dim in enumerate(shapes[tensor.name])
        if isinstance(dim, str)
    }
    return [_rule(shapes[tensor.name], free) for tensor in spec.outputs]


def _rule(shape: Sequence[int | str], free: Mapping[str, tuple[int, int]]) -> Rule:
    rule: list[int | tuple[int, int]] = []
    for dim in shape:
        source = free.get(dim) if isinstance(dim, str) else dim
        if not isinstance(source, int | tuple) or source == -1:
            return None
        rule.append(source)
    return rule


def apply_rule(rule: Rule, inputs: Sequence[Shape]) -> Shape | None:
    """The shape of an output for inputs of these shapes."""
    if rule is None:
        return None
    return tuple(dim if isinstance(dim, int) else inputs[dim[0]][dim[1]] for dim in rule)
