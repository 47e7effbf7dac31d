"""The storage of a client that runs its own shards on a data directory."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import trio

from idemactor.client.clock import SystemClock
from idemactor.client.embedded import OpenShards, Shards
from idemactor.core.clock import Clock, ClockTooFarBehind, start_time
from idemactor.core.limits import CLOCK_BACKSTEP_MS_DEFAULT
from idemactor.core.policy import Policy
from idemactor.errors import StartError, StorageError
from idemactor.storage.base import Engine, Opened
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import JournalFile
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.sqlite import SqliteEngine


def on_disk(
    path: Path, namespaces: Mapping[str, Policy] | None, shards: int | None, durability: Literal["full", "process"]
) -> Callable[[], Shards]:
    """Shards on a data directory, which is theirs while they run."""

    @asynccontextmanager
    async def opening() -> AsyncIterator[OpenShards]:
        with DataDirectory.open(path, shards) as directory:
            async with _opened(directory, durability) as engines:
                said = [opened for _, opened in engines]
                _check_namespaces(path, namespaces, said)
                yield OpenShards(engines, _system_clock(path, [opened.latest_ms for opened in said]))

    return lambda: Shards(str(path), namespaces, opening, None)


@asynccontextmanager
async def _opened(
    directory: DataDirectory, durability: Literal["full", "process"]
) -> AsyncIterator[list[tuple[Engine, Opened]]]:
    """Every shard's engine, open, with what it said: the same files, and the same journal, as a server's."""
    journal = Journal(JournalFile(directory.journal_path, durability))
    engines: list[tuple[Engine, Opened]] = []
    try:
        for shard in range(directory.shards):
            place = directory.engine_path(shard)
            # Whatever the durability: the journal lets go of what a shard's file has.
            file = SqliteEngine(place, shard=shard, shards=directory.shards)
            engine = JournaledEngine(shard, file, journal)
            try:
                engines.append((engine, await engine.open()))
            except StorageError as error:
                raise StartError(str(error)) from error
        yield engines
    finally:
        with trio.CancelScope(shield=True):
            for opened, _ in engines:
                await opened.close()
            await journal.close()


def _check_namespaces(path: Path, namespaces: Mapping[str, Policy] | None, said: Sequence[Opened]) -> None:
    """A namespace that was left out while it has records would leave them without settings."""
    held = {namespace for shard in said for (_, namespace), tally in shard.tallies.items() if tally.records > 0}
    lost = sorted(held - namespaces.keys()) if namespaces is not None else []
    if lost:
        raise StartError(f"{path} has records in the namespace {lost[0]}, which is not among those that were given")


def _system_clock(path: Path, latest_ms: Sequence[int]) -> Clock:
    try:
        start_ms = start_time(time.time_ns() // 1_000_000, max(latest_ms), CLOCK_BACKSTEP_MS_DEFAULT)
    except ClockTooFarBehind as error:
        raise StartError(f"{error}: set the clock right before using {path}") from error
    return Clock(start_ms, SystemClock().now_s)
