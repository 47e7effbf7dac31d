"""A shard on a real file whose keys are all due: what its steps of alarm work take."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from bench.fill import Filling, fill
from idemactor.core.census import Census
from idemactor.core.clock import Clock
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.core.record import Entry
from idemactor.observability.observer import Observer
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.start import open_engines
from idemactor.storage.base import Engine
from idemactor.storage.directory import DataDirectory

WATCH_S: Final = 60.0
"""How long a backlog may take."""


@dataclass(slots=True)
class Seen(Observer):
    """What was seen of alarms.

    Attributes:
        steps_s: Seconds that each step took to decide.
        turns_s: Seconds from the first read of a turn that swept to the end of its write.
        done: Set once every key was dealt with.
    """

    keys: int
    steps_s: list[float] = field(default_factory=list)
    turns_s: list[float] = field(default_factory=list)
    done: trio.Event = field(default_factory=trio.Event)
    _turn_began: float = 0.0

    def swept(self, shard: int, alarms: int, seconds: float) -> None:  # noqa: ARG002
        """A step was decided."""
        self.steps_s.append(seconds)
        self.keys -= alarms
        if self.keys <= 0:
            self.done.set()

    def batch_written(self, shard: int, commands: int, commit_s: float, sync_s: float) -> None:  # noqa: ARG002
        """A turn is on disk."""
        self.turns_s.append(time.perf_counter() - self._turn_began)

    def loading(self) -> None:
        """A turn reads what it will decide."""
        self._turn_began = time.perf_counter()


class _Watched:
    """An engine that says when it is asked to read; everything else is its own."""

    def __init__(self, engine: Engine, seen: Seen) -> None:
        self._engine = engine
        self._seen = seen

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """As the engine's."""
        self._seen.loading()
        return await self._engine.load(identities)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def alarm_steps(directory: Path, keys: int) -> Seen:
    """Let one shard with ``keys`` keys that are due sweep them all."""
    now_ms = time.time_ns() // 1_000_000
    fill(Filling(str(directory), keys, 1, (), now_ms - 2_000, now_ms - 1_000, 1_000))
    seen = Seen(keys)
    trio.run(_sweep, directory, seen)
    shutil.rmtree(directory)
    return seen


async def _sweep(path: Path, seen: Seen) -> None:
    entropy = partial(random.getrandbits, ENTROPY_BITS)
    clock = Clock(time.time_ns() // 1_000_000, time.monotonic)
    with DataDirectory.open(path) as directory:
        async with open_engines(directory, "full") as engines:
            ((engine, opened),) = engines
            watched: Any = _Watched(engine, seen)
            policies = {"default": Policy()}
            shard = Shard(0, watched, policies, Census(), clock, entropy, seen, ShardSettings(), opened)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shard.run)
                with trio.fail_after(WATCH_S):
                    await seen.done.wait()
                shard.close()
