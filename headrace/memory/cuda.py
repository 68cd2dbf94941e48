"""Devices through CUDA's runtime, by NVIDIA's own bindings (optional: `pip install 'headrace[cuda]'`).

Every call of the bindings gives the interpreter lock back while it is in the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from headrace.memory import cuda_graphs
from headrace.memory.device import Copy, Device, DeviceError

_NON_BLOCKING = 1
"""`cudaStreamNonBlocking`: the legacy default stream is never waited for."""
_BLOCKING_SYNC = 1
"""`cudaEventBlockingSync`: a thread that waits for an event sleeps instead of spinning."""
_LAZY_PEER_ACCESS = 1


def find_devices() -> tuple[list[Device], str]:
    """The GPUs that there are and, when there is none, why."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        return [], f"cuda-bindings is not installed ({error}): pip install 'headrace[cuda]'"
    status, count = runtime.cudaGetDeviceCount()
    if status != runtime.cudaError_t.cudaSuccess:
        return [], f"CUDA finds no GPU: {status.name}"
    return [CudaDevice(runtime, index) for index in range(count)], ""


class CudaDevice:
    """A GPU."""

    engine_name = "cuda"

    def __init__(self, runtime: Any, index: int) -> None:
        self._runtime = runtime
        self._attached = threading.local()
        self.index = index
        properties = self._call(runtime.cudaGetDeviceProperties, index)
        self.name = bytes(properties.name).split(b"\0")[0].decode()
        attributes = runtime.cudaMemcpyAttributes()
        # Requests' tensors are complete before they are asked for, so reads need not keep the stream's order.
        attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderAny
        self._any_order = [attributes]

    def attach(self) -> None:
        """Makes the device the current one of the calling thread, each time: the thread may serve others between.

        From the first time on the thread may allocate while an engine captures a graph on another thread: ONNX Runtime
        captures in the mode that forbids it to all threads that did not say so.
        """
        self._call(self._runtime.cudaSetDevice, self.index)
        if not getattr(self._attached, "done", False):
            mode = self._runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
            self._call(self._runtime.cudaThreadExchangeStreamCaptureMode, mode)
            self._attached.done = True

    def stream(self) -> Any:
        """A stream beside the legacy default stream."""
        self.attach()
        return self._call(self._runtime.cudaStreamCreateWithFlags, _NON_BLOCKING)

    def handle(self, stream: Any) -> int:
        """The `cudaStream_t`."""
        return int(stream)

    def event(self) -> Any:
        """An event with a time, that a thread sleeps for."""
        self.attach()
        return self._call(self._runtime.cudaEventCreateWithFlags, _BLOCKING_SYNC)

    def record(self, event: Any, stream: Any) -> None:
        """`cudaEventRecord`."""
        self._call(self._runtime.cudaEventRecord, event, stream)

    def wait(self, stream: Any, event: Any) -> None:
        """`cudaStreamWaitEvent`."""
        self._call(self._runtime.cudaStreamWaitEvent, stream, event, 0)

    def synchronize(self, event: Any) -> None:
        """`cudaEventSynchronize`."""
        self._call(self._runtime.cudaEventSynchronize, event)

    def drain(self, stream: Any) -> None:
        """`cudaStreamSynchronize`."""
        self._call(self._runtime.cudaStreamSynchronize, stream)

    def lost(self) -> str:
        """An error that sticks to the process's context comes back from every call: so from one that asks little."""
        self.attach()
        error, *_ = self._runtime.cudaMemGetInfo()
        return "" if error == self._runtime.cudaError_t.cudaSuccess else str(error.name)

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """`cudaEventElapsedTime`, which resolves half a microsecond."""
        return int(self._call(self._runtime.cudaEventElapsedTime, start, end) * 1e6)

    def copy(self, stream: Any, copies: Sequence[Copy]) -> None:
        """One `cudaMemcpyAsync`, or one `cudaMemcpyBatchAsync` for several."""
        if not copies:
            return
        if len(copies) == 1:
            target, source, nbytes = copies[0]
            kind = self._runtime.cudaMemcpyKind.cudaMemcpyDefault
            self._call(self._runtime.cudaMemcpyAsync, target, source, nbytes, kind, stream)
            return
        targets, sources, sizes = (list(column) for column in zip(*copies, strict=True))
        count = len(copies)
        self._call(self._runtime.cudaMemcpyBatchAsync, targets, sources, sizes, count, self._any_order, [0], 1, stream)

    def capture(self, stream: Any, work: Callable[[], None]) -> cuda_graphs.CudaGraph:
        """`cudaStreamBeginCapture` to `cudaGraphInstantiate`."""
        return cuda_graphs.capture(self._runtime, self._call, stream, work)

    def lock(self, address: int, nbytes: int) -> None:
        """`cudaHostRegister`; with unified addressing its default is portable to all devices."""
        self.attach()
        self._call(self._runtime.cudaHostRegister, address, nbytes, 0)

    def unlock(self, address: int) -> None:
        """`cudaHostUnregister`."""
        self.attach()
        self._call(self._runtime.cudaHostUnregister, address)

    def allocate(self, nbytes: int) -> int:
        """`cudaMalloc` and `cudaMemset`."""
        self.attach()
        address = int(self._call(self._runtime.cudaMalloc, max(1, nbytes)))
        self._call(self._runtime.cudaMemset, address, 0, nbytes)
        self._call(self._runtime.cudaStreamSynchronize, 0)  # our streams do not wait for the default one
        return address

    def free(self, address: int) -> None:
        """`cudaFree`."""
        self.attach()
        self._call(self._runtime.cudaFree, address)

    def close(self, *things: Any) -> None:
        """`cudaStreamDestroy`, `cudaEventDestroy`."""
        self.attach()
        for thing in things:
            is_stream = isinstance(thing, self._runtime.cudaStream_t)
            self._call(self._runtime.cudaStreamDestroy if is_stream else self._runtime.cudaEventDestroy, thing)

    def open_handle(self, handle: bytes, nbytes: int) -> int:
        """`cudaIpcOpenMemHandle`, checked against the allocation behind it."""
        self.attach()
        opaque = self._runtime.cudaIpcMemHandle_t()
        opaque.reserved = handle
        address = int(self._call(self._runtime.cudaIpcOpenMemHandle, opaque, _LAZY_PEER_ACCESS))
        try:
            self._check_allocation(address, nbytes)
        except DeviceError:
            self.close_handle(address)
            raise
        return address

    def _check_allocation(self, address: int, nbytes: int) -> None:
        from cuda.bindings import driver

        error, _, size = driver.cuMemGetAddressRange(address)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(error.name)
        if nbytes > size:
            raise DeviceError(f"byte size {nbytes} is over the {size} bytes of the allocation")

    def close_handle(self, address: int) -> None:
        """`cudaIpcCloseMemHandle`."""
        self.attach()
        self._call(self._runtime.cudaIpcCloseMemHandle, address)

    def _call(self, function: Any, *arguments: Any) -> Any:
        error, *results = function(*arguments)
        if error != self._runtime.cudaError_t.cudaSuccess:
            # The error of a refused call would show up in the next one again.
            self._runtime.cudaGetLastError()
            raise DeviceError(f"{function.__name__} on GPU {self.index}: {error.name}")
        return results[0] if len(results) == 1 else results
