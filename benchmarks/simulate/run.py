"""`python -m benchmarks.simulate`: 1, 2, 4 and 8 simulated GPUs in virtual time, against what they could do at best.

Everything that decides and schedules is the product's own: feeding threads, batching rule, affinity, pipeline. Only
time, memory and clients are made up. Rates are those of one H200 and of the founding report's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulate.clock import VirtualHandOver, VirtualTime
from benchmarks.simulate.traffic import HOST, Counts, Request, VirtualIntake
from headrace.backend.simulated import SimulatedBlockingInstance, SimulatedInstance
from headrace.config.model import DynamicBatching, ModelSpec
from headrace.core.dtype import from_config_name
from headrace.core.tensor import TensorSpec
from headrace.memory.pinning import Pinning
from headrace.memory.simulated import Rates, SimulatedDevice
from headrace.observe.logs import Log
from headrace.queue.loop import FeedLoop
from headrace.repository.lifecycle import batch_policy
from headrace.transfer.pipeline import Bookings, DevicePipeline

ROWS = 32
IMAGE, DETECTIONS = 2 * 3 * 384 * 640, 2 * 84 * 5040
TURNAROUND_NS = 500_000
"""From an answer to the same client's next request: two passes of the wire and the client itself."""
WARM_UP_BATCHES, BATCHES = 15, 80
"""Of each device, uncounted and counted."""


@dataclass(frozen=True)
class Model:
    """What a batch costs."""

    name: str
    batch_us: float
    row_us: float
    clients: int
    """Requests in flight for each GPU."""

    @property
    def batch_ns(self) -> int:
        """Of a full batch."""
        return int((self.batch_us + ROWS * self.row_us) * 1000)


DETECTOR = Model("detector", 400.0, 188.0, 100)
"""6.4 ms for 32 images: 4,990 a second."""
SLICE = Model("slice", 60.0, 20.0, 400)
"""Faster than the link; 100 clients with their turnaround would be the bound themselves."""
MODELS = (DETECTOR, SLICE)


@dataclass(frozen=True)
class Scenario:
    """What is tried."""

    model: Model
    mode: str
    """Where tensors are: `system`, `cuda` (spread evenly), `mixed` (half and half), `cuda on GPU 0`; or `loss`: system,
    and the last GPU fails at the beginning of what is counted."""
    devices: int
    instances: int = 2
    """On each device."""
    blocking: bool = False
    """Whoever starts a computation waits for its end, as with ONNX Runtime."""


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    scenario: Scenario
    per_second: float
    bound: float
    mean_batch: float
    failed: int
    peer_batches: int

    @property
    def share(self) -> float:
        """Of the bound."""
        return self.per_second / self.bound


def scenarios(counts: Sequence[int]) -> list[Scenario]:
    """All rows of the table."""
    rows = []
    for model in MODELS:
        for devices in counts:
            modes = ["system", "cuda", "mixed", *(["cuda on GPU 0", "loss"] if devices > 1 else [])]
            rows += [Scenario(model, mode, devices) for mode in modes]
            rows += [Scenario(model, mode, devices, blocking=True) for mode in modes if mode in ("system", "loss")]
    return rows


def bound(scenario: Scenario, rates: Rates) -> float:
    """Requests per second of all devices when nothing but the slowest of compute and links limits them."""
    model = scenario.model
    compute = 1e9 * ROWS / model.batch_ns
    link = 1e9 * ROWS / (rates.copy_overhead_ns + ROWS * IMAGE / rates.link_bytes_per_s * 1e9)
    memory = 1e9 * ROWS / (2 * rates.copy_overhead_ns + ROWS * (IMAGE + DETECTIONS) / rates.memory_bytes_per_s * 1e9)
    alone = {"cuda": memory, "mixed": 1 / (0.5 / link + 0.5 / memory)}.get(scenario.mode, link)
    working = scenario.devices - (scenario.mode == "loss")
    if scenario.mode == "cuda on GPU 0":
        return min(compute, memory) + (working - 1) * min(compute, link)
    return working * min(compute, alone)


def simulate(scenario: Scenario) -> Outcome:
    """Runs it."""
    start = WARM_UP_BATCHES * scenario.model.batch_ns
    end = start + BATCHES * scenario.model.batch_ns
    time = VirtualTime(threads=(2 + scenario.blocking) * scenario.devices * scenario.instances)
    rates = Rates()
    devices = [SimulatedDevice(at, rates, time.now, time.sleep_until) for at in range(scenario.devices)]
    if scenario.mode == "loss":
        devices[-1].lost_at = start
    intake = VirtualIntake(
        time, (IMAGE, DETECTIONS), lambda request: time.at(time.now() + TURNAROUND_NS, lambda: intake.push(request))
    )
    for request in _clients(scenario, devices):
        time.at(0, lambda request=request: intake.push(request))  # type: ignore[misc]
    loops = _loops(scenario, time, devices, intake)
    for loop in loops:
        loop.start()
    time.run(start)
    before = Counts(intake.counts.served, intake.counts.failed, intake.counts.batches, intake.counts.fallbacks.copy())
    time.run(end)
    counts = intake.counts
    served, batches = counts.served - before.served, counts.batches - before.batches
    return Outcome(
        scenario,
        served / (end - start) * 1e9,
        bound(scenario, rates),
        served / batches,
        counts.failed - before.failed,
        counts.fallbacks["peer"] - before.fallbacks["peer"],
    )


def _clients(scenario: Scenario, devices: list[SimulatedDevice]) -> list[Request]:
    """One request in flight for each."""
    requests = []
    for number in range(scenario.model.clients * scenario.devices):
        home = {
            "cuda": number % scenario.devices,
            "cuda on GPU 0": 0,
            "mixed": HOST if number % 2 else number // 2 % scenario.devices,
        }.get(scenario.mode, HOST)
        memory = devices[home].allocate(IMAGE + DETECTIONS) if home != HOST else (number + 1) << 32
        requests.append(Request(home, memory, memory + IMAGE))
    return requests


def _loops(
    scenario: Scenario, time: VirtualTime, devices: list[SimulatedDevice], intake: VirtualIntake
) -> list[FeedLoop]:
    spec = _spec(scenario.model)
    policy, pinning = batch_policy(spec), Pinning(devices, Log())
    instance = SimulatedBlockingInstance if scenario.blocking else SimulatedInstance
    loops = []
    for device in devices:
        bookings = Bookings()
        for number in range(scenario.instances):
            name = f"{device.index}_{number}"
            pipeline = DevicePipeline(
                name,
                device,
                instance(spec, device),
                spec,
                pinning,
                bookings,
                intake.nudge,
                lambda *_: None,
                lambda: VirtualHandOver(time),
            )
            # The wire's twins have what the loop and the pipeline use of it.
            loops.append(
                FeedLoop(
                    name,
                    device.index,
                    intake,  # type: ignore[arg-type]
                    policy,
                    pipeline,
                    lambda *_: time.leave(),
                    _raise,
                )
            )
    return loops


def _raise(name: str, error: BaseException) -> None:
    raise RuntimeError(f"the loop of {name} ended") from error


def _spec(model: Model) -> ModelSpec:
    half = from_config_name("TYPE_FP16")
    assert half is not None
    return ModelSpec(
        name=model.name,
        backend="simulated",
        max_batch_size=ROWS,
        inputs=(TensorSpec("images", half, (3, 384, 640)),),
        outputs=(TensorSpec("output0", half, (84, 5040)),),
        batching=DynamicBatching((ROWS,), 0),
        instance_count=1,
        parameters={"batch_us": str(model.batch_us), "row_us": str(model.row_us)},
        message=None,
    )
