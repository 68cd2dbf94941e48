"""The metrics page: one table of families, Triton's `nv_*` and Headrace's own, cut from sums when the page is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.latencies import Latencies
from headrace.core.wire import Statistics, histogram_bounds
from headrace.observe.exposition import Histogram, Sample, Summary, Type, expose
from headrace.observe.machine import Machine

_BOUNDS_NS = histogram_bounds()
_BOUNDS_S = [bound / 1e9 for bound in _BOUNDS_NS]


@dataclass(frozen=True)
class ModelSums:
    """What the page shows of one model version, over all its loads."""

    name: str
    version: int
    sums: Statistics
    waiting: int


@dataclass(frozen=True)
class LoadedVersion:
    """What the page shows of a model version that is loaded now."""

    name: str
    version: int
    state: str
    load_seconds: float
    running: int
    """Instances that serve."""
    ended: int
    """Instances that do not any more."""
    held: int
    """Batches that instances hold."""


@dataclass(frozen=True)
class RegionSums:
    """What the page shows of one region."""

    kind: str
    """`system` or `cuda`."""
    unpinned: str
    """Why it is not page-locked; empty when it is, or need not be."""
    nbytes: int


@dataclass(frozen=True)
class Snapshot:
    """All that a page is cut from."""

    models: Sequence[ModelSums] = ()
    loaded: Sequence[LoadedVersion] = ()
    regions: Sequence[RegionSums] = ()
    machine: Machine = field(default_factory=Machine)
    pinned_bytes: tuple[int, int] = (0, 0)
    """Of page-locked buffers: all, and those in use."""
    connections: int = 0
    in_flight: tuple[int, int] = (0, 0)
    """Requests and bytes that hold permits."""
    refusals: Sequence[tuple[str, str, int]] = ()
    """Door, kind of error, count."""
    tags: Mapping[tuple[str, ...], Mapping[str, str]] = field(default_factory=dict)
    """Further labels by model and version, as `metric_tags` of its config says."""
    quantiles: Sequence[float] = ()
    """That the sums have of the last minute."""


@dataclass(frozen=True)
class Family:
    """A row of the page."""

    name: str
    kind: Type
    text: str
    labels: tuple[str, ...]
    cut: Callable[[Snapshot], Iterable[Sample]]
    wanted: Callable[[Latencies], bool] = lambda _: True
    empty: bool = True
    """It is on the page when it has no samples, too."""

    def lines(self, snapshot: Snapshot) -> Iterator[str]:
        """Its part of the page."""
        samples = list(self.cut(snapshot))
        tags = snapshot.tags if self.labels[:2] == _MODEL else {}
        if samples or self.empty:
            yield from expose(
                self.name, self.kind, self.text, self.labels, samples, lambda values: tags.get(values[:2], {})
            )


def metrics_page(snapshot: Snapshot, latencies: Latencies) -> bytes:
    """The page in Prometheus' text format."""
    lines = [line for family in FAMILIES if family.wanted(latencies) for line in family.lines(snapshot)]
    return ("\n".join(lines) + "\n").encode()


_MODEL = ("model", "version")


def _model_family(
    name: str,
    kind: Type,
    text: str,
    value: Callable[[ModelSums], float],
    wanted: Callable[[Latencies], bool] | None = None,
) -> Family:
    """One sample for each model version."""

    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        return (((row.name, str(row.version)), value(row)) for row in snapshot.models)

    return Family(name, kind, text, _MODEL, cut, wanted or (lambda _: True))


def _counter(name: str, text: str, value: Callable[[Statistics], int]) -> Family:
    return _model_family(name, Type.COUNTER, text, lambda row: value(row.sums))


def _latency(name: str, text: str, nanoseconds: Callable[[Statistics], int]) -> Family:
    return _model_family(
        name, Type.COUNTER, text, lambda row: nanoseconds(row.sums) // 1000, lambda latencies: latencies.counters
    )


def _by(
    name: str,
    text: str,
    label: str,
    counts: Callable[[Statistics], Iterable[tuple[str, float]]],
    kind: Type = Type.COUNTER,
) -> Family:
    """One sample for each model version and value of a label of its own."""

    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        for row in snapshot.models:
            for value, count in counts(row.sums):
                yield (row.name, str(row.version), value), count

    return Family(name, kind, text, (*_MODEL, label), cut)


def _loaded(name: str, text: str, value: Callable[[LoadedVersion], float]) -> Family:
    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        return (((row.name, str(row.version)), value(row)) for row in snapshot.loaded)

    return Family(name, Type.GAUGE, text, _MODEL, cut)


def _summary(name: str, text: str, stage: str, total: Callable[[Statistics], tuple[int, int]]) -> Family:
    """Count and sum are of all times, as `total` has them; quantiles are of the last minute."""

    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        for row in snapshot.models:
            count, ns = total(row.sums)
            recent = [value // 1000 for value in dict(row.sums.recent).get(stage, [])]
            quantiles = dict(zip(snapshot.quantiles, recent, strict=True)) if recent else {}
            yield (row.name, str(row.version)), Summary(quantiles, count, ns // 1000)

    return Family(name, Type.SUMMARY, text, _MODEL, cut, lambda latencies: latencies.summaries)


def _server(name: str, kind: Type, text: str, value: Callable[[Snapshot], float | None]) -> Family:
    """One sample for the whole server; none where there is no value."""

    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        found = value(snapshot)
        if found is not None:
            yield (), found

    return Family(name, kind, text, (), cut, empty=False)


def _gpu(name: str, kind: Type, text: str, figure: str) -> Family:
    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        for gpu in snapshot.machine.gpus:
            value = getattr(gpu, figure)
            if value is not None:
                yield (gpu.uuid,), value

    return Family(name, kind, text, ("gpu_uuid",), cut, empty=False)


def _first_responses(snapshot: Snapshot) -> Iterator[Sample]:
    """Triton's buckets are some of ours."""
    for row in snapshot.models:
        _, counts, ns = next(stage for stage in row.sums.stages if stage[0] == "request")
        coarse, start = [], 0
        for bound in _FIRST_RESPONSE_MS:
            end = _BOUNDS_NS.index(bound * 1_000_000) + 1
            coarse.append(sum(counts[start:end]))
            start = end
        yield (row.name, str(row.version)), Histogram(_FIRST_RESPONSE_MS, [*coarse, sum(counts[start:])], ns / 1e6)


_FIRST_RESPONSE_MS = (100, 500, 2000, 5000)


def _stages(snapshot: Snapshot) -> Iterator[Sample]:
    for row in snapshot.models:
        for stage, counts, ns in row.sums.stages:
            yield (row.name, str(row.version), stage), Histogram(_BOUNDS_S, counts, ns / 1e9)


def _batch_rows(snapshot: Snapshot) -> Iterator[Sample]:
    for row in snapshot.models:
        counts, total = [0] * (len(_ROWS) + 1), 0
        for rows, _, (executions, _), _ in row.sums.batches:
            at = next((at for at, bound in enumerate(_ROWS) if rows <= bound), len(_ROWS))
            counts[at] += executions
            total += rows * executions
        yield (row.name, str(row.version)), Histogram(_ROWS, counts, total)


_ROWS = tuple(1 << power for power in range(11))


def _states(snapshot: Snapshot) -> Iterator[Sample]:
    for row in snapshot.loaded:
        yield (row.name, str(row.version), row.state), 1


def _instances(snapshot: Snapshot) -> Iterator[Sample]:
    for row in snapshot.loaded:
        yield (row.name, str(row.version), "running"), row.running
        yield (row.name, str(row.version), "ended"), row.ended


def _regions(of: Callable[[RegionSums], int]) -> Callable[[Snapshot], Iterator[Sample]]:
    def cut(snapshot: Snapshot) -> Iterator[Sample]:
        sums: dict[tuple[str, str], int] = {}
        for region in snapshot.regions:
            key = region.kind, region.unpinned
            sums[key] = sums.get(key, 0) + of(region)
        yield from sums.items()

    return cut


FAMILIES: Sequence[Family] = (
    _counter("nv_inference_request_success", "Requests that succeeded", lambda sums: sums.success[0]),
    _by(
        "nv_inference_request_failure",
        "Requests that failed, by reason",
        "reason",
        lambda sums: sums.failures.items(),
    ),
    _counter("nv_inference_count", "Inferences: rows of requests that succeeded", lambda sums: sums.inferences),
    _counter("nv_inference_exec_count", "Executions: batches that instances took", lambda sums: sums.executions),
    _latency(
        "nv_inference_request_duration_us", "Time of requests that succeeded, in us", lambda sums: sums.success[1]
    ),
    _latency("nv_inference_queue_duration_us", "Time in stage queue, in us", lambda sums: sums.queue[1]),
    _latency("nv_inference_compute_input_duration_us", "Time in stage input, in us", lambda sums: sums.input[1]),
    _latency("nv_inference_compute_infer_duration_us", "Time in stage infer, in us", lambda sums: sums.infer[1]),
    _latency("nv_inference_compute_output_duration_us", "Time in stage output, in us", lambda sums: sums.output[1]),
    _model_family(
        "nv_inference_pending_request_count", Type.GAUGE, "Requests that wait for an instance", lambda row: row.waiting
    ),
    Family(
        "nv_inference_first_response_histogram_ms",
        Type.HISTOGRAM,
        "Time until a request is answered, in ms",
        _MODEL,
        _first_responses,
        lambda latencies: latencies.histograms,
    ),
    _summary(
        "nv_inference_request_summary_us",
        "Time of requests that succeeded, in us",
        "request",
        lambda sums: sums.success,
    ),
    _summary("nv_inference_queue_summary_us", "Time in stage queue, in us", "queue", lambda sums: sums.queue),
    _summary("nv_inference_compute_input_summary_us", "Time in stage input, in us", "input", lambda sums: sums.input),
    _summary("nv_inference_compute_infer_summary_us", "Time in stage infer, in us", "infer", lambda sums: sums.infer),
    _summary(
        "nv_inference_compute_output_summary_us", "Time in stage output, in us", "output", lambda sums: sums.output
    ),
    _loaded("nv_model_load_duration_secs", "Time that the load took, in s", lambda row: row.load_seconds),
    _server(
        "nv_pinned_memory_pool_total_bytes",
        Type.GAUGE,
        "Page-locked buffers, in bytes",
        lambda snapshot: snapshot.pinned_bytes[0],
    ),
    _server(
        "nv_pinned_memory_pool_used_bytes",
        Type.GAUGE,
        "Page-locked buffers in use, in bytes",
        lambda snapshot: snapshot.pinned_bytes[1],
    ),
    _server(
        "nv_cpu_utilization",
        Type.GAUGE,
        "Part of the CPUs' time that is used, 0 to 1",
        lambda s: s.machine.cpu_utilization,
    ),
    _server("nv_cpu_memory_total_bytes", Type.GAUGE, "Memory of the host, in bytes", lambda s: s.machine.memory_total),
    _server(
        "nv_cpu_memory_used_bytes", Type.GAUGE, "Memory of the host in use, in bytes", lambda s: s.machine.memory_used
    ),
    _gpu("nv_gpu_utilization", Type.GAUGE, "Part of the time that the GPU computes, 0 to 1", "utilization"),
    _gpu("nv_gpu_memory_total_bytes", Type.GAUGE, "Memory of the GPU, in bytes", "memory_total"),
    _gpu("nv_gpu_memory_used_bytes", Type.GAUGE, "Memory of the GPU in use, in bytes", "memory_used"),
    _gpu("nv_gpu_power_usage", Type.GAUGE, "Power that the GPU draws, in W", "power"),
    _gpu("nv_gpu_power_limit", Type.GAUGE, "Power that the GPU may draw, in W", "power_limit"),
    _gpu("nv_energy_consumption", Type.COUNTER, "Energy that the GPU used since the server started, in J", "energy"),
    Family(
        "headrace_stage_seconds",
        Type.HISTOGRAM,
        "Time of requests that succeeded by stage, in s; request is all from queue to output",
        (*_MODEL, "stage"),
        _stages,
    ),
    Family("headrace_batch_rows", Type.HISTOGRAM, "Rows of executions", _MODEL, _batch_rows),
    _by(
        "headrace_batch_leave_total", "Batches by why they left the queue", "reason", lambda sums: sums.reasons.items()
    ),
    _by(
        "headrace_transfer_copied_bytes_total",
        "Tensor bytes that the CPU copied",
        "direction",
        lambda sums: [("input", sums.copied_in), ("output", sums.copied_out)],
    ),
    _by(
        "headrace_transfer_fallback_total",
        "Slower ways that a transfer took, by name",
        "name",
        lambda sums: sums.fallbacks.items(),
    ),
    Family(
        "headrace_model_state", Type.GAUGE, "1 for the state that a model version is in", (*_MODEL, "state"), _states
    ),
    Family("headrace_instances", Type.GAUGE, "Instances, by whether they still serve", (*_MODEL, "state"), _instances),
    _loaded("headrace_held_batches", "Batches that instances hold", lambda row: row.held),
    Family(
        "headrace_regions",
        Type.GAUGE,
        "Registered regions, by why they are not page-locked",
        ("kind", "unpinned"),
        _regions(lambda _: 1),
    ),
    Family(
        "headrace_region_bytes",
        Type.GAUGE,
        "Bytes of registered regions",
        ("kind", "unpinned"),
        _regions(lambda region: region.nbytes),
    ),
    _server("headrace_connections", Type.GAUGE, "Connections that are open", lambda snapshot: snapshot.connections),
    _server(
        "headrace_in_flight_requests",
        Type.GAUGE,
        "Calls that hold a permit, until their reply is written",
        lambda snapshot: snapshot.in_flight[0],
    ),
    _server(
        "headrace_in_flight_bytes",
        Type.GAUGE,
        "Bytes of messages and replies that hold permits",
        lambda snapshot: snapshot.in_flight[1],
    ),
    Family(
        "headrace_refused_requests_total",
        Type.COUNTER,
        "Requests that were refused before they waited for a model, by kind of error",
        ("door", "kind"),
        lambda snapshot: [((door, kind), count) for door, kind, count in snapshot.refusals],
    ),
)
"""All families, in the order of the page."""
