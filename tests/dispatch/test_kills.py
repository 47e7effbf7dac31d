"""The relay is killed at random, and started again over the same shards: nothing is lost, nothing is doubled."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from idemactor.dispatch.destination import Endpoint, StatusPage
from tests.dispatch.rig import ORIGIN, FakeBell, FakeShards, destination, running
from tests.gateway.proxy.rig import Received

ROUNDS = 40
ENTRIES = 60


class Exchange:
    """A destination with a memory: it executes, and dies before it answers, as chance has it."""

    def __init__(self, chance: random.Random, *, recognises: bool) -> None:
        self._chance = chance
        self._recognises = recognises
        self.executed: list[str] = []

    async def __call__(self, received: Received) -> None:
        if received.method == "GET":
            known = received.target.rpartition("/")[2] in self.executed
            await received.answer(200 if known else 404, b"known")
            return
        operation_id = received.header("idempotency-key")[0]
        await trio.sleep(self._chance.random() * 0.5)
        if self._chance.random() < 0.1:
            await received.stream.aclose()
            return
        if not (self._recognises and operation_id in self.executed):
            self.executed.append(operation_id)
        await trio.sleep(self._chance.random() * 0.5)
        if self._chance.random() < 0.1:
            await received.stream.aclose()
            return
        await received.answer(200, b"done")


@pytest.mark.parametrize("way", ["recognises", "is asked", "neither"])
async def test_killed_at_random_nothing_is_executed_twice(way: str, autojump_clock: MockClock) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    page = StatusPage(Endpoint(ORIGIN, "/orders/{operation_id}"), released=frozenset({404}), after_ms=5_000)
    target = destination(downstream_dedups=way == "recognises", status=page if way == "is asked" else None)
    exchange = Exchange(chance, recognises=way == "recognises")
    shards = FakeShards(3, recognised=target.downstream_dedups, bell=FakeBell())
    for number in range(ENTRIES):
        shards.add(str(number), shard=chance.randrange(3), order_key=chance.choice(["x", "y", None, None]))
    for _ in range(ROUNDS):
        async with running(target, exchange, keep=shards):
            shards.is_dead = False
            await trio.sleep(chance.random() * 3)
            shards.is_dead = True
    shards.is_dead = False
    async with running(target, exchange, keep=shards) as rig:
        if way == "neither":
            await trio.sleep(600)
        else:
            await rig.until_states("succeeded", most_s=7_200)
    counts = Counter(exchange.executed)
    assert max(counts.values()) == 1, "it was executed twice"
    if way == "neither":
        assert all(row.state == "in_doubt" or counts[row.operation_id] for row in shards.rows if row.order_key is None)
    else:
        assert len(counts) == ENTRIES, "one was lost"
    for lane in ("x", "y"):
        ordered = [row.operation_id for row in shards.rows if row.order_key == lane and counts[row.operation_id]]
        assert [one for one in exchange.executed if one in ordered] == ordered, "a lane was overtaken"
