"""What the journal holds of one shard and its file does not: many small batches, merged into one large one. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from idemactor.core.delivery import Event, Intent
from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.core.tally import Tally
from idemactor.storage.base import Batch, Opened

T = TypeVar("T")

_NOTHING: Final = Tally()


class Overlay:
    """Batches laid over each other, the later ones on top.

    A key that was reserved, committed and forgotten meanwhile costs the file one row or none, not three.

    Attributes:
        batches: How many were laid on top of each other.
    """

    def __init__(self) -> None:
        self.batches = 0
        self._batch = Batch(now_ms=0, last_token=0)
        self._puts: dict[int, Entry] = {}
        self._deletes: dict[int, Entry] = {}
        self._by_identity: dict[Identity, Entry | None] = {}
        self._intents: dict[int, Intent] = {}
        self._undelivered: set[int] = set()
        self._events: dict[int, Event] = {}
        self._acked: set[int] = set()
        self._operations: dict[str, int] = {}
        self._emptied: set[Identity] = set()

    def __len__(self) -> int:
        """How many rows the file would have to touch."""
        outbox = len(self._intents) + len(self._undelivered) + len(self._events) + len(self._acked)
        incidents = len(self._batch.incidents) + len(self._batch.acknowledged) + len(self._emptied)
        return len(self._puts) + len(self._deletes) + incidents + outbox

    @property
    def touches_outbox(self) -> bool:
        """Whether what the file says of its outbox may be out of date."""
        changed = self._intents or self._undelivered or self._events or self._acked or self._operations
        return bool(changed or self._deletes)

    def fits(self, batch: Batch) -> bool:
        """Whether this batch can be merged with those that are here.

        A batch adds incidents before it removes acknowledged ones: one that comes after a removal belongs into the
        next write, or it would take an id that was meant, or be kept out by one that is gone. Of events no two of a
        process have the same number, so that they need no such care.
        """
        return not (batch.incidents and self._batch.acknowledged)

    def add(self, batch: Batch) -> None:
        """Lay a batch that ``fits`` on top."""
        self.batches += 1
        merged = self._batch
        merged.now_ms = max(merged.now_ms, batch.now_ms)
        merged.last_token = max(merged.last_token, batch.last_token)
        for entry in batch.deletes:
            self._puts.pop(entry.id, None)
            self._intents.pop(entry.id, None)
            self._deletes[entry.id] = entry
            self._by_identity[entry.identity] = None
        for entry_id in batch.undelivered:
            self._intents.pop(entry_id, None)
            self._undelivered.add(entry_id)
        for entry in batch.puts:
            self._puts[entry.id] = entry
            self._by_identity[entry.identity] = entry
            for operation_id in dispatched_in(entry):
                self._operations[operation_id] = entry.id
        if batch.emptied:
            self._empty(batch.emptied)
        self._intents.update(batch.intents)
        self._add_events(batch)
        merged.incidents.extend(batch.incidents)
        merged.acknowledged.extend(batch.acknowledged)
        # Copies: the shard goes on counting in the ones that it gave us.
        merged.tallies.update((key, replace(tally)) for key, tally in batch.tallies.items())

    def _empty(self, identities: Iterable[Identity]) -> None:
        """At once what is here; what only the file has when it is written."""
        gone = frozenset(identities)
        self._emptied |= gone
        for seq, event in self._events.items():
            if event.identity in gone:
                self._events[seq] = event.emptied()
        incidents = self._batch.incidents
        incidents[:] = [each.emptied() if each.identity in gone else each for each in incidents]

    def _add_events(self, batch: Batch) -> None:
        self._events.update((event.seq, event) for event in batch.events)
        for seq in batch.acked:
            # What came and went is nothing to the file.
            if self._events.pop(seq, None) is None:
                self._acked.add(seq)

    def look_up(self, identities: Iterable[Identity]) -> tuple[dict[Identity, Entry], list[Identity]]:
        """The entries that are known here, and the identities that only the file knows."""
        found: dict[Identity, Entry] = {}
        unknown: list[Identity] = []
        for identity in identities:
            if identity not in self._by_identity:
                unknown.append(identity)
            elif (entry := self._by_identity[identity]) is not None:
                found[identity] = entry
        return found, unknown

    def look_up_ids(self, ids: Iterable[int]) -> tuple[dict[int, Entry], list[int]]:
        """As ``look_up``, by the entries' ids."""
        return _split(ids, self._puts, self._deletes)

    def look_up_intents(self, ids: Iterable[int]) -> tuple[dict[int, Intent], list[int]]:
        """As ``look_up``, the intents of entries."""
        return _split(ids, self._intents, self._deletes, self._undelivered)

    def look_up_events(self, seqs: Iterable[int]) -> tuple[dict[int, Event], list[int]]:
        """As ``look_up``, events by their ``seq``."""
        return _split(seqs, self._events, self._acked)

    def emptied(self, events: dict[int, Event]) -> dict[int, Event]:
        """What the file says of events, as it is from now on."""
        if not self._emptied:
            return events
        return {seq: each.emptied() if each.identity in self._emptied else each for seq, each in events.items()}

    def find_operation(self, tenant: str, namespace: str, operation_id: str) -> Identity | None:
        """Whose dispatched operation this is, as far as it is known here."""
        entry = self._puts.get(self._operations.get(operation_id, -1))
        if entry is None or entry.identity[:2] != (tenant, namespace) or operation_id not in dispatched_in(entry):
            return None
        return entry.identity

    def covers(self, identity: Identity) -> bool:
        """Whether what the file says of a key is out of date."""
        return identity in self._by_identity

    def opened(self, below: Opened, seq: int) -> Opened:
        """What a file says that holds ``below`` and has these batches laid over it, up to ``seq``."""
        batch = self._batch
        # Copies here as well: what the shard then counts in them is not in these batches.
        tallies = {key: replace(tally) for key, tally in (below.tallies | batch.tallies).items() if tally != _NOTHING}
        last_token, latest_ms = max(below.last_token, batch.last_token), max(below.latest_ms, batch.now_ms)
        return Opened(last_token, latest_ms, tallies, seq)

    def merged(self) -> Batch:
        """Everything as one batch."""
        batch = self._batch
        batch.puts = list(self._puts.values())
        # A row that was deleted and put again under its old id is only put.
        batch.deletes = [entry for entry in self._deletes.values() if entry.id not in self._puts]
        # The delivery that such a row had before is not its own any more.
        back = self._deletes.keys() & self._puts.keys()
        batch.undelivered = sorted(self._undelivered - self._deletes.keys() | back)
        batch.intents = self._intents
        batch.events = list(self._events.values())
        batch.acked = sorted(self._acked)
        batch.emptied = sorted(self._emptied)
        return batch


def dispatched_in(entry: Entry) -> list[str]:
    """The ids of an entry's operations that were dispatched: its record's, and its tombstone's if that says its end."""
    record, tombstone = entry.record, entry.tombstone
    found: list[str] = []
    if record is not None and record.delivery is not None:
        found.append(record.operation_id)
    if tombstone is not None and tombstone.ending is not None:
        found.append(tombstone.operation_id)
    return found


def _split(asked: Iterable[int], known: Mapping[int, T], *gone: Container[int]) -> tuple[dict[int, T], list[int]]:
    found: dict[int, T] = {}
    unknown: list[int] = []
    for number in asked:
        if (value := known.get(number)) is not None:
            found[number] = value
        elif not any(number in each for each in gone):
            unknown.append(number)
    return found, unknown
