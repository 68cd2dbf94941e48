"""Loading and unloading: from a found model to published intakes with running instances, and back.

Each version has one state; the table of states is what the index, the start-up table and model readiness are
cut from.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.backend.base import Model
from headrace.backend.python import Place, PythonModel
from headrace.config.model import ModelSpec
from headrace.config.pbtxt import ConfigRules, GivenConfig
from headrace.core.errors import ConfigError
from headrace.core.tensor import TensorSpec
from headrace.core.wire import Intake, Wire
from headrace.memory.device import Device
from headrace.memory.pinning import Pinning
from headrace.observe.logs import Log
from headrace.placement.instances import InstancePlan, plan_instances
from headrace.queue.loop import FeedLoop, InstanceLoop
from headrace.queue.policy import BatchPolicy
from headrace.repository.prepare import prepare, survey
from headrace.repository.scan import FoundModel
from headrace.transfer.pipeline import Bookings, DevicePipeline
from headrace.transfer.plan import compile_plan
from headrace.transfer.process import ProcessMover

_LONGEST_DELAY_NS = 1 << 62
"""Over a hundred years: what is added to a stamp still fits 64 bits."""


class State(StrEnum):
    """As the repository index has them."""

    READY = "READY"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass
class ServedVersion:
    """A version of a model and what serves it."""

    name: str
    version: int
    state: State
    reason: str = ""
    spec: ModelSpec | None = None
    intake: Intake | None = None
    loops: tuple[InstanceLoop, ...] = ()
    load_seconds: float = 0.0
    """Time that the load took."""


class Lifecycle:
    """The models of a server. Its methods may be called from any thread; loads happen one after another."""

    def __init__(self, wire: Wire, log: Log, devices: Sequence[Device], pinning: Pinning, rules: ConfigRules) -> None:
        self._wire = wire
        self._log = log
        self._devices = devices
        self._pinning = pinning
        self._rules = rules
        self._table: dict[str, dict[int, ServedVersion]] = {}
        self._loading = threading.Lock()

    def load(self, found: FoundModel) -> None:
        """Loads the versions that the model's policy chooses. Never raises for what is wrong with a model:
        its state tells.
        """
        with self._loading:
            try:
                known = survey(found, self._rules)
            except (ConfigError, OSError) as error:
                versions = _versions_or_none(found)
                self._fail(found.name, versions[-1] if versions else 1, str(error))
                return
            for remark in known.remarks:
                self._log.event(f"model '{found.name}': {remark}")
            for version in known.versions:
                self._load_version(found, version, known.given)

    def _load_version(self, found: FoundModel, version: int, given: GivenConfig) -> None:
        name = found.name
        self._set(ServedVersion(name, version, State.LOADING))
        started = time.monotonic()
        try:
            served = self._bring_up(found, version, given)
        except Exception as error:  # noqa: BLE001 - an engine may raise anything; it costs this version and no other
            self._fail(name, version, str(error) or repr(error))
            return
        served.load_seconds = time.monotonic() - started
        self._set(served)
        self._log.event(f"model '{name}' version {version} is ready after {served.load_seconds:.2f} s")

    def _bring_up(self, found: FoundModel, version: int, given: GivenConfig) -> ServedVersion:
        prepared = prepare(found, version, given, [device.name for device in self._devices], self._rules, self._log)
        spec, model = prepared.spec, prepared.model
        if prepared.completed:
            self._log.event(f"model '{found.name}': filled in: {', '.join(prepared.completed)}")
        for remark in prepared.remarks:
            self._log.event(f"model '{found.name}': {remark}")
        plans = plan_instances(spec, len(os.sched_getaffinity(0)))
        text_only = model.signature is not None and model.signature.text_only
        on_device = not isinstance(model, PythonModel) and any(plan.device is not None for plan in plans)
        intake = _intake(spec, version, on_device, text_only)
        bookings = {plan.device: Bookings() for plan in plans}
        living = _Living(len(plans), lambda why: self._on_last_lost(found.name, version, intake, why))
        loops: list[InstanceLoop] = []
        try:
            for plan in plans:
                loops.append(self._loop(plan, model, spec, intake, bookings[plan.device], living))
        except BaseException:
            for loop in loops:
                loop.abandon()
            raise
        for loop in loops:
            loop.start()
        self._wire.publish(intake)
        return ServedVersion(found.name, version, State.READY, "", spec, intake, tuple(loops))

    def _loop(
        self, plan: InstancePlan, model: Model, spec: ModelSpec, intake: Intake, bookings: Bookings, living: _Living
    ) -> InstanceLoop:
        policy = batch_policy(spec)
        if isinstance(model, PythonModel):
            return self._process_loop(plan, model, spec, intake, policy)
        if plan.device is None:
            mover = compile_plan(model, spec, plan.threads)
            return InstanceLoop(plan.name, intake, policy, mover, self._on_failure, self._on_end)
        device = self._devices[plan.device]
        instance = model.start_device_instance(spec, device, self._pinning)
        pipeline = DevicePipeline(
            plan.name, device, instance, spec, self._pinning, bookings, intake.nudge, self._on_failure
        )

        def on_lost(instance: str, why: str) -> None:
            self._log.error(f"instance '{instance}' ends, its GPU {plan.device} is out of service: {why}")
            living.leave(why)

        return FeedLoop(plan.name, plan.device, intake, policy, pipeline, on_lost, self._on_end)

    def _process_loop(
        self, plan: InstancePlan, model: PythonModel, spec: ModelSpec, intake: Intake, policy: BatchPolicy
    ) -> InstanceLoop:
        place = Place(plan.name, plan.device)
        instance = model.start_process(spec, place, self._log, lambda why: intake.set_ailing(plan.name, why))
        mover = ProcessMover(instance, plan.name, lambda: intake.waiting() > 0)
        return InstanceLoop(plan.name, intake, policy, mover, self._on_failure, self._on_end, instance.stop)

    def _on_last_lost(self, name: str, version: int, intake: Intake, why: str) -> None:
        reason = f"lost its last device ({why})"
        self._fail(name, version, reason)
        intake.close(reason)
        self._wire.set_unready(f"model '{name}' version {version} {reason}")

    def _on_failure(self, instance: str, error: BaseException) -> None:
        self._log.error(f"instance '{instance}' failed a batch: {error}")

    def _on_end(self, instance: str, error: BaseException) -> None:
        self._log.error(f"instance '{instance}' ended, its model is not served any more: {error!r}")
        self._wire.set_unready(f"instance '{instance}' ended: {error!r}")

    def _fail(self, name: str, version: int, reason: str) -> None:
        self._wire.withdraw(name, version)
        self._set(ServedVersion(name, version, State.UNAVAILABLE, reason))
        self._log.error(f"model '{name}' version {version} is not served: {reason}")

    def unload_all(self, deadline: float) -> bool:
        """Serves what waits, then ends all instances.

        Returns:
            False when requests still waited or ran at `deadline` (of `time.monotonic()`).
        """
        ready = [(served, served.intake) for served in self.versions() if served.intake is not None]
        for _, intake in ready:
            intake.drain()
        finished = wait_until(lambda: all(_is_idle(intake) for _, intake in ready), deadline)
        for served, intake in ready:
            self._wire.withdraw(served.name, served.version)
            intake.close()
        ended = [loop.join(max(0.0, deadline - time.monotonic())) for served, _ in ready for loop in served.loops]
        for served, _ in ready:
            self._set(ServedVersion(served.name, served.version, State.UNAVAILABLE, "unloaded"))
        return finished and all(ended)

    def versions(self) -> list[ServedVersion]:
        """All known versions, by name and number."""
        table = self._table
        return [table[name][version] for name in sorted(table) for version in sorted(table[name])]

    def first_failure(self) -> str | None:
        """Names a version that is not ready and why; `None` when all are."""
        for served in self.versions():
            if served.state is not State.READY:
                return f"model '{served.name}' version {served.version} is {served.state}: {served.reason}"
        return None

    def find(self, name: str) -> dict[int, ServedVersion] | None:
        """The versions of a model; `None` for a name that is not in the repository."""
        return self._table.get(name)

    def _set(self, served: ServedVersion) -> None:
        # Readers on other threads see the old table or the new one.
        versions = {**self._table.get(served.name, {}), served.version: served}
        self._table = {**self._table, served.name: versions}


class _Living:
    """Instances of a version that have not lost their device."""

    def __init__(self, count: int, on_last: Callable[[str], None]) -> None:
        self._count = count
        self._on_last = on_last
        self._lock = threading.Lock()

    def leave(self, why: str) -> None:
        """One less; the last one tells."""
        with self._lock:
            self._count -= 1
            is_last = self._count == 0
        if is_last:
            self._on_last(why)


def batch_policy(spec: ModelSpec) -> BatchPolicy:
    """The batching rule of a model's config."""
    if spec.batching is None:
        return BatchPolicy(max_rows=max(1, spec.max_batch_size))
    return BatchPolicy(
        max_rows=spec.max_batch_size,
        dynamic=True,
        preferred=spec.batching.preferred,
        delay_ns=min(spec.batching.delay_us * 1000, _LONGEST_DELAY_NS),
    )


def wait_until(condition: Callable[[], bool], deadline: float) -> bool:
    """Polls every 5 ms, for ends that have no event of their own; false when `deadline` came first."""
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def _is_idle(intake: Intake) -> bool:
    return intake.waiting() == 0 and intake.held() == 0


def _versions_or_none(found: FoundModel) -> list[int]:
    try:
        return found.versions()
    except OSError:
        return []


def _intake(spec: ModelSpec, version: int, on_device: bool, text_only: bool) -> Intake:
    inputs, outputs = ([_row(tensor) for tensor in tensors] for tensors in (spec.inputs, spec.outputs))
    return Intake(spec.name, version, spec.max_batch_size, inputs, outputs, on_device, text_only)


def _row(tensor: TensorSpec) -> tuple[str, str, list[int], list[int] | None, bool, list[str]]:
    reshape = None if tensor.reshape is None else list(tensor.reshape)
    return (tensor.name, tensor.dtype.name, list(tensor.dims), reshape, tensor.optional, list(tensor.labels))
