"""The alarm heap of a shard: which key time changes next. Pure; the actor arms one timer for the earliest.

Only the nearest alarms are in memory. What lies at or beyond ``horizon`` is on disk alone and is read once everything
nearer has been dealt with, so that ten million keys do not need ten million heap items.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from idemactor.core.keys import Identity

ALARMS_MAX: Final = 2_048
"""The most alarms that a shard keeps in memory: sorting them is a pause for everybody, of 1 to 2 ms."""

ALARMS_REFILL: Final = 512
"""How many are read from disk at a time, which is a pause as well, of about 1 ms. Where more than these are always on
their way, each alarm is read once: it costs next to nothing beside the work that it is for."""

NEVER: Final = 2**63 - 1
"""A horizon beyond every time: all alarms are in memory."""


class AlarmHeap:
    """Alarms in memory, the earliest first. An alarm that was moved or removed is dropped when it comes up."""

    def __init__(self, *, alarms_max: int = ALARMS_MAX, horizon: int = NEVER) -> None:
        self.horizon = horizon
        self._heap: list[tuple[int, Identity]] = []
        self._at: dict[Identity, int] = {}
        self._max = alarms_max

    def __len__(self) -> int:
        return len(self._at)

    def set(self, identity: Identity, alarm_at: int | None) -> None:
        """The alarm of a key is now ``alarm_at``, milliseconds since the epoch; None: it has none."""
        if alarm_at is None or alarm_at >= self.horizon:
            self._at.pop(identity, None)
            return
        if self._at.get(identity) == alarm_at:
            return
        self._at[identity] = alarm_at
        heapq.heappush(self._heap, (alarm_at, identity))
        if len(self._heap) > 2 * self._max or len(self._at) > self._max:
            self._trim()

    def refill(self, alarms: Iterable[tuple[int, Identity]], limit: int) -> None:
        """Start over with the earliest alarms on disk; fewer than ``limit`` of them means that these are all."""
        earliest = list(alarms)
        self.horizon = earliest[-1][0] if len(earliest) >= limit else NEVER
        self._at = {identity: alarm_at for alarm_at, identity in earliest}
        self._heap = [(alarm_at, identity) for alarm_at, identity in earliest]
        heapq.heapify(self._heap)

    @property
    def exhausted(self) -> bool:
        """Whether everything in memory was dealt with and there is more on disk."""
        return not self._at and self.horizon != NEVER

    def next_at(self) -> int | None:
        """When the next alarm is due; the horizon where only the disk knows more; None where there is none."""
        self._drop_moved()
        if self._heap:
            return self._heap[0][0]
        return None if self.horizon == NEVER else self.horizon

    def due(self, now: int, limit: int) -> list[Identity]:
        """Take the keys whose alarm is due at ``now``, at most ``limit`` of them."""
        taken: list[Identity] = []
        while len(taken) < limit:
            self._drop_moved()
            if not self._heap or self._heap[0][0] > now:
                break
            _, identity = heapq.heappop(self._heap)
            del self._at[identity]
            taken.append(identity)
        return taken

    def backlog(self, now: int) -> int:
        """How many alarms in memory are overdue at ``now``; at most what memory holds."""
        return sum(1 for alarm_at in self._at.values() if alarm_at <= now)

    def _drop_moved(self) -> None:
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)

    def _trim(self) -> None:
        """Keep the nearer half, or only what is current where the heap is full of what was moved."""
        current = sorted((alarm_at, identity) for identity, alarm_at in self._at.items())
        if len(current) > self._max:
            self.horizon = current[self._max // 2][0]
            current = [item for item in current if item[0] < self.horizon]
        self._heap = current
        self._at = {identity: alarm_at for alarm_at, identity in current}
