"""How many keys each tenant has in each namespace, over all shards of a process: what the quota asks."""

from __future__ import annotations

from collections.abc import Mapping

from idemactor.core.tally import TallyKey


class Census:
    """Counts that every shard of a process adds to as it decides. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._totals: dict[TallyKey, int] = {}
        self._by_shard: dict[int, dict[TallyKey, int]] = {}

    def total(self, key: TallyKey) -> int:
        """The keys of a tenant in a namespace, those of undecided batches included."""
        return self._totals.get(key, 0)

    def add(self, shard: int, key: TallyKey, delta: int) -> None:
        """A shard gained or lost ``delta`` keys."""
        counts = self._by_shard.setdefault(shard, {})
        counts[key] = counts.get(key, 0) + delta
        self._totals[key] = self._totals.get(key, 0) + delta

    def replace(self, shard: int, counts: Mapping[TallyKey, int]) -> None:
        """A shard read its counts from disk: whatever it had counted before is forgotten."""
        for key, count in self._by_shard.pop(shard, {}).items():
            self._totals[key] -= count
        self._by_shard[shard] = dict(counts)
        for key, count in counts.items():
            self._totals[key] = self._totals.get(key, 0) + count
