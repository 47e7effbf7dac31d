"""The storage of a client that runs its own shards on a data directory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from idemactor.client.clock import SystemClock
from idemactor.client.embedded import OpenShards, Shards
from idemactor.core.clock import Clock, ClockNotSet, ClockTooFarBehind, start_time
from idemactor.core.limits import CLOCK_BACKSTEP_MS_DEFAULT
from idemactor.core.policy import Policy
from idemactor.errors import StartError
from idemactor.shard.start import Engines, lost_namespaces, open_engines, settle_journals
from idemactor.storage.directory import DataDirectory


def on_disk(
    path: Path, namespaces: Mapping[str, Policy] | None, shards: int | None, durability: Literal["full", "process"]
) -> Callable[[], Shards]:
    """Shards on a data directory, which is theirs while they run."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[OpenShards]:
        with DataDirectory.open(path, shards) as directory:
            await settle_journals(directory, durability, 1)
            async with open_engines(directory, durability) as engines:
                clock = _system_clock(path, [opened.latest_ms for _, opened in engines])
                await _check_namespaces(path, namespaces, engines, clock.now_ms())
                yield OpenShards(engines, clock)

    return lambda: Shards(str(path), namespaces, opening, None)


async def _check_namespaces(path: Path, namespaces: Mapping[str, Policy] | None, engines: Engines, now_ms: int) -> None:
    """A namespace that was left out while it has live records would leave them without settings."""
    lost = await lost_namespaces(engines, namespaces, now_ms) if namespaces is not None else []
    if lost:
        raise StartError(f"{path} has records in the namespace {lost[0]}, which is not among those that were given")


def _system_clock(path: Path, latest_ms: Sequence[int]) -> Clock:
    try:
        start_ms = start_time(time.time_ns() // 1_000_000, max(latest_ms), CLOCK_BACKSTEP_MS_DEFAULT)
    except ClockNotSet as error:
        raise StartError(f"the wall clock shows a time before 2025: set it before using {path}") from error
    except ClockTooFarBehind as error:
        raise StartError(f"{error}: set the clock right before using {path}") from error
    return Clock(start_ms, SystemClock().now_s)
