"""The server: builds the rooms, joins them, starts, drains. No logic."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import headrace
from headrace.config.options import ALL_MODELS, ServerOptions
from headrace.control.loop import ControlLoop
from headrace.control.metrics import MetricsPage
from headrace.control.verbs import Verbs
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.wire import Wire, WireError
from headrace.memory.pinning import Pinning
from headrace.memory.regions import DeviceRegions, SystemRegions
from headrace.observe.logs import Level, Log
from headrace.observe.machine import CpuGauge, Gauges, find_gpus
from headrace.placement.devices import find_devices
from headrace.repository.lifecycle import Lifecycle, ServedVersion, wait_until
from headrace.repository.scan import FoundModel, scan

_SWITCH_INTERVAL_S = 0.0002
"""How long a busy Python thread may keep others waiting; the default of 5 ms shows in every request's
latency.
"""
_GOODBYE_S = 2.0
"""Seconds that clients get to close idle connections after they were asked to."""


_COMPRESSION_LEVELS = {"none": 0, "low": 1, "medium": 6, "high": 9}
"""Levels of gzip and deflate, from fast to small."""


@dataclass(frozen=True)
class Ports:
    """Where the doors are: `None` for one that stays shut, 0 for a socket of the file system."""

    http: int | None
    grpc: int | None
    metrics: int | None


class Server:
    """One server. `start`, then `stop`; not to be started twice.

    Raises:
        HeadraceError: when the log file cannot be written.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.log = _log(options)
        self._wire = Wire(
            client_shm=options.allow_client_shm,
            max_requests=options.max_in_flight_requests,
            max_bytes=options.max_in_flight_bytes,
            stall_secs=options.stall_secs,
            max_http_body=options.http_max_input_size,
            pause_secs=options.client_pause_secs,
            idle_secs=options.idle_timeout_secs,
            keepalive_secs=options.grpc_keepalive_time / 1000,
            keepalive_timeout_secs=options.grpc_keepalive_timeout / 1000,
            reply_compression=_COMPRESSION_LEVELS[options.grpc_infer_response_compression_level],
            threads=options.wire_threads,
        )
        if options.latencies.summaries:
            self._wire.keep_quantiles()
        devices, why_none = find_devices(options.simulate_gpus, options.simulate_link_gb)
        self.log.event(f"GPUs: {', '.join(device.name for device in devices)}" if devices else f"no GPU: {why_none}")
        pinning = Pinning(devices, self.log)
        self._lifecycle = Lifecycle(self._wire, self.log, devices, pinning, options.config_rules)
        regions = SystemRegions(self._wire, pinning), DeviceRegions(self._wire, devices, pinning)
        metrics = MetricsPage(self._wire, self._lifecycle, *regions, self._gauges(), options.latencies)
        verbs = Verbs(self._lifecycle, *regions, metrics, options.id, headrace.__version__)
        self._control = ControlLoop(self._wire, verbs, self.log, lambda: pinning.release_retired(devices))

    def _gauges(self) -> Gauges:
        options = self._options
        gpus = None
        if options.allow_metrics and options.allow_gpu_metrics:
            gpus, why_none = find_gpus()
            if gpus is None:
                self.log.detail(f"no figures of GPUs on the metrics page: {why_none}")
        cpu = CpuGauge() if options.allow_metrics and options.allow_cpu_metrics else None
        return Gauges(options.metrics_interval_ms / 1000, cpu, gpus)

    def start(self) -> Ports:
        """Opens the doors, then loads all models.

        Ready turns true when every model is; without `strict_readiness` as soon as none loads any more.

        Raises:
            HeadraceError: when a port cannot be had, a repository cannot be read, or a model to load is in none.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        found = self._chosen(scan(self._options.model_repository))
        ports = self._listen()
        self._control.start()
        for model in found:
            self._lifecycle.load(model)
        failure = self._lifecycle.first_failure() if self._options.strict_readiness else None
        self._wire.set_unready(failure)
        gc.collect()
        gc.freeze()  # what is there now stays; the collector need not look at it for every batch
        return ports

    def _chosen(self, found: list[FoundModel]) -> list[FoundModel]:
        """Those that the control mode wants loaded."""
        options = self._options
        if options.model_control_mode == "none" or options.load_model == (ALL_MODELS,):
            return found
        unknown = set(options.load_model) - {model.name for model in found}
        if unknown:
            names = ", ".join(map(repr, sorted(unknown)))
            there = ", ".join(model.name for model in found) or "no model"
            raise ConfigError(f"--load-model {names}: not in a model repository; there is {there}")
        return [model for model in found if model.name in options.load_model]

    def _listen(self) -> Ports:
        options = self._options
        self._wire.restrict("http", options.restricted_http)
        self._wire.restrict("grpc", options.restricted_grpc)
        doors = {
            "http": (options.allow_http, options.http_address, options.http_port),
            "grpc": (options.allow_grpc, options.grpc_address, options.grpc_port),
            "metrics": (options.allow_metrics, options.metrics_address or options.http_address, options.metrics_port),
        }
        try:
            return Ports(
                **{
                    door: self._wire.listen(door, address, port, options.grpc_tls if door == "grpc" else None)
                    if allowed
                    else None
                    for door, (allowed, address, port) in doors.items()
                }
            )
        except WireError as error:
            raise HeadraceError.from_wire(error) from None

    def models(self) -> Sequence[ServedVersion]:
        """All known model versions and their states."""
        return self._lifecycle.versions()

    def first_failure(self) -> str | None:
        """Names a model version that is not ready and why; `None` when all are."""
        return self._lifecycle.first_failure()

    def stop(self) -> bool:
        """Refuses new requests, finishes the accepted ones, ends.

        A request that is only half received is not waited for.

        Returns:
            False when some were not done within the exit timeout.
        """
        deadline = time.monotonic() + self._options.exit_timeout_secs
        self._wire.begin_stop()
        finished = self._lifecycle.unload_all(deadline)
        self._wire.say_goodbye()
        wait_until(lambda: self._wire.connections() == 0, min(deadline, time.monotonic() + _GOODBYE_S))
        self._wire.close()
        self._control.stop()
        return finished


def _log(options: ServerOptions) -> Log:
    levels = {Level.EVENT: options.log_info, Level.ERROR: options.log_error, Level.DETAIL: options.log_verbose > 0}
    try:
        stream = options.log_file.open("a", encoding="utf-8") if options.log_file else None
    except OSError as error:
        raise ConfigError(f"--log-file {options.log_file} cannot be written: {error}") from error
    return Log([level for level, wanted in levels.items() if wanted], stream, iso=options.log_format == "ISO8601")
