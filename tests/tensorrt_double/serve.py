"""`python -m tests.tensorrt_double.serve serve ...` is `headrace serve` with the double of TensorRT, on GPUs whose
memory is the host's (`DOUBLE_GPUS` of them, 1 by default): what models compute is to be looked at.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.onnx_double import HostDevice

_ALIGNMENT = 256


@dataclass(frozen=True)
class Captured:
    """A graph of the double's work."""

    work: list[Callable[[], None]]

    def launch(self, stream: Any) -> None:
        assert stream is not None
        for one in self.work:
            one()

    def close(self) -> None: ...


class Device(HostDevice):
    """Its addresses are aligned, and it captures what the double puts on streams."""

    def allocate(self, nbytes: int) -> int:
        memory = (ctypes.c_byte * (nbytes + _ALIGNMENT))()
        address = ctypes.addressof(memory)
        address += -address % _ALIGNMENT
        self._memory[address], self._blocks[address] = memory, nbytes
        return address

    def capture(self, stream: Any, work: Callable[[], None]) -> Any:
        import tensorrt

        assert stream is not None
        tensorrt.CAPTURED = captured = []
        try:
            work()
        finally:
            tensorrt.CAPTURED = None
        return Captured(captured)


def main() -> None:
    """Serves."""
    from headrace import server
    from headrace.__main__ import main as serve

    sys.path.insert(0, str(Path(__file__).parent))
    server.find_devices = lambda *_: ([Device(at) for at in range(int(os.environ.get("DOUBLE_GPUS", "1")))], "")  # type: ignore[assignment]
    serve()


if __name__ == "__main__":
    main()
