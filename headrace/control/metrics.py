"""The metrics page: collects what `observe` cuts it from."""

from __future__ import annotations

from headrace.core.latencies import Latencies
from headrace.core.wire import Wire
from headrace.memory.regions import DeviceRegions, SystemRegions
from headrace.observe.machine import Gauges
from headrace.observe.metrics import LoadedVersion, ModelSums, RegionSums, Snapshot, metrics_page
from headrace.repository.lifecycle import Lifecycle, ServedVersion


class MetricsPage:
    """Called for the page as it is now, by one thread."""

    def __init__(
        self,
        wire: Wire,
        lifecycle: Lifecycle,
        regions: SystemRegions,
        device_regions: DeviceRegions,
        gauges: Gauges,
        latencies: Latencies,
    ) -> None:
        self._wire = wire
        self._lifecycle = lifecycle
        self._regions = regions
        self._device_regions = device_regions
        self._gauges = gauges
        self._latencies = latencies
        self._tags: dict[tuple[str, ...], dict[str, str]] = {}

    def __call__(self) -> bytes:
        """The page in Prometheus' text format."""
        wire = self._wire
        quantiles = list(self._latencies.quantiles)
        snapshot = Snapshot(
            models=[ModelSums(name, version, sums, waiting) for name, version, sums, waiting in wire.ledger(quantiles)],
            loaded=[_loaded(served) for served in self._lifecycle.versions()],
            regions=self._region_sums(),
            machine=self._gauges.read(),
            pinned_bytes=wire.pinned_bytes(),
            connections=wire.connections(),
            in_flight=wire.in_flight(),
            refusals=wire.refusals(),
            tags=self._known_tags(),
            quantiles=quantiles,
        )
        return metrics_page(snapshot, self._latencies)

    def _known_tags(self) -> dict[tuple[str, ...], dict[str, str]]:
        """Those of versions that are loaded, and the last ones of those that were."""
        for served in self._lifecycle.versions():
            if served.spec is not None:
                tags = {f"_{key}": served.spec.message.metric_tags[key] for key in served.spec.message.metric_tags}
                self._tags[served.name, str(served.version)] = tags
        return self._tags

    def _region_sums(self) -> list[RegionSums]:
        host = [RegionSums("system", row.unpinned, row.byte_size) for row in self._regions.status("")]
        return host + [RegionSums("cuda", "", row.byte_size) for row in self._device_regions.status("")]


def _loaded(served: ServedVersion) -> LoadedVersion:
    running = sum(loop.is_running() for loop in served.loops)
    held = served.intake.held() if served.intake is not None else 0
    return LoadedVersion(
        served.name, served.version, served.state, served.load_seconds, running, len(served.loops) - running, held
    )
