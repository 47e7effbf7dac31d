"""Nothing is done twice, and what is said of an operation is what was done.

Under one key never more than once, at a destination that recognises ids as at one that does not; exactly once where an
operation succeeded, and never where it failed, expired, was cancelled or released.
"""

from __future__ import annotations

from collections import Counter

from idemactor.core.delivery import OperationState
from tests.sim.checks.accepted import endings
from tests.sim.world import World


def check(world: World) -> list[str]:
    """What was done too often, or too seldom."""
    done = Counter(execution.operation_id for execution in world.destination.executions)
    keys = Counter(execution.identity for execution in world.destination.executions)
    found = [f"done {times} times: {identity}" for identity, times in keys.items() if times > 1]
    for operation_id, (identity, state) in endings(world).items():
        due = 1 if state is OperationState.SUCCEEDED else 0
        if state.ended and done[operation_id] != due:
            found.append(f"{state} and done {done[operation_id]} times: {identity} {operation_id}")
    return found
