"""A short load: several clients at once, and what they and the server saw of it."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from calls import Call
from errors import DemoError
from orientation import MODEL, read_answer
from tritonclient.grpc import InferenceServerClient

REFRESH_SECONDS = 0.1
# Without this, the clients of one process would all share one connection.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True)
class Figures:
    """The result of one load."""

    mode: str
    requests: int
    infer_per_s: float
    p50_ms: float
    p99_ms: float
    average_batch: float | None
    socket_bytes_per_request: float | None


@dataclass
class Worker:
    """One client that sends one request after the other, and checks each answer."""

    client: InferenceServerClient
    call: Call
    right_answer: int
    seconds: list[float] = field(default_factory=list)

    def send(self) -> None:
        began = time.perf_counter()
        scores = self.call.send(self.client)
        self.seconds.append(time.perf_counter() - began)
        answer, _ = read_answer(scores)
        if answer != self.right_answer:
            raise DemoError(f"under load, the model said {answer} instead of {self.right_answer}")

    def send_until(self, end: threading.Event) -> None:
        while not end.is_set():
            self.send()


def run_load(
    url: str,
    mode: str,
    calls: Sequence[tuple[Call, int]],
    seconds: float,
    on_progress: Callable[[float, int], None],
) -> Figures:
    """Send every call from a client of its own, over and over, for some seconds.

    The calls come with their right answers. `on_progress` hears the time passed and the answers so far.
    """
    with ExitStack() as clients:
        workers = [
            Worker(clients.enter_context(_connect(url)), call, answer) for call, answer in calls
        ]
        for worker in workers:
            worker.send()  # opens the connection; not measured
            worker.seconds.clear()
        before, bytes_before = _executions(workers[0].client), _loopback_bytes()
        elapsed = _drive(workers, seconds, on_progress)
        bytes_after, after = _loopback_bytes(), _executions(workers[0].client)

    took = np.concatenate([worker.seconds for worker in workers])
    p50, p99 = np.percentile(took, [50, 99]) * 1000
    return Figures(
        mode=mode,
        requests=len(took),
        infer_per_s=len(took) / elapsed,
        p50_ms=float(p50),
        p99_ms=float(p99),
        average_batch=_average_batch(before, after),
        socket_bytes_per_request=(bytes_after - bytes_before) / len(took) or None,
    )


def _connect(url: str) -> InferenceServerClient:
    return InferenceServerClient(url, channel_args=OWN_CONNECTION)


def _drive(
    workers: Sequence[Worker], seconds: float, on_progress: Callable[[float, int], None]
) -> float:
    """Run the workers side by side, and return how long it took until the last one was done."""
    end = threading.Event()
    began = time.perf_counter()
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker.send_until, end) for worker in workers]
        try:
            while (elapsed := time.perf_counter() - began) < seconds and not _any_done(running):
                on_progress(elapsed, sum(len(worker.seconds) for worker in workers))
                time.sleep(min(REFRESH_SECONDS, seconds - elapsed))
        finally:
            end.set()
        for future in running:
            future.result()  # raises what the worker raised
    return time.perf_counter() - began


def _any_done(running: Sequence[Future[None]]) -> bool:
    return any(future.done() for future in running)


def _executions(client: InferenceServerClient) -> tuple[int, int]:
    """Return how many inferences the model has answered so far, and in how many executions."""
    statistics = client.get_inference_statistics(MODEL).model_stats[0]
    return statistics.inference_count, statistics.execution_count


def _average_batch(before: tuple[int, int], after: tuple[int, int]) -> float | None:
    executions = after[1] - before[1]
    return (after[0] - before[0]) / executions if executions else None


def _loopback_bytes() -> int:
    """Return what the loopback device has carried so far (all programs' bytes: keep it quiet)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        device, _, counters = line.partition(":")
        if device.strip() == "lo":
            return int(counters.split()[0])
    return 0
