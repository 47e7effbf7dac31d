"""A beat is a proof: it comes only when the loop and every shard have gone round."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from idemactor.server.heartbeat import Heartbeat
from idemactor.shard.actor import Shard
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from tests.server import rig
from tests.server.test_http_app import Client


class Wheel:
    """Turns when it is rung, unless it is stuck."""

    def __init__(self) -> None:
        self.turns = 0
        self.stuck = False

    def ring(self) -> None:
        self.turns += not self.stuck


async def test_one_shard_that_hangs_is_enough(autojump_clock: MockClock) -> None:
    del autojump_clock
    wheels, beats = [Wheel(), Wheel()], list[float]()
    heartbeat = Heartbeat(wheels, 1_000, lambda: beats.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeat.run)
        await trio.sleep(3.5)
        assert len(beats) == 3
        wheels[1].stuck = True
        await trio.sleep(10)
        # The one that it had rung for before still counts.
        assert len(beats) <= 4
        silent = len(beats)
        await trio.sleep(10)
        assert len(beats) == silent
        # It was slow, and goes round at last.
        wheels[1].turns += 1
        wheels[1].stuck = False
        await trio.sleep(3)
        assert len(beats) > silent
        nursery.cancel_scope.cancel()


async def test_while_shards_end_the_loop_is_enough(autojump_clock: MockClock) -> None:
    del autojump_clock
    wheel, beats = Wheel(), list[int]()
    wheel.stuck = True
    heartbeat = Heartbeat([wheel], 1_000, lambda: beats.append(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeat.run)
        await trio.sleep(5.5)
        assert not beats
        heartbeat.stopping()
        await trio.sleep(2)
        assert beats
        nursery.cancel_scope.cancel()


async def test_real_shards_turn_when_they_are_rung_for(autojump_clock: MockClock) -> None:
    beats: list[int] = []
    async with rig.running(autojump_clock) as running, trio.open_nursery() as nursery:
        shards = [shard for shard in running.context.router.shards if isinstance(shard, Shard)]
        nursery.start_soon(Heartbeat(shards, 1_000, lambda: beats.append(1)).run)
        await trio.sleep(5.5)
        assert len(beats) == 5
        # One waits for a write that does not end.
        never = trio.Event()

        async def hang(*_: object) -> None:
            await never.wait()

        shards[1]._engine.confirm = hang  # type: ignore[method-assign, assignment]
        await trio.sleep(5)
        assert len(beats) <= 6
        nursery.cancel_scope.cancel()


async def test_a_shard_that_is_quarantined_turns(autojump_clock: MockClock) -> None:
    """A restart would not mend its file, and would take the other shards away."""
    beats: list[int] = []
    async with rig.running(autojump_clock, shards=1) as running, trio.open_nursery() as nursery:
        running.disks[0].failing_opens = 1_000
        running.disks[0].faults.append(Fault(CommitResult.FAILED))
        for _ in range(2):
            await Client(running).post("/v1/default/reserve", {"key": "k"})
        [shard] = running.context.router.shards
        assert isinstance(shard, Shard)
        assert shard.quarantined
        nursery.start_soon(Heartbeat([shard], 1_000, lambda: beats.append(1)).run)
        await trio.sleep(5.5)
        assert len(beats) == 5
        nursery.cancel_scope.cancel()


async def test_shards_that_never_ran_give_no_beat(autojump_clock: MockClock) -> None:
    beats: list[int] = []
    async with rig.running(autojump_clock, run=False) as running, trio.open_nursery() as nursery:
        shards = [shard for shard in running.context.router.shards if isinstance(shard, Shard)]
        nursery.start_soon(Heartbeat(shards, 1_000, lambda: beats.append(1)).run)
        await trio.sleep(10)
        assert not beats
        nursery.cancel_scope.cancel()
