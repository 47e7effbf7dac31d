"""The decision itself, in the shard, and a step of its alarm: in this process, without a door."""

from __future__ import annotations

import functools
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from bench.alarm_steps import alarm_steps
from bench.harness import PERCENTILES, Result, Sample, Section, Subject, percentile, run
from bench.plan import Bench
from idemactor.core.census import Census
from idemactor.core.commands import Command, Commit, Reserve
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.keys import Identity
from idemactor.core.ledger import Ledger
from idemactor.core.policy import Policy
from idemactor.core.replies import Reply, Reserved

BATCH: Final = 32
"""Commands that a turn decides together."""


@dataclass(frozen=True, slots=True)
class _Caller:
    closed: bool = False


class _Load(Protocol):
    """What a shard is asked, batch by batch."""

    def next_batch(self) -> list[Command]: ...

    def answered(self, replies: list[Reply]) -> None: ...


class _Reserves:
    """New keys."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def next_batch(self) -> list[Command]:
        return [Reserve(_identity(number)) for number in itertools.islice(self._numbers, BATCH)]

    def answered(self, replies: list[Reply]) -> None:
        assert all(isinstance(reply, Reserved) for reply in replies)


class _Cycles(_Reserves):
    """A batch of reserves, then the commits that end them."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[Command] = []
        self._asked: list[Command] = []

    def next_batch(self) -> list[Command]:
        self._asked, self._due = (self._due, []) if self._due else (super().next_batch(), [])
        return self._asked

    def answered(self, replies: list[Reply]) -> None:
        pairs = zip(self._asked, replies, strict=True)
        self._due = [Commit(asked.identity, reply.token) for asked, reply in pairs if isinstance(reply, Reserved)]


class _Duplicates:
    """One key that is held already."""

    def next_batch(self) -> list[Command]:
        return [Reserve(_identity(0)) for _ in range(BATCH)]

    def answered(self, replies: list[Reply]) -> None:
        assert len(replies) == BATCH


def _identity(number: int) -> Identity:
    return Identity("default", "default", f"decided-{number}")


def measure(bench: Bench) -> Section:
    """What a turn of the shard costs a command, and what a step of alarm work holds the shard for."""
    subjects = [
        Subject("decision/reserve", "decide: reserve of new keys", functools.partial(_decide, _Reserves)),
        Subject("decision/cycle", "decide: reserve, then commit", functools.partial(_decide, _Cycles)),
        Subject("decision/hot", "decide: duplicates of one key", functools.partial(_decide, _Duplicates)),
    ]
    section = Section("decision", "The decision itself, and a step of alarm work", run(subjects, bench.plan.rounds))
    steps: list[Sample] = []
    turns: list[Sample] = []
    for _ in range(bench.plan.rounds.repetitions):
        seen = alarm_steps(bench.scratch / "alarms", bench.plan.alarm_keys)
        steps.append(_milliseconds(seen.steps_s))
        turns.append(_milliseconds(seen.turns_s))
    section.results.append(Result("alarm/step", "alarm: deciding one step", steps))
    section.results.append(Result("alarm/turn", "alarm: the whole turn, its reads and writes included", turns))
    section.notes.append(
        f"Deciding is measured in turns of {BATCH} commands, latencies are a turn's share for one command. An alarm's"
        " turn reads the keys that are due, decides, and writes and syncs what came of it."
    )
    return section


def _milliseconds(seconds: list[float]) -> Sample:
    ordered = sorted(seconds)
    figures = {name: percentile(ordered, share) * 1000 for name, share in PERCENTILES.items()}
    return {**figures, "max_ms": max(ordered, default=0.0) * 1000}


def _decide(load: Callable[[], _Load], seconds: float) -> Sample:
    """Turns as the actor makes them, without reading and writing, for ``seconds``."""
    entropy = functools.partial(random.getrandbits, ENTROPY_BITS)
    ledger: Ledger[_Caller] = Ledger(0, {"default": Policy()}, Census(), entropy, 0, {})
    commands, caller = load(), _Caller()
    shares: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        batch = commands.next_batch()
        started = time.perf_counter()
        ledger.begin(now=1)
        for command in batch:
            ledger.apply(caller, command)
        work = ledger.finish()
        shares.append((time.perf_counter() - started) / len(batch))
        commands.answered([reply for _, reply in work.replies])
    return {"ops_per_s": len(shares) / sum(shares), **_milliseconds(shares)}
