"""The clock by which a holder trusts its lease: one that nobody can set, or, in tests, one that only the test moves."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final, Protocol

import anyio
import anyio.lowlevel

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The server counts the time that a machine sleeps; a holder that woke up must know that its lease is long over."""

_NAP_S: Final = 60.0
"""The longest sleep between two looks at the clock: the event loop's own stands still while a machine sleeps."""


class LeaseClock(Protocol):
    """Seconds that only go forward."""

    def now_s(self) -> float:
        """The time, seconds; where it starts means nothing."""

    async def sleep_until(self, when_s: float) -> None:
        """Return once ``now_s`` is at least ``when_s``."""


class SystemClock:
    """The machine's."""

    def now_s(self) -> float:
        """Seconds since the machine started, the time that it slept included where the system tells."""
        return time.clock_gettime(_CLOCK)

    async def sleep_until(self, when_s: float) -> None:
        """Return once ``now_s`` is at least ``when_s``."""
        while (left_s := when_s - self.now_s()) > 0:  # noqa: ASYNC110 - Nobody tells when a clock gets somewhere.
            await anyio.sleep(min(left_s, _NAP_S))


class ManualClock:
    """A clock that stands still until it is told to go on: the time of ``Client.in_memory()``, shards included."""

    def __init__(self) -> None:
        self._now_ms = 0
        self._sleepers: list[tuple[float, int, anyio.Event]] = []
        self._order = itertools.count()
        self._watchers: list[Callable[[], None]] = []

    def advance(self, ms: int) -> None:
        """Go on by ``ms`` milliseconds, in one step. What that wakes runs once the caller waits for anything.

        Raises:
            ValueError: ``ms`` is negative: no clock of ours goes back.
        """
        if ms < 0:
            raise ValueError("a clock never goes back")
        self._now_ms += ms
        now_s = self.now_s()
        while self._sleepers and self._sleepers[0][0] <= now_s:
            heapq.heappop(self._sleepers)[2].set()
        for watcher in self._watchers:
            watcher()

    def on_advance(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after every step."""
        self._watchers.append(watcher)

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now_ms / 1000

    async def sleep_until(self, when_s: float) -> None:
        """Return once the clock was moved to ``when_s`` or beyond."""
        if when_s <= self.now_s():
            await anyio.lowlevel.checkpoint()
            return
        event = anyio.Event()
        heapq.heappush(self._sleepers, (when_s, next(self._order), event))
        await event.wait()
