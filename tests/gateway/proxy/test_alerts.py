"""The alert that a gateway sends on requests which nobody protects."""

from __future__ import annotations

from dataclasses import replace

import trio
from trio.testing import MockClock

from tests.gateway.proxy.rig import ROUTE, proxying
from tests.observability.alerts import Watcher

ALERT = "IdemactorGatewayUnprotected"


async def watch(clock: MockClock, *, run: bool) -> Watcher:
    watcher = Watcher()
    async with proxying(clock, replace(ROUTE, namespace="open"), run=run) as proxy:
        for _ in range(3):
            told = await proxy.call()
            assert told.status == 200
            watcher.scrape(trio.current_time(), proxy.metrics())
            await trio.sleep(60)
    return watcher


async def test_it_fires_while_no_shard_answers(autojump_clock: MockClock) -> None:
    assert (await watch(autojump_clock, run=False)).firing(ALERT)


async def test_it_is_silent_while_they_do(autojump_clock: MockClock) -> None:
    assert not (await watch(autojump_clock, run=True)).firing(ALERT)
