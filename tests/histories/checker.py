"""Whether the calls of one key can be told as one linear history, with nothing known but what callers saw.

The search of Wing and Gong (1993) with the memory of Lowe (2017), against the plain model of ``tests/sim/model.py``.
Calls are placed one after the other, none before one that had returned when it was sent. Also looked for is the
server's time of each decision: answers of grants tell it, for all others it lies between sending and answer (give or
take ``SLACK_MS``) and never goes back. A decision depends on time only through deadlines, so that the earliest possible
moment and each deadline within reach are all that have to be tried; of a lost call also the moments that make it the
grant whose end somebody was told. A lost call may have had its effect at any moment until its server was dead, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from idemactor.core.commands import Resolve
from idemactor.core.keys import Identity
from idemactor.core.replies import Accepted, Committed, Completed, Found, InDoubt, Reply, Reserved
from tests.histories.calls import Call, ends_told
from tests.sim.model import Essence, State, at, essence, follow

SLACK_MS: Final = 50
"""How far the server's clock and a caller's may be apart: both are the machine's, one in whole milliseconds."""
PLACES_MAX: Final = 200_000
"""A search that has seen so many places gives up: its history has too many lost calls at once to be judged."""


class TooManyOrders(Exception):
    """The search gave up: the history is neither explained nor refused."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the model leaves to the server: the highest token of the key, and the name of the present operation."""

    token: int = 0
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """How far an order has come: the calls in it, what the server remembers then, and the earliest time it can be."""

    placed: int
    state: State
    known: Known
    now_ms: int


def unexplained(calls: Iterable[Call]) -> list[str]:
    """A text for each key whose history no order of its calls explains."""
    by_key: dict[Identity, list[Call]] = {}
    for call in calls:
        by_key.setdefault(call.command.identity, []).append(call)
    found = []
    for identity, history in by_key.items():
        stuck = search(history)
        if stuck is not None:
            text = "\n    ".join(repr(call) for call in stuck)
            found.append(f"no order explains the history of {identity}; the furthest try ends before\n    {text}")
    return found


def search(calls: Sequence[Call]) -> list[Call] | None:
    """None where an order was found, else the first calls that the furthest try could not place.

    Raises:
        TooManyOrders: See there.
    """
    calls = sorted(calls, key=lambda call: (call.reply is None, call.decided_ms or call.invoked_ms))
    needed = sum(1 << number for number, call in enumerate(calls) if call.reply is not None)
    ends = sorted(set().union(*(ends_told(call.reply) for call in calls)))
    twins = [_twin(calls, number) for number in range(len(calls))]
    seen: set[Place] = set()
    stack = [Place(0, State(), Known(), 0)]
    furthest = 0
    while stack:
        place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        if len(seen) > PLACES_MAX:
            raise TooManyOrders(f"{len(calls)} calls of {calls[0].command.identity}")
        if place.placed & needed == needed:
            return None
        furthest = max(furthest, place.placed & needed, key=int.bit_count)
        # The stack is taken from its end: what was answered and was decided first is tried first.
        stack.extend(reversed(list(_steps(calls, needed, twins, place, ends))))
    return [call for number, call in enumerate(calls) if needed & ~furthest & (1 << number)][:8]


def _twin(calls: Sequence[Call], number: int) -> int:
    """A bit for an earlier lost call that is the same in all that matters: where either may do, the earlier does."""
    this = calls[number]
    if this.reply is not None:
        return 0
    for earlier in range(number - 1, -1, -1):
        other = calls[earlier]
        if other.reply is None and other.command == this.command and _returned(other) >= _returned(this):
            return 1 << earlier
    return 0


def _steps(
    calls: Sequence[Call], needed: int, twins: Sequence[int], place: Place, ends: Sequence[int]
) -> Iterator[Place]:
    """What may come next: a call that was sent before any other that is left had returned."""
    left = needed & ~place.placed
    first_end = min(_returned(call) for number, call in enumerate(calls) if left >> number & 1)
    last_sent = max((call.invoked_ms for number, call in enumerate(calls) if place.placed >> number & 1), default=0.0)
    for number, call in enumerate(calls):
        there = place.placed >> number & 1
        if there or call.invoked_ms > first_end or _returned(call) < last_sent or twins[number] & ~place.placed:
            continue
        for now_ms in _moments(call, place, ends):
            after = _place(call, place, now_ms)
            if after is not None:
                yield replace(after, placed=place.placed | 1 << number)


def _returned(call: Call) -> float:
    return math.inf if call.returned_ms is None else call.returned_ms


def _moments(call: Call, place: Place, ends: Sequence[int]) -> list[int]:
    """The server's times at which the call may have been decided, as far as they differ."""
    first = max(place.now_ms, math.floor(call.invoked_ms) - SLACK_MS)
    last = _returned(call) + SLACK_MS
    if call.decided_ms is not None:
        moments = {call.decided_ms}
    else:
        moments = {first, *_deadlines(place.state)}
        if call.lasts_ms is not None:
            moments |= {end - call.lasts_ms for end in ends}
    return sorted(moment for moment in moments if first <= moment <= last)


def _deadlines(state: State) -> set[int]:
    attempt, grave = state.attempt, state.grave
    ends = [attempt.lease_end, attempt.give_up_at, attempt.expires_at] if attempt else []
    return {end for end in (*ends, grave.expires_at if grave else None) if end is not None}


def _place(call: Call, place: Place, now_ms: int) -> Place | None:
    """The call decided at that moment; None where its answer would have been another, or nothing came of a lost one."""
    due, state = follow(place.state, call.command, call.policy, now_ms, call.reply)
    reply = call.reply
    if reply is None:
        if state == place.state:
            return None
        fresh = at(place.state, call.policy, now_ms).attempt is None
        return Place(0, state, replace(place.known, operation_id=None) if fresh else place.known, now_ms)
    known = _learn(place.known, reply)
    return Place(0, state, known, now_ms) if known is not None and _agrees(due, call, reply, now_ms) else None


def _agrees(due: Essence, call: Call, reply: Reply, now_ms: int) -> bool:
    said = essence(reply)
    if isinstance(reply, Committed) and isinstance(call.command, Resolve):
        # Its answer does not say until when.
        return due[:1] == said[:1]
    exact = not isinstance(reply, Reserved) or reply.repeated or reply.reserved_at == now_ms
    return due == said and exact


def _learn(known: Known, reply: Reply) -> Known | None:
    """What the answer adds; None where it contradicts: a token that is no higher, an operation of another name."""
    operation_id: str | None = getattr(reply, "operation_id", None)
    if isinstance(reply, Found):
        operation_id = reply.record.operation_id
    granted = isinstance(reply, Reserved | Accepted) and not reply.repeated
    if isinstance(reply, Reserved):
        if granted and reply.token <= known.token:
            return None
        known = replace(known, token=max(known.token, reply.token))
    if isinstance(reply, Reserved | Accepted) and granted and reply.attempt == 1:
        return None if operation_id == known.operation_id else replace(known, operation_id=operation_id)
    if not isinstance(reply, Reserved | Accepted | Completed | InDoubt | Found):
        return known
    if known.operation_id is not None and operation_id != known.operation_id:
        return None
    return replace(known, operation_id=operation_id)
