"""Tallies are what a recount finds."""

from __future__ import annotations

from idemactor.core.record import State
from idemactor.core.tally import Tally, TallyKey
from idemactor.storage.memory import MemoryDisk


def recount(disk: MemoryDisk) -> dict[TallyKey, Tally]:
    """The counts, from every entry and incident on a disk."""
    counts: dict[TallyKey, Tally] = {}
    for entry in disk.entries.values():
        tally = counts.setdefault(entry.identity[:2], Tally())
        tally.records += 1
        if entry.record is None:
            continue
        tally.pending += entry.record.state is State.PENDING
        tally.in_doubt += entry.record.state in (State.LAPSED, State.DOUBTED)
        tally.committed += entry.record.state is State.COMMITTED
        tally.contested += entry.record.contested
    for stored in disk.incidents.values():
        counts.setdefault(stored.incident.identity[:2], Tally()).incidents += 1
    return counts


def differences(disk: MemoryDisk) -> list[str]:
    """Where the stored counts are not what a recount finds."""
    counted = recount(disk)
    return [] if counted == disk.tallies else [f"counted {counted}, stored {disk.tallies}"]
