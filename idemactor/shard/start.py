"""What comes before shards can run on a data directory: for a server, and for a program that runs its own."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import trio

from idemactor.core.ledger import visible
from idemactor.core.limits import LIST_LIMIT_MAX
from idemactor.core.policy import Policy
from idemactor.errors import StartError, StorageError, UnfitError
from idemactor.observability.logs import log_event
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

_log = logging.getLogger(__name__)

UNCONFIGURED: Final = Policy()
"""What counts for the remains of a namespace that has no settings any more."""


@dataclass(frozen=True, slots=True)
class FoundShards:
    """The shards of a directory, or of one of its workers, as a start finds them.

    Attributes:
        engines: All of them, by number. One that could not be opened is closed, and may be opened later.
        opened: What those said that are open.
        damaged: What is wrong with the others.
        written_ms: When the files of those were last written, by the wall clock of then, milliseconds since the
            epoch: the next best thing to the time that is in them. 0 where all are open.
    """

    engines: dict[int, Engine]
    opened: dict[int, Opened]
    damaged: dict[int, StorageError]
    written_ms: int = 0

    @property
    def whole(self) -> Engines:
        """Those that are open, in order."""
        return [(self.engines[shard], self.opened[shard]) for shard in sorted(self.opened)]

    async def set_aside(self, shard: int, error: StorageError) -> None:
        """Let go of a shard that is open and cannot be served, as if it had not been opened."""
        del self.opened[shard]
        self.damaged[shard] = error
        await self.engines[shard].close()


@contextlib.asynccontextmanager
async def open_engines(
    directory: DataDirectory, durability: Durability, keys: Keyring | None = None
) -> AsyncIterator[Engines]:
    """Open all shards behind their journals; all are closed in the end, whoever had them meanwhile.

    Args:
        directory: Theirs.
        durability: Of the journals.
        keys: What callers stored is sealed with them; None: it is kept as it is.

    Raises:
        StartError: One cannot be opened; the message says the way out.
    """
    async with opening(directory, *_make(directory, durability, range(directory.shards), keys)) as found:
        for error in found.damaged.values():
            raise StartError(str(error)) from error
        yield found.whole


@contextlib.asynccontextmanager
async def open_shards(
    directory: DataDirectory, durability: Durability, keys: Keyring | None = None, mine: Collection[int] | None = None
) -> AsyncIterator[FoundShards]:
    """As ``open_engines``, for whoever serves: a shard that is damaged costs itself alone.

    Args:
        directory: Theirs.
        durability: Of the journals.
        keys: See ``open_engines``.
        mine: Which shards, of a directory that was looked at as a whole before: whatever is wrong is theirs alone.

    Raises:
        StartError: Nothing can be served, or somebody made a mistake that no waiting mends (``UnfitError``).
    """
    shards = range(directory.shards) if mine is None else mine
    async with opening(directory, *_make(directory, durability, shards, keys)) as found:
        if mine is None:
            _refuse_mistakes(directory, found)
        yield found


def _refuse_mistakes(directory: DataDirectory, found: FoundShards) -> None:
    for error in found.damaged.values():
        if isinstance(error, UnfitError):
            raise StartError(str(error)) from error
    if found.damaged and _out_of_descriptors():
        raise StartError("too many files are open; raise the limit (ulimit -n)")
    if not found.opened:
        said = dict.fromkeys(map(str, found.damaged.values()))
        raise StartError("\n".join([f"data directory {directory.path}: no shard can be read", *said]))


def _out_of_descriptors() -> bool:
    """Whether no file can be opened any more, which SQLite says of each in the words that it has for a missing one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False


def _make(
    directory: DataDirectory, durability: Durability, shards: Collection[int], keys: Keyring | None
) -> tuple[dict[int, Engine], dict[Path, Journal]]:
    """Engines by their numbers, and their journals by their files; nothing is open yet."""
    journals: dict[Path, Journal] = {}
    engines: dict[int, Engine] = {}
    checksums = directory.checksums
    for shard in shards:
        path = directory.journal_path(shard)
        if path not in journals:
            journals[path] = Journal(JournalFile(path, durability, checksums=checksums))
        # Whatever the durability, the file's own is full: the journal lets go of what a shard's file has.
        place = directory.engine_path(shard)
        file = SqliteEngine(place, shard=shard, shards=directory.shards, keys=keys, checksums=checksums)
        engines[shard] = JournaledEngine(shard, file, journals[path], keys=keys)
    return engines, journals


@contextlib.asynccontextmanager
async def opening(
    directory: DataDirectory, engines: dict[int, Engine], journals: Mapping[Path, Journal]
) -> AsyncIterator[FoundShards]:
    """Open what can be opened; all are closed in the end, whoever had them meanwhile.

    Args:
        directory: Theirs.
        engines: By shard; all those of each journal.
        journals: By file.
    """
    found = FoundShards(engines, {}, {})
    # Opening writes.
    written_ms = {shard: _written_ms(directory, shard) for shard in engines}
    try:
        for shard in engines:
            # Who is told to stop while it starts hears it between two shards.
            await trio.lowlevel.checkpoint()
            await _open(found, shard)
        for shard in [shard for shard in found.opened if journals[directory.journal_path(shard)].broken]:
            # Another shard found the journal damaged: this one has to know before anybody asks it for something.
            if found.opened[shard].alone is None:
                await found.engines[shard].close()
                await _open(found, shard)
        for path, journal in journals.items():
            await _renew_where_nothing_is_missing(directory, path, journal, found)
        yield replace(found, written_ms=max((written_ms[shard] for shard in found.damaged), default=0))
    finally:
        with trio.CancelScope(shield=True):
            for engine in engines.values():
                await engine.close()
            for journal in journals.values():
                await journal.close()


async def _open(found: FoundShards, shard: int) -> None:
    found.opened.pop(shard, None)
    try:
        found.opened[shard] = await found.engines[shard].open()
        found.damaged.pop(shard, None)
    except StorageError as error:
        found.damaged[shard] = error


def _written_ms(directory: DataDirectory, shard: int) -> int:
    """When the files of a shard were last written, milliseconds since the epoch; 0 where there are none."""
    latest_ns = 0
    for path in (directory.engine_path(shard), directory.journal_path(shard)):
        for file in (path, path.with_name(path.name + "-wal")):
            with contextlib.suppress(OSError):
                latest_ns = max(latest_ns, file.stat().st_mtime_ns)
    return latest_ns // 1_000_000


async def _renew_where_nothing_is_missing(
    directory: DataDirectory, path: Path, journal: Journal, found: FoundShards
) -> None:
    """Put an empty journal in the place of a damaged one, where the files of all its shards have everything."""
    shards = [shard for shard in range(directory.shards) if directory.journal_path(shard) == path]
    opened = [found.opened[shard] for shard in shards if shard in found.opened]
    if len(opened) < len(shards) or any(state.alone is None for state in opened):
        return
    for shard in shards:
        await found.engines[shard].close()
    await journal.let_go()
    try:
        directory.renew_journal(path, {shard: found.opened[shard].journal_seq for shard in shards})
    except StorageError as error:
        log_event(_log, logging.ERROR, "journal_not_renewed", what=str(error))
    else:
        log_event(_log, logging.ERROR, "journal_renewed", what=opened[0].alone)
    for shard in shards:
        await _open(found, shard)


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
    try:
        async with open_engines(directory, durability, keys) as engines:
            ends = {shard: opened.journal_seq for shard, (_, opened) in enumerate(engines)}
            for engine, _ in engines:
                await _write_behind(engine)
    except StartError as error:
        if isinstance(error.__cause__, UnfitError):
            raise
        raise StartError(
            f"{error}\nnothing may be missing where the number of workers changes: start with workers ="
            f" {directory.workers} meanwhile"
        ) from error
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
        # A file that turns out to be damaged does so to its shard as well, which answers for it.
        with contextlib.suppress(StorageError):
            while entries := await engine.list_records(query, after_id, LIST_LIMIT_MAX):
                if any(visible(entry, UNCONFIGURED, now_ms) for entry in entries):
                    return True
                after_id = entries[-1].id
    return False
