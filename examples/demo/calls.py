"""Prepared inference calls: the tensors inside the message, or in shared memory.

Nothing here is special to Headrace: this is tritonclient as every Triton user knows it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from orientation import INPUT, MODEL, OUTPUT, TURNS, Tensor
from tritonclient.grpc import (
    InferenceServerClient,
    InferInput,
    InferRequestedOutput,
    InferResult,
)
from tritonclient.utils import shared_memory as shm

ANSWER_BYTES = len(TURNS) * np.dtype(np.float32).itemsize
REPLY_SECONDS = 30  # a server that takes longer than this hangs


@dataclass(frozen=True)
class Call:
    """One request that can be sent again and again, and the way to its answer."""

    inputs: list[InferInput]
    outputs: list[InferRequestedOutput]
    scores: Callable[[InferResult], Tensor]

    def send(self, client: InferenceServerClient) -> Tensor:
        result = client.infer(
            MODEL, self.inputs, outputs=self.outputs, client_timeout=REPLY_SECONDS
        )
        return self.scores(result)


def inline_call(tensor: Tensor) -> Call:
    """Carry the picture in the request message and the scores in the reply message."""
    picture = InferInput(INPUT, list(tensor.shape), "FP32")
    picture.set_data_from_numpy(tensor)
    return Call([picture], [InferRequestedOutput(OUTPUT)], lambda result: result.as_numpy(OUTPUT))


@contextmanager
def shared_calls(client: InferenceServerClient, tensors: Sequence[Tensor]) -> Iterator[list[Call]]:
    """Put the pictures side by side in one region, with room for the scores in another.

    The messages then only say where the tensors are. The regions are gone when the block ends.
    """
    with ExitStack() as regions:
        pictures = regions.enter_context(_region(client, "demo_in", sum(t.nbytes for t in tensors)))
        answers = regions.enter_context(_region(client, "demo_out", ANSWER_BYTES * len(tensors)))
        shm.set_shared_memory_region(pictures, list(tensors))
        yield [_shared_call(answers, tensor, slot) for slot, tensor in enumerate(tensors)]


def _shared_call(answers: Any, tensor: Tensor, slot: int) -> Call:
    answer_at = slot * ANSWER_BYTES
    picture = InferInput(INPUT, list(tensor.shape), "FP32")
    picture.set_shared_memory("demo_in", tensor.nbytes, offset=slot * tensor.nbytes)
    answer = InferRequestedOutput(OUTPUT)
    answer.set_shared_memory("demo_out", ANSWER_BYTES, offset=answer_at)

    def scores(_: InferResult) -> Tensor:
        view = shm.get_contents_as_numpy(answers, np.float32, [1, len(TURNS)], answer_at)
        return np.array(view)  # a copy: a region that is still looked at cannot be closed

    return Call([picture], [answer], scores)


@contextmanager
def _region(client: InferenceServerClient, name: str, byte_size: int) -> Iterator[Any]:
    """Create a region and make it known to the server, for as long as the block runs."""
    key = f"/headrace_{name}_{os.getpid()}"
    region = shm.create_shared_memory_region(name, key, byte_size, create_only=True)
    try:
        client.register_system_shared_memory(name, key, byte_size)
        try:
            yield region
        finally:
            client.unregister_system_shared_memory(name)
    finally:
        shm.destroy_shared_memory_region(region)
