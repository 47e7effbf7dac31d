"""The timer: never later than it was asked for, and moved without waking anybody."""

from __future__ import annotations

import trio

from idemactor.shard.timer import Timer
from tests.shard.harness import on_mock_time


@on_mock_time
async def test_it_rings_at_the_earliest_time_that_was_asked_for() -> None:
    rings: list[float] = []
    timer = Timer(lambda: rings.append(trio.current_time()))
    timer.set(9)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        await trio.sleep(1)
        timer.set(5)
        timer.set(7)
        await trio.sleep(10)
        assert rings == [5]
        timer.set(20)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert rings == [5, 20]


@on_mock_time
async def test_a_time_that_is_over_rings_at_once() -> None:
    rings: list[float] = []
    timer = Timer(lambda: rings.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        await trio.sleep(3)
        timer.set(1)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert rings == [3]
