"""Claims what is due in all shards, in order where there is an order to keep.

A shard claims by itself what has no order. The lines of an ``order_key`` go through all shards: of those whose heads
are due, every other shard is asked whether it holds something that comes before, and only what has nothing before it
anywhere is claimed. Places in line only grow, so what is nowhere behind anything now never will be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from idemactor.core.delivery import Kind
from idemactor.core.queries import Behind, Heads, Take, Taken, TakenIntent, Turn
from idemactor.dispatch.limits import SCAN_MS, TURNS_ASKED_MAX
from idemactor.dispatch.shards import Shards

REST_MS: Final = 10
"""A shard whose time has come, and that gives nothing all the same, is not asked again for so long."""


@dataclass(slots=True)
class _Standing:
    """What is known of one shard; times in milliseconds since the epoch.

    Attributes:
        rung: Whether something may be due there.
        behind: Heads of lines that it showed and that have something before them elsewhere: it is told with the next
            question, and sets them aside.
        next_at: When something will be.
        silent_until: It could not answer a moment ago, and is left alone until then.
    """

    rung: bool = True
    next_at: float = math.inf
    silent_until: float = 0
    behind: tuple[Turn, ...] = ()

    def ask_at(self, now: float) -> float:
        """When it should be asked; ``now`` or earlier: at once."""
        return max(self.silent_until, now if self.rung else self.next_at)


class Taker:
    """Takes from all shards, for one namespace.

    Args:
        shards: Those.
        namespace: Its name.
        lease_ms: How long an attempt is claimed for.
        holder: Who takes, for people.
        now_ms: The shards' clock, milliseconds since the epoch.
    """

    def __init__(self, shards: Shards, namespace: str, lease_ms: int, holder: str, now_ms: Callable[[], int]) -> None:
        self._shards = shards
        self._namespace = namespace
        self._lease_ms = lease_ms
        self._holder = holder
        self._now_ms = now_ms
        self._standings = [_Standing() for _ in range(shards.count)]
        self._first = 0

    def rung(self) -> None:
        """Something may be due anywhere."""
        for standing in self._standings:
            standing.rung = True

    def ask_at(self) -> float:
        """When a shard should be asked next, milliseconds since the epoch; past or present: at once."""
        now = self._now_ms()
        return min(standing.ask_at(now) for standing in self._standings)

    async def take(self, room: Callable[[], int], begin: Callable[[TakenIntent], None]) -> None:
        """Claim what is due wherever it is time to ask.

        Args:
            room: How many more may be begun now.
            begin: Is given each at once. What is claimed once nobody waits any more comes back by itself.
        """
        heads: dict[int, tuple[Turn, ...]] = {}
        # Another one goes first each time: no shard waits behind a fuller one for ever.
        self._first = (self._first + 1) % self._shards.count
        for step in range(self._shards.count):
            shard = (self._first + step) % self._shards.count
            now = self._now_ms()
            if room() > 0 and self._standings[shard].ask_at(now) <= now:
                heads[shard] = await self._take(shard, (), room, begin)
        for shard, turns in heads.items():
            for start in range(0, len(turns), TURNS_ASKED_MAX):
                if room() <= 0:
                    # They are due still: the shard is asked again as soon as there is room.
                    self._standings[shard].rung = True
                    break
                await self._take_in_turn(shard, turns[start : start + TURNS_ASKED_MAX], room, begin)

    async def _take_in_turn(
        self, shard: int, turns: tuple[Turn, ...], room: Callable[[], int], begin: Callable[[TakenIntent], None]
    ) -> None:
        left = await self._unpreceded(shard, turns)
        first = set(left)
        self._standings[shard].behind += tuple(turn for turn in turns if turn not in first)
        while left and room() > 0:
            some, left = left[: room()], left[room() :]
            await self._take(shard, some, room, begin)
        if left:
            self._standings[shard].rung = True

    async def _unpreceded(self, shard: int, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """Those that no other shard holds anything before; none where one of them cannot say."""
        for other in range(self._shards.count):
            if other != shard and turns:
                answer = await self._shards.ask(other, Heads(self._namespace, turns))
                if not isinstance(answer, Behind):
                    return ()
                behind = set(answer.turns)
                turns = tuple(turn for turn in turns if turn not in behind)
        return turns

    async def _take(
        self, shard: int, turns: tuple[Turn, ...], room: Callable[[], int], begin: Callable[[TakenIntent], None]
    ) -> tuple[Turn, ...]:
        """Ask one shard; returns what is due there and waits for its turn."""
        standing = self._standings[shard]
        standing.rung = False
        behind, standing.behind = standing.behind, ()
        query = Take(self._namespace, None, (Kind.INTENT,), room(), self._lease_ms, self._holder, turns, behind)
        answer = await self._shards.ask(shard, query)
        now = self._now_ms()
        if not isinstance(answer, Taken):
            standing.rung, standing.silent_until = True, now + SCAN_MS
            return ()
        standing.next_at = math.inf if answer.next_at is None else max(answer.next_at, now + REST_MS)
        # What is due and was not claimed although there was room waits for its turn, and somebody will ring.
        standing.rung = standing.rung or (answer.more and bool(answer.intents))
        for taken in answer.intents:
            begin(taken)
        return answer.heads
