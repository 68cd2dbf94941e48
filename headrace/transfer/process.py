"""Batches of models that run in processes: their tensors are not moved here, but shared (`src/process.rs`)."""

from __future__ import annotations

from collections.abc import Callable

from headrace.backend.python import PythonInstance
from headrace.backend.python_process import ProcessDownError, ProcessError
from headrace.core.errors import Kind
from headrace.core.wire import Batch


class ProcessMover:
    """Has a process execute batches. One that ends costs its batch, and is started again before the next is taken."""

    def __init__(self, instance: PythonInstance, name: str, somebody_waits: Callable[[], bool]) -> None:
        self._instance = instance
        self._name = name
        self._somebody_waits = somebody_waits

    def __call__(self, batch: Batch) -> None:
        """Serves the batch."""
        try:
            input_end, infer_end = self._instance.execute(batch)
        except ProcessError as error:
            kind = Kind.UNAVAILABLE if isinstance(error, ProcessDownError) else Kind.INTERNAL
            batch.fail(kind, f"the process of instance '{self._name}' {error}")
            self._instance.revive(self._somebody_waits)
            return
        batch.settle(input_end, infer_end)
