"""The pipeline on a simulated device: an engine that blocks, one that cannot be prepared, and what is left behind."""

# ruff: noqa: ARG002 - doubles have the arguments of what they stand for

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace

import pytest

from headrace.backend.base import BlockingInstance
from headrace.config.model import ModelSpec
from headrace.core.dtype import DTYPES
from headrace.core.tensor import HOST, TensorRef, TensorSpec
from headrace.memory.pinning import Pinning
from headrace.memory.simulated import SimulatedDevice
from headrace.observe.logs import Log
from headrace.transfer.pipeline import Bookings, DevicePipeline

DEADLINE_S = 30
SPEC = ModelSpec("m", "simulated", 4, (TensorSpec("X", DTYPES["FP32"], (2,)),), (), None, 1, {}, None)


class FakeBatch:
    """What the pipeline uses of a batch of the wire."""

    home, rows = HOST, 1

    def __init__(self) -> None:
        self.names: list[str] = []
        self.answer: queue.SimpleQueue[object] = queue.SimpleQueue()

    def shape(self, at: int) -> tuple[int, ...]:
        return (1, 2)

    def pageable_bytes(self, at: int) -> int:
        return 0

    def sources(self, at: int, stage: object) -> list[tuple[int, int]]:
        return [(4096, 8)]

    def wanted(self) -> list[int]:
        return []

    def fell_back(self, name: str, copied: int) -> None:
        self.names.append(name)

    def settle_spans(self, *spans: int) -> None:
        self.answer.put(spans)

    def fail(self, kind: str, message: str) -> None:
        self.answer.put(message)


class Blocking(BlockingInstance):
    """Says on which threads it is used, and computes when it is told."""

    def __init__(self, device: SimulatedDevice, trouble: Exception | None = None) -> None:
        self.device, self.trouble = device, trouble
        self.stream = device.stream()
        self.memory = device.allocate(8)
        self.threads: dict[str, set[str]] = {}
        self.started: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.go = threading.Semaphore(0)

    def note(self, verb: str) -> None:
        self.threads.setdefault(verb, set()).add(threading.current_thread().name)

    def prepare(self) -> None:
        self.note("prepare")
        if self.trouble is not None:
            raise self.trouble

    def bind(self, slot: int, shapes) -> SimpleNamespace:
        self.note("bind")
        return SimpleNamespace(stream=self.stream, inputs=[self.memory], run=self.run)

    def run(self) -> list[TensorRef]:
        self.note("run")
        self.started.put(None)
        assert self.go.acquire(timeout=DEADLINE_S)
        self.device.compute(self.stream, 1_000_000)
        self.device.drain(self.stream)
        return []

    def fallbacks(self) -> list[str]:
        return ["slow"]

    def close(self) -> None:
        self.device.free(self.memory)
        self.device.close(self.stream)


def pipeline_of(device: SimulatedDevice, instance: object) -> DevicePipeline:
    pinning = Pinning([device], Log())
    return DevicePipeline("i", device, instance, SPEC, pinning, Bookings(), lambda _: None, lambda *_: None)  # type: ignore[arg-type]


def feed(pipeline: DevicePipeline, batch: FakeBatch) -> None:
    pipeline.book()
    pipeline.start(pipeline.free_slot(), batch)  # type: ignore[arg-type]


def test_the_feeder_goes_on_while_the_engine_blocks() -> None:
    device = SimulatedDevice(0)
    instance = Blocking(device)
    pipeline = pipeline_of(device, instance)
    first, second = FakeBatch(), FakeBatch()
    feed(pipeline, first)
    instance.started.get(timeout=DEADLINE_S)
    feed(pipeline, second)  # returns, although the first computes
    assert pipeline.booked() == 2
    instance.go.release()
    spans = first.answer.get(timeout=DEADLINE_S)
    assert isinstance(spans, tuple)
    assert spans[1] >= 1_000_000
    instance.go.release()
    assert isinstance(second.answer.get(timeout=DEADLINE_S), tuple)
    assert first.names == second.names == ["slow"]
    pipeline.close()
    assert pipeline.join(DEADLINE_S)
    assert instance.threads["prepare"] == instance.threads["run"] == {"i runs"}
    assert instance.threads["bind"] == {threading.current_thread().name}
    assert device.used() == (0, 0)


def test_what_an_engine_raises_costs_its_batch() -> None:
    device = SimulatedDevice(0)
    instance = Blocking(device)
    instance.run = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    pipeline = pipeline_of(device, instance)
    batch = FakeBatch()
    feed(pipeline, batch)
    assert batch.answer.get(timeout=DEADLINE_S) == "instance 'i' failed: division by zero"
    pipeline.close()
    assert pipeline.join(DEADLINE_S)
    assert device.used() == (0, 0)


def test_an_engine_that_cannot_be_prepared_leaves_nothing_behind() -> None:
    device = SimulatedDevice(0)
    with pytest.raises(ValueError, match="no such kernel"):
        pipeline_of(device, Blocking(device, ValueError("no such kernel")))
    assert device.used() == (0, 0)
