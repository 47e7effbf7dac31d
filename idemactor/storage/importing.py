"""What an export wrote, into a new directory or beside what a directory holds.

What is read first goes into a *spool*, a shard's file of its own that ends with the import: so that nothing is begun
before the last line was read and found good, and so that it need not fit into memory. Then every key is looked up; and
only where none is there with something else are new files made of the old ones and the spool (``rebuilding.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.limits import CLOCK_BACKSTEP_MS_DEFAULT
from idemactor.errors import StartError, StorageError
from idemactor.storage import schema
from idemactor.storage.directory import DataDirectory, explained, wall_ms
from idemactor.storage.journal_file import Held
from idemactor.storage.layout import META_NAME, SHARDS_MAX, SPOOL_NAME, read_meta, shard_name
from idemactor.storage.lines import End
from idemactor.storage.places import holds_data, locked, refuse_strangers
from idemactor.storage.progress import Progress
from idemactor.storage.reading import ShardReader, Whole, read_shard
from idemactor.storage.rebuilding import Making, Rebuilt, rebuild
from idemactor.storage.resharding import open_readers, own
from idemactor.storage.sealing import Keyring
from idemactor.storage.sets import thrown_away
from idemactor.storage.spooling import Spool, changing, read_spool
from idemactor.storage.tokens import token_at
from idemactor.storage.unfinished import begin, discard
from idemactor.storage.writing import ROWS_PER_TRANSACTION

CONFLICTS_NAMED: Final = 100
"""How many keys a report of conflicts names."""

_TABLES: Final = ("records", "outcomes", "deliveries", "intents")
_DELETE_INCIDENT: Final = "DELETE FROM incidents WHERE token = ? AND tenant = ? AND namespace = ? AND key = ?"


class Conflicts(StorageError):
    """Keys are there already, with something else; nothing was changed.

    Attributes:
        count: How many.
        named: Some of them.
    """

    def __init__(self, count: int, named: Sequence[Identity]) -> None:
        super().__init__(f"{count} keys are there already, with something else; nothing was changed")
        self.count = count
        self.named = tuple(named)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    Attributes:
        entries: How many keys came in.
        present: How many were there already, with the same.
        events: How many events came in.
        incidents: How many incidents came in.
        shards: How many shards the directory has.
        rebuilt: How the new files were made; None: everything was there.
    """

    entries: int
    present: int
    events: int
    incidents: int
    shards: int
    rebuilt: Rebuilt | None


def import_lines(
    path: Path,
    file: BinaryIO,
    progress: Progress,
    *,
    shards: int | None = None,
    shards_default: int | None = None,
    checksums: bool | None = None,
    keys: Keyring | None = None,
) -> Imported:
    """Take in an export; an interrupted one leaves the directory as it was.

    Args:
        path: A directory that is empty, not there, or holds data that no server uses.
        file: The export.
        progress: Is told how far it is.
        shards: How many a new directory gets, and one that is there has to have.
        shards_default: How many a new directory gets where ``shards`` is None; None: as many as the export's.
        checksums: Whether pages of a new directory's files have some; None: they do.
        keys: What callers stored is sealed with them, and what is there already opened.

    Raises:
        Conflicts: Keys are there already, with something else.
        BadLine: The export cannot be read.
        StartError: The message says the way out.
        StorageError: Something in the directory is damaged.
    """
    if shards is not None and not 1 <= shards <= SHARDS_MAX:
        raise StartError(f"--shards is 1 to {SHARDS_MAX}, not {shards}")
    with explained(path), _target(path) as there_already, _spool_directory(path) as directory:
        meta = None if there_already is None else there_already.meta
        if meta is not None and shards not in (None, meta.shards):
            raise StartError(f"{path} has {meta.shards} shards; leave --shards out, and reshard it afterwards")
        with contextlib.ExitStack() as stack:
            there: Sequence[ShardReader] = []
            if meta is not None:
                there = stack.enter_context(open_readers(meta.home(path), meta, keys))
            spool = read_spool(directory / shard_name(0), file, progress, keys)
            present = _look_up(spool, there, progress, keys)
            left = End(spool.counted.entries - present.entries, *_rest(spool.counted, present))
            count = (shards or shards_default or spool.head.shards) if meta is None else meta.shards
            rebuilt = None
            if meta is None or left != End(0, 0, 0):
                read = stack.enter_context(read_shard(spool.path, Held(), keys))
                token = _least_token(spool, there)
                made = Making(checksums is not False if there_already is None else there_already.checksums, keys)
                sources = [*there, read]
                # No later import goes on with it.
                with thrown_away(path, BaseException):
                    rebuilt = rebuild(path, meta, "import", count, sources, progress, making=made, least_token=token)
        return Imported(left.entries, present.entries, left.events, left.incidents, count, rebuilt)
    raise AssertionError("a stack of contexts swallows nothing")


def _rest(counted: End, present: End) -> tuple[int, int]:
    return counted.events - present.events, counted.incidents - present.incidents


def _least_token(spool: Spool, there: Sequence[ShardReader]) -> int:
    """Where the export was taken, tokens may have been granted ever since."""
    now = wall_ms()
    told = ((spool.head.exported_at, "line 1: exported_at"), (spool.latest_ms, spool.latest_at))
    known, where = max(*told, *((each.latest_ms, "what is there") for each in there))
    if now + CLOCK_BACKSTEP_MS_DEFAULT < known:
        raise StartError(
            f"{where}: is {known - now} ms ahead of the clock of this machine, and tokens depend on it; set the clock"
            " where it lags"
        )
    return token_at(max(now, known))


@contextlib.contextmanager
def _target(path: Path) -> Iterator[DataDirectory | None]:
    """Own the directory; None where it holds nothing."""
    if path.is_dir() and read_meta(path) is not None:
        with own(path) as directory:
            yield directory
        return
    with locked(path):
        if read_meta(path) is not None or holds_data(path):
            raise StartError(
                f"{path} has no {META_NAME} and holds data; name another directory, or restore the whole directory:"
                f" `idemactor restore --replace BACKUP {path}`"
            )
        refuse_strangers(path)
        yield None


@contextlib.contextmanager
def _spool_directory(path: Path) -> Iterator[Path]:
    spool = path / SPOOL_NAME
    begin(spool)
    try:
        yield spool
    finally:
        with contextlib.suppress(OSError):
            discard(spool)


# ----------------------------------------------------------------------------------------------------- what is there


def _look_up(spool: Spool, there: Sequence[ShardReader], progress: Progress, keys: Keyring | None) -> End:
    """Take out of the spool what is there already, with the same; returns how much that was.

    Raises:
        Conflicts: Something else is there.
    """
    if not there:
        return End(0, 0, 0)
    with read_shard(spool.path, Held(), keys) as read:
        entries = _entries_there(read, there, spool.counted.entries, progress)
        ids = {event.id for reader in there for event in reader.events()} if spool.counted.events else set()
        events = [event.seq for event in read.events() if event.id in ids]
        incidents = [each for each in read.incidents() if _home(there, each.identity).has_incident(each)]
    with changing(spool.path) as connection, connection:
        for table in _TABLES:
            connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(each,) for each in entries])
        connection.executemany(schema.DELETE_EVENT, [(seq,) for seq in events])
        connection.executemany(_DELETE_INCIDENT, [(each.token, *each.identity) for each in incidents])
    return End(len(entries), len(events), len(incidents))


def _entries_there(read: ShardReader, there: Sequence[ShardReader], total: int, progress: Progress) -> list[int]:
    same: list[int] = []
    conflicts: list[Identity] = []
    count = 0
    for done, whole in enumerate(read.wholes()):
        if done % ROWS_PER_TRANSACTION == 0:
            progress("keys looked up", done, total)
        found = _home(there, whole.entry.identity).find(whole.entry.identity)
        if found is not None and _content(found) == _content(whole):
            same.append(whole.entry.id)
        elif found is not None:
            count += 1
            conflicts += [whole.entry.identity] if count <= CONFLICTS_NAMED else []
    if conflicts:
        raise Conflicts(count, conflicts)
    return same


def _home(there: Sequence[ShardReader], identity: Identity) -> ShardReader:
    return there[shard_of(identity_hash(identity), len(there))]


def _content(whole: Whole) -> tuple[object, ...]:
    """What makes two entries the same: not their numbers in their shards, nor their places in line."""
    record = whole.entry.record
    if record is not None and record.delivery is not None:
        record = replace(record, delivery=replace(record.delivery, seq=0))
    return record, whole.entry.tombstone, whole.intent
