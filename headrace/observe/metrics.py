"""The metrics page: Triton's `nv_inference_*` families, and Headrace's own, cut from the wire's sums when it
is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.core.stages import INFER, INPUT, OUTPUT, QUEUE
from headrace.core.wire import Statistics


@dataclass(frozen=True)
class ModelSums:
    """What the page shows of one model version."""

    name: str
    version: int
    sums: Statistics
    waiting: int


@dataclass(frozen=True)
class RegionSums:
    """What the page shows of one region."""

    kind: str
    """`system` or `cuda`."""
    unpinned: str
    """Why it is not page-locked; empty when it is, or need not be."""
    nbytes: int


def metrics_page(models: Iterable[ModelSums], regions: Iterable[RegionSums]) -> bytes:
    """The page in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(list(models), list(regions)))
    # Triton's counters have no `_total`; the library appends it to the names in HELP and TYPE lines whatever
    # the samples say.
    return re.sub(rb"(?m)^(# (?:HELP|TYPE) nv_\w+?)_total ", rb"\1 ", generate_latest(registry))


class _PlainCounter(CounterMetricFamily):
    """A counter whose samples have the family's own name, as Triton's have."""

    def add_metric(self, labels: list[str], value: float) -> None:  # type: ignore[override]
        """Adds a sample of the labels' values."""
        self.add_sample(self.name, dict(zip(self._labelnames, labels, strict=True)), value)


_TRITON_COUNTERS: list[tuple[str, str, Callable[[Statistics], int]]] = [
    ("nv_inference_request_success", "Requests that succeeded", lambda sums: sums.success[0]),
    ("nv_inference_count", "Inferences, counted by batch size", lambda sums: sums.inferences),
    ("nv_inference_exec_count", "Executions", lambda sums: sums.executions),
    ("nv_inference_request_duration_us", "Successful requests", lambda sums: sums.success[1] // 1000),
    ("nv_inference_queue_duration_us", "Stage queue", lambda sums: sums.queue[1] // 1000),
    ("nv_inference_compute_input_duration_us", "Stage input", lambda sums: sums.input[1] // 1000),
    ("nv_inference_compute_infer_duration_us", "Stage infer", lambda sums: sums.infer[1] // 1000),
    ("nv_inference_compute_output_duration_us", "Stage output", lambda sums: sums.output[1] // 1000),
]


class _Snapshot:
    def __init__(self, models: list[ModelSums], regions: list[RegionSums]) -> None:
        self._models = models
        self._regions = regions

    def collect(self) -> Iterator[Metric]:
        yield from self._triton()
        yield from self._own()
        yield from self._memory()

    def _triton(self) -> Iterator[Metric]:
        for name, text, value in _TRITON_COUNTERS:
            family = _PlainCounter(name, text, labels=["model", "version"])
            for model in self._models:
                family.add_metric([model.name, str(model.version)], value(model.sums))
            yield family
        failures = _PlainCounter(
            "nv_inference_request_failure", "Requests that failed", labels=["model", "version", "reason"]
        )
        pending = GaugeMetricFamily(
            "nv_inference_pending_request_count", "Requests that wait", labels=["model", "version"]
        )
        for model in self._models:
            labels = [model.name, str(model.version)]
            failures.add_metric([*labels, "OTHER"], model.sums.fail[0])
            failures.add_metric([*labels, "CANCELED"], model.sums.cancelled)
            pending.add_metric(labels, model.waiting)
        yield failures
        yield pending

    def _own(self) -> Iterator[Metric]:
        stages = CounterMetricFamily(
            "headrace_stage_seconds", "Time of requests by stage", labels=["model", "version", "stage"]
        )
        copied = CounterMetricFamily(
            "headrace_transfer_copied_bytes",
            "Tensor bytes moved by the CPU",
            labels=["model", "version", "direction"],
        )
        leaves = CounterMetricFamily(
            "headrace_batch_leave",
            "Batches by why they left the queue",
            labels=["model", "version", "reason"],
        )
        fallbacks = CounterMetricFamily(
            "headrace_transfer_fallback",
            "Slower ways that a transfer took",
            labels=["model", "version", "name"],
        )
        for model in self._models:
            labels, sums = [model.name, str(model.version)], model.sums
            for stage, (_, ns) in [
                (QUEUE, sums.queue),
                (INPUT, sums.input),
                (INFER, sums.infer),
                (OUTPUT, sums.output),
            ]:
                stages.add_metric([*labels, stage], ns / 1e9)
            copied.add_metric([*labels, INPUT], sums.copied_in)
            copied.add_metric([*labels, OUTPUT], sums.copied_out)
            for reason, count in sums.reasons.items():
                leaves.add_metric([*labels, reason], count)
            for name, count in sums.fallbacks.items():
                fallbacks.add_metric([*labels, name], count)
        yield from (stages, copied, leaves, fallbacks)

    def _memory(self) -> Iterator[Metric]:
        labels = ["kind", "unpinned"]
        count = GaugeMetricFamily(
            "headrace_regions", "Registered regions, and why they are not page-locked", labels=labels
        )
        nbytes = GaugeMetricFamily("headrace_region_bytes", "Bytes of registered regions", labels=labels)
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for region in self._regions:
            known, size = sums.get((region.kind, region.unpinned), (0, 0))
            sums[region.kind, region.unpinned] = known + 1, size + region.nbytes
        for key, (known, size) in sums.items():
            count.add_metric(list(key), known)
            nbytes.add_metric(list(key), size)
        yield from (count, nbytes)
