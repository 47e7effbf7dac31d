"""Claims what is due in all shards, in order where there is an order to keep.

A shard claims by itself what has no order. The lines of an ``order_key`` go through all shards: of those whose heads
are due, every other shard is asked whether it holds something that comes before, and only what has nothing before it
anywhere is claimed. Places in line only grow, so what is nowhere behind anything now never will be.

Every shard is asked by a task of its own: one that is slow, or writes, holds up no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import trio

from idemactor.core.delivery import Kind
from idemactor.core.queries import Behind, Heads, Take, Taken, TakenIntent, Turn
from idemactor.dispatch.limits import SCAN_MS, TURNS_MAX
from idemactor.dispatch.shards import Shards

REST_MS: Final = 10
"""A shard whose time has come, and that gives nothing all the same, is not asked again for so long."""
_MS_PER_S: Final = 1_000


class Deliverer(Protocol):
    """Who delivers what is taken."""

    def room(self, reserved: int) -> int:
        """How many more it can begin now, beside ``reserved`` that shards are being asked for."""

    def room_at(self) -> float:
        """When it can begin more by time alone, milliseconds since the epoch; ``math.inf``: once something ends."""

    def begin(self, taken: TakenIntent) -> None:
        """Deliver it, or give it back."""


@dataclass(slots=True)
class _Standing:
    """What is known of one shard; times in milliseconds since the epoch.

    Attributes:
        rung: Whether something may be due there.
        first: Heads of lines that have nothing before them anywhere: to be claimed.
        behind: Heads that have: it is told with the next question, and sets them aside.
        next_at: When something will be due.
        is_asked: Whether a question is out.
        silent_until: It could not answer a moment ago, and is left alone until then.
    """

    rung: bool = True
    next_at: float = math.inf
    silent_until: float = 0
    first: tuple[Turn, ...] = ()
    behind: tuple[Turn, ...] = ()
    is_asked: bool = False

    def ask_at(self, now: float) -> float:
        """When it should be asked; ``now`` or earlier: at once."""
        return max(self.silent_until, now if self.rung else self.next_at)


class Taker:
    """Takes from all shards, for one namespace.

    Args:
        shards: Those.
        query: What to ask for; ``max``, ``turns`` and ``behind`` are filled in.
        deliverer: Who is given what was claimed.
        now_ms: The shards' clock, milliseconds since the epoch.
    """

    def __init__(self, shards: Shards, query: Take, deliverer: Deliverer, now_ms: Callable[[], int]) -> None:
        self._shards = shards
        self._query = query
        self._deliverer = deliverer
        self._now_ms = now_ms
        self._standings = [_Standing() for _ in range(shards.count)]
        self._reserved = 0
        self._woken = trio.Event()
        self._closed = False

    def rung(self) -> None:
        """Something may be due anywhere."""
        for standing in self._standings:
            standing.rung = True
        self.wake()

    def wake(self) -> None:
        """There may be room, or something due."""
        self._woken.set()
        self._woken = trio.Event()

    def close(self) -> None:
        """Take nothing more: ``run`` returns once every question that is out is answered."""
        self._closed = True
        self.wake()

    async def run(self) -> None:
        """Take until ``close``."""
        async with trio.open_nursery() as nursery:
            for shard in range(self._shards.count):
                nursery.start_soon(self._serve, shard)

    async def _serve(self, shard: int) -> None:
        while not self._closed:
            share = self._share(shard)
            if share > 0:
                await self._ask(shard, share)
            else:
                await self._rest(shard)

    def _share(self, shard: int) -> int:
        """How many to ask this shard for now: of the room that there is, as much as every other one gets."""
        now = self._now_ms()
        if self._standings[shard].ask_at(now) > now:
            return 0
        asking = sum(one.ask_at(now) <= now and not one.is_asked for one in self._standings)
        return -(-self._deliverer.room(self._reserved) // max(1, asking))

    async def _rest(self, shard: int) -> None:
        now = self._now_ms()
        at = self._standings[shard].ask_at(now)
        if at <= now:
            at = self._deliverer.room_at()
        with trio.move_on_after(max(0.0, at - now) / _MS_PER_S):
            await self._woken.wait()

    async def _ask(self, shard: int, share: int) -> None:
        standing = self._standings[shard]
        standing.rung, standing.is_asked = False, True
        self._reserved += share
        try:
            answer = await self._taken(shard, share)
        finally:
            standing.is_asked = False
            self._reserved -= share
        if answer is None:
            standing.rung, standing.silent_until = True, self._now_ms() + SCAN_MS
        else:
            for taken in answer.intents:
                self._deliverer.begin(taken)
        # What it was asked for and did not give is room for the others.
        self.wake()
        if answer is not None and answer.heads:
            await self._sort_out(shard, answer.heads)

    async def _taken(self, shard: int, share: int) -> Taken | None:
        standing = self._standings[shard]
        turns, behind, standing.behind = standing.first, standing.behind, ()
        query = replace(self._query, max=share, turns=turns, behind=behind)
        answer = await self._shards.ask(shard, query)
        if not isinstance(answer, Taken):
            return None
        standing.next_at = math.inf if answer.next_at is None else max(answer.next_at, self._now_ms() + REST_MS)
        # What is due and was not claimed although there was room waits for its turn, and somebody will ring.
        standing.rung = standing.rung or (answer.more and bool(answer.intents))
        claimed = {taken.seq for taken in answer.intents}
        is_full = len(answer.intents) >= share
        standing.first = tuple(turn for turn in turns if turn.seq not in claimed) if is_full else ()
        return answer

    async def _sort_out(self, shard: int, heads: tuple[Turn, ...]) -> None:
        """Find out which of a shard's heads have nothing before them anywhere; the next question claims those."""
        standing = self._standings[shard]
        first = await self._unpreceded(shard, heads)
        standing.first = (*standing.first, *first)[:TURNS_MAX]
        standing.behind = tuple(turn for turn in heads if turn not in first)
        standing.rung = standing.rung or bool(first)

    async def _unpreceded(self, shard: int, turns: tuple[Turn, ...]) -> frozenset[Turn]:
        """Those that no other shard holds anything before; none where one of them cannot say."""
        behind: set[Turn] = set()

        async def ask(other: int) -> None:
            answer = await self._shards.ask(other, Heads(self._query.namespace, turns))
            behind.update(answer.turns if isinstance(answer, Behind) else turns)

        async with trio.open_nursery() as nursery:
            for other in range(self._shards.count):
                if other != shard:
                    nursery.start_soon(ask, other)
        return frozenset(turns) - behind


def query_of(namespace: str, lease_ms: int, holder: str) -> Take:
    """What a relay asks shards for."""
    return Take(namespace, None, (Kind.INTENT,), 0, lease_ms, holder)
