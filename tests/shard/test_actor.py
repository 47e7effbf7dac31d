"""The shard actor: the output gate, batches, the bound, eviction, listings, and the end."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import trio

from idemactor.core.commands import Accept, Commit, Forget, Get, Release, Reserve
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.queries import (
    Acknowledge,
    Acknowledged,
    IncidentsPage,
    Inspect,
    Inspected,
    ListIncidents,
    ListRecords,
    ListStuck,
    NoSuchIncident,
    RecordsPage,
    StuckPage,
)
from idemactor.core.record import Entry, Outcome, State
from idemactor.core.replies import (
    Accepted,
    Committed,
    Completed,
    Forgotten,
    Found,
    InFlight,
    Overloaded,
    Released,
    Reserved,
    Stale,
    Unavailable,
    Unknown,
)
from idemactor.shard import lookups
from idemactor.shard.actor import HURRIED_BATCH_MIN, HURRIED_SHARE, SHARED_WRITE_MS, SHARED_WRITES_MAX, ShardSettings
from idemactor.shard.company import ALONE_AFTER_S, GIVE_WAY_S
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Batch
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from tests.shard.harness import (
    NAMESPACE,
    START_MS,
    TENANT,
    Call,
    commit,
    identity,
    on_mock_time,
    reserve,
    running,
    slow,
)

ALL = ListRecords(TENANT, NAMESPACE, None, None, None, 0, 100)
INCIDENTS = ListIncidents(TENANT, NAMESPACE, 0, 100)

# ---------------------------------------------------------------------------------------------------- output gate


@on_mock_time
async def test_no_answer_leaves_before_the_write_is_done() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk) as rig:
        (call,) = rig.send(reserve("k"))
        await trio.sleep(4.9)
        assert not call.answered
        assert not disk.entries
        await call.wait()
        assert call.answered_at == 5
        assert disk.entries[call.got(Reserved).token].identity == identity("k")


@on_mock_time
async def test_reads_that_reveal_an_unflushed_write_wait_for_it() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk) as rig:
        beside = rig.send(reserve("k"), Get(identity("k")), Get(identity("other")))
        listed = rig.query(ALL)
        await trio.sleep(1)
        behind = rig.send(Get(identity("k")))
        await trio.sleep(3)
        calls = [*beside, listed, *behind]
        assert not any(call.answered for call in calls)
        for call in calls:
            assert await call.wait()
            assert call.answered_at == 5
        beside[1].got(Found)
        behind[0].got(Found)
        assert len(listed.got(RecordsPage).rows) == 1


@on_mock_time
async def test_a_batch_that_only_reads_writes_nothing_but_asks_who_owns_the_shard() -> None:
    async with running() as rig:
        await rig.one(Get(identity("k")), Unknown)
        assert rig.disk.commits == 0
        assert rig.disk.latest_ms == 0
        rig.disk.fenced = True
        await rig.one(Get(identity("k")), Unavailable)


# -------------------------------------------------------------------------------------------------------- batches


@on_mock_time
async def test_a_batch_is_decided_in_order_and_later_commands_see_earlier_ones() -> None:
    async with running() as rig:
        calls = await rig.all(
            reserve("k"),
            reserve("k"),
            Get(identity("k")),
            commit("k", 1),
            reserve("k"),
            Release(identity("other"), 1),
            Accept(identity("other")),
        )
        kinds = [type(call.answer) for call in calls]
        assert kinds == [Reserved, InFlight, Found, Committed, Completed, Unknown, Accepted]
        assert calls[2].got(Found).record.state is State.PENDING
        assert rig.disk.commits == 1
        assert rig.watch.batches == [7]


@on_mock_time
async def test_what_waits_together_shares_one_commit() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk) as rig:
        first = rig.send(*(reserve(f"a{number}") for number in range(100)))
        await trio.sleep(1)
        second = [call for number in range(50) for call in rig.send(reserve(f"b{number}"))]
        for call in [*first, *second]:
            await call.wait()
        assert {call.answered_at for call in first} == {5}
        assert {call.answered_at for call in second} == {10}
        assert disk.commits == 2


@on_mock_time
async def test_a_batch_has_a_bound() -> None:
    async with running(settings=ShardSettings(batch_max=10)) as rig:
        await rig.all(*(reserve(f"k{number}") for number in range(25)))
        assert rig.watch.batches == [10, 10, 5]


@on_mock_time
async def test_where_tenants_share_a_batch_is_as_long_as_what_it_waits_for() -> None:
    settings = ShardSettings(batch_max=100, shared_batch_max=10)
    async with running(settings=settings) as rig:
        alone = [reserve(f"k{number}") for number in range(100)]
        await rig.all(*alone)
        assert rig.watch.batches == [100]
        other = Reserve(Identity("other", NAMESPACE, "k"))
        for waits, most in ((0.0, 10), (0.9, 10), (2.5, 30), (1_000.0, 10 * SHARED_WRITES_MAX)):
            rig.watch.batches.clear()
            rig.shard._engine.last_sync_s = waits * SHARED_WRITE_MS / 1_000
            await rig.all(other, *(reserve(f"{waits}-{number}") for number in range(99)))
            assert rig.watch.batches[0] == most
        rig.shard._engine.last_sync_s = 0.0
        for shared_max, most in ((3, 3), (10, HURRIED_BATCH_MIN), (30, 30 // HURRIED_SHARE)):
            # Somebody who asks for little was there lately.
            rig.router.company.press(7)
            rig.router.company.relax(7)
            rig.shard._settings = replace(settings, shared_batch_max=shared_max)
            rig.watch.batches.clear()
            await rig.all(other, *(reserve(f"hurried-{shared_max}-{number}") for number in range(99)))
            assert rig.watch.batches[0] == most
        await trio.sleep(ALONE_AFTER_S + 1)
        rig.watch.batches.clear()
        await rig.all(*(reserve(f"again-{number}") for number in range(100)))
        assert rig.watch.batches == [100]


def keys_of_shard(shard: int, tenant: str, count: int) -> list[Reserve]:
    """Commands for one of two shards."""
    names = (Identity(tenant, NAMESPACE, f"{tenant}-{number}") for number in itertools.count())
    mine = (name for name in names if shard_of(identity_hash(name), 2) == shard)
    return [Reserve(name) for name in itertools.islice(mine, count)]


@on_mock_time
async def test_while_a_shard_has_to_answer_who_asks_for_little_the_others_begin_no_turn() -> None:
    begun: list[tuple[int, float]] = []

    def disk(number: int) -> MemoryDisk:
        async def commit(_batch: Batch) -> None:
            begun.append((number, trio.current_time()))
            await trio.sleep(GIVE_WAY_S / 5)

        return MemoryDisk(before_commit=commit)

    settings = ShardSettings(batch_max=100, shared_batch_max=2)
    async with running(disk(0), disk(1), settings=settings) as rig:
        loud = rig.send(*keys_of_shard(0, "loud", 100), *keys_of_shard(1, "loud", 100), Reserve(identity("other")))
        # Amid a write of each.
        await trio.sleep(GIVE_WAY_S * 1.1)
        for each in keys_of_shard(0, "quiet", 5):
            begun.clear()
            [quiet] = rig.send(each)
            await quiet.wait()
            # What was under way comes to its end; then it is the quiet one's turn, and nobody else's beside it.
            assert {number for number, at in begun if at < (quiet.answered_at or 0)} == {0}
            await trio.sleep(GIVE_WAY_S * 1.1)
            assert 1 in dict(begun)
        for call in loud:
            await call.wait()


@on_mock_time
async def test_a_shard_that_gives_way_for_ever_gets_on_all_the_same() -> None:
    settings = ShardSettings(batch_max=100, shared_batch_max=2)
    async with running(settings=settings) as rig:
        rig.router.company.press(7)
        calls = await rig.all(
            Reserve(Identity("other", NAMESPACE, "k")), *(reserve(f"k{number}") for number in range(39))
        )
        assert all(call.got(Reserved) for call in calls)
        assert trio.current_time() < 21 * GIVE_WAY_S


@pytest.fixture
def maintained(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """How often shards did what no answer waits for, and whether in small pieces."""
    times: list[bool] = []

    async def maintain(_engine: MemoryEngine, *, small: bool) -> None:
        times.append(small)

    monkeypatch.setattr(MemoryEngine, "maintain", maintain)
    return times


@on_mock_time
async def test_what_no_answer_waits_for_is_put_off_once_where_somebody_is_in_a_hurry(maintained: list[bool]) -> None:
    async with running() as rig:
        for pressed, expected in ((False, 4), (True, 2)):
            if pressed:
                rig.router.company.press(7)
            maintained.clear()
            for number in range(4):
                await rig.one(reserve(f"{pressed}-{number}"), Reserved)
            assert len(maintained) == expected


@on_mock_time
async def test_a_turn_gives_way_to_who_is_heard_just_before_it() -> None:
    async with running() as rig:
        company = rig.router.company
        company.press(0)
        company.relax(0)
        company.glances.append(lambda: company.press(7))
        [call] = rig.send(reserve("k"))
        await call.wait()
        assert call.answered_at == GIVE_WAY_S


@on_mock_time
async def test_who_is_heard_just_before_it_does_not_wait_for_what_no_answer_waits_for(maintained: list[bool]) -> None:
    async with running() as rig:
        await rig.one(reserve("a"), Reserved)
        heard = iter([False, True])
        rig.router.company.press(0)
        rig.router.company.relax(0)
        rig.router.company.glances.append(lambda: rig.router.company.press(7) if next(heard, False) else None)
        maintained.clear()
        await rig.one(reserve("b"), Reserved)
        assert maintained == []


@on_mock_time
async def test_what_is_heard_just_before_a_turn_is_a_part_of_it() -> None:
    async with running() as rig:
        late = [Call(reserve("late"))]

        def glance() -> None:
            while late:
                call = late.pop()
                rig.router.route([Envelope(call.command, call, None)])

        rig.router.company.glances.append(glance)
        rig.router.company.press(0)
        rig.watch.batches.clear()
        await rig.one(reserve("k"), Reserved)
        assert rig.watch.batches == [2]


@on_mock_time
async def test_pieces_are_small_where_several_tenants_are_served(maintained: list[bool]) -> None:
    async with running() as rig:
        for number, expected in enumerate((False, True)):
            if expected:
                rig.router.company.heard("other")
            maintained.clear()
            await rig.one(reserve(f"k{number}"), Reserved)
            assert maintained == [expected]


@on_mock_time
async def test_what_was_put_off_is_done_though_nobody_asks_again(maintained: list[bool]) -> None:
    async with running() as rig:
        await trio.sleep(1)
        maintained.clear()
        rig.router.company.press(7)
        await rig.one(reserve("k"), Reserved)
        await trio.sleep(2 * GIVE_WAY_S)
        assert len(maintained) == 1


@on_mock_time
async def test_a_turn_that_forgets_puts_nothing_off(maintained: list[bool]) -> None:
    async with running() as rig:
        await rig.one(Accept(identity("k")), Accepted)
        rig.router.company.press(7)
        maintained.clear()
        await rig.one(Forget(identity("k"), force=True), Forgotten)
        await trio.lowlevel.checkpoint()
        assert len(maintained) == 1


@on_mock_time
async def test_commands_are_answered_before_what_is_listed_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = MemoryEngine.list_records

    async def slowly(engine: MemoryEngine, *asked: Any) -> list[Entry]:
        await trio.sleep(5)
        return await listed(engine, *asked)

    monkeypatch.setattr(MemoryEngine, "list_records", slowly)
    async with running() as rig:
        listing = rig.query(ALL)
        (call,) = rig.send(reserve("k"))
        await call.wait()
        assert (call.answered_at, listing.answered) == (0, False)
        await listing.wait()
        assert listing.answered_at == 5


@on_mock_time
async def test_what_nobody_waits_for_any_more_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def listed(_engine: MemoryEngine, *_asked: Any) -> list[Entry]:
        asked.append(_asked)
        return []

    monkeypatch.setattr(MemoryEngine, "list_records", listed)
    async with running() as rig:
        gone = Call(ALL)
        gone.closed = True
        rig.router.ask(0, Envelope(ALL, gone, None))
        await rig.found(ALL, RecordsPage)
        assert len(asked) == 1
        gone.got(Overloaded)


@on_mock_time
async def test_who_lists_is_heard_as_well() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        await rig.found(ListStuck("other", (NAMESPACE,), 0, 10), StuckPage)
        assert rig.router.company.shared


@on_mock_time
async def test_what_was_pressed_is_no_more_once_it_ends() -> None:
    async with running() as rig:
        rig.router.company.press(0)
    assert not rig.router.company.pressed


@on_mock_time
async def test_what_waited_too_long_is_refused_instead_of_being_carried_out_late() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk, settings=ShardSettings(mailbox_max=4, queue_ms=2_000)) as rig:
        [held] = await rig.all(reserve("held"))
        token = held.got(Reserved).token
        [busy] = rig.send(reserve("busy"))
        await trio.sleep(1)
        calls = rig.send(*(reserve(f"k{number}") for number in range(4)), commit("held", token), reserve("late"))
        assert [call.answered for call in calls] == [False] * 5 + [True]
        for call in calls:
            await call.wait()
        busy.got(Reserved)
        assert [type(call.answer) for call in calls] == [Overloaded] * 4 + [Committed, Overloaded]
        assert rig.watch.refused_commands == 5
        assert set(disk.ids) == {identity(key) for key in ("held", "busy")}


@on_mock_time
async def test_tokens_rise_with_every_grant_of_a_shard() -> None:
    async with running() as rig:
        calls = await rig.all(*(reserve(f"k{number}") for number in range(5)))
        assert [call.got(Reserved).token for call in calls] == [1, 2, 3, 4, 5]
        await rig.one(Release(identity("k0"), 1), Released)
        assert (await rig.one(reserve("k0"), Reserved)).token == 6
        assert rig.disk.last_token == 6


# ------------------------------------------------------------------------------------------------------ the bound


@on_mock_time
async def test_what_the_mailbox_has_no_room_for_is_answered_at_once() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk, settings=ShardSettings(mailbox_max=4, queue_ms=60_000)) as rig:
        busy = rig.send(reserve("busy"))
        await trio.sleep(1)
        calls = rig.send(*(reserve(f"k{number}") for number in range(10)))
        assert [call.answered for call in calls] == [False] * 4 + [True] * 6
        assert all(isinstance(call.answer, Overloaded) for call in calls[4:])
        for call in [*busy, *calls[:4]]:
            await call.wait()
            call.got(Reserved)
        assert set(disk.ids) == {identity(key) for key in ("busy", "k0", "k1", "k2", "k3")}


# ------------------------------------------------------------------------------------------------------- eviction


@on_mock_time
async def test_an_idle_shard_leaves_memory_and_comes_back_with_the_next_message() -> None:
    async with running(settings=ShardSettings(evict_after_ms=10_000)) as rig:
        token = (await rig.one(reserve("k"), Reserved)).token
        await rig.one(commit("k", token), Committed)
        await trio.sleep(9.9)
        assert rig.shard.in_memory
        await trio.sleep(0.2)
        assert not rig.shard.in_memory
        completed = await rig.one(reserve("k"), Completed)
        assert completed.outcome == commit("k", token).outcome
        assert (await rig.one(reserve("new"), Reserved)).token == token + 1
        assert rig.watch.happened == ["evicted 0", "opened 0"]


@on_mock_time
async def test_inspecting_neither_wakes_a_shard_nor_keeps_it_awake() -> None:
    async with running(settings=ShardSettings(evict_after_ms=10_000)) as rig:
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        seen = []
        for _ in range(12):
            await trio.sleep(1)
            seen.append(await rig.found(Inspect(), Inspected))
        assert rig.watch.happened == ["evicted 0"]
        assert not rig.shard.in_memory
        assert {(finding.tallies[0][1].pending, finding.oldest_pending_at) for finding in seen} == {(1, START_MS)}


@on_mock_time
async def test_a_question_that_needs_the_file_wakes_the_shard_for_all_of_its_batch() -> None:
    async with running(settings=ShardSettings(evict_after_ms=10_000)) as rig:
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        await trio.sleep(11)
        inspected, listed = rig.query(Inspect()), rig.query(ALL)
        await listed.wait()
        assert len(listed.got(RecordsPage).rows) == 1
        assert inspected.got(Inspected).tallies[0][1].pending == 1
        assert rig.shard.in_memory


@on_mock_time
async def test_the_next_alarm_brings_an_evicted_shard_back() -> None:
    async with running(settings=ShardSettings(evict_after_ms=10_000)) as rig:
        token = (await rig.one(reserve("k"), Reserved)).token
        await rig.one(commit("k", token), Committed)
        await trio.sleep(299)
        assert rig.watch.happened == ["evicted 0"]
        assert rig.disk.entries
        await trio.sleep(2)
        assert not rig.disk.entries
        assert not rig.disk.tallies
        await trio.sleep(11)
        assert rig.watch.happened == ["evicted 0", "opened 0", "evicted 0"]
        assert rig.census.total((TENANT, NAMESPACE)) == 0


@on_mock_time
async def test_nobody_who_waits_is_evicted() -> None:
    async with running(settings=ShardSettings(evict_after_ms=10_000)) as rig:
        await rig.one(reserve("k"), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=60_000))
        await trio.sleep(59)
        assert rig.shard.in_memory
        assert not waiter.answered
        await waiter.wait()
        waiter.got(InFlight)


@on_mock_time
async def test_tokens_go_on_after_an_eviction() -> None:
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        tokens = []
        for number in range(5):
            tokens.append((await rig.one(reserve(f"k{number}"), Reserved)).token)
            await trio.sleep(2)
        assert tokens == [1, 2, 3, 4, 5]
        assert rig.watch.happened.count("evicted 0") == 5


# ------------------------------------------------------------------------------------------------------- operators


@on_mock_time
async def test_a_listing_sees_what_was_decided_in_its_own_batch() -> None:
    async with running() as rig:
        rig.send(reserve("a"), reserve("b"), commit("b", 2))
        page = await rig.found(ALL, RecordsPage)
        assert [(id_, key, record.state) for id_, key, record in page.rows] == [
            (1, "a", State.PENDING),
            (2, "b", State.COMMITTED),
        ]
        assert page.next_after is None


@on_mock_time
async def test_incidents_are_listed_and_acknowledged_once() -> None:
    async with running() as rig:
        await rig.one(reserve("k", lease_ms=1_000), Reserved)
        await trio.sleep(2)
        assert (await rig.one(reserve("k"), Reserved)).takeover
        await rig.one(commit("k", 1), Stale)
        page = await rig.found(INCIDENTS, IncidentsPage)
        ((id_, incident),) = page.rows
        assert (incident.token, incident.present_token, incident.outcome) == (1, 2, commit("k", 1).outcome)
        assert rig.disk.tallies[TENANT, NAMESPACE].incidents == 1
        await rig.found(Acknowledge("other", NAMESPACE, id_), NoSuchIncident)
        await rig.found(Acknowledge(TENANT, NAMESPACE, id_ + 1), NoSuchIncident)
        both = [rig.query(Acknowledge(TENANT, NAMESPACE, id_)) for _ in range(2)]
        for call in both:
            await call.wait()
        assert [type(call.answer) for call in both] == [Acknowledged, NoSuchIncident]
        await rig.found(Acknowledge(TENANT, NAMESPACE, id_), NoSuchIncident)
        assert (await rig.found(INCIDENTS, IncidentsPage)).rows == ()
        assert rig.disk.tallies[TENANT, NAMESPACE].incidents == 0


@on_mock_time
async def test_an_acknowledgement_waits_for_the_disk_and_fails_with_it() -> None:
    async with running() as rig:
        await rig.one(reserve("k", lease_ms=1_000), Reserved)
        await trio.sleep(2)
        await rig.one(reserve("k"), Reserved)
        await rig.one(commit("k", 1), Stale)
        rig.disk.before_commit = slow(5)
        call = rig.query(Acknowledge(TENANT, NAMESPACE, 1))
        await trio.sleep(4)
        assert not call.answered
        await call.wait()
        call.got(Acknowledged)


# --------------------------------------------------------------------------------------------------------- the end


@on_mock_time
async def test_close_answers_what_was_taken_and_returns() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk) as rig:
        taken = rig.send(reserve("a"))
        await trio.sleep(1)
        taken += rig.send(reserve("b"), reserve("b", wait_ms=30_000))
        rig.router.close()
        for call in taken:
            await call.wait()
        assert [type(call.answer) for call in taken] == [Reserved, Reserved, InFlight]
    assert trio.current_time() == 10


@on_mock_time
async def test_close_does_not_wait_for_alarms_or_leases() -> None:
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        await rig.one(reserve("k"), Reserved)
        await trio.sleep(0.5)
    assert trio.current_time() == 0.5
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        await trio.sleep(2)
        assert not rig.shard.in_memory
    assert trio.current_time() == 2.5


@on_mock_time
async def test_a_node_that_starts_again_knows_everything() -> None:
    disk = MemoryDisk()
    async with running(disk) as rig:
        await rig.all(reserve("a"), commit("a", 1), reserve("b"), reserve("c"), Release(identity("c"), 3))
    async with running(disk, start_ms=START_MS - 1_000_000) as rig:
        await rig.one(reserve("a"), Completed)
        await rig.one(reserve("b"), InFlight)
        assert (await rig.one(reserve("c"), Reserved)).token == 4
        assert rig.clock.now_ms() >= START_MS


@on_mock_time
async def test_a_page_of_incidents_is_no_larger_than_a_page_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "INCIDENTS_AT_A_TIME", 4)
    proof = Outcome(200, (), bytes(3_000))
    async with running() as rig:
        for number in range(15):
            await rig.one(reserve(f"k{number}", lease_ms=1), Reserved)
        await trio.sleep(1)
        for number in range(15):
            await rig.one(reserve(f"k{number}"), Reserved)
            await rig.one(Commit(identity(f"k{number}"), number + 1, proof), Stale)
        pages: list[list[int]] = []
        after: int | None = 0
        while after is not None:
            page = await rig.found(ListIncidents(TENANT, NAMESPACE, after, 14, 20_000), IncidentsPage)
            assert page.outcome_bytes == 3_000 * len(page.rows)
            pages.append([incident.token for _, incident in page.rows])
            after = page.next_after
        assert pages == [list(range(1, 7)), list(range(7, 13)), list(range(13, 16))]
        # As JSON a byte of zeros takes six; and one is always told.
        page = await rig.found(ListIncidents(TENANT, NAMESPACE, 0, 14, 40_000, as_json=True), IncidentsPage)
        assert ([incident.token for _, incident in page.rows], page.outcome_bytes) == ([1, 2], 36_000)
        page = await rig.found(ListIncidents(TENANT, NAMESPACE, 0, 14, 1), IncidentsPage)
        assert ([incident.token for _, incident in page.rows], page.next_after) == ([1], page.rows[-1][0])
        # What is stuck is told without what proves it.
        stuck = await rig.found(ListStuck(TENANT, (NAMESPACE,), 0, 14), StuckPage)
        assert [incident.token for _, incident in stuck.incidents] == list(range(1, 15))
        assert {incident.outcome for _, incident in stuck.incidents} == {Outcome(200, omitted=True)}
        few = await rig.found(ListIncidents(TENANT, NAMESPACE, 0, 3), IncidentsPage)
        assert [incident.token for _, incident in few.rows] == [1, 2, 3]
        assert few.next_after == few.rows[-1][0]
