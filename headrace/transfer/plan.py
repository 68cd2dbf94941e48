"""The transfer plan of a model: chosen once when it loads, obeyed for every batch."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backend.base import Model
from headrace.config.model import ModelSpec
from headrace.core.wire import Batch
from headrace.transfer.host import ForwardMover, HostMover

Mover = Callable[[Batch], None]
"""Takes a batch through *input*, *infer* and *output* and settles it, or raises."""


def compile_plan(model: Model, spec: ModelSpec, threads: int) -> Mover:
    """How one instance of the model moves its batches; starts the instance."""
    instance = model.start_instance(spec, threads)
    if set(model.forwards) == set(range(len(spec.outputs))):
        return ForwardMover(model.forwards)
    return HostMover(instance, spec)
