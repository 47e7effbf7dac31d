"""What has to be asked of several shards: where an operation is, and what of their outboxes may be delivered now.

Entries of one ``order_key`` may lie in any shard, by their keys, and nobody coordinates the shards. So whoever takes
asks: a shard shows the heads of its own lines, all others say which of them have something before them, and only then
is the shard told whose turn it is. That is exact because a place in line only grows: what is nowhere behind anything
now can never be later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import trio

from idemactor.core.delivery import Kind
from idemactor.core.keys import Identity
from idemactor.core.limits import POLL_BYTES_MAX
from idemactor.core.queries import (
    Behind,
    FindOperation,
    Heads,
    OperationAt,
    Query,
    Take,
    Taken,
    TakenEvent,
    TakenIntent,
    Turn,
)
from idemactor.core.replies import Overloaded, Unavailable
from idemactor.errors import RequestError
from idemactor.shard.bell import Bell
from idemactor.shard.mailbox import Answer
from idemactor.wire.outbox import Poll, kinds_of
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import Scope

Ask: TypeAlias = Callable[[int, Query], Awaitable[Answer]]
"""Asks one shard, by its number."""
NotNow: TypeAlias = Overloaded | Unavailable
Turns: TypeAlias = tuple[Turn, ...]

LOOK_MS: Final = 1_000
"""How often who waits for something to fetch has a look, whether or not anybody rang."""
NEXT_MS_MIN: Final = 10
"""How long it waits at least for what is said to be due: it may stand behind something elsewhere."""

_MS_PER_S: Final = 1_000


def not_now(answer: NotNow) -> RequestError:
    """What a caller is told where a shard could not answer."""
    refusal = refusal_of(answer)
    assert refusal is not None
    return RequestError(refusal.code, detail_of(answer), retry_after_ms=answer.retry_after_ms)


async def ask_all(ask: Ask, shards: Sequence[int], query: Query) -> list[Answer]:
    """The answers of several shards to one question, all asked at once, in the order of ``shards``."""
    answers: dict[int, Answer] = {}

    async def ask_one(shard: int) -> None:
        answers[shard] = await ask(shard, query)

    async with trio.open_nursery() as nursery:
        for shard in shards:
            nursery.start_soon(ask_one, shard)
    return [answers[shard] for shard in shards]


async def find_operation(ask: Ask, shards: int, query: FindOperation) -> Identity | NotNow | None:
    """The key of a dispatched operation.

    Returns:
        None where no shard has it; what a shard said that could not answer, where none that could has it.
    """
    missing: NotNow | None = None
    for answer in await ask_all(ask, range(shards), query):
        match answer:
            case OperationAt():
                if answer.identity is not None:
                    return answer.identity
            case Overloaded() | Unavailable():
                missing = answer
            case _:
                raise TypeError(f"{type(answer).__name__} says nowhere where an operation is")
    return missing


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody who fetches work asks for.

    Attributes:
        tenant: Whose.
        kinds: Which ones.
        max: How many at most.
        lease_ms: How long they are shown to nobody else.
        holder: Who takes, for people.
        bytes_max: Once so much was taken, in bytes of bodies and headers, no further shard is asked.
    """

    namespace: str
    tenant: str
    kinds: tuple[Kind, ...]
    max: int
    lease_ms: int
    holder: str
    bytes_max: int


def wanted_by(asked: Poll, scope: Scope) -> Wanted:
    """What a poll takes in the namespace where it came."""
    return Wanted(
        namespace=scope.namespace,
        tenant=scope.tenant,
        kinds=kinds_of(scope.policy.dispatch),
        max=asked.max,
        lease_ms=asked.visibility_ms,
        holder=asked.holder,
        bytes_max=POLL_BYTES_MAX,
    )


@dataclass(slots=True)
class Haul:
    """What was taken from all shards.

    Attributes:
        next_at: When something else will be due, milliseconds since the epoch; None: nothing that waits for time alone.
        missing: What a shard said that could not answer; None: all could.
        answered: How often one could.
    """

    intents: list[TakenIntent] = field(default_factory=list)
    events: list[TakenEvent] = field(default_factory=list)
    next_at: int | None = None
    missing: NotNow | None = None
    answered: int = 0

    def __len__(self) -> int:
        return len(self.intents) + len(self.events)

    def size(self) -> int:
        """Bytes of bodies and headers."""
        events = sum(taken.event.content.size() for taken in self.events)
        return sum(taken.intent.size() for taken in self.intents) + events

    def add(self, taken: Taken) -> None:
        """Take in what a shard gave."""
        self.answered += 1
        self.intents += taken.intents
        self.events += taken.events
        if taken.next_at is not None:
            self.next_at = taken.next_at if self.next_at is None else min(self.next_at, taken.next_at)


async def take_round(ask: Ask, shards: int, wanted: Wanted, first: int) -> Haul:
    """Take what is due from all shards, one after the other, beginning with ``first``.

    A shard that cannot answer gives nothing, and while it cannot, nothing that has an order to keep is taken at all:
    nobody knows what stands before it there.
    """
    haul = Haul()
    for at in range(shards):
        room = wanted.max - len(haul)
        if room <= 0 or haul.size() >= wanted.bytes_max:
            break
        await _take_from(ask, (first + at) % shards, shards, wanted, haul)
    return haul


async def poll(
    ask: Ask,
    shards: int,
    wanted: Wanted,
    *,
    wait_ms: int,
    bell: Bell,
    now_ms: Callable[[], int],
    first: int,
    is_over: Callable[[], bool],
) -> Haul:
    """Take what is due, and wait for it where there is nothing.

    Args:
        ask: Asks a shard.
        shards: How many there are.
        wanted: What to take.
        wait_ms: How long to wait for the first.
        bell: Says when to look again.
        now_ms: The shards' clock, milliseconds since the epoch.
        first: Where to begin, so that not everybody begins at the same shard.
        is_over: Whether nobody may wait any longer.
    """
    ends_at = trio.current_time() + wait_ms / _MS_PER_S
    while True:
        rung = bell.count(wanted.namespace)
        haul = await take_round(ask, shards, wanted, first)
        left_s = ends_at - trio.current_time()
        if len(haul) or left_s <= 0 or is_over():
            return haul
        pause_ms = LOOK_MS if haul.next_at is None else min(LOOK_MS, max(NEXT_MS_MIN, haul.next_at - now_ms()))
        await bell.wait(wanted.namespace, min(left_s, pause_ms / _MS_PER_S), rung)


async def _take_from(ask: Ask, shard: int, shards: int, wanted: Wanted, haul: Haul) -> None:
    """What a shard has without an order, at most half of what there is room for, so that room is left for the rest:
    what has an order and whose turn it is.
    """
    room = wanted.max - len(haul)
    taken = await _take(ask, shard, wanted, room - room // 2, (), (), haul)
    room = wanted.max - len(haul)
    if taken is None or room <= 0 or not (taken.heads or taken.more):
        return
    behind = await _behind(ask, [other for other in range(shards) if other != shard], wanted.namespace, taken.heads)
    if isinstance(behind, frozenset):
        turns = tuple(turn for turn in taken.heads if turn not in behind)
        await _take(ask, shard, wanted, room, turns, tuple(behind), haul)
    else:
        # As long as one shard cannot say, none of them has its turn: set aside they are in nobody's way.
        haul.missing = behind
        await _take(ask, shard, wanted, room, (), taken.heads, haul)


async def _take(
    ask: Ask, shard: int, wanted: Wanted, room: int, turns: Turns, behind: Turns, haul: Haul
) -> Taken | None:
    query = Take(wanted.namespace, wanted.tenant, wanted.kinds, room, wanted.lease_ms, wanted.holder, turns, behind)
    answer = await ask(shard, query)
    match answer:
        case Taken():
            haul.add(answer)
            return answer
        case Overloaded() | Unavailable():
            haul.missing = answer
            return None
        case _:
            raise TypeError(f"{type(answer).__name__} is nothing that was taken")


async def _behind(ask: Ask, others: Sequence[int], namespace: str, heads: Turns) -> frozenset[Turn] | NotNow:
    """Those of ``heads`` that stand behind something in another shard."""
    behind: set[Turn] = set()
    for answer in await ask_all(ask, others if heads else (), Heads(namespace, heads)):
        match answer:
            case Behind():
                behind.update(answer.turns)
            case Overloaded() | Unavailable():
                return answer
            case _:
                raise TypeError(f"{type(answer).__name__} does not say what is behind what")
    return frozenset(behind)
