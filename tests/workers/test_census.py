"""Counts of several workers: each adds up its own and what it heard of the others'."""

from __future__ import annotations

import random

from idemactor.core.tally import TallyKey
from idemactor.workers.census import SharedCensus

KEYS: tuple[TallyKey, ...] = (("acme", "trade"), ("acme", "pay"), ("zeta", "trade"))


def test_once_all_was_said_all_know_the_same() -> None:
    chance = random.Random(seed := random.randrange(2**32))
    workers = [SharedCensus() for _ in range(3)]
    truth: dict[tuple[int, int, TallyKey], int] = {}
    for _ in range(300):
        number, shard, key = chance.randrange(3), chance.randrange(2), chance.choice(KEYS)
        if chance.random() < 0.1:
            counts = {key: chance.randrange(5) for key in chance.sample(KEYS, 2)}
            workers[number].replace(shard, counts)
            truth.update({(number, shard, key): counts.get(key, 0) for key in KEYS})
        else:
            delta = chance.choice((-1, 1, 1))
            workers[number].add(shard, key, delta)
            truth[number, shard, key] = truth.get((number, shard, key), 0) + delta
        if chance.random() < 0.2:
            _tell(workers, number)
    for number in range(3):
        _tell(workers, number)
    for key in KEYS:
        total = sum(count for (_, _, counted), count in truth.items() if counted == key)
        assert [worker.total(key) for worker in workers] == [total] * 3, f"seed {seed}"


def _tell(workers: list[SharedCensus], number: int) -> None:
    counts = workers[number].own(workers[number].changed)
    workers[number].changed.clear()
    for other, worker in enumerate(workers):
        if other != number:
            worker.heard(number, counts)


def test_what_a_worker_says_again_counts_once() -> None:
    census = SharedCensus()
    census.heard(1, [("acme", "trade", 3)])
    census.heard(1, [("acme", "trade", 3)])
    census.heard(2, [("acme", "trade", 1)])
    census.add(0, ("acme", "trade"), 2)
    assert census.total(("acme", "trade")) == 6
    assert census.own() == (("acme", "trade", 2),)


def test_a_worker_that_came_back_with_less_is_believed() -> None:
    census = SharedCensus()
    census.heard(1, [("acme", "trade", 3), ("acme", "pay", 2)])
    census.heard(1, [("acme", "trade", 4)], whole=True)
    assert [census.total(key) for key in KEYS] == [4, 0, 0]
    census.heard(1, [], whole=True)
    assert [census.total(key) for key in KEYS] == [0, 0, 0]
