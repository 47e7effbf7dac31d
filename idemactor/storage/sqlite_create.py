"""Making a shard's file, and recognising one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw

from idemactor.errors import OutOfReach, UnfitError
from idemactor.storage import schema
from idemactor.storage.checksums import checked_vfs, make_room
from idemactor.storage.ownership import hand_over
from idemactor.storage.watermark import SUFFIX as SYNCED_SUFFIX

FILE_MODE: Final = 0o600
"""Keys and outcomes are nobody else's business, whatever the umask says."""
PAGE_BYTES: Final = 4096
"""One page of a file is one page of the kernel's cache and one block of the usual file systems."""
_SIDE_SUFFIXES: Final = ("-wal", "-shm", "-journal", SYNCED_SUFFIX)
"""What SQLite and we keep beside a file."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file of ours says it is: its name for people, ``application_id``, ``user_version``, and its tables.

    ``oldest`` is the oldest version that this release reads.
    """

    name: str
    application_id: int
    version: int
    ddl: str
    oldest: int


SHARD: Final = Kind("a shard's file", schema.APPLICATION_ID, schema.FORMAT, schema.DDL, schema.FORMAT_OLDEST)


def create_file(path: Path, shard: int, shards: int, journal_seq: int = 0, *, checksums: bool = True) -> None:
    """Make an empty shard at ``path``, see ``create``; its journal's numbers begin behind ``journal_seq``."""
    create(path, SHARD, schema.INSERT_META, (schema.FORMAT, shard, shards, journal_seq), checksums=checksums)


def create(path: Path, kind: Kind, first: str, bindings: tuple[int | str, ...] = (), *, checksums: bool = True) -> None:
    """Make a file with its tables and ``first`` done: whole and on disk under its name, or not there at all.

    Raises:
        apsw.Error: SQLite could not write it.
        OSError: It could not be put in its place.
        StorageError: See ``checked_vfs``.
    """
    scratch = path.with_name(path.name + ".new")
    for suffix in _SIDE_SUFFIXES:
        # What an older file left behind would be taken for this one's.
        path.with_name(path.name + suffix).unlink(missing_ok=True)
        scratch.with_name(scratch.name + suffix).unlink(missing_ok=True)
    scratch.unlink(missing_ok=True)
    make_private(scratch)
    connection = apsw.Connection(str(scratch), vfs=checked_vfs())
    try:
        if checksums:
            make_room(connection)
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("synchronous", "FULL")
        with connection:
            connection.execute(kind.ddl)
            connection.execute(first, bindings)
            connection.pragma("application_id", kind.application_id)
            connection.pragma("user_version", kind.version)
        connection.pragma("journal_mode", "WAL")
    finally:
        connection.close()
    os.rename(scratch, path)
    sync_path(path.parent)


def make_private(path: Path) -> None:
    """Make an empty file, for SQLite to write, that nobody else may read; what SQLite keeps beside it is as it is.

    Raises:
        OSError: It cannot be made, or is there.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        hand_over(descriptor, path.absolute().parent)
    finally:
        os.close(descriptor)


def sync_path(path: Path) -> None:
    """Make the content of a file, or the names in a directory, survive a power loss.

    Raises:
        OSError: The sync failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_version(connection: apsw.Connection, name: str, kind: Kind = SHARD) -> int:
    """Refuse what is not of this kind, or not of a version that we know.

    Returns:
        The version.

    Raises:
        OutOfReach: It is of another release.
        UnfitError: It is not of this kind. The messages say the way out.
    """
    application = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    if application != kind.application_id:
        raise UnfitError(
            f"{name} is not a file of idemactor ({kind.name}); name another data directory or move it away"
        )
    if not kind.oldest <= version <= kind.version:
        raise OutOfReach(
            f"{name} has format {version}, this release knows {kind.version}; start the release that wrote it"
        )
    return version


def upgrade(connection: apsw.Connection) -> None:
    """Bring a shard's file whose version was checked to the present one, in one transaction: all of it or nothing.

    Raises:
        apsw.Error: It could not be written.
    """
    if connection.pragma("user_version") == schema.FORMAT:
        return
    with connection:
        connection.execute(schema.UPGRADE)
        connection.pragma("user_version", schema.FORMAT)


def holds_nothing(path: Path) -> bool:
    """Whether a file is a shard that never granted anything: what an interrupted creation leaves.

    Raises:
        apsw.Error: It cannot be read.
        UnfitError: It is not ours, or of a newer release.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
    try:
        check_version(connection, str(path))
        return bool(connection.execute(schema.SELECT_HOLDS_NOTHING).get)
    finally:
        connection.close()
