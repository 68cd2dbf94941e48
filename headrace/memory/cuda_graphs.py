"""CUDA graphs of work that an engine puts on a stream, captured through the runtime."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.memory.device import DeviceError

Call = Callable[..., Any]
"""Calls a function of the runtime and returns its results. Raises `DeviceError`."""


class CudaGraph:
    """Work that one call puts on a stream. The addresses that it uses are part of it."""

    def __init__(self, runtime: Any, call: Call, executable: Any) -> None:
        self._runtime = runtime
        self._call = call
        self._executable = executable

    def launch(self, stream: Any) -> None:
        """`cudaGraphLaunch`."""
        self._call(self._runtime.cudaGraphLaunch, self._executable, stream)

    def close(self) -> None:
        """`cudaGraphExecDestroy`."""
        self._call(self._runtime.cudaGraphExecDestroy, self._executable)


def capture(runtime: Any, call: Call, stream: Any, work: Callable[[], None]) -> CudaGraph:
    """Captures what `work` puts on the stream; other threads may go on calling CUDA meanwhile.

    Raises:
        DeviceError: when something of it cannot be captured; the stream is as before.
        Exception: whatever `work` raises.
    """
    call(runtime.cudaStreamBeginCapture, stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
    try:
        work()
    except BaseException:
        with suppress(DeviceError):
            call(runtime.cudaGraphDestroy, call(runtime.cudaStreamEndCapture, stream))
        raise
    graph = call(runtime.cudaStreamEndCapture, stream)
    try:
        return CudaGraph(runtime, call, call(runtime.cudaGraphInstantiate, graph, 0))
    finally:
        call(runtime.cudaGraphDestroy, graph)
