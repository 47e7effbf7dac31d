"""Events that a commit announced are shown until somebody has dealt with them, and in the order of their key."""

from __future__ import annotations

from idemactor.core.commands import Commit
from idemactor.core.replies import Committed
from tests.sim.world import World


def check(world: World) -> list[str]:
    """Events that nobody saw, that are still there, or that came out of turn."""
    found = [f"nobody dealt with {event}" for disk in world.disks for event in disk.events.values()]
    shown = {taken.event.id for _, taken in world.shown}
    for op in world.dispatches.ops:
        if isinstance(op.command, Commit) and isinstance(op.reply, Committed) and not op.reply.repeated:
            outcome = op.command.outcome
            names = [f"{outcome.body.decode()}.{n}" for n in range(1, len(op.command.events) + 1)] if outcome else []
            found += [f"announced and never shown: {name}" for name in names if name not in shown]
    return found + _out_of_turn(world)


def _out_of_turn(world: World) -> list[str]:
    """Whoever is shown the next of a line has it because the one before was dealt with."""
    found = []
    acked = {taken.event.seq for what, taken in world.shown if what == "acked"}
    lines: dict[tuple[str, ...], list[int]] = {}
    dealt_with: set[int] = set()
    for what, taken in world.shown:
        event = taken.event
        if event.content.order_key is None:
            continue
        if what == "acked":
            dealt_with.add(event.seq)
            continue
        line = lines.setdefault((*event.identity[:2], event.content.order_key), [])
        before = [seq for seq in line if seq < event.seq and seq in acked and seq not in dealt_with]
        found += [f"{event} came before {seq} was dealt with" for seq in before]
        line.append(event.seq)
    return found
