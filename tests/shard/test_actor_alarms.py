"""Alarms in a shard: one timer for the earliest, bounded steps, and failures that never stop it from serving."""

from __future__ import annotations

import pytest
import trio

from idemactor.core import ledger
from idemactor.core.commands import Accept, Doubt, Extend, Get, Release
from idemactor.core.decide import sweep
from idemactor.core.policy import OnLeaseExpiry, Policy
from idemactor.core.queries import Inspect, Inspected
from idemactor.core.record import Entry, State
from idemactor.core.replies import (
    Committed,
    Doubted,
    Extended,
    Found,
    InDoubt,
    Released,
    Reserved,
    Unavailable,
    Unknown,
)
from idemactor.shard import actor
from idemactor.shard.actor import SWEEPS_MAX, ShardSettings
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault, MemoryDisk
from tests.shard.harness import NAMESPACE, TENANT, Rig, commit, identity, on_mock_time, reserve, running, slow

SHORT = Policy(lease_ms=1_000, ttl_ms=2_000, unresolved_ttl_ms=4_000)


def state_on(disk: MemoryDisk, key: str) -> State | None:
    entry = disk.entries.get(disk.ids.get(identity(key), 0))
    return entry.record.state if entry and entry.record else None


@on_mock_time
async def test_a_lapse_is_noted_and_the_record_is_given_up_in_the_end() -> None:
    async with running(policy=SHORT) as rig:
        await rig.one(reserve("k"), Reserved)
        await trio.sleep(0.99)
        assert state_on(rig.disk, "k") is State.PENDING
        await trio.sleep(0.02)
        assert state_on(rig.disk, "k") is State.LAPSED
        assert rig.disk.tallies[TENANT, NAMESPACE].in_doubt == 1
        await trio.sleep(3.97)
        assert state_on(rig.disk, "k") is State.LAPSED
        await trio.sleep(0.03)
        assert not rig.disk.entries
        assert not rig.disk.ids
        assert not rig.disk.tallies


@on_mock_time
async def test_what_is_held_or_doubted_is_never_given_up() -> None:
    held = Policy(lease_ms=1_000, unresolved_ttl_ms=4_000, on_lease_expiry=OnLeaseExpiry.HOLD)
    async with running(policy=held) as rig:
        await rig.all(reserve("held"), reserve("doubted"), Doubt(identity("doubted"), 2))
        await trio.sleep(80_000)
        assert state_on(rig.disk, "held") is State.LAPSED
        assert state_on(rig.disk, "doubted") is State.DOUBTED
        await rig.one(reserve("held"), InDoubt)


@on_mock_time
async def test_expired_records_and_tombstones_are_removed() -> None:
    async with running(policy=SHORT) as rig:
        await rig.all(reserve("a"), commit("a", 1), reserve("b"), Release(identity("b"), 2), Accept(identity("c")))
        assert len(rig.disk.entries) == 3
        await trio.sleep(1.99)
        assert len(rig.disk.entries) == 3
        await trio.sleep(0.02)
        assert not rig.disk.entries
        assert rig.census.total((TENANT, NAMESPACE)) == 0


@on_mock_time
async def test_one_alarm_is_armed_and_it_follows_the_earliest_deadline() -> None:
    async with running(policy=SHORT) as rig:
        await rig.all(reserve("late", lease_ms=50_000), reserve("soon", lease_ms=10_000))
        before = len(rig.watch.sweeps)
        await trio.sleep(5)
        await rig.one(Extend(identity("soon"), 2, 30_000), Extended)
        await trio.sleep(29.99)
        # Neither the deadline that moved nor anything else woke the shard.
        assert len(rig.watch.sweeps) == before
        await trio.sleep(0.02)
        assert rig.watch.sweeps[before:] == [1]
        assert state_on(rig.disk, "soon") is State.LAPSED
        assert state_on(rig.disk, "late") is State.PENDING


@on_mock_time
async def test_time_decides_before_the_alarm_was_there() -> None:
    disk = MemoryDisk()
    async with running(disk, policy=SHORT) as rig:
        await rig.all(reserve("k"), commit("k", 1))
        disk.before_commit = slow(3)
        busy = rig.send(reserve("busy"))
        await trio.sleep(1)
        (call,) = rig.send(Get(identity("k")))
        await call.wait()
        call.got(Unknown)
        busy[0].got(Reserved)


async def storm(rig: Rig, count: int) -> None:
    """Give ``count`` keys a lease, all of which end at once."""
    ends_at = rig.clock.now_ms() + 600_000
    for start in range(0, count, 1_000):
        lease_ms = ends_at - rig.clock.now_ms()
        await rig.all(*(reserve(f"k{number}", lease_ms=lease_ms) for number in range(start, start + 1_000)))


@on_mock_time
async def test_a_storm_of_alarms_is_drained_in_bounded_steps_with_callers_answered_in_between() -> None:
    policy = Policy(lease_ms=3_600_000, unresolved_ttl_ms=3_600_000)
    async with running(policy=policy) as rig:
        await storm(rig, 20_000)
        rig.disk.before_commit = slow(0.001)
        sweeps_before = len(rig.watch.sweeps)
        await trio.sleep(600.0005)
        backlogs: list[int] = []
        while rig.disk.tallies[TENANT, NAMESPACE].pending:
            backlogs.append(rig.disk.tallies[TENANT, NAMESPACE].pending)
            sent_at = trio.current_time()
            await rig.one(Get(identity("k19999")), Found)
            # The step at hand, then the step that the question itself is part of.
            assert trio.current_time() - sent_at < 0.003
        assert len(backlogs) > 50
        assert rig.disk.tallies[TENANT, NAMESPACE].in_doubt == 20_000
        assert max(rig.watch.sweeps) <= SWEEPS_MAX
        assert sum(rig.watch.sweeps[sweeps_before:]) == 20_000
        assert (await rig.found(Inspect(), Inspected)).alarm_backlog == 0
        assert rig.watch.alarm_waits == []


@on_mock_time
async def test_a_step_that_takes_too_long_is_cut_and_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "SWEEP_SECONDS_MAX", -1.0)
    async with running(policy=SHORT) as rig:
        await rig.all(*(reserve(f"k{number}") for number in range(40)))
        await trio.sleep(1.001)
        assert [size for size in rig.watch.sweeps if size] == [16, 16, 8]
        assert rig.disk.tallies[TENANT, NAMESPACE].in_doubt == 40


@on_mock_time
async def test_alarms_on_disk_are_found_after_a_start() -> None:
    disk = MemoryDisk()
    async with running(disk, policy=SHORT) as rig:
        await rig.all(reserve("a"), reserve("b", lease_ms=5_000))
    async with running(disk, policy=SHORT):
        await trio.sleep(2)
        assert state_on(disk, "a") is State.LAPSED
        assert state_on(disk, "b") is State.PENDING
        await trio.sleep(3.01)
        assert state_on(disk, "b") is State.LAPSED


@on_mock_time
async def test_an_alarm_whose_write_fails_backs_off_doubling_and_the_shard_goes_on_serving() -> None:
    async with running(policy=SHORT) as rig:
        await rig.one(reserve("k"), Reserved)
        rig.disk.faults.extend([Fault(CommitResult.FAILED)] * 4)
        failed_at: list[float] = []
        await trio.sleep(0.005)
        while len(failed_at) < 4:
            before = len(rig.watch.failed_batches)
            await trio.sleep(0.01)
            if len(rig.watch.failed_batches) > before:
                failed_at.append(round(trio.current_time(), 1))
            await rig.one(Get(identity("k")), Found)
        assert failed_at == [1.0, 1.1, 1.3, 1.7]
        await trio.sleep(1)
        assert state_on(rig.disk, "k") is State.LAPSED


@on_mock_time
async def test_an_alarm_that_keeps_failing_never_stops_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(entry: Entry, policy: Policy, now: int) -> Entry | None:
        if entry.identity.key == "bad":
            raise RuntimeError("planted")
        return sweep(entry, policy, now)

    async with running(policy=SHORT) as rig:
        await rig.all(reserve("bad"), reserve("good"))
        monkeypatch.setattr(ledger, "sweep", breaks)
        await trio.sleep(1.05)
        assert state_on(rig.disk, "bad") is State.PENDING
        assert state_on(rig.disk, "good") is State.LAPSED
        await trio.sleep(100)
        assert rig.watch.alarm_waits[:9] == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600]
        token = (await rig.one(reserve("new"), Reserved)).token
        await rig.one(commit("new", token), Committed)
        assert rig.watch.failed_batches == []
        monkeypatch.undo()
        await trio.sleep(60)
        assert not rig.disk.entries


@on_mock_time
async def test_alarms_that_cannot_be_read_cost_one_batch_and_come_back() -> None:
    async with running(policy=SHORT) as rig:
        await rig.one(reserve("k"), Reserved)
        rig.disk.faults.append(Fault(CommitResult.FAILED))
        rig.disk.failing_opens = 1
        await rig.one(reserve("other"), Unavailable)
        await trio.sleep(0.05)
        # The reload has to read the alarms anew, and that read fails.
        rig.disk.failing_reads = 1
        await trio.sleep(0.1)
        assert rig.watch.alarm_waits == [100]
        await rig.one(Get(identity("k")), Found)
        await trio.sleep(1)
        assert state_on(rig.disk, "k") is State.LAPSED


@on_mock_time
async def test_a_shard_that_is_evicted_while_its_alarms_are_put_off_still_wakes_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(*_: object) -> Entry | None:
        raise RuntimeError("planted")

    settings = ShardSettings(evict_after_ms=10_000)
    async with running(policy=SHORT, settings=settings) as rig:
        await rig.one(reserve("k"), Reserved)
        monkeypatch.setattr(ledger, "sweep", breaks)
        await trio.sleep(10.5)
        assert rig.watch.happened == ["evicted 0"]
        monkeypatch.undo()
        await trio.sleep(60)
        assert not rig.disk.entries


@on_mock_time
async def test_a_doubt_takes_the_alarm_away() -> None:
    async with running(policy=SHORT) as rig:
        await rig.one(reserve("k"), Reserved)
        await rig.one(Doubt(identity("k"), 1), Doubted)
        swept = len(rig.watch.sweeps)
        await trio.sleep(100)
        assert len(rig.watch.sweeps) == swept
        assert rig.disk.commits == 2


@on_mock_time
async def test_a_tombstone_ends_beside_a_newer_attempt() -> None:
    async with running(policy=SHORT) as rig:
        await rig.one(reserve("k"), Reserved)
        await rig.one(Release(identity("k"), 1), Released)
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        entry = rig.disk.entries[1]
        assert entry.tombstone
        await trio.sleep(2.01)
        entry = rig.disk.entries[1]
        assert entry.tombstone is None
        assert entry.record is not None
        await rig.one(Release(identity("k"), 1), object)
