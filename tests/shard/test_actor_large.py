"""What a turn brings into memory has a bound: the rest of its commands waits for the next one, and keeps its place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from idemactor.core.commands import Accept, Command, Forget, Get, Reserve
from idemactor.core.keys import Identity
from idemactor.core.ledger import ENTRY_BYTES
from idemactor.core.queries import Inspect, Inspected
from idemactor.core.record import Entry, Outcome
from idemactor.core.replies import Completed, Forgotten, Found, InFlight, Reserved, Unavailable, Unknown
from idemactor.shard.actor import ShardSettings
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault, MemoryDisk, MemoryEngine
from tests.shard.harness import NAMESPACE, TENANT, Call, on_mock_time, reserve, running, slow

PIECE = 10
SETTINGS = ShardSettings(turn_bytes_max=PIECE * ENTRY_BYTES)
"""Ten keys are looked up at once; ten outcomes of ``LARGE`` are too much for one turn."""
LARGE = Outcome(200, (), b"x" * ENTRY_BYTES)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys were looked up at a time."""
    counts: list[int] = []
    load = MemoryEngine.load

    async def counted(engine: MemoryEngine, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        counts.append(len(identities))
        return await load(engine, identities)

    monkeypatch.setattr(MemoryEngine, "load", counted)
    return counts


async def stored(disk: MemoryDisk, count: int, tenant: str = TENANT) -> list[Identity]:
    """Keys with large outcomes that a shard has yet to look up."""
    keys = [Identity(tenant, NAMESPACE, f"k{number:03}") for number in range(count)]
    async with running(disk) as rig:
        await rig.all(*(Accept(key, outcome=LARGE) for key in keys))
    return keys


def asked(keys: Sequence[Identity]) -> list[Command]:
    return [Get(key) for key in keys]


@on_mock_time
async def test_a_turn_ends_where_what_it_brought_into_memory_is_enough(loads: list[int]) -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 35)
    loads.clear()
    async with running(disk, settings=SETTINGS) as rig:
        turns = rig.shard.turns
        calls = await rig.all(*asked(keys))
        assert [call.got(Found).key for call in calls] == [key.key for key in keys]
        assert loads == [10, 10, 10, 5]
        assert rig.shard.turns - turns >= 3
        # In memory it is as small as anything.
        loads.clear()
        rig.shard._settings = ShardSettings()
        await rig.all(*asked(keys))
        assert loads == []


@on_mock_time
async def test_what_is_not_there_fits_into_one_turn_however_much_it_is(loads: list[int]) -> None:
    async with running(settings=SETTINGS) as rig:
        calls = await rig.all(*(reserve(f"k{number}") for number in range(35)))
        assert all(call.got(Reserved) for call in calls)
        assert loads == [10, 10, 10, 5]
        assert rig.watch.batches == [35]


@on_mock_time
async def test_what_is_put_back_keeps_its_place_before_what_comes_later() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 12)
    disk.before_commit = slow(5)
    async with running(disk, settings=SETTINGS) as rig:
        # The write of the first keeps the turn busy while the rest comes; what it put back was there before.
        early = rig.send(Forget(keys[0]), *asked(keys), Forget(keys[1]), Reserve(keys[1]))
        await trio.sleep(1)
        late = rig.send(Get(keys[1]), Get(keys[11]), Forget(keys[11]), Get(keys[11]))
        for call in [*early, *late]:
            await call.wait()
        kinds = [type(call.answer) for call in early]
        assert kinds == [Forgotten, Unknown, *[Found] * 11, Forgotten, Reserved]
        assert [type(call.answer) for call in late] == [Found, Found, Forgotten, Unknown]
        assert [call.answered_at for call in early] == [5] * 11 + [10] * 4
        assert {call.answered_at for call in late} == {10}


@on_mock_time
async def test_questions_behind_the_cut_are_put_back_as_well_and_answered_once() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 25)
    async with running(disk, settings=SETTINGS) as rig:
        calls = rig.send(*asked(keys))
        question = rig.query(Inspect())
        for call in [*calls, question]:
            await call.wait()
        question.got(Inspected)


@on_mock_time
async def test_a_turn_that_fails_answers_what_it_kept_and_what_it_put_back_is_answered_later() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 15)
    async with running(disk, settings=SETTINGS) as rig:
        disk.faults.append(Fault(CommitResult.FAILED))
        calls = await rig.all(reserve("new"), *asked(keys))
        assert [type(call.answer) for call in calls] == [Unavailable] * 10 + [Found] * 6
        assert [commands for commands, _ in rig.watch.failed_batches] == [10]


@on_mock_time
async def test_a_shard_that_closes_answers_what_it_put_back() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 35)
    async with running(disk, settings=SETTINGS) as rig:
        calls = rig.send(*asked(keys))
        rig.shard.close()
    assert all(call.got(Found) for call in calls)


@on_mock_time
async def test_who_has_waited_long_enough_is_decided_with_the_key_in_memory_in_a_turn_that_is_cut(
    loads: list[int],
) -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 25)
    async with running(disk, settings=SETTINGS) as rig:
        assert rig.shard._ledger is not None
        rig.shard._ledger._cache_bytes_max = 0
        await rig.one(reserve("held", lease_ms=60_000), Reserved)
        [waiter] = rig.send(reserve("held", wait_ms=1_000))
        await trio.sleep(0.5)
        disk.before_commit = slow(1)
        rig.send(reserve("busy"))
        await trio.sleep(0.1)
        loads.clear()
        calls = rig.send(*asked(keys))
        await waiter.wait()
        waiter.got(InFlight)
        for call in calls:
            await call.wait()
        assert loads == [11, 10, 5]


@on_mock_time
async def test_who_asks_for_little_has_its_turn_beside_one_whose_turns_are_all_cut() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 100)
    answered: list[int] = []

    class Quiet(Call):
        def deliver(self, answers: list[tuple[object, Answer]]) -> None:
            answered.append(sum(call.answered for call in loud))
            assert rig.router.company.pressed
            super().deliver(answers)

    async with running(disk, settings=SETTINGS) as rig:
        loud = rig.send(*(Reserve(key) for key in keys))
        quiet = Quiet(Reserve(Identity("quiet", NAMESPACE, "k")))
        rig.router.route([Envelope(quiet.command, quiet, None)])
        await quiet.wait()
        # It is the first of the next turn.
        assert answered == [10]
        for call in loud:
            assert isinstance(await call.wait(), Completed)
        assert not rig.router.company.pressed


class _Trace:
    """What a tracer was told of one turn."""

    def __init__(self, envelopes: Sequence[Envelope]) -> None:
        self.calls = len(envelopes)
        self.left = 0

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        self.left = len(envelopes)

    def decided(self) -> None:
        assert self.calls > self.left

    def written(self, commands: int, sync_s: float | None) -> None:
        assert commands == self.calls - self.left
        assert sync_s is None

    def failed(self, error: BaseException) -> None:
        raise error


@on_mock_time
async def test_a_tracer_is_told_of_what_is_put_back() -> None:
    disk = MemoryDisk()
    keys = await stored(disk, 25)
    turns: list[_Trace] = []

    class Tracer:
        def turn(self, shard: int, envelopes: Sequence[Envelope]) -> _Trace | None:
            assert shard == 0
            if not envelopes:
                return None
            turns.append(_Trace(envelopes))
            return turns[-1]

    async with running(disk, settings=SETTINGS) as rig:
        rig.shard._tracer = Tracer()
        await rig.all(*asked(keys))
    assert [(turn.calls, turn.left) for turn in turns] == [(25, 15), (15, 5), (5, 0)]
