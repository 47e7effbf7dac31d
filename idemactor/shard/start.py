"""What comes before shards can run on a data directory: for a server, and for a program that runs its own."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import trio

from idemactor.core.ledger import visible
from idemactor.core.limits import LIST_LIMIT_MAX
from idemactor.core.policy import Policy
from idemactor.errors import StartError, StorageError
from idemactor.storage.base import Engine, Opened, RecordQuery
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import JournalFile
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.sqlite_wal import Durability

Engines: TypeAlias = Sequence[tuple[Engine, Opened]]
"""Every shard's engine, open, and what it said."""

UNCONFIGURED: Final = Policy()
"""What counts for the remains of a namespace that has no settings any more."""


@contextlib.asynccontextmanager
async def open_engines(
    directory: DataDirectory,
    durability: Durability,
    shards: Iterable[int] | None = None,
    keys: Keyring | None = None,
) -> AsyncIterator[Engines]:
    """Open shards behind their journals; all are closed in the end, whoever had them meanwhile.

    Args:
        directory: Theirs.
        durability: Of the journals.
        shards: Which ones, in order; None: all of them.
        keys: What callers stored is sealed with them; None: it is kept as it is.

    Raises:
        StartError: One cannot be opened; the message says the way out.
    """
    journals: dict[Path, Journal] = {}
    engines: list[tuple[Engine, Opened]] = []
    try:
        for shard in range(directory.shards) if shards is None else shards:
            # Who is told to stop while it starts hears it between two shards.
            await trio.lowlevel.checkpoint()
            path = directory.journal_path(shard)
            journal = journals.get(path) or journals.setdefault(path, Journal(JournalFile(path, durability)))
            # Whatever the durability, the file's own is full: the journal lets go of what a shard's file has.
            file = SqliteEngine(directory.engine_path(shard), shard=shard, shards=directory.shards, keys=keys)
            engine = JournaledEngine(shard, file, journal, keys=keys)
            try:
                engines.append((engine, await engine.open()))
            except StorageError as error:
                raise StartError(str(error)) from error
        yield engines
    finally:
        with trio.CancelScope(shield=True):
            for opened, _ in engines:
                await opened.close()
            for journal in journals.values():
                await journal.close()


async def settle_journals(
    directory: DataDirectory, durability: Durability, workers: int, keys: Keyring | None = None
) -> None:
    """Where another number of workers served the directory last: bring its journals into the files, make new ones.

    It may be interrupted at any step, and is then done again: until the directory names the new journals, the old ones
    count, and the files hold nothing that these do not know.

    Raises:
        StartError: A shard cannot be opened, or the directory cannot be written.
    """
    if directory.workers == workers:
        return
    async with open_engines(directory, durability, keys=keys) as engines:
        ends = {shard: opened.journal_seq for shard, (_, opened) in enumerate(engines)}
        for engine, _ in engines:
            await _write_behind(engine)
    directory.hand_out_journals(workers, ends)


async def _write_behind(engine: Engine) -> None:
    """See that a shard's file holds all that its journal does, which is about to go.

    On a full disk a shard opens all the same, so that it can be read; its journal has what its file has no room for.
    """
    try:
        # What has to ask the file itself brings it up to the journal first.
        await engine.alarms(1)
    except StorageError as error:
        raise StartError(f"{error}; make room, or start with as many workers as before") from error


def with_remains(policies: Mapping[str, Policy]) -> Mapping[str, Policy]:
    """The settings by namespace. What is left of one that has none has ended, and somebody has to sweep it up."""
    return defaultdict(lambda: UNCONFIGURED, policies)


async def lost_namespaces(engines: Engines, configured: Collection[str], now_ms: int) -> list[str]:
    """The namespaces that have no settings and still have a record that time has not ended, in order."""
    held = {key for _, opened in engines for key, tally in opened.tallies.items() if tally.records > 0}
    lost = set()
    for tenant, namespace in held:
        if namespace not in configured and await _has_live_record(engines, tenant, namespace, now_ms):
            lost.add(namespace)
    return sorted(lost)


async def _has_live_record(engines: Engines, tenant: str, namespace: str, now_ms: int) -> bool:
    for engine, _ in engines:
        after_id = 0
        query = RecordQuery(tenant, namespace, now_ms)
        while entries := await engine.list_records(query, after_id, LIST_LIMIT_MAX):
            if any(visible(entry, UNCONFIGURED, now_ms) for entry in entries):
                return True
            after_id = entries[-1].id
    return False
