"""A system shared-memory region with a picture and room for the answer: what a client has to write to use one."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.utils import shared_memory

from examples.demo.model import NAME

ANSWER_BYTES = 4 * 4
"""FP32 [1, 4]."""
REPLY_S = 30.0
"""A server that takes longer than this hangs."""


class Region:
    """The picture comes first, the answer behind it."""

    def __init__(self, client: Any, name: str, picture: NDArray[np.float32]) -> None:
        self._client, self._name, self._at = client, name, picture.nbytes
        size = picture.nbytes + ANSWER_BYTES
        self._handle = shared_memory.create_shared_memory_region(name, f"/headrace_{name}", size)
        client.register_system_shared_memory(name, f"/headrace_{name}", size)
        self._input = grpcclient.InferInput("x", list(picture.shape), "FP32")
        self._input.set_shared_memory(name, picture.nbytes)
        self._output = grpcclient.InferRequestedOutput("fetch_name_0")
        self._output.set_shared_memory(name, ANSWER_BYTES, offset=self._at)
        self.write(picture)

    def write(self, picture: NDArray[np.float32]) -> None:
        """Puts another picture in place."""
        shared_memory.set_shared_memory_region(self._handle, [picture])

    def infer(self) -> None:
        """Asks: only names and shapes travel."""
        self._client.infer(NAME, [self._input], outputs=[self._output], client_timeout=REPLY_S)

    def read(self) -> NDArray[np.float32]:
        """The answer, where the server wrote it."""
        return np.array(shared_memory.get_contents_as_numpy(self._handle, np.float32, [1, 4], self._at), np.float32)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._client.unregister_system_shared_memory(self._name)
        finally:
            shared_memory.destroy_shared_memory_region(self._handle)
