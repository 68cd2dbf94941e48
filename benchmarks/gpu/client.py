"""A client that keeps nothing: several processes with ready-made requests, for what perf_analyzer cannot measure.

perf_analyzer keeps every answer that comes in a message until its memory is full, and all its requests share one input
and one output of a region. Here each request in flight has its own, and an answer is thrown away once it is counted.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import shared_memory as shm

METHOD = "/inference.GRPCInferenceService/ModelInfer"
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
PROCESSES = 8
WARM_UP_S, SECONDS = 2.0, 4.0


@dataclass(frozen=True)
class Tensor:
    """An input or output of the model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class Load:
    """What came of it."""

    throughput: float
    p50_us: float
    errors: int


def inline_request(model: str, given: Tensor) -> bytes:
    """A request whose tensor is in the message, serialised."""
    tensor = grpcclient.InferInput(given.name, list(given.shape), given.dtype)
    tensor.set_data_from_numpy(np.random.default_rng(0).random(given.shape).astype(_numpy_type(given.dtype)))
    return _serialised(model, [tensor], [])


@contextmanager
def slots(url: str, model: str, given: Tensor, wanted: Tensor, count: int) -> Iterator[list[bytes]]:
    """Serialised requests, each with its own place for input and output in one registered region."""
    each = given.nbytes + wanted.nbytes
    region = shm.create_shared_memory_region("slots", "/headrace_slots", count * each)
    with grpcclient.InferenceServerClient(url) as client:
        client.register_system_shared_memory("slots", "/headrace_slots", count * each)
        try:
            yield [_slot_request(model, given, wanted, slot * each) for slot in range(count)]
        finally:
            client.unregister_system_shared_memory("slots")
            shm.destroy_shared_memory_region(region)


def drive(url: str, requests: Sequence[bytes], in_flight: int) -> Load:
    """Keeps so many requests in flight for some seconds."""
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[int, float, int]] = context.Queue()
    workers = []
    for number in range(PROCESSES):
        own = list(requests[number::PROCESSES]) or list(requests)
        share = in_flight // PROCESSES + (number < in_flight % PROCESSES)
        workers.append(context.Process(target=_work, args=(url, own, share, results)))
    for worker in workers:
        worker.start()
    rows = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    count = sum(row[0] for row in rows)
    return Load(count / SECONDS, float(np.median([row[1] for row in rows])), sum(row[2] for row in rows))


def _work(url: str, requests: list[bytes], in_flight: int, results: Queue[tuple[int, float, int]]) -> None:
    """One process."""
    with grpc.insecure_channel(url, options=OPTIONS) as channel:
        loop = _Loop(channel.unary_unary(METHOD))
        for number in range(in_flight):
            loop.send(requests[number % len(requests)])
        time.sleep(WARM_UP_S)
        loop.latencies = []
        time.sleep(SECONDS)
        latencies = loop.latencies
        loop.stop()
    results.put((len(latencies), float(np.median(latencies)) * 1e6 if latencies else 0.0, loop.errors))


class _Loop:
    """Sends a request again as soon as it is answered."""

    def __init__(self, infer: Any) -> None:
        self._infer = infer
        self._going = True
        self._left = 0
        self._over = threading.Condition()
        self.latencies: list[float] = []
        self.errors = 0

    def send(self, request: bytes) -> None:
        """Puts it in flight."""
        with self._over:
            self._left += 1
        began = time.perf_counter()
        self._infer.future(request).add_done_callback(lambda answer: self._answered(request, began, answer))

    def _answered(self, request: bytes, began: float, answer: Any) -> None:
        if answer.exception() is None:
            self.latencies.append(time.perf_counter() - began)
        else:
            self.errors += 1
        with self._over:
            self._left -= 1
            self._over.notify()
        if self._going:
            self.send(request)

    def stop(self) -> None:
        """Waits for what is in flight."""
        self._going = False
        with self._over:
            self._over.wait_for(lambda: self._left == 0, timeout=30)


def _slot_request(model: str, given: Tensor, wanted: Tensor, at: int) -> bytes:
    tensor = grpcclient.InferInput(given.name, list(given.shape), given.dtype)
    tensor.set_shared_memory("slots", given.nbytes, at)
    output = grpcclient.InferRequestedOutput(wanted.name)
    output.set_shared_memory("slots", wanted.nbytes, at + given.nbytes)
    return _serialised(model, [tensor], [output])


def _serialised(model: str, inputs: list[Any], outputs: list[Any]) -> bytes:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    for tensor in inputs:
        request.inputs.append(tensor._get_tensor())  # noqa: SLF001 - the library has no public way to a message
        content = tensor._get_content()  # noqa: SLF001
        if content is not None:
            request.raw_input_contents.append(content)
    request.outputs.extend(output._get_tensor() for output in outputs)  # noqa: SLF001
    return bytes(request.SerializeToString())


def _numpy_type(dtype: str) -> Any:
    return {"FP16": np.float16, "FP32": np.float32}[dtype]
