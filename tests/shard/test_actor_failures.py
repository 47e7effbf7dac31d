"""What a shard does when its disk fails, when it loses its shard to another, and when deciding itself breaks."""

from __future__ import annotations

import pytest
import trio

from idemactor.core import ledger
from idemactor.core.commands import Command, Commit, Get
from idemactor.core.decide import decide
from idemactor.core.decision import Decision
from idemactor.core.queries import Inspect, Inspected, ListRecords, RecordsPage
from idemactor.core.replies import Committed, Found, InFlight, Reserved, Unavailable, Unknown
from idemactor.errors import StorageError
from idemactor.shard.actor import ShardSettings
from idemactor.shard.backoff import BACKOFF_MS_MAX, BACKOFF_MS_MIN
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault, MemoryDisk, MemoryEngine
from tests.shard.harness import (
    NAMESPACE,
    START_MS,
    TENANT,
    commit,
    identity,
    key_in,
    on_mock_time,
    reserve,
    running,
    slow,
)

NOT_KEPT = [Fault(CommitResult.FAILED), Fault(CommitResult.UNKNOWN)]
KEPT = Fault(CommitResult.UNKNOWN, applied=True)
ALL = ListRecords(TENANT, NAMESPACE, None, None, None, 0, 100)


@pytest.mark.parametrize("fault", [*NOT_KEPT, KEPT], ids=["failed", "unknown", "unknown but kept"])
@on_mock_time
async def test_everyone_in_a_batch_that_failed_is_told_unavailable(fault: Fault) -> None:
    async with running() as rig:
        await rig.one(reserve("held"), Reserved)
        (waiter,) = rig.send(reserve("held", wait_ms=60_000))
        await trio.sleep(1)
        rig.disk.faults.append(fault)
        calls = rig.send(reserve("k"), reserve("k"), Get(identity("k")), commit("held", 1))
        listed = rig.query(ALL)
        for call in [*calls, listed, waiter]:
            await call.wait()
            assert call.got(Unavailable).retry_after_ms == BACKOFF_MS_MIN
        assert [commands for commands, _ in rig.watch.failed_batches] == [6]
        assert rig.watch.happened == ["recovered 0"]
        assert not rig.shard.quarantined


@pytest.mark.parametrize("fault", NOT_KEPT, ids=["failed", "unknown"])
@on_mock_time
async def test_after_a_failure_memory_is_what_the_disk_says(fault: Fault) -> None:
    async with running() as rig:
        await rig.one(reserve("held"), Reserved)
        rig.disk.faults.append(fault)
        await rig.all(commit("held", 1), reserve("k"))
        await rig.one(reserve("held"), InFlight)
        await rig.one(Get(identity("k")), Unknown)
        # The token that was granted in the batch that failed is never granted again.
        assert (await rig.one(reserve("k"), Reserved)).token == 3
        assert rig.census.total((TENANT, NAMESPACE)) == 2


@on_mock_time
async def test_a_batch_that_was_kept_without_a_word_is_found_again() -> None:
    async with running() as rig:
        rig.disk.faults.append(KEPT)
        await rig.all(reserve("k", "r1"), reserve("other"))
        again = await rig.one(reserve("k", "r1"), Reserved)
        assert again.repeated
        assert (await rig.one(reserve("new"), Reserved)).token == 3
        await rig.one(commit("k", again.token), Committed)
        assert rig.census.total((TENANT, NAMESPACE)) == 3


@on_mock_time
async def test_what_came_while_a_write_failed_is_served_from_what_was_reloaded() -> None:
    disk = MemoryDisk(before_commit=slow(5))
    async with running(disk) as rig:
        disk.faults.append(NOT_KEPT[0])
        (first,) = rig.send(reserve("k"))
        await trio.sleep(1)
        (second,) = rig.send(Get(identity("k")))
        await first.wait()
        first.got(Unavailable)
        await second.wait()
        second.got(Unknown)


@on_mock_time
async def test_a_shard_that_cannot_be_read_back_is_quarantined_and_the_others_go_on() -> None:
    disks = (MemoryDisk(), MemoryDisk())
    bad, good = key_in(0, 2), key_in(1, 2)
    async with running(*disks) as rig:
        await rig.one(reserve(bad, "r"), Reserved)
        disks[0].faults.append(NOT_KEPT[0])
        disks[0].failing_opens = 4
        await rig.one(commit(bad, 1), Unavailable)
        await trio.sleep(0.05)
        assert rig.shard.quarantined
        assert not rig.shards[1].quarantined
        assert 1 <= (await rig.one(Get(identity(bad)), Unavailable)).retry_after_ms <= BACKOFF_MS_MIN
        assert isinstance((await rig.all(reserve(good)))[0].answer, Reserved)
        await trio.sleep(3)
        # Nobody asked in between: the shard tries again by itself.
        assert not rig.shard.quarantined
        waits = [retry_ms for _, retry_ms, _ in rig.watch.quarantines]
        assert waits == [100, 200, 400, 800]
        times = [round(at, 2) for _, _, at in rig.watch.quarantines]
        assert times == [0, 0.1, 0.3, 0.7]
        assert (await rig.one(reserve(bad, "r"), Reserved)).repeated
        await rig.one(commit(bad, 1), Committed)


@on_mock_time
async def test_the_waits_of_a_quarantine_have_a_bound_and_start_over() -> None:
    async with running() as rig:
        for expected in ([100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000], [100]):
            rig.watch.quarantines.clear()
            rig.disk.faults.append(NOT_KEPT[0])
            rig.disk.failing_opens = len(expected)
            await rig.one(reserve("k"), Unavailable)
            await trio.sleep(200)
            assert [wait for _, wait, _ in rig.watch.quarantines] == expected
            assert not rig.shard.quarantined
    assert BACKOFF_MS_MAX == 30_000


@on_mock_time
async def test_a_shard_that_cannot_wake_up_is_quarantined_too() -> None:
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        await rig.one(reserve("k"), Reserved)
        await trio.sleep(2)
        rig.disk.failing_opens = 1
        await rig.one(Get(identity("k")), Unavailable)
        assert rig.shard.quarantined
        await rig.found(Inspect(), Unavailable)
        await trio.sleep(0.2)
        await rig.one(Get(identity("k")), Found)
        assert rig.watch.happened == ["evicted 0", "recovered 0"]


@on_mock_time
async def test_a_read_that_fails_fails_its_batch_alone() -> None:
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        await rig.one(reserve("k"), Reserved)
        rig.disk.failing_reads = 1
        calls = await rig.all(Get(identity("new")), reserve("k"))
        assert all(isinstance(call.answer, Unavailable) for call in calls)
        await rig.one(Get(identity("k")), Found)


@on_mock_time
async def test_an_eviction_that_fails_tells_nobody_anything_twice() -> None:
    async with running(settings=ShardSettings(evict_after_ms=1_000)) as rig:
        await rig.one(reserve("k"), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=5_000))
        await trio.sleep(4)
        rig.disk.failing_reads = 1
        await trio.sleep(3)
        # The waiter's turn was the one in which the shard tried to leave memory.
        waiter.got(InFlight)
        assert rig.watch.happened[0] == "recovered 0"
        await rig.one(Get(identity("k")), Found)


@on_mock_time
async def test_upkeep_that_fails_costs_no_answer_and_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(_engine: MemoryEngine) -> None:
        raise StorageError("planted")

    async with running() as rig:
        (waiter,) = rig.send(reserve("k"), reserve("k", wait_ms=60_000))[1:]
        await trio.sleep(1)
        monkeypatch.setattr(MemoryEngine, "maintain", breaks)
        await rig.one(Get(identity("k")), Found)
        await trio.sleep(0.1)
        # Who waits cannot be kept once memory is dropped; what was answered stays answered.
        waiter.got(Unavailable)
        await trio.sleep(1)
        assert [retry_ms for _, retry_ms, _ in rig.watch.quarantines] == [100, 200, 400, 800]
        monkeypatch.undo()
        await trio.sleep(1)
        await rig.one(commit("k", 1), Committed)


@on_mock_time
async def test_a_shard_that_another_owns_stops_for_good() -> None:
    disks = (MemoryDisk(), MemoryDisk())
    bad, good = key_in(0, 2), key_in(1, 2)
    async with running(*disks) as rig:
        await rig.one(reserve(bad), Reserved)
        (waiter,) = rig.send(reserve(bad, wait_ms=60_000))
        await trio.sleep(1)
        disks[0].fenced = True
        await rig.one(commit(bad, 1), Unavailable)
        waiter.got(Unavailable)
        disks[0].fenced = False
        await trio.sleep(10_000)
        await rig.one(Get(identity(bad)), Unavailable)
        await rig.one(reserve(good), Reserved)
        assert rig.shard.quarantined
        assert [event for event in rig.watch.happened if event.endswith(" 0")] == ["fenced 0"]
        assert disks[0].commits == 1


@on_mock_time
async def test_a_fenced_shard_answers_no_read_from_memory() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        rig.disk.fenced = True
        await rig.one(Get(identity("k")), Unavailable)
        assert rig.watch.happened == ["fenced 0"]


@on_mock_time
async def test_an_exception_in_a_decision_costs_its_batch_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(entry: object, command: Command, *rest: object) -> Decision:
        if isinstance(command, Commit):
            raise RuntimeError("planted")
        return decide(entry, command, *rest)  # type: ignore[arg-type]

    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=60_000))
        await trio.sleep(1)
        monkeypatch.setattr(ledger, "decide", breaks)
        calls = await rig.all(reserve("new"), commit("k", 1), Get(identity("k")))
        assert all(isinstance(call.answer, Unavailable) for call in [*calls, waiter])
        assert isinstance(rig.watch.failed_batches[0][1], RuntimeError)
        monkeypatch.undo()
        await rig.one(commit("k", 1), Committed)
        await rig.one(Get(identity("new")), Unknown)


@on_mock_time
async def test_an_exception_while_a_waiter_times_out_loses_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> Decision:
        raise RuntimeError("planted")

    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        waiters = rig.send(reserve("k", wait_ms=5_000), reserve("k", wait_ms=6_000))
        await trio.sleep(1)
        monkeypatch.setattr(ledger, "decide", breaks)
        await trio.sleep(5)
        for waiter in waiters:
            waiter.got(Unavailable)
        monkeypatch.undo()
        assert (await rig.found(Inspect(), Inspected)).waiting == 0


@on_mock_time
async def test_a_listing_that_fails_behind_the_gate_takes_nothing_back() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        listed = rig.query(ALL)
        (committed,) = rig.send(commit("k", 1))
        rig.disk.failing_reads = 1
        await listed.wait()
        await committed.wait()
        # The commit was on disk, and its answer had left.
        listed.got(Unavailable)
        committed.got(Committed)
        assert (await rig.one(commit("k", 1), Committed)).repeated
        assert len((await rig.found(ALL, RecordsPage)).rows) == 1


@on_mock_time
async def test_close_ends_a_quarantined_shard_at_once() -> None:
    async with running() as rig:
        rig.disk.faults.append(NOT_KEPT[0])
        rig.disk.failing_opens = 1_000_000
        await rig.one(reserve("k"), Unavailable)
        await trio.sleep(100)
        (call,) = rig.send(reserve("k"))
        rig.router.close()
        before = trio.current_time()
        await call.wait()
        call.got(Unavailable)
        assert trio.current_time() == before


@on_mock_time
async def test_a_file_that_cannot_be_closed_does_not_end_the_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = (MemoryDisk(), MemoryDisk(before_commit=slow(3)))
    async with running(*disks) as rig:
        (call,) = rig.send(reserve(key_in(1, 2)))
        await trio.sleep(1)

        async def breaks(_engine: MemoryEngine) -> None:
            raise StorageError("planted")

        monkeypatch.setattr(MemoryEngine, "close", breaks)
        rig.router.close()
        await call.wait()
        call.got(Reserved)
    assert [(commands, str(error)) for commands, error in rig.watch.failed_batches] == [(0, "planted")] * 2


@on_mock_time
async def test_a_shard_that_cannot_be_read_at_start_is_quarantined_until_it_can() -> None:
    disks = (MemoryDisk(), MemoryDisk())
    bad, good = key_in(0, 2), key_in(1, 2)
    async with running(*disks) as rig:
        await rig.one(reserve(bad), Reserved)
    disks[0].failing_opens = 4
    async with running(*disks) as rig:
        assert rig.shard.quarantined
        assert not rig.shards[1].quarantined
        await rig.one(reserve(bad), Unavailable)
        await rig.one(reserve(good), Reserved)
        await trio.sleep(3)
        assert not rig.shard.quarantined
        assert [retry_ms for _, retry_ms, _ in rig.watch.quarantines] == [100, 200, 400, 800]
        await rig.one(reserve(bad), InFlight)
        assert rig.census.total((TENANT, NAMESPACE)) == 2


@on_mock_time
async def test_time_never_goes_back_for_a_shard_that_could_not_be_read_when_it_was_settled() -> None:
    """A lease that was over by its own time would be alive once more by the server's."""
    disks = (MemoryDisk(), MemoryDisk())
    bad, good = key_in(0, 2), key_in(1, 2)
    async with running(*disks, start_ms=START_MS + 60_000) as rig:
        await rig.one(reserve(bad), Reserved)
    disks[0].failing_opens = 1
    async with running(*disks) as rig:
        await rig.one(reserve(good), Reserved)
        await trio.sleep(30)
        assert rig.shard.quarantined
        await rig.one(reserve(bad), Unavailable)
        await trio.sleep(60)
        assert not rig.shard.quarantined
        await rig.one(reserve(bad), InFlight)
