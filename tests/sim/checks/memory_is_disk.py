"""Memory equals disk: whenever a batch is durable, what the shard remembers is what its file says."""

from __future__ import annotations

from idemactor.core.ledger import Ledger
from idemactor.core.tally import Tally
from idemactor.shard.mailbox import Envelope
from idemactor.storage.memory import MemoryDisk


def differences(ledger: Ledger[Envelope], disk: MemoryDisk) -> list[str]:
    """What differs after a batch; the disk may know more than memory, never anything else."""
    found = []
    for identity, entry in ledger._cache.items():
        stored = disk.entries.get(disk.ids.get(identity, 0))
        if stored != entry:
            found.append(f"memory is not disk: {entry} / {stored}")
    counted = {key: tally for key, tally in ledger.tallies.items() if tally != Tally()}
    if counted != disk.tallies:
        found.append(f"counts in memory are not those on disk: {counted} / {disk.tallies}")
    if disk.last_token > ledger.last_token:
        found.append(f"memory knows of fewer tokens than the disk: {ledger.last_token} / {disk.last_token}")
    return found
