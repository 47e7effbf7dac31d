"""The quota: nobody comes above it by what a process knows, and in the end each counts what the disks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from idemactor.core.census import Census
from idemactor.core.policy import Policy
from idemactor.core.tally import Tally, TallyKey
from idemactor.shard.actor import Shard
from idemactor.storage.memory import MemoryDisk


def overshot(
    before: Mapping[TallyKey, int], after: Mapping[TallyKey, Tally], census: Census, policies: Mapping[str, Policy]
) -> list[str]:
    """Of which tenants and namespaces a shard took new keys although all that it knows of come to the maximum.

    Args:
        before: How many keys the shard had before it decided a batch.
        after: What it has then.
    """
    found = []
    for key, tally in after.items():
        most = policies[key[1]].records_max
        if tally.records > before.get(key, 0) and census.total(key) > most:
            found.append(f"{key} was let come to {census.total(key)} keys, above {most}")
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
