"""What waits to be delivered in one shard, in memory: which entry is due, and which one is the first of its line. Pure.

The disk has it all; this is an index of what has not ended. Entries without ``order_key`` are due by time alone.
Those of one ``order_key`` stand in line by their ``seq``, and only the head of a line can be due: while it is being
delivered, waits to be tried again or is in doubt, everything behind it waits. A line may go through several shards, and
each of them knows its own part; so a head that may have something before it elsewhere is shown to whoever takes, who
asks the other shards (``stands_behind``), and sets it aside until one of them says that the line moved, or for a while.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from idemactor.core.delivery import Kind
from idemactor.core.keys import Identity

ASIDE_MS: Final = 2_000
"""How long a head that has something before it elsewhere is set aside, where nobody says that its line moved."""

HEADS_MAX: Final = 256
"""How many heads of lines are shown at a time."""

US_PER_MS: Final = 1_000

OLDEST_LOOKED_AT: Final = 1_000
"""Among how many entries the one that waits longest is looked for, where the first ones are not wanted yet."""

_SLACK: Final = 1_024
"""How many entries of a heap or a line may be out of date before it is made anew."""

LineKey: TypeAlias = tuple[str, str, Kind, str]
"""(tenant, namespace, kind, order key)"""
QueueKey: TypeAlias = tuple[str, str, Kind]
"""(tenant, namespace, kind)"""


@dataclass(slots=True, eq=False)
class _Line:
    """The entries of one order key, by ``seq``; those that are gone leave it once they are its head."""

    key: str
    items: deque[Item] = field(default_factory=deque)
    gone: int = 0

    def leave(self) -> None:
        """One of them is gone. Those behind a head that stays must not pile up once they are."""
        self.gone += 1
        if self.gone > _SLACK and 2 * self.gone > len(self.items):
            self.items = deque(item for item in self.items if not item.gone)
            self.gone = 0

    @property
    def head(self) -> Item | None:
        while self.items and self.items[0].gone:
            self.items.popleft()
            self.gone -= 1
        return self.items[0] if self.items else None


@dataclass(slots=True, eq=False)
class Item:
    """One entry.

    Attributes:
        queue: Where it is.
        id: Of the record's entry, or the ``seq`` of an event.
        due_at: When somebody may come for it, milliseconds since the epoch; None: only once something else happens.
        line: Where it has to keep an order.
        identity: Its key, where it is known without asking the disk.
        tries: How often an event was shown.
        gone: Whether it has ended.
        wanted_at: Since when it waits, milliseconds since the epoch: since it was accepted, or since its time came.
        aside_until: Its line has something before it in another shard.
        has_moved: Its line moved in another shard since it was shown to whoever asks the others: what they say of it
            may be of before.
    """

    queue: _Queue
    id: int
    seq: int
    due_at: int | None
    line: _Line | None = None
    identity: Identity | None = None
    tries: int = 0
    gone: bool = False
    aside_until: int = 0
    has_moved: bool = False
    wanted_at: int = 0

    def __lt__(self, other: Item) -> bool:
        """Of no account: two meet in a heap at one time and with one ``seq`` only where one of them is gone."""
        return False

    @property
    def kind(self) -> Kind:
        """See ``Kind``."""
        return self.queue.key[2]

    @property
    def order_key(self) -> str | None:
        """See ``Delivery.order_key``."""
        return self.line.key if self.line else None

    @property
    def shown_at(self) -> int | None:
        """When it is to be looked at: it is due, and not aside."""
        return None if self.due_at is None else max(self.due_at, self.aside_until)


@dataclass(slots=True, eq=False)
class _Queue:
    """What is there of one tenant, namespace and kind."""

    key: QueueKey
    heap: list[tuple[int, int, Item]] = field(default_factory=list)
    lines: dict[str, _Line] = field(default_factory=dict)
    by_seq: dict[int, Item] = field(default_factory=dict)


class Outbox:
    """The index of one shard."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, _Queue] = {}
        self._by_id: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    # ------------------------------------------------------------------------------------------------------- changing

    def add(
        self,
        key: QueueKey,
        entry_id: int,
        seq: int,
        due_at: int | None,
        order_key: str | None,
        identity: Identity | None = None,
        *,
        not_before: int = 0,
    ) -> None:
        """Take in an entry; those of one line in order of ``seq``. ``not_before``: it is not wanted any sooner."""
        queue = self._queues.get(key) or self._queues.setdefault(key, _Queue(key))
        wanted_at = max(seq // US_PER_MS, not_before)
        item = Item(queue, entry_id, seq, due_at, identity=identity, wanted_at=wanted_at)
        if order_key is not None:
            item.line = queue.lines.get(order_key) or queue.lines.setdefault(order_key, _Line(order_key))
            item.line.items.append(item)
        queue.by_seq[seq] = item
        self._by_id[_number(key[2], entry_id)] = item
        self._show(item)

    def change(self, kind: Kind, entry_id: int, due_at: int | None) -> bool:
        """The entry is due at another time; whether it is here."""
        item = self._by_id.get(_number(kind, entry_id))
        if item is None:
            return False
        if item.due_at != due_at:
            item.due_at = due_at
            self._show(item)
        return True

    def remove(self, kind: Kind, entry_id: int) -> LineKey | None:
        """The entry has ended. Returns its line where it had one, since that may move on."""
        item = self._by_id.pop(_number(kind, entry_id), None)
        if item is None:
            return None
        item.gone = True
        queue, line = item.queue, item.line
        del queue.by_seq[item.seq]
        if line is not None:
            line.leave()
            head = line.head
            if head is None:
                del queue.lines[line.key]
            else:
                self._show(head)
        if not queue.by_seq:
            del self._queues[queue.key]
        return (*queue.key, line.key) if line is not None else None

    def set_aside(self, key: LineKey, seq: int, now: int) -> None:
        """This head has something before it in another shard, or had: not where the line moved meanwhile."""
        item = self._head(key)
        if item is not None and item.seq == seq and not item.has_moved:
            item.aside_until = now + ASIDE_MS
            self._show(item)

    def bring_back(self, key: LineKey) -> bool:
        """The line moved in another shard: its head may be the first of all now. Whether that changes anything."""
        item = self._head(key)
        if item is None:
            return False
        item.has_moved = True
        if not item.aside_until:
            return False
        item.aside_until = 0
        self._show(item)
        return True

    # -------------------------------------------------------------------------------------------------------- looking

    def due(self, key: QueueKey, now: int) -> Iterator[Item]:
        """What may be taken now, the longest due first: heads of lines, and what stands in none.

        What is given out and stays due must be given back (``put_back``) before anybody looks again.
        """
        queue = self._queues.get(key)
        given: set[int] = set()
        while queue is not None and queue.heap and queue.heap[0][0] <= now:
            at, seq, item = heapq.heappop(queue.heap)
            if seq not in given and _is_shown(item, at):
                given.add(seq)
                yield item

    def put_back(self, items: Iterable[Item]) -> None:
        """What ``due`` gave out is as it was, or changed meanwhile."""
        for item in items:
            if not item.gone:
                self._show(item)

    def next_at(self, key: QueueKey) -> int | None:
        """When something is due that is not yet, or is already; None: nothing waits for time."""
        queue = self._queues.get(key)
        while queue is not None and queue.heap:
            at, _, item = queue.heap[0]
            if _is_shown(item, at):
                return at
            heapq.heappop(queue.heap)
        return None

    def stands_behind(self, key: LineKey, seq: int) -> bool:
        """Whether an entry with this ``seq`` has something before it in the line's part that is here."""
        head = self._head(key)
        return head is not None and head.seq < seq

    def find(self, kind: Kind, entry_id: int) -> Item | None:
        """The entry of that id, if it has not ended."""
        return self._by_id.get(_number(kind, entry_id))

    def tenants(self, namespace: str, kind: Kind) -> list[str]:
        """Who has anything here, in order of name."""
        return sorted(t for t, n, k in self._queues if n == namespace and k is kind)

    def counts(self, now: int) -> Iterator[tuple[QueueKey, int, int | None]]:
        """For everybody who has anything here: how many entries, and since when the one is wanted that waits longest.

        Looked for among the oldest ``OLDEST_LOOKED_AT``; None: the time of none of them has come.
        """
        for key, queue in self._queues.items():
            oldest: int | None = None
            for item in itertools.islice(queue.by_seq.values(), OLDEST_LOOKED_AT):
                if oldest is not None and item.seq // US_PER_MS >= oldest:
                    break  # Nothing from here on was accepted before that.
                if item.wanted_at <= now:
                    oldest = item.wanted_at if oldest is None else min(item.wanted_at, oldest)
            yield key, len(queue.by_seq), oldest

    def oldest(self, key: QueueKey, limit: int) -> list[int]:
        """The ids of the first ``limit`` entries, in the order in which they entered."""
        queue = self._queues.get(key)
        return [item.id for item in itertools.islice(queue.by_seq.values(), limit)] if queue else []

    # ---------------------------------------------------------------------------------------------------------- inside

    def _head(self, key: LineKey) -> Item | None:
        queue = self._queues.get(key[:3])
        line = queue.lines.get(key[3]) if queue else None
        return line.head if line else None

    def _show(self, item: Item) -> None:
        at = item.shown_at
        if at is None or (item.line is not None and item.line.head is not item):
            return
        queue = item.queue
        heapq.heappush(queue.heap, (at, item.seq, item))
        if len(queue.heap) > 2 * len(queue.by_seq) + _SLACK:
            shown = {entry[1]: entry for entry in queue.heap if _is_shown(entry[2], entry[0])}
            queue.heap = list(shown.values())
            heapq.heapify(queue.heap)


def _is_shown(item: Item, at: int) -> bool:
    return not item.gone and item.shown_at == at and (item.line is None or item.line.head is item)


def _number(kind: Kind, entry_id: int) -> int:
    """Intents and events are numbered apart."""
    return -entry_id if kind is Kind.EVENT else entry_id
