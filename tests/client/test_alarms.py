"""Alarms ring in time, once, and cost nothing when they are dropped."""

from __future__ import annotations

import random

import anyio

from idemactor.client.alarms import DROPPED_MAX, Alarms
from tests.client.fake import LoopClock
from tests.client.loops import both_loops, run


@both_loops
def test_each_rings_at_its_time_and_those_that_are_dropped_do_not(backend: str) -> None:
    seed = random.randrange(2**32)
    print(f"replay with seed {seed}")
    chance = random.Random(seed)

    async def main() -> None:
        rung: dict[int, float] = {}
        alarms: Alarms[int] = Alarms(LoopClock(), lambda number: rung.__setitem__(number, anyio.current_time()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alarms.run)
            due: dict[int, float] = {}
            for number in range(1_000):
                when_s = anyio.current_time() + chance.choice([0, 0.5, 3, chance.random() * 10])
                alarm = alarms.set(when_s, number)
                if chance.random() < 0.6:
                    alarms.drop(alarm)
                else:
                    due[number] = when_s
                if chance.random() < 0.1:
                    await anyio.sleep(chance.random())
            await anyio.sleep(20)
            tasks.cancel_scope.cancel()
        assert rung.keys() == due.keys()
        assert all(0 <= rung[number] - when_s < 0.01 for number, when_s in due.items())
        assert alarms.pending() == []

    run(backend, main)


@both_loops
def test_an_earlier_one_does_not_wait_for_a_later_one(backend: str) -> None:
    async def main() -> None:
        rung: list[str] = []
        alarms: Alarms[str] = Alarms(LoopClock(), rung.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alarms.run)
            alarms.set(anyio.current_time() + 100, "late")
            await anyio.sleep(1)
            alarms.set(anyio.current_time() + 1, "soon")
            await anyio.sleep(1.1)
            assert rung == ["soon"]
            await anyio.sleep(100)
            assert rung == ["soon", "late"]
            tasks.cancel_scope.cancel()

    run(backend, main)


def test_dropped_ones_do_not_pile_up() -> None:
    alarms: Alarms[int] = Alarms(LoopClock(), lambda _: None)
    kept = [alarms.set(1e9 + number, number) for number in range(10)]
    for number in range(100_000):
        alarms.drop(alarms.set(1e6 + number, number))
    assert len(alarms._heap) <= DROPPED_MAX + 2 * len(kept)
    for alarm in kept:
        alarms.drop(alarm)
        alarms.drop(alarm)
    assert alarms.pending() == []
