"""The journal's file: batches of all shards, in the order of their syncs. Everything of ``journal.py`` that blocks.

It is an SQLite file like the shards', so that torn writes, failed syncs and full disks are met by the same means (see
``sqlite_wal.py``), and not by a format of our own.

Numbers ascend over all shards, and begin at a random one in every directory. Every batch names the shard's batch
before it, and of every shard the journal remembers up to where it let go of its batches. So a shard's file and the
journal either fit, whatever crash came between them, or it shows that one of them is older than the other or of
another directory, and nothing is lost without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import apsw

from idemactor.errors import DamagedError, UnfitError
from idemactor.storage.base import CommitResult
from idemactor.storage.checksums import checked_vfs, has_checksums
from idemactor.storage.sealing import Keyring, is_sealed, unseal
from idemactor.storage.sqlite_create import Kind, check_version, create
from idemactor.storage.sqlite_wal import Durability, WalFile, damaged, missing, refusal
from idemactor.storage.watermark import Watermark, lost_end, synced_up_to

APPLICATION_ID: Final = 0x49644D4A
"""Marks a file as one of our journals (bytes 68 to 71 of a SQLite file, https://www.sqlite.org/fileformat2.html)."""

FORMAT: Final = 1
"""The version of the tables below. A file of another one is refused."""

NAME: Final = "journal.db"

# An ordinary rowid table: whatever shard a batch is of, it is appended to the last page, and it takes pages of its own
# only where it fills one. What is dropped of a shard lies between two numbers, so that it needs no index.
_DDL: Final = """
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY,
    shard INTEGER NOT NULL,
    previous INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE shards (shard INTEGER PRIMARY KEY, dropped INTEGER NOT NULL) STRICT;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), recoveries INTEGER NOT NULL) STRICT;
"""
KIND: Final = Kind("a journal", APPLICATION_ID, FORMAT, _DDL, oldest=FORMAT)

_INSERT_FIRST: Final = """
INSERT INTO state (one, recoveries) VALUES (1, 0);
INSERT INTO shards (shard, dropped) SELECT value ->> 0, value ->> 1 FROM json_each(?1);
"""
_INSERT: Final = "INSERT INTO batches (seq, shard, previous, body) VALUES (?, ?, ?, ?)"
_DROP: Final = (
    "DELETE FROM batches WHERE shard = ?1 AND seq <= ?2"
    " AND seq > coalesce((SELECT dropped FROM shards WHERE shard = ?1), 0)"
)
_DROPPED: Final = (
    "INSERT INTO shards (shard, dropped) VALUES (?, ?)"
    " ON CONFLICT (shard) DO UPDATE SET dropped = max(dropped, excluded.dropped)"
)
_SELECT: Final = "SELECT seq, shard, previous, body FROM batches ORDER BY seq"
_SELECT_SHARD: Final = "SELECT seq, shard, previous, body FROM batches WHERE shard = ? ORDER BY seq"
_SELECT_BEHIND: Final = "SELECT seq, shard, previous FROM batches WHERE seq >= ? ORDER BY seq"
_SELECT_BODY: Final = "SELECT body FROM batches WHERE seq = ?"
_SELECT_DROPPED: Final = "SELECT shard, dropped FROM shards"
# Also a number that is no longer there must not be given again.
_LATEST: Final = (
    "SELECT max(coalesce((SELECT max(seq) FROM batches), 0), coalesce((SELECT max(dropped) FROM shards), 0))"
)
_TOUCH: Final = "UPDATE state SET recoveries = recoveries + 1"

LOST_MAX: Final = 2**32
"""How many batches may be lost at most: a file that is further ahead, or behind, is of another directory."""

_MISMATCH: Final = (
    "one of the two lost its end, was restored without the other, or is of another directory; restore the whole"
    " directory from one backup"
)


class Row(NamedTuple):
    """A batch in the journal: its number, its shard, the number of that shard's batch before it, and its bytes."""

    seq: int
    shard: int
    previous: int
    body: bytes


@dataclass(slots=True)
class Held:
    """What the journal says of one shard.

    Attributes:
        dropped: The number up to which the shard's file had everything when the journal let go of it.
        rows: The batches that it still has, in order.
    """

    dropped: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The number of the shard's latest batch, as far as the journal knows."""
        return self.rows[-1].seq if self.rows else self.dropped

    def missing_from(self, seq: int, *, lossy: bool = False) -> list[Row]:
        """The batches that the shard's file lacks.

        Args:
            seq: The number of the latest batch that the file includes.
            lossy: A power loss may have taken the end of the journal: the file may be ahead of it by ``LOST_MAX``.

        Raises:
            DamagedError: The file lost its end, or is older than the journal.
            UnfitError: The journal is older than the file, or of another directory.
        """
        if seq > self.end and not (lossy and seq - self.end <= LOST_MAX):
            raise UnfitError(
                f"its file includes batch {seq}, and the journal ends at batch {self.end}: {_MISMATCH} (after a power"
                ' failure under durability = "process", start once more with that setting)'
            )
        if seq < self.dropped:
            kind = DamagedError if self.dropped - seq <= LOST_MAX else UnfitError
            raise kind(f"its file ends at batch {seq}, and the journal goes on at {self.dropped}: {_MISMATCH}")
        lacking = [row for row in self.rows if row.seq > seq]
        for row in lacking:
            if row.previous != seq:
                raise DamagedError(
                    f"its file ends at batch {seq}, and the journal goes on at {row.previous}: {_MISMATCH}"
                )
            seq = row.seq
        return lacking


def opened_body(row: Row, keys: Keyring | None) -> bytes:
    """A batch as it was given to the journal.

    Raises:
        StorageError: It is sealed, and cannot be opened.
    """
    return unseal(keys, row.body, about_batch(row.shard, row.previous)) if is_sealed(row.body) else row.body


def about_batch(shard: int, previous: int) -> tuple[str | int, ...]:
    """What a sealed batch belongs to: its place in the journal."""
    return ("batch", shard, previous)


def create_journal(path: Path, ends: Mapping[int, int] | None = None, *, checksums: bool = True) -> None:
    """Make an empty journal at ``path``, see ``sqlite_create.create``.

    Args:
        path: Where.
        ends: By shard, the number of the latest batch that its file includes; the journal's begin behind them all.
        checksums: Whether its pages have some.
    """
    create(path, KIND, _INSERT_FIRST, (json.dumps(list((ends or {}).items())),), checksums=checksums)


def journal_holds_nothing(path: Path) -> bool:
    """Whether a file is a journal without a batch: what an interrupted creation of a directory leaves.

    Raises:
        apsw.Error: It cannot be read.
        UnfitError: It is not ours, or of a newer release.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
    try:
        check_version(connection, str(path), KIND)
        return connection.execute(_SELECT).fetchone() is None
    finally:
        connection.close()


def read_all(connection: apsw.Connection) -> dict[int, Held]:
    """What the journal holds, by shard, for an offline check.

    Raises:
        apsw.Error: It cannot be read.
    """
    held = {shard: Held(dropped) for shard, dropped in read_dropped(connection).items()}
    for row in read_rows(connection):
        held.setdefault(row.shard, Held()).rows.append(row)
    return held


def read_rows(connection: apsw.Connection) -> Iterator[Row]:
    """The batches that the journal holds, in order.

    Raises:
        apsw.Error: It cannot be read.
    """
    for values in connection.execute(_SELECT):
        yield Row(*values)


def read_dropped(connection: apsw.Connection) -> dict[int, int]:
    """By shard, the number up to which the journal let go of its batches.

    Raises:
        apsw.Error: It cannot be read.
    """
    return dict(connection.execute(_SELECT_DROPPED))


def read_shard(connection: apsw.Connection, shard: int) -> Held:
    """What the journal holds of a shard.

    Raises:
        apsw.Error: It cannot be read.
    """
    dropped = read_dropped(connection).get(shard, 0)
    return Held(dropped, [Row(*row) for row in connection.execute(_SELECT_SHARD, (shard,))])


def refuse_lost_end(connection: apsw.Connection, name: str, synced: int | None) -> None:
    """Refuse a journal that does not hold any more what was once synced.

    Args:
        connection: To it.
        name: Of its file, for people.
        synced: What ``synced_up_to`` said before this connection looked at it for the first time.

    Raises:
        DamagedError: The message says the way out.
        apsw.Error: It cannot be read.
    """
    if (lost := lost_end(synced, read_latest(connection))) is not None:
        raise DamagedError(f"{damaged(name, lost)}; without one, `idemactor restore --apart` goes on with what is left")


def read_latest(connection: apsw.Connection) -> int:
    """The highest number that the journal ever held.

    Raises:
        apsw.Error: It cannot be read.
    """
    return int(connection.execute(_LATEST).get)


def read_behind(connection: apsw.Connection, shard: int, applied: int) -> Held:
    """What the journal holds of a shard from the batch ``applied`` on; of what is before it no page is read.

    Raises:
        apsw.Error: That cannot be read. What has checksums gives all of it or this error.
    """
    dropped = read_dropped(connection).get(shard, 0)
    found: list[tuple[int, int, int]] = [
        (seq, owner, previous)
        for seq, owner, previous in connection.execute(_SELECT_BEHIND, (applied,))
        if owner == shard
    ]
    # The body of ``applied`` is in the file already, and may lie in pages of its own.
    bodies = [connection.execute(_SELECT_BODY, (row[0],)).get if row[0] > applied else b"" for row in found]
    return Held(dropped, [Row(*place, body) for place, body in zip(found, bodies, strict=True)])


class JournalFile(WalFile[int]):
    """The connection to the journal; ``open`` returns the highest number that it ever held, 0 for a new one."""

    def __init__(
        self, path: Path, durability: Durability = "full", vfs: str | None = None, *, checksums: bool | None = None
    ) -> None:
        super().__init__(path, durability, vfs, checksums)
        self.lossy = durability == "process"
        self._path = path
        self._watermark = Watermark(path)

    def open(self, *, recovering: bool = False) -> int:
        """See ``WalFile.open``; a journal that lost its end is damaged."""
        latest = super().open(recovering=recovering)
        self._note_synced(latest)
        return latest

    def close(self, *, tidy: bool) -> None:
        """See ``WalFile.close``."""
        super().close(tidy=tidy)
        self._watermark.close()

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
                connection.executemany(_DROPPED, done.items())

        result = self.transact(work)
        if result is CommitResult.OK and rows:
            self._note_synced(rows[-1].seq)
        return result

    def read_batches(self, shard: int) -> Held:
        """What the journal holds of a shard.

        Raises:
            StorageError: The file is broken, or reading it failed.
        """
        return self.read(read_shard, shard)

    def salvage(self, shard: int, applied: int) -> Held:
        """What a journal that is damaged holds of a shard from ``applied`` on, where just that is whole.

        The file stays as it is, and not open: nothing is ever written to what is damaged.

        Raises:
            DamagedError: It is not: nobody knows what the shard's file lacks.
            StorageError: It cannot be looked at.
        """
        self.close(tidy=False)
        connection: apsw.Connection | None = None
        try:
            synced = synced_up_to(self._path)
            if not has_checksums(Path(self._name)):
                # Without them what can be read may be a part of what was there.
                raise DamagedError(damaged(self._name, "and without checksums nothing in it can be relied upon"))
            connection = self._connect()
            self._greet(connection)
            self._refuse_changed_header()
            self._refuse_torn_wal(connection)
            refuse_lost_end(connection, self._name, synced)
            return read_behind(connection, shard, applied)
        except (apsw.Error, OSError) as error:
            raise refusal(self._name, "read", error) from error
        finally:
            if connection is not None:
                connection.close()

    def drop(self, done: Mapping[int, int]) -> None:
        """Drop what the shards' own files hold; a failure leaves it for the next time."""
        if done and not self.broken:
            self.append([], done)

    def wipe(self, done: Mapping[int, int]) -> CommitResult:
        """Drop what the shards' own files hold, and leave nothing of it in the WAL; anything but OK: try again."""
        result = self.append([], done) if done else CommitResult.OK
        return result if result is not CommitResult.OK or self.empty_wal() else CommitResult.FAILED

    def _create(self) -> None:
        raise missing(self._name)

    def _greet(self, connection: apsw.Connection) -> None:
        check_version(connection, self._name, KIND)

    def _read_state(self, connection: apsw.Connection) -> int:
        # Before anything is written: what is left of the WAL stays as it is.
        refuse_lost_end(connection, self._name, synced_up_to(self._path))
        return read_latest(connection)

    def _tidied(self) -> None:
        self._watermark.remove()

    def _note_synced(self, number: int) -> None:
        # A number whose batch a power loss may take would call the journal damaged that has lost it.
        if not self.lossy:
            self._watermark.note(number)

    def _touch(self, connection: apsw.Connection) -> None:
        connection.execute(_TOUCH)
