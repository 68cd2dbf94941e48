"""ONNX Runtime and a GPU for machines that have none: its CUDA provider played by its CPU provider, on a device whose
memory is the host's.

`CudaRuntime` stands in for the package `onnxruntime`. It has what `headrace/backend/onnx_cuda.py` uses, with the
signatures of the installed package (`tests/unit/backend/test_onnx_cuda.py` compares them), and the provider's rules for
graphs: the first run with a `gpu_graph_id` is captured with the addresses that are bound, later ones replay it and look
at nothing else, a graph belongs to the thread that captured it, and operators that wait for values cannot be captured.

`python -m tests.onnx_double serve ...` is `headrace serve` with both.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnxruntime

from headrace.memory.device import DeviceError
from headrace.memory.simulated import SimulatedDevice

CUDA = "CUDAExecutionProvider"
WAITING = ("NonZero",)
"""Operators that wait for the GPU to know their output's shape, which no capture allows."""


@dataclass
class HostDevice(SimulatedDevice):
    """Takes the time of a simulated device, and does what it is told, in memory of the host."""

    name: str = "a GPU in host memory"
    engine_name: str = "cuda"
    memory: int = 1 << 62
    """Bytes."""
    _memory: dict[int, Any] = field(default_factory=dict)

    def allocate(self, nbytes: int) -> int:
        if self.used()[0] + nbytes > self.memory:
            raise DeviceError("cudaMalloc: cudaErrorMemoryAllocation")
        memory = (ctypes.c_byte * max(1, nbytes))()
        address = ctypes.addressof(memory)
        self._memory[address], self._blocks[address] = memory, nbytes
        return address

    def free(self, address: int) -> None:
        super().free(address)
        self._freed.clear()
        del self._memory[address]

    def owns(self, address: int) -> bool:
        return address in self._memory

    def copy(self, stream: Any, copies: Any) -> None:
        super().copy(stream, copies)
        for target, source, nbytes in copies:
            ctypes.memmove(target, source, nbytes)


class CudaRuntime:
    """The package."""

    def __init__(
        self,
        refuses_graphs: bool = False,
        fails_captures: bool = False,
        starts: bool = True,
        needs_extents: bool = False,
    ) -> None:
        self.refuses_graphs, self.fails_captures, self.starts = refuses_graphs, fails_captures, starts
        self.needs_extents = needs_extents
        """Refuses graphs while a dimension has a name only, as it does where a model computes with its shapes."""
        self.sessions: list[Record] = []
        """On the device, in the order that they were opened."""
        self.alive: weakref.WeakSet[Session] = weakref.WeakSet()

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)

    def get_available_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"]

    def preload_dlls(self) -> None:
        """There are none."""

    class SessionOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
        """Remembers the extents of dimensions."""

        def __init__(self) -> None:
            super().__init__()
            self.extents: dict[str, int] = {}

        def add_free_dimension_override_by_name(self, name: str, extent: int) -> None:
            self.extents[name] = extent
            super().add_free_dimension_override_by_name(name, extent)

    def InferenceSession(self, path: str, options: Any, providers: list[Any], enable_fallback: int) -> Any:  # noqa: N802
        real = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"], enable_fallback=enable_fallback
        )
        if providers == ["CPUExecutionProvider"]:
            return real
        (name, provider), last = providers
        assert (name, last) == (CUDA, "CPUExecutionProvider")
        assert all(isinstance(text, str) for pair in provider.items() for text in pair)
        unknown = self.needs_extents and not options.extents
        if (self.refuses_graphs or unknown) and provider["enable_cuda_graph"] == "1":
            raise RuntimeError("This session cannot use the graph capture feature: a node is on the CPU")
        nodes = onnx.load(path).graph.node
        record = Record(provider, len(self.alive), any(node.op_type in WAITING for node in nodes))
        self.sessions.append(record)
        session = Session(self, real, record)
        self.alive.add(session)
        return session


@dataclass
class Run:
    """How a session was run."""

    graph: int | None
    replayed: bool
    thread: str
    options: dict[str, str]


@dataclass
class Record:
    """What became of a session."""

    provider: dict[str, str]
    others: int
    """Sessions that still held memory when it was opened."""
    waits_for_values: bool
    runs: list[Run] = field(default_factory=list)


class Session:
    """`InferenceSession` on the device."""

    def __init__(self, runtime: CudaRuntime, real: Any, record: Record) -> None:
        self._real, self._runtime, self._record = real, runtime, record
        self._graphs: dict[tuple[int, int], Any] = {}

    def get_providers(self) -> list[str]:
        return [CUDA, "CPUExecutionProvider"] if self._runtime.starts else ["CPUExecutionProvider"]

    def get_inputs(self) -> Any:
        return self._real.get_inputs()

    def get_outputs(self) -> Any:
        return self._real.get_outputs()

    def io_binding(self) -> Binding:
        return Binding(self, self._real.io_binding())

    def run_with_iobinding(self, iobinding: Binding, run_options: Any = None) -> None:
        options = {
            key: run_options.get_run_config_entry(key)
            for key in ("gpu_graph_id", "disable_synchronize_execution_providers")
            if _has_entry(run_options, key)
        }
        graph = int(options.get("gpu_graph_id", "0")) if self._record.provider["enable_cuda_graph"] == "1" else None
        key = (threading.get_ident(), graph or 0)
        replayed = graph not in (None, -1) and key in self._graphs
        self._record.runs.append(Run(graph, replayed, threading.current_thread().name, options))
        if graph not in (None, -1) and not replayed:
            if self._runtime.fails_captures or self._record.waits_for_values:
                raise RuntimeError("cudaErrorStreamCaptureUnsupported")
            self._graphs[key] = iobinding.real
        self._real.run_with_iobinding(self._graphs[key] if replayed else iobinding.real)


def _has_entry(options: Any, key: str) -> bool:
    try:
        options.get_run_config_entry(key)
    except Exception:  # noqa: BLE001 - it raises a RuntimeError of its own
        return False
    return True


class Binding:
    """`IOBinding` whose device `cuda` is the host."""

    def __init__(self, session: Session, real: Any) -> None:
        self._session = session  # as the real one holds its
        self.real = real

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
    ) -> None:
        assert (device_type, device_id) == ("cuda", 0)
        self.real.bind_input(name, "cpu", 0, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        assert (device_type, device_id) == ("cuda", 0)
        self.real.bind_output(name, "cpu", 0, element_type, shape, buffer_ptr)

    def get_outputs(self) -> Any:
        return self.real.get_outputs()


def main() -> None:
    """Serves."""
    from headrace import server
    from headrace.__main__ import main as serve

    sys.modules["onnxruntime"] = CudaRuntime(  # type: ignore[assignment]
        fails_captures=os.environ.get("DOUBLE_FAILS_CAPTURES") == "1"
    )
    server.find_devices = lambda *_: ([HostDevice(0)], "")  # type: ignore[assignment]
    serve()


if __name__ == "__main__":
    main()
