"""Each key's history is linearizable: some order of its ops, true to who came before whom, explains every answer.

The search of Wing and Gong (1993) with the memory of Lowe (2017), against the plain model of ``model.py``. The moment
of each decision is the server's, so that only the order is searched for. What nobody was told about may have happened
or not, but not after its connection broke.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from idemactor.core.keys import Identity
from tests.sim.history import History, Op
from tests.sim.model import State, essence, follow

End = Callable[[Identity, State], bool]
"""Whether what is stored in the end is what an order of ops comes to."""


def check(history: History, end: End = lambda _identity, _state: True) -> list[str]:
    """Keys whose history no order of ops explains, or none that leads to what is stored in the end."""
    found = []
    for identity, ops in history.by_key().items():
        told = [op for op in ops if op.answered is not None and not op.idle]
        stuck = _search(told, functools.partial(end, identity))
        if stuck == []:
            found.append(f"no order that explains the history of {identity.key} ends in what is stored")
            continue
        if stuck is not None:
            text = "\n    ".join(repr(op) for op in stuck)
            found.append(f"no order explains the history of {identity.key}; the furthest try ends before\n    {text}")
    return found


def _search(ops: Sequence[Op], ends: Callable[[State], bool]) -> list[Op] | None:
    """None where an order was found, else the first ops that the furthest try could not place.

    There are none where an order was found for all of them, and none of these ends in what is stored.
    """
    everything = (1 << len(ops)) - 1
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State]] = [(0, State())]
    furthest = 0
    while stack:
        placed, state = stack.pop()
        if (placed, state) in seen:
            continue
        seen.add((placed, state))
        furthest = max(furthest, placed, key=int.bit_count)
        if placed == everything:
            if ends(state):
                return None
            continue
        stack.extend(_steps(ops, placed, state))
    return [op for number, op in enumerate(ops) if not furthest >> number & 1][:8]


def _steps(ops: Sequence[Op], placed: int, state: State) -> Iterator[tuple[int, State]]:
    """What may come next: an op that was sent before any other that is left was answered."""
    left = [number for number in range(len(ops)) if not placed >> number & 1]
    first_end = min(ops[number].until for number in left)
    possible = [number for number in left if ops[number].sent < first_end]
    # The stack is taken from its end: what was decided first is tried first.
    for number in sorted(possible, key=lambda n: ops[n].at or 0, reverse=True):
        op = ops[number]
        after = placed | 1 << number
        if op.vague:
            yield after, state
        assert op.at is not None
        due, then = follow(state, op.command, op.policy, op.at, op.reply)
        if op.vague or (op.reply is not None and due == essence(op.reply)):
            yield after, then
