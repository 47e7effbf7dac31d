"""What was accepted is never lost, ends once faults stop, and has one end only."""

from __future__ import annotations

from idemactor.core.delivery import Ending, OperationState
from idemactor.core.keys import Identity
from idemactor.core.record import State
from idemactor.core.replies import Dispatched, Watched
from tests.sim.world import World

_ENDED = {ending: OperationState(ending.name.lower()) for ending in Ending}


def endings(world: World) -> dict[str, tuple[Identity, OperationState]]:
    """How each operation that the disks know of stands, by its id."""
    found = {}
    for disk in world.disks:
        for entry in disk.entries.values():
            record, tombstone = entry.record, entry.tombstone
            if tombstone is not None and tombstone.ending is not None:
                found[tombstone.operation_id] = (entry.identity, _ENDED[tombstone.ending])
            if record is not None and record.delivery is not None:
                ending = record.delivery.ending
                waits = OperationState.IN_DOUBT if record.state is not State.PENDING else OperationState.QUEUED
                state = _ENDED[ending] if ending is not None else waits
                found[record.operation_id] = (entry.identity, state)
    return found


def check(world: World) -> list[str]:
    """Operations that somebody was told were accepted, and that are nowhere, or never came to their end."""
    known = endings(world)
    latest = {entry.identity for disk in world.disks for entry in disk.entries.values()}
    found = []
    told: dict[str, set[OperationState]] = {}
    for op in world.dispatches.ops:
        reply = op.reply
        if isinstance(reply, Dispatched):
            told.setdefault(reply.operation_id, set())
            # A key that was freed twice has only the latest tombstone.
            if reply.operation_id not in known and op.command.identity not in latest:
                found.append(f"accepted and lost: {op}")
        if isinstance(reply, Watched | Dispatched) and reply.state.ended:
            told.setdefault(reply.operation_id, set()).add(reply.state)
    for operation_id, states in told.items():
        if operation_id not in known:
            continue
        identity, state = known[operation_id]
        if not state.ended:
            found.append(f"accepted and {state} after a long silence: {identity} {operation_id}")
        if states - {state}:
            found.append(f"told {states}, and it is {state}: {identity} {operation_id}")
    return found
