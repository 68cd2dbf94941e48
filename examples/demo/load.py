"""A short load, with tensors in the message and with tensors in shared memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
from numpy.typing import NDArray
from rich.progress import Progress

from examples.demo.model import NAME
from examples.demo.region import REPLY_S, Region

CLIENTS = 8
WARM_UP_S = 1.0


@dataclass(frozen=True)
class Figures:
    """What a load measured."""

    mode: str
    inferences_per_s: float
    p50_ms: float
    p99_ms: float
    average_batch: float
    socket_bytes: int
    """Tensor bytes that each request sends through the socket, both ways."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure(address: str, mode: str, picture: NDArray[np.float32], seconds: float, progress: Progress) -> Figures:
    """Has `CLIENTS` clients ask, each one request after another; `mode` is "in the message" or "in shared memory"."""
    shared = mode == "in shared memory"
    ask = _ask_shared if shared else _ask_inline
    starts, over = time.monotonic() + WARM_UP_S, threading.Event()
    latencies: list[list[float]] = [[] for _ in range(CLIENTS)]
    with grpcclient.InferenceServerClient(address) as client, ThreadPoolExecutor(CLIENTS) as pool:
        asking = [
            pool.submit(ask, address, number, picture, _recorder(latencies[number], starts), over)
            for number in range(CLIENTS)
        ]
        try:
            _watch(mode, starts, 0, progress, asking)
            before = _counts(client)
            _watch(mode, starts, seconds, progress, asking)
            inferences, executions = (now - then for now, then in zip(_counts(client), before, strict=True))
        finally:
            over.set()
    for client_thread in asking:
        client_thread.result()  # raises what went wrong there
    times = np.array([value for own in latencies for value in own]) * 1000
    answer_bytes = 4 * 4
    return Figures(
        mode=mode,
        inferences_per_s=inferences / seconds,
        p50_ms=float(np.percentile(times, 50)),
        p99_ms=float(np.percentile(times, 99)),
        average_batch=inferences / max(1, executions),
        socket_bytes=0 if shared else picture.nbytes + answer_bytes,
    )


def _watch(mode: str, starts: float, seconds: float, progress: Progress, asking: list[Future[None]]) -> None:
    """Waits until `seconds` after `starts`, with a bar; a client that fails ends the wait."""
    task = progress.add_task(f"tensors {mode}" if seconds else f"warm-up, tensors {mode}", total=seconds or WARM_UP_S)
    ends = starts + seconds
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
        for failed in (future for future in asking if future.done()):
            failed.result()
        progress.update(task, completed=(seconds or WARM_UP_S) - max(0.0, ends - time.monotonic()))


def _recorder(latencies: list[float], starts: float) -> Callable[[float, float], None]:
    def record(began: float, ended: float) -> None:
        if began >= starts:
            latencies.append(ended - began)

    return record


def _counts(client: Any) -> tuple[int, int]:
    """Inferences and executions so far."""
    statistics = client.get_inference_statistics(NAME).model_stats[0]
    return int(statistics.inference_count), int(statistics.execution_count)


def _repeat(ask: Callable[[], Any], record: Callable[[float, float], None], over: threading.Event) -> None:
    while not over.is_set():
        began = time.monotonic()
        ask()
        record(began, time.monotonic())


def _ask_inline(address: str, _number: int, picture: NDArray[np.float32], record: Any, over: threading.Event) -> None:
    with grpcclient.InferenceServerClient(address) as client:
        tensor = grpcclient.InferInput("x", list(picture.shape), "FP32")
        tensor.set_data_from_numpy(picture)
        _repeat(lambda: client.infer(NAME, [tensor], client_timeout=REPLY_S), record, over)


def _ask_shared(address: str, number: int, picture: NDArray[np.float32], record: Any, over: threading.Event) -> None:
    with grpcclient.InferenceServerClient(address) as client, Region(client, f"demo_load_{number}", picture) as region:
        _repeat(region.infer, record, over)
