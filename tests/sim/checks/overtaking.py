"""Entries of one order key never overtake each other, neither in what was done nor in the order of acceptance."""

from __future__ import annotations

from collections.abc import Iterator

from idemactor.core.commands import Dispatch
from idemactor.core.keys import Identity
from idemactor.core.record import Record
from idemactor.core.replies import Dispatched
from tests.sim.world import World

Place = tuple[int, Identity, Record]
Line = tuple[str, str, str]


def check(world: World) -> list[str]:
    """Where somebody came before who should have come after."""
    found = []
    done = {execution.operation_id: execution.stamp for execution in world.destination.executions}
    accepted, asked = _acceptance(world)
    for line, places in _lines(world).items():
        for (_, first, one), (_, second, other) in _pairs(places):
            first_done, second_done = done.get(one.operation_id), done.get(other.operation_id)
            if first_done is not None and second_done is not None and first_done > second_done:
                found.append(f"{line}: {second} was done before {first}, which stands before it")
            unended = one.delivery is not None and one.delivery.ending is None
            if unended and second_done is not None:
                found.append(f"{line}: {second} was done although {first} has not ended")
            told, came = accepted.get(other.operation_id), asked.get(first)
            if told is not None and came is not None and told < came:
                found.append(f"{line}: {second} was accepted before {first} was asked for, and stands behind it")
    return found


def _lines(world: World) -> dict[Line, list[Place]]:
    """What the disks have of each order key, in order of ``seq``."""
    lines: dict[Line, list[Place]] = {}
    for disk in world.disks:
        for entry in disk.entries.values():
            record = entry.record
            if record is not None and record.delivery is not None and record.delivery.order_key is not None:
                line = (*entry.identity[:2], record.delivery.order_key)
                lines.setdefault(line, []).append((record.delivery.seq, entry.identity, record))
    return {line: sorted(places, key=lambda place: place[0]) for line, places in lines.items()}


def _pairs(places: list[Place]) -> Iterator[tuple[Place, Place]]:
    for number, first in enumerate(places):
        for second in places[number + 1 :]:
            yield first, second


def _acceptance(world: World) -> tuple[dict[str, int], dict[Identity, int]]:
    """When each operation was first told to be accepted, and when each key that was freed by nobody was asked for."""
    accepted: dict[str, int] = {}
    asked: dict[Identity, int] = {}
    for op in world.dispatches.ops:
        if isinstance(op.command, Dispatch):
            asked.setdefault(op.command.identity, op.sent)
        if isinstance(op.reply, Dispatched) and op.answered is not None:
            operation_id = op.reply.operation_id
            accepted[operation_id] = min(op.answered, accepted.get(operation_id, op.answered))
    return accepted, asked
