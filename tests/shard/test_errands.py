"""What is asked of several shards, with shards that answer as a test wants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from idemactor.core.delivery import Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.queries import Behind, FindOperation, Heads, OperationAt, Query, Take, Taken, TakenIntent, Turn
from idemactor.core.replies import Overloaded, Unavailable
from idemactor.shard.bell import Bell
from idemactor.shard.errands import Haul, Wanted, find_operation, poll, take_round
from idemactor.shard.mailbox import Answer

WHO = Identity("acme", "trade", "k")
FIND = FindOperation("acme", "trade", "op")
WANTED = Wanted("trade", "acme", (Kind.INTENT, Kind.EVENT), max=10, lease_ms=5, holder="h", bytes_max=100)


def intent(seq: int, order_key: str | None = None, size: int = 1) -> TakenIntent:
    return TakenIntent(WHO, f"op-{seq}", seq, 1, 0, 5, 99, False, order_key, seq, Intent("", b"x" * size))


def turn(seq: int, order_key: str = "o") -> Turn:
    return Turn("acme", Kind.INTENT, order_key, seq)


class FakeShards:
    """Several shards' outboxes: what is free to take, what stands in line; and everything that was asked."""

    def __init__(self, count: int) -> None:
        self.free: list[list[TakenIntent]] = [[] for _ in range(count)]
        self.lines: list[list[TakenIntent]] = [[] for _ in range(count)]
        self.claimed: list[TakenIntent] = []
        self.asked: list[tuple[int, Query]] = []
        self.out: dict[int, Overloaded | Unavailable] = {}
        self.next_at: int | None = None

    async def ask(self, shard: int, query: Query) -> Answer:
        await trio.lowlevel.checkpoint()
        self.asked.append((shard, query))
        if shard in self.out:
            return self.out[shard]
        line = self.lines[shard]
        if isinstance(query, Heads):
            return Behind(tuple(t for t in query.turns if line and line[0].seq < t.seq))
        assert isinstance(query, Take)
        head = [one for one in line[:1] if one not in self.claimed]
        mine = [one for one in head if one.seq in {t.seq for t in query.turns}]
        taken = [*mine, *self.free[shard]][: query.max]
        self.free[shard] = [one for one in self.free[shard] if one not in taken]
        self.claimed += mine
        heads = tuple(turn(one.seq) for one in head) if not query.turns and not query.behind else ()
        return Taken(tuple(taken), (), heads, self.next_at, more=bool(self.free[shard]))

    async def round(self, wanted: Wanted = WANTED, first: int = 0) -> Haul:
        return await take_round(self.ask, len(self.free), wanted, first)

    def takes(self) -> list[tuple[int, Take]]:
        return [(shard, query) for shard, query in self.asked if isinstance(query, Take)]


def seqs(haul: Haul) -> list[int]:
    return [one.seq for one in haul.intents]


async def test_of_one_line_only_what_is_nowhere_behind_anything_is_taken() -> None:
    shards = FakeShards(3)
    shards.lines = [[intent(20)], [intent(10)], [intent(30)]]
    haul = await shards.round()
    assert seqs(haul) == [10]
    assert [(shard, take.behind) for shard, take in shards.takes() if take.behind] == [
        (0, (turn(20),)),
        (2, (turn(30),)),
    ]
    assert seqs(await shards.round()) == []
    shards.lines[1].pop()
    assert seqs(await shards.round()) == [20]
    shards.lines[0].pop()
    assert seqs(await shards.round(first=2)) == [30]


async def test_with_one_shard_nobody_else_is_asked() -> None:
    shards = FakeShards(1)
    shards.lines = [[intent(5), intent(6)]]
    shards.free = [[intent(1)]]
    assert seqs(await shards.round()) == [1, 5]
    assert not [query for _, query in shards.asked if isinstance(query, Heads)]


async def test_while_a_shard_cannot_answer_nothing_in_order_is_taken() -> None:
    shards = FakeShards(3)
    shards.lines = [[intent(5)], [], []]
    shards.free = [[], [intent(7)], []]
    shards.out = {2: Unavailable(100)}
    haul = await shards.round()
    assert seqs(haul) == [7]
    assert haul.missing == Unavailable(100)
    assert haul.answered


async def test_what_has_no_order_leaves_room_for_what_has() -> None:
    shards = FakeShards(1)
    shards.free = [[intent(seq) for seq in range(100, 140)]]
    shards.lines = [[intent(5)]]
    haul = await shards.round()
    assert len(haul) == 10
    assert 5 in seqs(haul)


@pytest.mark.parametrize("most", [1, 2, 7, 10])
async def test_no_more_is_taken_than_was_asked_for(most: int) -> None:
    shards = FakeShards(4)
    shards.free = [[intent(seq) for seq in range(start, start + 5)] for start in (0, 10, 20, 30)]
    wanted = Wanted("trade", "acme", (Kind.INTENT,), most, 5, "h", 1_000_000)
    assert len(await shards.round(wanted, first=2)) == most
    assert shards.asked[0][0] == 2
    assert all(0 < take.max <= most for _, take in shards.takes())


async def test_once_so_many_bytes_were_taken_no_further_shard_is_asked() -> None:
    shards = FakeShards(3)
    shards.free = [[intent(1, size=100)], [intent(2)], [intent(3)]]
    assert seqs(await shards.round()) == [1]
    assert {shard for shard, _ in shards.asked} == {0}


@pytest.mark.usefixtures("autojump_clock")
async def test_a_poll_waits_for_the_bell_or_for_what_is_due() -> None:
    shards, bell = FakeShards(2), Bell()

    async def ring() -> None:
        await trio.sleep(0.3)
        shards.free[1].append(intent(1))
        bell.ring("trade")

    async def timed(wait_ms: int, is_over: Callable[[], bool] = lambda: False) -> tuple[int, object]:
        start = trio.current_time()
        found = await poll(
            shards.ask, 2, WANTED, wait_ms=wait_ms, bell=bell, now_ms=lambda: 0, first=0, is_over=is_over
        )
        return len(found), round(trio.current_time() - start, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ring)
        assert await timed(60_000) == (1, 0.3)
    assert await timed(2_500) == (0, 2.5)
    assert await timed(60_000, lambda: True) == (0, 0)
    shards.next_at = 200
    shards.asked.clear()
    assert await timed(500) == (0, 0.5)
    assert len(shards.takes()) == 8  # At 0, 0.2, 0.4 and 0.5 s, of two shards.


@pytest.mark.usefixtures("autojump_clock")
async def test_a_ring_between_looking_and_waiting_is_not_lost() -> None:
    shards, bell = FakeShards(1), Bell()

    async def ask(shard: int, query: Query) -> Answer:
        answer = await shards.ask(shard, query)
        if not shards.free[0] and len(shards.asked) == 1:
            shards.free[0].append(intent(1))
            bell.ring("trade")
        return answer

    start = trio.current_time()
    found = await poll(ask, 1, WANTED, wait_ms=60_000, bell=bell, now_ms=lambda: 0, first=0, is_over=lambda: False)
    assert (len(found), round(trio.current_time() - start, 1)) == (1, 0)


async def test_an_operation_is_looked_for_everywhere() -> None:
    def answering(*answers: Answer) -> Callable[[int, Query], object]:
        async def ask(shard: int, query: Query) -> Answer:
            assert query == FIND
            await trio.lowlevel.checkpoint()
            return answers[shard]

        return ask

    nowhere = OperationAt(None)
    for answers, expected in [
        ((nowhere, OperationAt(WHO), nowhere), WHO),
        ((nowhere, nowhere), None),
        ((nowhere, Unavailable(5)), Unavailable(5)),
        ((Overloaded(5), OperationAt(WHO)), WHO),
    ]:
        assert await find_operation(answering(*answers), len(answers), FIND) == expected  # type: ignore[arg-type]
