"""All checkers together: what is wrong with a run, and whether a run shows a planted mistake."""

from __future__ import annotations

from tests.sim.checks import (
    accepted,
    answered,
    drained,
    events,
    executions,
    linearizable,
    no_double_hold,
    overtaking,
    quota,
    replays,
    stored,
    tallies,
    tokens,
)
from tests.sim.wires import SimPeer
from tests.sim.world import SOUND, Parts, World, run_world


def verdict(world: World) -> list[str]:
    """All that is wrong with a run."""
    history = world.history
    found = list(history.violations)
    for check in (no_double_hold.check, replays.check, tokens.check, answered.check):
        found += check(history)
    found += (
        linearizable.check(history, stored.end(world)) + drained.check(world) + quota.check(world.resting, world.disks)
    )
    for disk in world.disks:
        found += disk.partings + tallies.differences(disk)
    return found + (verdict_on_dispatch(world) if world.dispatching else [])


def verdict_on_dispatch(world: World) -> list[str]:
    """All that is wrong with what was dispatched in a run."""
    found = world.dispatches.violations + answered.check(world.dispatches)
    for check in (executions.check, overtaking.check, accepted.check, events.check):
        found += check(world)
    return found


def finds(
    seed: int,
    parts: Parts = SOUND,
    *,
    dispatching: bool = False,
    peer_type: type[SimPeer] | None = None,
) -> bool:
    """Whether a seed shows that something is wrong; a shard that falls over counts."""
    try:
        return bool(verdict(run_world(seed, parts, dispatching=dispatching, peer_type=peer_type)))
    except BaseExceptionGroup:
        return True
