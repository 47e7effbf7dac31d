"""What the journal holds of one shard and its file does not: many small batches, merged into one large one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.storage.base import Batch


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

    def __len__(self) -> int:
        """How many rows the file would have to touch."""
        return len(self._puts) + len(self._deletes) + len(self._batch.incidents) + len(self._batch.acknowledged)

    def fits(self, batch: Batch) -> bool:
        """Whether this batch can be merged with those that are here.

        A batch adds incidents before it removes acknowledged ones: one that comes after a removal belongs into the
        next write, or it would take an id that was meant, or be kept out by one that is gone.
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
            self._deletes[entry.id] = entry
            self._by_identity[entry.identity] = None
        for entry in batch.puts:
            self._puts[entry.id] = entry
            self._by_identity[entry.identity] = entry
        merged.incidents.extend(batch.incidents)
        merged.acknowledged.extend(batch.acknowledged)
        # Copies: the shard goes on counting in the ones that it gave us.
        merged.tallies.update((key, replace(tally)) for key, tally in batch.tallies.items())

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

    def merged(self) -> Batch:
        """Everything as one batch."""
        batch = self._batch
        batch.puts = list(self._puts.values())
        # A row that was deleted and put again under its old id is only put.
        batch.deletes = [entry for entry in self._deletes.values() if entry.id not in self._puts]
        return batch
