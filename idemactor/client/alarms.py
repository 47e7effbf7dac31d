"""Many points in time, and one task that sleeps until the next of them.

Almost every deadline is dropped long before it comes. So setting and dropping one costs next to nothing, and a task
is woken only for what is really due.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio

from idemactor.client.clock import LeaseClock

T = TypeVar("T")

DROPPED_MAX: Final = 256
"""How many dropped alarms may lie about, beside as many as are set."""


class Alarm(Generic[T]):
    """When, and whose alarm it is: None once it rang or was dropped."""

    __slots__ = ("item", "when_s")

    def __init__(self, when_s: float, item: T) -> None:
        self.when_s = when_s
        self.item: T | None = item

    def __lt__(self, other: Alarm[T]) -> bool:
        return self.when_s < other.when_s


class Alarms(Generic[T]):
    """Alarms by one clock; ``run`` must be running for them to ring.

    Args:
        clock: By which they ring.
        ring: Called with what an alarm was set for, once its time has come. Must not block.
    """

    def __init__(self, clock: LeaseClock, ring: Callable[[T], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._heap: list[Alarm[T]] = []
        self._dropped = 0
        self._until_s = math.inf
        self._sleep: anyio.CancelScope | None = None

    def set(self, when_s: float, item: T) -> Alarm[T]:
        """Ring for ``item`` at ``when_s``, once."""
        alarm = Alarm(when_s, item)
        heapq.heappush(self._heap, alarm)
        if when_s < self._until_s:
            self._until_s = when_s
            if self._sleep is not None:
                self._sleep.cancel()
        return alarm

    def drop(self, alarm: Alarm[T]) -> None:
        """Do not ring; nothing where it rang already."""
        if alarm.item is None:
            return
        alarm.item = None
        self._dropped += 1
        if self._dropped > DROPPED_MAX and self._dropped * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.item is not None]
            heapq.heapify(self._heap)
            self._dropped = 0

    def pending(self) -> list[T]:
        """For whom alarms are set."""
        return [alarm.item for alarm in self._heap if alarm.item is not None]

    async def run(self) -> None:
        """Ring until cancelled."""
        while True:
            self._ring_all(self._clock.now_s())
            self._until_s = self._heap[0].when_s if self._heap else math.inf
            with anyio.CancelScope() as self._sleep:
                await (anyio.sleep_forever() if self._until_s == math.inf else self._clock.sleep_until(self._until_s))

    def _ring_all(self, now_s: float) -> None:
        while self._heap and (self._heap[0].item is None or self._heap[0].when_s <= now_s):
            alarm = heapq.heappop(self._heap)
            item, alarm.item = alarm.item, None
            if item is None:
                self._dropped -= 1
            else:
                self._ring(item)
