"""Making a whole shard's file out of entries: under a scratch name until it is complete and on disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import apsw

from idemactor.core.delivery import Event
from idemactor.core.record import Incident
from idemactor.errors import StorageError
from idemactor.storage import check_sql, sqlite_writes
from idemactor.storage.base import Batch
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.reading import Whole
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_create import create_file, sync_path

T = TypeVar("T")

ROWS_PER_TRANSACTION: Final = 1_000
"""How many rows are written, and held in memory, at a time."""

_NEXT_INCIDENT: Final = (
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'incidents', ?1"
    " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'incidents')"
)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new shard begins.

    Attributes:
        shard: Its number.
        shards: How many there are.
        last_token: The last token that counts as granted.
        latest_ms: The latest time that counts as seen.
        journal_seq: Its journal's numbers begin behind this one.
        last_incident_id: Ids of incidents begin behind this one.
        checksums: Whether its pages have some.
    """

    shard: int
    shards: int
    last_token: int
    latest_ms: int
    journal_seq: int
    last_incident_id: int
    checksums: bool = True


class ShardBuilder:
    """A new shard's file; ``finish`` gives it its name. What callers stored is sealed with ``keys``.

    Raises:
        apsw.Error: It cannot be written.
        OSError: It cannot be written.
    """

    def __init__(self, path: Path, start: Start, keys: Keyring | None = None) -> None:
        self._path = path
        self._keys = keys
        self._start = start
        self._scratch = path.with_name(path.name + ".part")
        create_file(self._scratch, start.shard, start.shards, start.journal_seq, checksums=start.checksums)
        self._connection = apsw.Connection(str(self._scratch), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
        # A file without its name is thrown away after a power loss: what counts is the sync at the end.
        self._connection.pragma("synchronous", "OFF")
        self._connection.execute(_NEXT_INCIDENT, (start.last_incident_id,))

    def add(self, wholes: Iterable[Whole]) -> None:
        """Entries, each with an id of its own."""
        for some in _pieces(wholes):
            intents = {whole.entry.id: whole.intent for whole in some if whole.intent is not None}
            self._write(Batch(0, 0, [whole.entry for whole in some], intents=intents))

    def add_incidents(self, incidents: Iterable[Incident]) -> None:
        """Incidents, in order; no two of one key and token."""
        for some in _pieces(incidents):
            self._write(Batch(0, 0, incidents=list(some)))

    def add_events(self, events: Iterable[Event]) -> None:
        """Events, each with a ``seq`` of its own."""
        for some in _pieces(events):
            self._write(Batch(0, 0, events=list(some)))

    def finish(self, last_token: int = 0, latest_ms: int = 0) -> None:
        """Count what is there, bring it to disk, and give the file its name.

        Args:
            last_token: The last token that counts as granted, if it is higher than that of the start.
            latest_ms: The latest time that counts as seen, if it is later.
        """
        with self._connection:
            self._connection.execute(check_sql.COUNT_TALLIES)
            end = Batch(max(latest_ms, self._start.latest_ms), max(last_token, self._start.last_token))
            sqlite_writes.apply(self._connection, end, 0, delivers=False)
        seal(self._connection, self._scratch)
        os.rename(self._scratch, self._path)
        sync_path(self._path.parent)

    def close(self) -> None:
        """Let go of it; what is not finished is left under its scratch name."""
        self._connection.close()

    def _write(self, batch: Batch) -> None:
        with self._connection:
            # Of a new file no row has an id that was there before.
            sqlite_writes.apply(self._connection, batch, 0, delivers=False, keys=self._keys)


def seal(connection: apsw.Connection, path: Path) -> None:
    """Close a file that nobody else uses, all of it in the file itself and on disk.

    Raises:
        apsw.Error: It could not be written.
        OSError: It could not be synced.
        StorageError: Somebody else uses it.
    """
    connection.pragma("synchronous", "FULL")
    _, left = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    wal = path.with_name(path.name + "-wal")
    if left != 0 or (wal.exists() and wal.stat().st_size):
        raise StorageError(f"{path} is used by another program")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_path(path)


def _pieces(values: Iterable[T]) -> Iterator[Sequence[T]]:
    rest = iter(values)
    while some := list(islice(rest, ROWS_PER_TRANSACTION)):
        yield some
