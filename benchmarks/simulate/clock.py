"""Virtual time: threads run one after another, and when all of them wait the clock jumps to what happens next.

The product's own threads run in it unchanged; only what they wait by is given to them (`HandOver`, the intake, the
device's clock). So a run is the same every time and takes as long as its Python code takes.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Waiting:
    ready: Callable[[], bool]
    until: int | None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class VirtualTime:
    """A clock (ns) for `threads` threads."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._now = 0
        self._waiting: list[_Waiting] = []
        self._changed = threading.Condition()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0

    def now(self) -> int:
        """What time it is."""
        return self._now

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Has something happen at a time, in the order of the calls."""
        self._numbers += 1
        heapq.heappush(self._events, (time, self._numbers, action))

    def wait(self, ready: Callable[[], bool], until: int | None = None) -> None:
        """The calling thread waits until `ready` holds or it is `until`."""
        mine = _Waiting(ready, until)
        with self._changed:
            self._waiting.append(mine)
            self._changed.notify()
        mine.turn.acquire()

    def sleep_until(self, time: int) -> None:
        """The calling thread waits until it is `time`."""
        self.wait(lambda: False, time)

    def leave(self) -> None:
        """The calling thread ends."""
        with self._changed:
            self._threads -= 1
            self._changed.notify()

    def run(self, end: int) -> None:
        """Lets time pass until `end`, or until nothing will happen any more."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._waiting) == self._threads)
                runnable = next((other for other in self._waiting if self._is_ready(other)), None)
                if runnable is not None:
                    self._waiting.remove(runnable)
                    runnable.turn.release()
                    continue
            upcoming = [other.until for other in self._waiting if other.until is not None]
            upcoming += [time for time, _, _ in self._events[:1]]
            if min(upcoming, default=end) >= end:
                return
            self._now = min(upcoming)
            while self._events and self._events[0][0] <= self._now:
                heapq.heappop(self._events)[2]()

    def _is_ready(self, other: _Waiting) -> bool:
        return other.ready() or (other.until is not None and other.until <= self._now)


class VirtualHandOver:
    """A queue between two threads in virtual time; who gets `None` ends."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Adds the item."""
        self._items.append(item)

    def get(self) -> Any:
        """Waits for the oldest item."""
        if not self._items:
            self._time.wait(lambda: bool(self._items))
        item = self._items.popleft()
        if item is None:
            self._time.leave()
        return item
