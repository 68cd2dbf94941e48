"""What every attack needs: the server's addresses, a region of its own, a request that waits, a look at the queue."""

from __future__ import annotations

import socket
import sys
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

SIZE = 1 << 20
"""Bytes of the attacks' tensors: FP32 [1, 262144] for the models `add` (at once) and `pairs` (waits for a second)."""


@dataclass(frozen=True)
class Victim:
    """A server, by its addresses."""

    grpc: str
    http: str
    metrics: str

    def waiting(self, model: str) -> int:
        """Requests that wait in the model's queue."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=30) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f'nv_inference_pending_request_count{{model="{model}"'):
                    return int(float(line.rsplit(" ", 1)[1]))
        return 0

    def until_waiting(self, model: str, count: int) -> None:
        """Returns when just so many requests wait."""
        while self.waiting(model) != count:
            pass


def tell(attack: Callable[[Victim], None]) -> None:
    """Runs an attack on the server of the command line."""
    if len(sys.argv) != 4:
        sys.exit(f"usage: {sys.argv[0]} GRPC_ADDRESS HTTP_ADDRESS METRICS_ADDRESS")
    attack(Victim(*sys.argv[1:]))


class Region:
    """A shared-memory object with room for an input and an output, that its owner can do anything with."""

    def __init__(self, name: str, size: int = 2 * SIZE) -> None:
        self.name = name
        self.path = Path("/dev/shm") / name
        self.path.write_bytes(bytes(size))
        self.size = size

    def register(self, client: grpcclient.InferenceServerClient) -> None:
        client.register_system_shared_memory(self.name, f"/{self.name}", self.size)

    def truncate(self, size: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.truncate(size)

    def unlink(self) -> None:
        self.path.unlink(missing_ok=True)


def start(client: grpcclient.InferenceServerClient, model: str, region: Region) -> Future:
    """An inference whose input is the first half of the region and whose output goes to the second."""
    tensor = grpcclient.InferInput("INPUT0", [1, SIZE // 4], "FP32")
    tensor.set_shared_memory(region.name, SIZE, 0)
    wanted = grpcclient.InferRequestedOutput("OUTPUT0")
    wanted.set_shared_memory(region.name, SIZE, SIZE)
    future: Future = Future()

    def done(result: grpcclient.InferResult | None, error: InferenceServerException | None) -> None:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    client.async_infer(model, [tensor], done, outputs=[wanted])
    return future


def must_fail(future: Future, words: str) -> None:
    """The inference fails with these words in its text."""
    error = future.exception(60)
    assert error is not None, f"no error, expected {words!r}"
    assert words in str(error), f"expected {words!r}, got {error}"


def exchange(address: str, data: bytes, hang_up: bool = True) -> bytes:
    """What comes back for these bytes until the server closes; it may do so before it has read them all.

    With `hang_up` our side is closed after the last byte, which ends a request that is not complete, and cancels one
    that is.
    """
    host, port = address.rsplit(":", 1)
    answer = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection, suppress(OSError):
        connection.sendall(data)
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        while chunk := connection.recv(65536):
            answer += chunk
    return answer
