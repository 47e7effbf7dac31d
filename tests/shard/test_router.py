"""The router: every key has one shard, order within a key is kept, and overload is answered at once."""

from __future__ import annotations

import trio
import trio.testing

from idemactor.core.commands import Accept, Get, Release
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.queries import Inspect, Inspected, ListIncidents
from idemactor.core.replies import Committed, Completed, InFlight, Overloaded, Released, Reserved
from idemactor.shard.actor import ShardSettings
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer, Envelope
from idemactor.storage.memory import MemoryDisk
from tests.shard.harness import Call, commit, identity, key_in, on_mock_time, reserve, running, slow


def four() -> tuple[MemoryDisk, ...]:
    return tuple(MemoryDisk() for _ in range(4))


@on_mock_time
async def test_a_key_lives_in_the_shard_that_its_hash_names() -> None:
    keys = [f"k{number}" for number in range(64)]
    async with running(*four()) as rig:
        for call in await rig.all(*(reserve(key) for key in keys)):
            call.got(Reserved)
        for key in keys:
            shard = shard_of(identity_hash(identity(key)), 4)
            assert [number for number in range(4) if identity(key) in rig.disks[number].ids] == [shard]
        assert all(disk.commits == 1 for disk in rig.disks)


@on_mock_time
async def test_commands_of_one_key_keep_their_order() -> None:
    keys = [key_in(number, 4) for number in range(4)]
    async with running(*four()) as rig:
        calls = await rig.all(*(c for key in keys for c in (reserve(key), reserve(key), commit(key, 1), reserve(key))))
        for start in range(0, 16, 4):
            kinds = [type(call.answer) for call in calls[start : start + 4]]
            assert kinds == [Reserved, InFlight, Committed, Completed]


@on_mock_time
async def test_overload_is_answered_before_route_returns() -> None:
    disks = four()
    full, free = key_in(0, 4), key_in(1, 4)
    async with running(*disks, settings=ShardSettings(mailbox_max=3)) as rig:
        calls = rig.send(*(reserve(full) for _ in range(5)), reserve(free))
        assert [call.answer for call in calls if call.answered] == [Overloaded(OVERLOADED_RETRY_MS)] * 2
        assert not any(call.answered for call in calls[:3])
        assert rig.shards[0].queue_depth == 3
        assert rig.watch.refused_commands == 2
        for call in calls:
            await call.wait()
        calls[5].got(Reserved)


@on_mock_time
async def test_a_query_goes_to_the_shard_that_was_named() -> None:
    async with running(*four()) as rig:
        await rig.one(reserve(key_in(2, 4)), Reserved)
        pending = []
        for number in range(4):
            call = rig.query(Inspect(), number)
            await call.wait()
            pending.append(sum(tally.pending for _, tally in call.got(Inspected).tallies))
        assert pending == [0, 0, 1, 0]


@on_mock_time
async def test_a_query_finds_a_full_mailbox_too() -> None:
    async with running(settings=ShardSettings(mailbox_max=1)) as rig:
        (call,) = rig.send(Get(identity("k")))
        listing = ListIncidents(*identity("k")[:2], after_id=0, limit=1)
        assert rig.query(listing).got(Overloaded).retry_after_ms == OVERLOADED_RETRY_MS
        # How the shard stands is no tenant's question, and a tenant's flood is when it matters.
        inspection = rig.query(Inspect())
        assert isinstance(await inspection.wait(), Inspected)
        await call.wait()


@on_mock_time
async def test_who_may_only_settle_is_granted_nothing_and_waits_for_nothing() -> None:
    async with running(*four()) as rig:
        held = await rig.one(reserve("held"), Reserved)
        (waiting,) = rig.send(reserve("held", wait_ms=60_000))
        await trio.testing.wait_all_tasks_blocked()
        assert not waiting.answered
        rig.router.settle_only()
        await waiting.wait()
        waiting.got(InFlight)
        for call in rig.send(reserve("new"), Accept(identity("new"))):
            assert call.answer == Overloaded(OVERLOADED_RETRY_MS)
        await rig.one(commit("held", held.token), Committed)


@on_mock_time
async def test_after_close_nothing_new_is_taken_and_what_was_taken_is_answered() -> None:
    disks = four()
    for disk in disks:
        disk.before_commit = slow(3)
    async with running(*disks) as rig:
        keys = [key_in(number, 4) for number in range(4)]
        taken = rig.send(*(reserve(key) for key in keys))
        await trio.sleep(1)
        queued = rig.send(*(Release(identity(key), 1) for key in keys))
        rig.router.close()
        for call in [*rig.send(reserve("late")), rig.query(Inspect())]:
            assert call.answer == Overloaded(OVERLOADED_RETRY_MS)
        for call in [*taken, *queued]:
            await call.wait()
        assert [type(call.answer) for call in [*taken, *queued]] == [Reserved] * 4 + [Released] * 4
    assert trio.current_time() == 6


@on_mock_time
async def test_answers_of_one_turn_reach_a_connection_in_one_delivery() -> None:

    class Connection:
        closed = False

        def __init__(self) -> None:
            self.deliveries: list[list[object]] = []

        def deliver(self, answers: list[tuple[object, Answer]]) -> None:
            self.deliveries.append([tag for tag, _ in answers])

    async with running() as rig:
        connection, other = Connection(), Call(Get(identity("k")))
        tags = ["a", "b", "c"]
        envelopes = [Envelope(reserve(tag), connection, tag) for tag in tags]
        rig.router.route([*envelopes[:2], Envelope(other.command, other, None), envelopes[2]])
        await other.wait()
        assert connection.deliveries == [tags]


@on_mock_time
async def test_whose_commands_found_no_room_is_said_and_who_was_heard_known() -> None:
    async with running(settings=ShardSettings(mailbox_max=2, queue_ms=60_000)) as rig:
        commands = [Get(Identity(tenant, "trade", "k")) for tenant in ("a", "a", "a", "b", "a")]
        calls = [Call(command) for command in commands]
        assert not rig.router.company.shared
        assert rig.router.route([Envelope(call.command, call, None) for call in calls]) == {"a": 2}
        assert rig.router.company.shared
        for call in calls:
            await call.wait()
