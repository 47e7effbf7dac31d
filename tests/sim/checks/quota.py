"""The quota: what one process counts is never above it where it grew, and in the end it counts what the disks hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from idemactor.core.policy import Policy
from idemactor.core.tally import TallyKey
from idemactor.shard.actor import Shard
from idemactor.storage.memory import MemoryDisk

Counts = dict[int, dict[TallyKey, int]]
"""By shard, how many keys each tenant has in each namespace."""


def overshot(
    counts: Counts, shard: int, grown: Iterable[TallyKey], policies: Mapping[str, Policy], own: set[int]
) -> list[str]:
    """Which of the tenants and namespaces that have ``grown`` in a shard are above what they may have.

    Args:
        own: The shards of the same process: of the others it hears only a little later.
    """
    found = []
    for key in grown:
        total = sum(kept.get(key, 0) for number, kept in counts.items() if number in own)
        if total > policies[key[1]].records_max:
            found.append(f"shard {shard} took {key} to {total} keys, above {policies[key[1]].records_max}")
    return found


def check(shards: Sequence[Shard], disks: Sequence[MemoryDisk]) -> list[str]:
    """Where processes that have heard everything do not count what is there."""
    stored: dict[TallyKey, int] = {}
    for disk in disks:
        for key, tally in disk.tallies.items():
            stored[key] = stored.get(key, 0) + tally.records
    found = []
    for shard in shards:
        for key, count in stored.items():
            counted = shard._census.total(key)
            if counted != count:
                found.append(f"shard {shard.number} counts {counted} keys of {key}, and there are {count}")
    return found
