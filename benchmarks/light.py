"""A client that keeps nothing: several processes with ready-made requests, for what perf_analyzer cannot measure.

perf_analyzer keeps every answer that comes in a message until its memory is full, spends 14 ms of CPU on a request of
1 MiB (measured), and all its requests share one input and one output of a region. Here an answer is thrown away once it
is counted, and each request in flight may have a place of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
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
PROCESSES = max(1, min(8, (os.cpu_count() or 1) // 2))
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
    p90_us: float
    p99_us: float
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


def http_request(model: str, body: bytes, headers: str) -> bytes:
    """A request over HTTP, with all its headers."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def drive(url: str, requests: Sequence[bytes], in_flight: int, protocol: str = "Grpc") -> Load:
    """Keeps so many requests in flight for some seconds; each has its own connection over HTTP."""
    work = _work if protocol == "Grpc" else _work_http
    context = multiprocessing.get_context("spawn")
    results: Queue[tuple[list[float], int]] = context.Queue()
    workers = []
    for number in range(PROCESSES):
        own = list(requests[number::PROCESSES]) or list(requests)
        share = in_flight // PROCESSES + (number < in_flight % PROCESSES)
        workers.append(context.Process(target=work, args=(url, own, share, results)))
    for worker in workers:
        worker.start()
    rows = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    latencies = np.concatenate([np.array(own) for own, _ in rows]) * 1e6
    times = np.percentile(latencies, [50, 90, 99]) if len(latencies) else np.zeros(3)
    p50, p90, p99 = (float(time) for time in times)
    return Load(len(latencies) / SECONDS, p50, p90, p99, sum(errors for _, errors in rows))


def _work(url: str, requests: list[bytes], in_flight: int, results: Queue[tuple[list[float], int]]) -> None:
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
    results.put((latencies, loop.errors))


def _work_http(url: str, requests: list[bytes], in_flight: int, results: Queue[tuple[list[float], int]]) -> None:
    """One process, a thread for each connection."""
    latencies: list[float] = []
    errors: list[bytes] = []
    began = time.perf_counter()
    end = began + WARM_UP_S + SECONDS

    def ask(request: bytes) -> None:
        host, _, port = url.rpartition(":")
        buffer = bytearray(1 << 21)
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (sent := time.perf_counter()) < end:
                connection.sendall(request)
                status = _read_answer(connection, buffer)
                if status != b"200":
                    errors.append(status)
                elif sent >= began + WARM_UP_S:
                    latencies.append(time.perf_counter() - sent)

    threads = [threading.Thread(target=ask, args=(requests[at % len(requests)],)) for at in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((latencies, len(errors)))


def _read_answer(connection: socket.socket, buffer: bytearray) -> bytes:
    """Reads a whole answer and returns its status."""
    view, have, total = memoryview(buffer), 0, None
    while total is None or have < total:
        got = connection.recv_into(view[have:])
        if not got:
            return b"closed"
        have += got
        end = buffer.find(b"\r\n\r\n", 0, min(have, 4096)) if total is None else -1
        if end >= 0:
            head = bytes(buffer[:end]).lower()
            at = head.index(b"\r\ncontent-length:") + 17
            total = end + 4 + int(head[at:].split(b"\r\n")[0])
    return bytes(buffer[9:12])


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
