"""Clients and an intake in virtual time. The intake answers as the wire's does; its requests are numbers only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.simulate.clock import VirtualTime

HOST = -1


@dataclass(frozen=True)
class Request:
    """Where its tensors are, by its home and addresses."""

    home: int
    source: int
    target: int
    queued: int = 0


@dataclass
class Counts:
    """What became of the requests."""

    served: int = 0
    failed: int = 0
    batches: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)


Pending = tuple[int, bool, int, list[tuple[int, int, list[int], int]]]


@dataclass
class VirtualIntake:
    """Lanes by home, waited on in virtual time."""

    time: VirtualTime
    nbytes: tuple[int, int]
    """Of the input and the output of a request."""
    answer: Callable[[Request], None]
    counts: Counts = field(default_factory=Counts)
    _lanes: dict[int, deque[Request]] = field(default_factory=dict)
    _nudges: Counter[int] = field(default_factory=Counter)

    def push(self, request: Request) -> None:
        """A request arrives."""
        stamped = Request(request.home, request.source, request.target, self.time.now())
        self._lanes.setdefault(request.home, deque()).append(stamped)

    def wait(
        self, thresholds: Sequence[tuple[int, int]], until: int | None, device: int, nudges: int | None, limit: int
    ) -> Pending | None:
        """As `Intake.wait` of the wire."""
        wanted = dict(thresholds)

        def ready() -> bool:
            called = nudges is not None and nudges != self._nudges[device]
            return called or any(len(lane) >= wanted.get(home, 1) for home, lane in self._lanes.items())

        self.time.wait(ready, until)
        lanes = [
            (home, lane[0].queued, [1] * min(len(lane), limit + 1), home) for home, lane in self._lanes.items() if lane
        ]
        return self.time.now(), False, self._nudges[device], lanes

    def nudge(self, device: int) -> None:
        """As `Intake.nudge`."""
        self._nudges[device] += 1

    def ring(self) -> None:
        """As `Intake.ring`: who waits in virtual time looks whenever something happens."""

    def take(self, lane: int, count: int, reason: str) -> VirtualBatch | None:  # noqa: ARG002 - nobody counts reasons
        """As `Intake.take`."""
        waiting = self._lanes[lane]
        return None if len(waiting) < count else VirtualBatch(self, [waiting.popleft() for _ in range(count)])


class VirtualBatch:
    """What the pipeline asks of a batch whose tensors are in page-locked or device memory."""

    def __init__(self, intake: VirtualIntake, requests: list[Request]) -> None:
        self._intake = intake
        self.requests = requests
        self.rows = len(requests)
        self.home = requests[0].home

    def fell_back(self, name: str, copied_out: int) -> None:  # noqa: ARG002 - the CPU copies nothing here
        """As `Batch.fell_back`."""
        self._intake.counts.fallbacks[name] += 1

    def shape(self, _: int) -> tuple[int, ...]:
        """Rows are all that the simulated backend looks at."""
        return (self.rows,)

    def pageable_bytes(self, _: int) -> int:
        """Nothing is staged."""
        return 0

    def sources(self, _: int, stage: object) -> list[tuple[int, int]]:  # noqa: ARG002
        """One piece for each request."""
        return [(request.source, self._intake.nbytes[0]) for request in self.requests]

    def wanted(self) -> list[int]:
        """The only output."""
        return [0]

    def needs_stage(self, output: int, row_bytes: int) -> bool:  # noqa: ARG002
        """Nothing is staged."""
        return False

    def targets(self, output: int, row_bytes: int, stage: object) -> list[tuple[int, int, int]]:  # noqa: ARG002
        """One piece for each request."""
        return [(at * row_bytes, request.target, row_bytes) for at, request in enumerate(self.requests)]

    def deliver(self, *_: object) -> None:
        """Nothing to look at."""

    def settle_spans(self, *_: int) -> None:
        """Answers."""
        self._intake.counts.served += self.rows
        self._intake.counts.batches += 1
        self._answer()

    def fail(self, kind: str, message: str) -> None:  # noqa: ARG002
        """Answers with an error."""
        self._intake.counts.failed += self.rows
        self._answer()

    def _answer(self) -> None:
        for request in self.requests:
            self._intake.answer(request)
