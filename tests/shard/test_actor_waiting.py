"""Waiting in a shard: who is let in, in which order, and that nobody waits in vain."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import trio

from idemactor.core import ledger
from idemactor.core.commands import Doubt, Extend, Release
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.ledger import Ledger
from idemactor.core.record import Entry
from idemactor.core.replies import (
    Committed,
    Completed,
    Doubted,
    Extended,
    InDoubt,
    InFlight,
    Mismatch,
    Overloaded,
    Released,
    Reserved,
)
from idemactor.shard.actor import Shard
from idemactor.shard.mailbox import Envelope
from idemactor.storage.base import Opened
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from tests.shard.harness import START_MS, Call, commit, identity, on_mock_time, reserve, running, slow


@on_mock_time
async def test_a_waiter_is_answered_in_flight_at_the_end_of_its_wait() -> None:
    async with running() as rig:
        held = await rig.one(reserve("k", lease_ms=60_000), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=5_000))
        await waiter.wait()
        in_flight = waiter.got(InFlight)
        assert waiter.answered_at == 5
        assert in_flight.retry_after_ms == 55_000
        assert in_flight.lease_expires_at == held.lease_expires_at
        assert rig.disk.commits == 1


@on_mock_time
async def test_who_waits_is_not_let_in_by_a_stop_amid_a_turn_that_does_not_know_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = MemoryEngine.load

    async def slowly(engine: MemoryEngine, identities: list[Identity]) -> dict[Identity, Entry]:
        await trio.sleep(1)
        return await load(engine, identities)

    async with running() as rig:
        # No room to remember anything beyond a turn.
        assert rig.shard._ledger is not None
        rig.shard._ledger._cache_bytes_max = 0
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=50_000))
        await trio.sleep(1)
        monkeypatch.setattr(MemoryEngine, "load", slowly)
        (other,) = rig.send(reserve("other"))
        await trio.sleep(0.5)
        rig.shard.stop_waiting()
        await waiter.wait()
        waiter.got(InFlight)
        await other.wait()
        other.got(Reserved)


@on_mock_time
async def test_a_release_hands_the_key_to_the_first_waiter_in_the_same_decision() -> None:
    disk = MemoryDisk()
    async with running(disk) as rig:
        await rig.one(reserve("k"), Reserved)
        waiters = [rig.send(reserve("k", f"r{number}", wait_ms=60_000))[0] for number in range(3)]
        await trio.sleep(1)
        disk.before_commit = slow(5)
        released, newcomer = rig.send(Release(identity("k"), 1), reserve("k"))
        await trio.sleep(4)
        assert not any(call.answered for call in [released, newcomer, *waiters])
        await trio.sleep(2)
        released.got(Released)
        newcomer.got(InFlight)
        assert waiters[0].got(Reserved).token == 2
        assert waiters[0].answered_at == released.answered_at == 6
        assert not waiters[1].answered
        assert disk.commits == 2


@on_mock_time
async def test_waiters_are_let_in_one_after_the_other_in_order_of_arrival() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        waiters = [rig.send(reserve("k", wait_ms=60_000 - number))[0] for number in range(5)]
        order = []
        for token in range(1, 6):
            await rig.one(Release(identity("k"), token), Released)
            (admitted,) = [waiter for waiter in waiters if waiter.answered and waiter not in order]
            assert admitted.got(Reserved).token == token + 1
            order.append(admitted)
        assert order == waiters


@on_mock_time
async def test_a_commit_answers_everyone_who_waits() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        waiters = rig.send(*(reserve("k", wait_ms=60_000) for _ in range(3)))
        await trio.sleep(1)
        await rig.one(commit("k", 1), Committed)
        for waiter in waiters:
            assert waiter.got(Completed).outcome == commit("k", 1).outcome
            assert waiter.answered_at == 1


@on_mock_time
async def test_a_doubt_answers_everyone_who_waits() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        waiters = rig.send(*(reserve("k", wait_ms=60_000) for _ in range(3)))
        await rig.one(Doubt(identity("k"), 1, "power cut"), Doubted)
        assert [waiter.got(InDoubt).reason for waiter in waiters] == ["power cut"] * 3


@on_mock_time
async def test_the_end_of_the_lease_lets_the_first_waiter_take_over() -> None:
    async with running() as rig:
        held = await rig.one(reserve("k", lease_ms=2_000), Reserved)
        first, second = rig.send(reserve("k", lease_ms=9_000, wait_ms=5_000), reserve("k", wait_ms=5_000))
        await first.wait()
        granted = first.got(Reserved)
        assert first.answered_at == 2
        assert granted.takeover
        assert granted.operation_id == held.operation_id
        assert granted.reserved_at == START_MS + 2_000
        await second.wait()
        assert second.got(InFlight).attempt == 2
        assert second.answered_at == 5


@on_mock_time
async def test_an_extended_lease_keeps_waiters_waiting() -> None:
    async with running() as rig:
        await rig.one(reserve("k", lease_ms=2_000), Reserved)
        (waiter,) = rig.send(reserve("k", wait_ms=30_000))
        await trio.sleep(1)
        await rig.one(Extend(identity("k"), 1, 10_000), Extended)
        await trio.sleep(9)
        assert not waiter.answered
        await waiter.wait()
        waiter.got(Reserved)
        assert waiter.answered_at == 11


@on_mock_time
async def test_a_waiter_that_hung_up_is_never_granted() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        gone, there = rig.send(reserve("k", wait_ms=60_000), reserve("k", wait_ms=60_000))
        await trio.sleep(1)
        gone.closed = True
        await rig.one(Release(identity("k"), 1), Released)
        gone.got(Overloaded)
        assert there.got(Reserved).token == 2


@on_mock_time
async def test_a_waiter_that_hung_up_does_not_get_the_lease_that_lapsed_or_hold_the_shard() -> None:
    async with running() as rig:
        await rig.one(reserve("k", lease_ms=2_000), Reserved)
        (gone,) = rig.send(reserve("k", wait_ms=10_000))
        await trio.sleep(1)
        gone.closed = True
        await trio.sleep(60)
        gone.got(Overloaded)
        assert (await rig.one(reserve("k"), Reserved)).attempt == 2


@on_mock_time
async def test_another_payload_does_not_wait() -> None:
    ours, theirs = Fingerprint("a", "caller"), Fingerprint("b", "caller")
    async with running() as rig:
        await rig.all(replace(reserve("k"), fingerprint=ours))
        await rig.one(replace(reserve("k", wait_ms=60_000), fingerprint=theirs), Mismatch)
        assert trio.current_time() == 0


@on_mock_time
async def test_a_repeat_of_the_holder_does_not_wait() -> None:
    async with running() as rig:
        await rig.one(reserve("k", "r1"), Reserved)
        assert (await rig.one(reserve("k", "r1", wait_ms=60_000), Reserved)).repeated
        assert trio.current_time() == 0


@on_mock_time
async def test_waiters_on_a_slow_disk_are_granted_one_at_a_time() -> None:
    disk = MemoryDisk(before_commit=slow(1))
    async with running(disk) as rig:
        await rig.one(reserve("k", lease_ms=1_500), Reserved)
        waiters = rig.send(*(reserve("k", lease_ms=1_500, wait_ms=60_000) for _ in range(3)))
        for waiter in waiters:
            await waiter.wait()
        grants = [waiter.got(Reserved) for waiter in waiters]
        for earlier, later in pairwise(grants):
            assert later.reserved_at >= earlier.lease_expires_at


@on_mock_time
async def test_close_answers_waiters_at_once() -> None:
    async with running() as rig:
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        waiters = rig.send(*(reserve("k", wait_ms=60_000) for _ in range(3)), reserve("free"))
        await trio.sleep(1)
        rig.router.close()
        for waiter in waiters[:3]:
            await waiter.wait()
            assert waiter.got(InFlight).retry_after_ms == 59_000
            assert waiter.answered_at == 1


@on_mock_time
async def test_close_on_a_slow_disk_grants_no_waiter_what_was_not_released() -> None:
    disk = MemoryDisk()
    async with running(disk) as rig:
        await rig.one(reserve("k"), Reserved)
        first, second = rig.send(reserve("k", wait_ms=60_000), reserve("k", wait_ms=60_000))
        await trio.sleep(1)
        disk.before_commit = slow(3)
        (released,) = rig.send(Release(identity("k"), 1))
        rig.router.close()
        for call in (first, second, released):
            await call.wait()
        # What was in the mailbox comes first, and a release is handed on even now.
        first.got(Reserved)
        second.got(InFlight)
        released.got(Released)


@on_mock_time
async def test_one_more_than_may_wait_is_answered_at_once() -> None:
    async with running() as rig:
        await rig.one(reserve("k"), Reserved)
        waiting: list[Call] = []
        while len(waiting) < ledger.WAITERS_MAX:
            waiting += rig.send(*(reserve("k", wait_ms=60_000) for _ in range(2_500)))
            await trio.sleep(1)
        assert not any(call.answered for call in waiting)
        await rig.one(reserve("k", wait_ms=60_000), InFlight)
        for call in waiting[:10]:
            call.closed = True
        # Room is made by those who hung up.
        more = rig.send(*(reserve("k", wait_ms=60_000) for _ in range(11)))
        await trio.sleep(1)
        assert [call.answered for call in more] == [False] * 10 + [True]


class Forgetful(Shard):
    """Keeps nothing in memory from one batch to the next."""

    def _read(self, opened: Opened) -> Ledger[Envelope]:
        token = max(opened.last_token, self._last_token)
        return Ledger(
            self.number, self._policies, self._census, self._entropy, token, opened.tallies, cache_bytes_max=0
        )


@on_mock_time
async def test_a_waiter_whose_key_left_the_cache_is_decided_on_what_the_disk_says() -> None:
    async with running(make=Forgetful) as rig:
        await rig.one(reserve("k", lease_ms=60_000), Reserved)
        timed_out, handed_over, cut_off = rig.send(
            reserve("k", wait_ms=5_000), reserve("k", wait_ms=50_000), reserve("k", wait_ms=50_000)
        )
        await timed_out.wait()
        timed_out.got(InFlight)
        await rig.one(Release(identity("k"), 1), Released)
        assert handed_over.got(Reserved).token == 2
        rig.router.close()
        await cut_off.wait()
        cut_off.got(InFlight)
