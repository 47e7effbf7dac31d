"""What is stored once all is quiet is what the order of all ops comes to, incidents included.

A key that nobody asks about any more is compared as well: what is lost in silence shows here.
"""

from __future__ import annotations

from collections.abc import Mapping

from idemactor.core.keys import Identity
from idemactor.core.record import Entry, Record
from idemactor.core.record import State as Stored
from tests.sim.checks.linearizable import End
from tests.sim.model import Attempt, Grave, State, at
from tests.sim.world import World

_PHASES: Mapping[Stored, str] = {
    Stored.PENDING: "pending",
    Stored.LAPSED: "lapsed",
    Stored.DOUBTED: "doubted",
    Stored.COMMITTED: "committed",
}


def end(world: World) -> End:
    """Says of a key whether the disks have of it what a state of the model says."""
    entries = {entry.identity: entry for disk in world.disks for entry in disk.entries.values()}
    kept: dict[Identity, set[int]] = {}
    for disk in world.disks:
        for stored in disk.incidents.values():
            kept.setdefault(stored.incident.identity, set()).add(stored.incident.token)

    def fits(identity: Identity, state: State) -> bool:
        there = kept.get(identity, set())
        gone = world.acknowledged.get(identity, set())
        proven = there <= state.incidents <= there | gone
        return proven and _same(at(state, world.policy, world.rest_ms), entries.get(identity))

    return fits


def _same(state: State, entry: Entry | None) -> bool:
    record = entry.record if entry is not None else None
    tombstone = entry.tombstone if entry is not None else None
    if (state.attempt is None) != (record is None) or (state.grave is None) != (tombstone is None):
        return False
    if state.attempt is not None and record is not None and not _same_record(state.attempt, record):
        return False
    grave: Grave | None = state.grave
    if grave is None or tombstone is None:
        return True
    return grave.token in (None, tombstone.token) and grave.request_id == tombstone.request_id


def _same_record(attempt: Attempt, record: Record) -> bool:
    ours = (attempt.phase, attempt.number, attempt.outcome, attempt.expires_at, attempt.contested, attempt.fingerprint)
    phase = _PHASES[record.state]
    theirs = (phase, record.attempt, record.outcome, record.expires_at, record.contested, record.fingerprint)
    return ours == theirs and attempt.token in (None, record.token)
