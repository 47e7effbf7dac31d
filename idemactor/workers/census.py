"""The keys of all workers, as each knows them: what the quota asks where several processes own the shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from idemactor.core.census import Census
from idemactor.core.tally import TallyKey

Count = tuple[str, str, int]
"""Tenant, namespace, and how many keys."""


class SharedCensus(Census):
    """Counts of this worker's shards, and what the others last said of theirs, which is a little old.

    A worker that is away still has its keys on disk: what it said last goes on to count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[TallyKey, int] = {}
        self._others: dict[int, dict[TallyKey, int]] = {}
        self.changed: set[TallyKey] = set()

    def add(self, shard: int, key: TallyKey, delta: int) -> None:
        super().add(shard, key, delta)
        self._own[key] = self._own.get(key, 0) + delta
        self.changed.add(key)

    def replace(self, shard: int, counts: Mapping[TallyKey, int]) -> None:
        before = self._by_shard.get(shard, {})
        for key in before.keys() | counts.keys():
            self._own[key] = self._own.get(key, 0) + counts.get(key, 0) - before.get(key, 0)
            self.changed.add(key)
        super().replace(shard, counts)

    def own(self, keys: Iterable[TallyKey] | None = None) -> tuple[Count, ...]:
        """What this worker's shards hold, for the others; of ``keys``, or of all."""
        return tuple((*key, self._own.get(key, 0)) for key in (self._own if keys is None else keys))

    def heard(self, worker: int, counts: Iterable[Count], *, whole: bool = False) -> None:
        """Another worker said what its shards hold now; ``whole``: that is all they hold."""
        known = self._others.setdefault(worker, {})
        if whole:
            counts = [*((*key, 0) for key in known), *counts]
        for tenant, namespace, count in counts:
            key = (tenant, namespace)
            self._totals[key] = self._totals.get(key, 0) + count - known.get(key, 0)
            known[key] = count
