"""A shard's alarms as its actor sees them: which keys are due, and what becomes of alarm work that failed.

The heap (``alarms.py``) holds the nearest ones; the disk has them all until their work is done. So whatever goes wrong,
nothing is lost by forgetting the heap: it is read anew, after a back-off that doubles, and the shard serves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from idemactor.core.keys import Identity
from idemactor.core.ledger import Work
from idemactor.errors import StorageError
from idemactor.observability.observer import Observer
from idemactor.shard.alarms import ALARMS_REFILL, AlarmHeap
from idemactor.shard.backoff import Backoff
from idemactor.shard.broom import Broom
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Engine


class AlarmClock:
    """The alarms of one shard. Times in milliseconds since the epoch.

    Args:
        shard: Its number, for the observer.
        engine: Where all alarms are.
        observer: Is told of alarm work that failed.
        broom: Held during a step of alarm work; shared by all shards of the process.
        ring: Wakes the shard once the broom is its own.
    """

    def __init__(self, shard: int, engine: Engine, observer: Observer, broom: Broom, ring: Callable[[], None]) -> None:
        self._shard = shard
        self._engine = engine
        self._observer = observer
        self._heap = AlarmHeap()
        self._stale = True
        self._backoff = Backoff()
        self._broom = broom
        self._ring = ring
        self._sweeping = False
        self._queued = False

    def next_at(self, now: int) -> int | None:
        """When alarm work is next to be done; None where there is none, or where the broom has to come first."""
        return None if self._queued else self._due_at(now)

    def _due_at(self, now: int) -> int | None:
        alarm_at = now if self._stale else self._heap.next_at()
        return None if alarm_at is None else max(alarm_at, self._backoff.until_ms)

    def backlog(self, now: int) -> int:
        """How many alarms in memory are overdue."""
        return self._heap.backlog(now)

    async def take_due(self, now: int, limit: int, on_the_way: int = 0) -> list[Identity]:
        """Take the keys whose alarm is due, and the broom until ``step_over``.

        There are none where the disk cannot say, and during a back-off.

        Args:
            now: Milliseconds since the epoch.
            limit: How many at most; 0: the broom is left to others, and only what is in memory is taken.
            on_the_way: How many at most while another shard has the broom.
        """
        due_at = self._due_at(now)
        if due_at is None or due_at > now:
            return []
        has_broom = limit > 0 and self._take_broom()
        if not has_broom and (self._stale or not on_the_way):
            return []
        # As much as commands bring has to go whoever has the broom, else it piles up in a flood.
        if limit and (self._stale or self._heap.exhausted):
            try:
                self._heap.refill(await self._engine.alarms(ALARMS_REFILL), ALARMS_REFILL)
            except StorageError as error:
                self.put_off(now, error)
                return []
            self._stale = False
        return self._heap.due(now, limit if has_broom else on_the_way)

    def step_over(self) -> None:
        """The turn is over, whatever became of it: another shard may do its alarm work."""
        if self._sweeping:
            self._sweeping = False
            self._broom.give_back()

    def stop(self) -> None:
        """The shard does no more alarm work."""
        self.step_over()
        if self._queued:
            self._queued = False
            self._broom.stop_waiting(self._handed)

    def _take_broom(self) -> bool:
        if not self._sweeping and not self._queued:
            self._sweeping = self._broom.take(self._handed)
            self._queued = not self._sweeping
        return self._sweeping

    def _handed(self) -> None:
        self._queued, self._sweeping = False, True
        self._ring()

    def give_back(self, identities: list[Identity], now: int) -> None:
        """There was no time for these."""
        for identity in identities:
            self._heap.set(identity, now)

    def put_off(self, now: int, error: Exception) -> None:
        """Alarm work failed: it is tried again later, and stops nobody from being served."""
        self._stale = True
        self._observer.alarm_failed(self._shard, error, self._backoff.fail(now))

    def note(self, work: Work[Envelope]) -> None:
        """A batch is on disk: the alarms are now what it says."""
        for entry in work.deletes.values():
            self._heap.set(entry.identity, None)
        for entry in work.puts.values():
            self._heap.set(entry.identity, entry.alarm_at)

    def went_well(self) -> None:
        """Alarm work is on disk."""
        self._backoff.reset()

    def forget(self) -> None:
        """Memory is not to be trusted: read everything anew."""
        self._stale = True

    def lost_batch(self, now: int) -> None:
        """A batch with alarm work in it could not be written: the next ones go without it for a while."""
        self._backoff.fail(now)

    def fall_asleep(self, now: int) -> None:
        """Keep nothing in memory but when to wake up."""
        next_at = now if self._stale else self._heap.next_at()
        self._heap = AlarmHeap() if next_at is None else AlarmHeap(horizon=next_at)
        self._stale = False
