"""Once faults stop, all drains: nothing overdue is left on disk, nobody waits, and every shard serves again."""

from __future__ import annotations

from idemactor.core.record import State
from tests.sim.world import World


def check(world: World) -> list[str]:
    """What a long silence did not put right."""
    found = []
    for shard, disk in zip(world.resting, world.disks, strict=True):
        found += [f"shard {shard.number} is still quarantined"] if shard.quarantined else []
        found += [f"shard {shard.number} has mail"] if shard.queue_depth else []
        for entry in disk.entries.values():
            if entry.alarm_at is not None and entry.alarm_at <= world.rest_ms:
                found.append(f"overdue: {entry}")
            if entry.record is not None and entry.record.state is State.PENDING:
                found.append(f"a lapse that nobody noted: {entry}")
    return found
