"""How much a run measures: everything, a quick look, or so little that it fits into a test."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.harness import Rounds, Section
from bench.peers import install
from bench.peers.durable_object import DurableObject, durable_object
from bench.peers.postgres import Postgres, postgres
from bench.peers.redis import Redis, redis
from bench.processes import BenchError

Load = tuple[int, int]
"""Connections, and calls in flight on each."""

SHARDS: Final = 4
"""The default of a new data directory, and what the targets are about."""

ONE: Final[Load] = (1, 1)
MANY: Final[Load] = (32, 1)
PIPELINED: Final[Load] = (8, 64)
DEEP: Final[Load] = (8, 512)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run. Times in seconds, rates in calls a second.

    Attributes:
        peers: Whether the real peers are measured beside the server.
        brief: Whether only what the targets name is measured where that is long enough.
        loads: For calls at the default number of shards over TCP.
        side_loads: For everything that is measured beside that: Unix sockets, other numbers of shards, one hot shard.
        shard_counts: Other numbers of shards.
        tasks: How many tasks a service has.
        rates: Arrival rates of the open loads.
        keys: Live keys to compare, the few and the many.
        keys_huge: Once as many as this, 0 for never.
        huge_until_s: Not begun once the run has taken so long.
        alarm_keys: How many keys are due in the one shard whose alarm is watched.
        storm_keys: How many keys expire within a second.
        storms: How often.
        calm_s: How long the callers are watched before it.
        storm_s: For how long a storm is watched at most.
        starts: How often a start and a kill -9 are measured.
        waiting: How many entries a full outbox has.
    """

    name: str
    peers: bool
    brief: bool
    rounds: Rounds
    loads: tuple[Load, ...]
    side_loads: tuple[Load, ...]
    shard_counts: tuple[int, ...]
    tasks: tuple[int, ...]
    rates: tuple[float, ...]
    keys: tuple[int, int]
    keys_huge: int
    huge_until_s: float
    alarm_keys: int
    storm_keys: int
    storms: int
    calm_s: float
    storm_s: float
    starts: int
    waiting: int


FULL: Final = Plan(
    name="full",
    peers=True,
    brief=False,
    rounds=Rounds(repetitions=5, seconds=1.2, warm_up_s=0.5),
    loads=(ONE, MANY, PIPELINED, DEEP),
    side_loads=(MANY, PIPELINED),
    shard_counts=(1, 16),
    tasks=(1, 32, 256),
    rates=(1_000, 5_000, 10_000, 20_000, 30_000),
    keys=(10_000, 1_000_000),
    keys_huge=10_000_000,
    huge_until_s=24 * 60,
    alarm_keys=40_000,
    storm_keys=1_000_000,
    storms=3,
    calm_s=5.0,
    storm_s=60.0,
    starts=5,
    waiting=1_000_000,
)

QUICK: Final = Plan(
    name="quick",
    peers=True,
    brief=True,
    rounds=Rounds(repetitions=3, seconds=0.6, warm_up_s=0.4),
    loads=(ONE, MANY, PIPELINED),
    side_loads=(MANY,),
    shard_counts=(1, 16),
    tasks=(32,),
    rates=(1_000, 20_000),
    keys=(10_000, 1_000_000),
    keys_huge=0,
    huge_until_s=0.0,
    alarm_keys=10_000,
    storm_keys=200_000,
    storms=1,
    calm_s=3.0,
    storm_s=15.0,
    starts=2,
    waiting=50_000,
)

TINY: Final = Plan(
    name="tiny",
    peers=False,
    brief=True,
    rounds=Rounds(repetitions=1, seconds=0.1, warm_up_s=0.0),
    loads=(ONE, PIPELINED),
    side_loads=(MANY,),
    shard_counts=(2,),
    tasks=(4,),
    rates=(200,),
    keys=(100, 1_000),
    keys_huge=0,
    huge_until_s=0.0,
    alarm_keys=500,
    storm_keys=1_000,
    storms=1,
    calm_s=0.5,
    storm_s=5.0,
    starts=1,
    waiting=500,
)


@dataclass(slots=True)
class Bench:
    """One run: its plan, a folder on the disk that is measured, and the peers that could be had.

    Attributes:
        load_before: How many processes were at work on this machine in the minute before: 0 is a quiet one.
        missing: Why a peer is not there, by its name.
        evidence: What proves that a peer does what the comparison needs.
    """

    plan: Plan
    scratch: Path
    started: float = field(default_factory=time.monotonic)
    load_before: float = field(default_factory=lambda: os.getloadavg()[0])
    redis: Redis | None = None
    postgres: Postgres | None = None
    durable_object: DurableObject | None = None
    missing: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, object] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)

    def elapsed_s(self) -> float:
        """How long the run has taken so far."""
        return time.monotonic() - self.started

    def start_peers(self, stack: ExitStack) -> None:
        """Install and start the peers; one that cannot be had is named in the results and left out."""
        try:
            self.redis = stack.enter_context(redis(self.scratch / "redis"))
        except BenchError as error:
            self.missing["Redis"] = str(error)
        try:
            self.postgres = stack.enter_context(postgres(self.scratch / "postgres"))
        except BenchError as error:
            self.missing["PostgreSQL"] = str(error)
        try:
            self.durable_object = stack.enter_context(durable_object(self.scratch / "workerd"))
        except BenchError as error:
            self.missing["workerd"] = str(error)
        self.evidence["versions"] = install.versions()
