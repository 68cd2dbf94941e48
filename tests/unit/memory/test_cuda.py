"""The calls of CUDA's bindings, on a double of the runtime whose functions take what the installed bindings take."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest

from headrace.memory.cuda import CudaDevice
from headrace.memory.device import DeviceError

runtime = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
OK = runtime.cudaError_t.cudaSuccess


class Recorded:
    """Answers every function of the runtime with success, and remembers the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple]] = []
        self.results = {"cudaMalloc": (4096,), "cudaStreamCreateWithFlags": (runtime.cudaStream_t(1),)}
        self.results["cudaEventCreateWithFlags"] = (runtime.cudaEvent_t(2),)
        self.errors: dict[str, object] = {}

    def __getattr__(self, name: str):
        real = getattr(runtime, name)
        if name == "cudaGetDeviceProperties":
            return lambda _: (OK, SimpleNamespace(name=b"fake\0"))
        if isinstance(real, type):
            return real

        def function(*arguments):
            assert len(inspect.signature(real).parameters) == len(arguments), name
            self.calls.append((name, arguments))
            return (self.errors.get(name, OK), *self.results.get(name, ()))

        function.__name__ = name
        return function

    def named(self, name: str) -> list[tuple]:
        return [arguments for called, arguments in self.calls if called == name]


def test_memory_is_zeroed_and_freed() -> None:
    fake = Recorded()
    device = CudaDevice(fake, 0)
    assert device.allocate(100) == 4096
    device.free(4096)
    assert fake.named("cudaMalloc") == [(100,)]
    assert fake.named("cudaMemset") == [(4096, 0, 100)]
    assert fake.named("cudaFree") == [(4096,)]
    device.allocate(0)
    assert fake.named("cudaMalloc")[1] == (1,), "no memory has no address"


def test_memory_that_there_is_not() -> None:
    fake = Recorded()
    fake.errors["cudaMalloc"] = runtime.cudaError_t.cudaErrorMemoryAllocation
    with pytest.raises(DeviceError, match="cudaMalloc on GPU 3: cudaErrorMemoryAllocation"):
        CudaDevice(fake, 3).allocate(1 << 40)


def test_streams_and_events_are_given_back_by_their_kind() -> None:
    fake = Recorded()
    device = CudaDevice(fake, 0)
    stream, event = device.stream(), device.event()
    device.close(event, stream)
    assert fake.named("cudaEventDestroy") == [(event,)]
    assert fake.named("cudaStreamDestroy") == [(stream,)]


def test_a_thread_that_serves_two_devices_is_on_the_right_one() -> None:
    fake = Recorded()
    devices = [CudaDevice(fake, 0), CudaDevice(fake, 1)]
    for index in (0, 1, 0):
        devices[index].stream()
    assert fake.named("cudaSetDevice") == [(0,), (1,), (0,)]
    mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    assert set(fake.named("cudaThreadExchangeStreamCaptureMode")) == {(mode,)}
