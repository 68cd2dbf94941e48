"""Every contestant answers right before it is timed: a fast wrong answer is worth nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from tritonclient.utils import shared_memory

from benchmarks.scenarios import Contestant, Scenario
from benchmarks.servers import Server

Array = NDArray[np.generic]


def check(server: Server, contestant: Contestant, scenario: Scenario) -> None:
    """Asks once, through shared memory where the scenario does.

    Raises:
        SystemExit: when the answer is wrong; there is nothing to be measured then.
    """
    sent, wanted = _picture() if scenario.shared else _same(QUESTIONS[scenario.question]())
    with grpcclient.InferenceServerClient(server.grpc) as client:
        got = _ask_shared(client, contestant.model, sent, wanted) if scenario.shared else _ask(client, contestant, sent)
    if got is None or got.dtype != wanted.dtype or not np.array_equal(got.reshape(wanted.shape), wanted):
        raise SystemExit(f"{contestant.label} answers {contestant.model} wrongly")


QUESTIONS: dict[str, Callable[[], Array]] = {
    "FP32[16]": lambda: np.random.default_rng(7).random((1, 16), np.float32),
    "FP32[1500]": lambda: np.random.default_rng(7).random((1, 1500), np.float32),
    "FP32[262144]": lambda: np.random.default_rng(7).random((1, 262144), np.float32),
    "BYTES[1000]": lambda: np.array([[f"{number:020}".encode() for number in range(1000)]], np.object_),
}
"""What an echo is asked."""


def _same(row: Array) -> tuple[Array, Array]:
    return row, row


def _picture() -> tuple[Array, Array]:
    image = np.random.default_rng(7).random((1, 3, 384, 640), np.float32).astype(np.float16)
    return image, np.ascontiguousarray(image.reshape(-1, 144, 5120)[:, :84, :5040])


def _ask(client: grpcclient.InferenceServerClient, contestant: Contestant, sent: Array) -> Array | None:
    tensor = grpcclient.InferInput("INPUT0", list(sent.shape), "BYTES" if sent.dtype == np.object_ else "FP32")
    tensor.set_data_from_numpy(sent)
    answer: Array | None = client.infer(contestant.model, [tensor]).as_numpy("OUTPUT0")
    return answer


def _ask_shared(client: grpcclient.InferenceServerClient, model: str, sent: Array, wanted: Array) -> Array:
    """The regions are gone afterwards, from the server and from the machine."""
    with ExitStack() as stack:
        source = _region(stack, client, "bench_in", sent.nbytes)
        target = _region(stack, client, "bench_out", wanted.nbytes)
        shared_memory.set_shared_memory_region(source, [sent])
        images = grpcclient.InferInput("images", list(sent.shape), "FP16")
        images.set_shared_memory("bench_in", sent.nbytes)
        output = grpcclient.InferRequestedOutput("output0")
        output.set_shared_memory("bench_out", wanted.nbytes)
        client.infer(model, [images], outputs=[output])
        got: Array = shared_memory.get_contents_as_numpy(target, np.float16, wanted.shape)
        return got.copy()


def _region(stack: ExitStack, client: grpcclient.InferenceServerClient, name: str, nbytes: int) -> object:
    key = f"/headrace_{name}_{os.getpid()}"
    region = shared_memory.create_shared_memory_region(name, key, nbytes)
    stack.callback(shared_memory.destroy_shared_memory_region, region)
    client.register_system_shared_memory(name, key, nbytes)
    stack.callback(client.unregister_system_shared_memory, name)
    return region
