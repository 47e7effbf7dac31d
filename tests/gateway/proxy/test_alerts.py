"""The alert that a gateway sends on requests which nobody protects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from tests.gateway.proxy.rig import ROUTE, proxying
from tests.observability.alerts import Watcher

ALERT = "IdemactorGatewayUnprotected"


async def watch(clock: MockClock, *, run: bool, calls: Sequence[int] = (1, 1, 1), looks_from: int = 0) -> Watcher:
    """So many ``calls`` before the scrape of each minute."""
    watcher = Watcher()
    async with proxying(clock, replace(ROUTE, namespace="open"), run=run) as proxy:
        for minute, count in enumerate(calls):
            for _ in range(count):
                told = await proxy.call()
                assert told.status == 200
            if minute >= looks_from:
                watcher.scrape(trio.current_time(), proxy.metrics())
            await trio.sleep(60)
    return watcher


async def test_it_fires_while_no_shard_answers(autojump_clock: MockClock) -> None:
    assert (await watch(autojump_clock, run=False)).firing(ALERT)


async def test_it_is_silent_while_they_do(autojump_clock: MockClock) -> None:
    assert not (await watch(autojump_clock, run=True)).firing(ALERT)


@pytest.mark.parametrize("quiet", [0, 2, 8])
async def test_one_burst_is_enough(quiet: int, autojump_clock: MockClock) -> None:
    watcher = await watch(autojump_clock, run=False, calls=[*[0] * quiet, 5])
    assert watcher.fired.get(ALERT) == watcher.end_s, "it fires at the first scrape after it, and no sooner"


async def test_what_happened_long_before_anybody_looked_is_over(autojump_clock: MockClock) -> None:
    watcher = await watch(autojump_clock, run=False, calls=[5, *[0] * 9], looks_from=7)
    assert ALERT not in watcher.fired
