"""CUDA graphs, with a double of the bindings that remembers calls."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.memory.cuda import CudaDevice
from headrace.memory.device import DeviceError

runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")


class Status(Enum):
    cudaSuccess = 0  # noqa: N815 - CUDA's
    cudaErrorStreamCaptureInvalidated = 901  # noqa: N815


class Runtime:
    """Remembers calls; the first result of each is whether it failed."""

    cudaError_t = Status  # noqa: N815
    cudaStreamCaptureMode = runtime.cudaStreamCaptureMode  # noqa: N815
    cudaMemcpySrcAccessOrder = runtime.cudaMemcpySrcAccessOrder  # noqa: N815
    cudaMemcpyAttributes = SimpleNamespace  # noqa: N815

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        if not hasattr(runtime, name):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            failed = Status.cudaErrorStreamCaptureInvalidated if name == self.failing else Status.cudaSuccess
            return failed, SimpleNamespace(name=b"a GPU\0") if name == "cudaGetDeviceProperties" else f"of {name}"

        call.__name__ = name
        return call

    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


@pytest.fixture
def double() -> Runtime:
    return Runtime()


def test_a_graph_is_what_was_captured(double: Runtime) -> None:
    device = CudaDevice(double, 0)
    double.calls.clear()
    graph = device.capture("s", lambda: double.calls.append(("work",)))
    graph.launch("s")
    graph.close()
    assert double.calls == [
        ("cudaStreamBeginCapture", "s", runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal),
        ("work",),
        ("cudaStreamEndCapture", "s"),
        ("cudaGraphInstantiate", "of cudaStreamEndCapture", 0),
        ("cudaGraphDestroy", "of cudaStreamEndCapture"),
        ("cudaGraphLaunch", "of cudaGraphInstantiate", "s"),
        ("cudaGraphExecDestroy", "of cudaGraphInstantiate"),
    ]


@pytest.mark.parametrize("failing", ["cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_a_capture_that_fails_leaves_nothing(double: Runtime, failing: str) -> None:
    device = CudaDevice(double, 0)
    double.calls.clear()
    double.failing = failing
    with pytest.raises(DeviceError, match=f"{failing} on GPU 0: cudaErrorStreamCaptureInvalidated"):
        device.capture("s", lambda: None)
    assert double.names().count("cudaGraphDestroy") == (failing == "cudaGraphInstantiate")


@pytest.mark.parametrize("failing", ["", "cudaStreamEndCapture"])
def test_work_that_raises_ends_the_capture(double: Runtime, failing: str) -> None:
    device = CudaDevice(double, 0)
    double.failing = failing

    def work() -> None:
        raise RuntimeError("no such operator")

    with pytest.raises(RuntimeError, match="no such operator"):
        device.capture("s", work)
    assert "cudaStreamEndCapture" in double.names()
    assert "cudaGraphInstantiate" not in double.names()
