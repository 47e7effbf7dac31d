"""The journal's file: batches of all shards, in the order of their syncs. Everything of ``journal.py`` that blocks.

It is an SQLite file like the shards', so that torn writes, failed syncs and full disks are met by the same means (see
``sqlite_wal.py``), and not by a format of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from idemactor.storage.base import CommitResult
from idemactor.storage.sqlite_create import Kind, check_version, create
from idemactor.storage.sqlite_wal import Durability, WalFile, missing

APPLICATION_ID: Final = 0x49644D4A
"""Marks a file as one of our journals (bytes 68 to 71 of a SQLite file, https://www.sqlite.org/fileformat2.html)."""

FORMAT: Final = 1
"""The version of the table below. A file of another one is refused."""

NAME: Final = "journal.db"

# By shard and number, so that what a shard's file has taken over is one range to drop, and without an index.
_DDL: Final = """
CREATE TABLE batches (
    shard INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (shard, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), recoveries INTEGER NOT NULL) STRICT;
"""
KIND: Final = Kind("a journal", APPLICATION_ID, FORMAT, _DDL)

_INSERT_STATE: Final = "INSERT INTO state (one, recoveries) VALUES (1, 0)"
_INSERT: Final = "INSERT INTO batches (seq, shard, previous, body) VALUES (?, ?, ?, ?)"
_DROP: Final = "DELETE FROM batches WHERE shard = ? AND seq <= ?"
_SELECT: Final = "SELECT seq, shard, previous, body FROM batches ORDER BY shard, seq"
_SELECT_SHARD: Final = "SELECT seq, shard, previous, body FROM batches WHERE shard = ? ORDER BY seq"
_LATEST: Final = "SELECT coalesce(max(seq), 0) FROM batches"
_TOUCH: Final = "UPDATE state SET recoveries = recoveries + 1"


class Row(NamedTuple):
    """A batch in the journal: its number, its shard, the number of that shard's batch before it, and its bytes."""

    seq: int
    shard: int
    previous: int
    body: bytes


def create_journal(path: Path) -> None:
    """Make an empty journal at ``path``, see ``sqlite_create.create``."""
    create(path, KIND, _INSERT_STATE)


def read_all(connection: apsw.Connection) -> list[Row]:
    """Every batch of every shard, for an offline check.

    Raises:
        apsw.Error: It cannot be read.
    """
    return [Row(*row) for row in connection.execute(_SELECT)]


class JournalFile(WalFile[int]):
    """The connection to the journal; ``open`` returns the highest number in it, 0 where it is empty."""

    def __init__(self, path: Path, durability: Durability = "full", vfs: str | None = None) -> None:
        super().__init__(path, durability, vfs)

    def append(self, rows: Sequence[Row], done: Mapping[int, int]) -> CommitResult:
        """Append batches as one transaction, and drop what the shards' own files hold.

        Args:
            rows: The batches.
            done: By shard, the number up to which its file holds everything.
        """

        def work(connection: apsw.Connection) -> None:
            connection.executemany(_INSERT, rows)
            if done:
                connection.executemany(_DROP, done.items())

        result = self.transact(work)
        if self.wants_maintenance:
            self.maintain()
        return result

    def read_batches(self, shard: int) -> list[Row]:
        """The batches of a shard, in order.

        Raises:
            StorageError: The file is broken, or reading it failed.
        """

        def question(connection: apsw.Connection) -> list[Row]:
            return [Row(*row) for row in connection.execute(_SELECT_SHARD, (shard,))]

        return self.read(question)

    def drop(self, done: Mapping[int, int]) -> None:
        """Drop what the shards' own files hold; a failure leaves it for the next time."""
        if done and not self.broken:
            self.append([], done)

    def _create(self) -> None:
        raise missing(self._name)

    def _greet(self, connection: apsw.Connection) -> None:
        check_version(connection, self._name, KIND)

    def _read_state(self, connection: apsw.Connection) -> int:
        return int(connection.execute(_LATEST).get)

    def _touch(self, connection: apsw.Connection) -> None:
        connection.execute(_TOUCH)
