"""A copy of a data directory that a server may be using: whole files, and a journal that is empty.

Why it is whole: what a server acknowledged is durable in the shard's file or in the journal, and the journal lets go of
a batch only once the file's own commit with it has returned. So the journal is copied first, as it is at one moment,
and every shard's file after it: whatever was acknowledged before that moment is in the copy of the file, or in that of
the journal, from where it is written into the copy of the file. A shard's copy is the shard's state between two of its
batches. What comes later may be in it or not, and not the same for every shard: no promise is about two keys.

The server is not disturbed. The files are opened read-only by SQLite's own locks, which in WAL mode keep no writer
waiting; no checkpoint is made, nor anything removed, when they are closed. A reader keeps the WAL of the shard that is
being copied from beginning anew, so that it grows for as long as that takes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from idemactor.core.keys import worker_of
from idemactor.errors import StartError, StorageError
from idemactor.storage import journal_file
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import open_untouched
from idemactor.storage.checksums import (
    begin_with_checksums,
    checked_vfs,
    has_checksums,
    refuse_damage,
    reserves_checksums,
)
from idemactor.storage.directory import new_first_seq, wall_ms
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import Held, create_journal, opened_body
from idemactor.storage.journal_rows import decode
from idemactor.storage.layout import Meta, is_none, journal_name, lost_files, read_meta, shard_name
from idemactor.storage.overlay import Overlay
from idemactor.storage.progress import Progress, silent
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_create import check_version, make_private
from idemactor.storage.sqlite_file import Place, ShardFile
from idemactor.storage.unfinished import refuse_outdated
from idemactor.storage.watermark import synced_up_to
from idemactor.storage.ways_out import is_out_of_room
from idemactor.storage.writing import seal

BUSY_MS: Final = 10_000
"""How long to wait where the server is just recovering a file, milliseconds."""
PAGES_PER_STEP: Final = 2_048
"""How much is copied between two words about the progress: 8 MiB."""

_PART: Final = ".part"
_SET_JOURNAL_SEQ: Final = "UPDATE meta SET journal_seq = ?"
_DIGEST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShardCopy:
    """One shard's file in the copy.

    Attributes:
        shard: Its number.
        last_token: The highest token granted.
        latest_ms: The latest time that anything was decided at, milliseconds since the epoch.
        journal_seq: The number of the last batch of the original's journal that is in it.
        file_bytes: Its size.
        digest: The BLAKE2b-256 of its bytes, hexadecimal.
    """

    shard: int
    last_token: int
    latest_ms: int
    journal_seq: int
    file_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied.

    Attributes:
        meta: What the original says of itself.
        taken_ms: Whatever was acknowledged before is in it, milliseconds since the epoch.
        first_seq: Where the numbers of the copy's journal begin.
        shards: The files.
    """

    meta: Meta
    taken_ms: int
    first_seq: int
    shards: tuple[ShardCopy, ...]

    @property
    def latest_ms(self) -> int:
        """The latest time that anything in it was decided at."""
        return max(shard.latest_ms for shard in self.shards)

    @property
    def earliest_ms(self) -> int:
        """The earliest of the latest times of its shards: before it, nothing is missing in any of them."""
        return min(shard.latest_ms for shard in self.shards)

    @property
    def last_token(self) -> int:
        """The highest token granted in any shard."""
        return max(shard.last_token for shard in self.shards)


def copy_files(
    source: Path, target: Path, progress: Progress, *, apart: bool = False, keys: Keyring | None = None
) -> Copied:
    """Copy the shards' files of the data directory ``source`` into the directory ``target``, and make a journal there.

    Args:
        source: The data directory; it is left as it is.
        target: An empty directory.
        progress: Is told how far it is.
        apart: Whether each file may have been copied at another moment, as by a tool that replicates files: what the
            journal holds and a file cannot take, since something before it is missing, is left out.
        keys: What the journal holds and a file does not is opened with them where it is encrypted, and encrypted
            again; what is in the files is copied as it is.

    Raises:
        StartError: ``source`` is no data directory, or was changed meanwhile by a start with other workers.
        StorageError: Something in it is damaged, or does not fit.
        apsw.Error: A file cannot be read or written.
        OSError: A file cannot be read or written.
    """
    meta = read_meta(source)
    if meta is None:
        raise is_none(source)
    refuse_outdated(source, meta)
    home, first_seq, taken_ms = meta.home(source), new_first_seq(), wall_ms()
    _refuse_lost(source, home, meta)
    # A backup that nobody has served is in nobody's use, and may be where nothing can be written.
    opened = open_beside if meta.copied_ms is None else _open_at_rest
    for name in meta.journals():
        # Read before: what was synced by then is in whatever is copied from here on.
        synced = None if apart else synced_up_to(home / name)
        _copy_file(opened(home / name), target / (name + _PART), partial(silent, name))
        with _opened_copy(target / (name + _PART)) as copy:
            journal_file.refuse_lost_end(copy, name, synced)
    _refuse_changed(source, meta)
    shards = []
    for shard in range(meta.shards):
        progress(f"shard {shard}", 0, 1)
        name = shard_name(shard)
        scratch = target / (name + _PART)
        _copy_file(opened(home / name), scratch, partial(progress, f"shard {shard}"))
        journal = target / (journal_name(worker_of(shard, meta.workers), meta.workers) + _PART)
        part = Place(scratch, shard, meta.shards, keys=keys, as_is=True)
        with _named_after(home / name, scratch):
            shards.append(_complete(part, target / name, _held(journal, shard), first_seq, apart=apart))
    for name in meta.journals():
        _remove(target / (name + _PART))
    checksums = has_checksums(target / shard_name(0))
    create_journal(target / JOURNAL_NAME, dict.fromkeys(range(meta.shards), first_seq), checksums=checksums)
    return Copied(meta, taken_ms, first_seq, tuple(shards))


def _refuse_lost(source: Path, home: Path, meta: Meta) -> None:
    """Refuse a directory of which a file is gone: what is left is no copy of it."""
    if lost := lost_files(home, meta):
        _refuse_changed(source, meta)
        raise StorageError(f"{home / lost[0]} is missing; put it back, or go on with a backup that has all its files")


def _refuse_changed(source: Path, meta: Meta) -> None:
    if read_meta(source) != meta:
        raise StartError(f"data directory {source} was just started with other settings; try again")


@contextlib.contextmanager
def open_beside(path: Path) -> Iterator[apsw.Connection]:
    """A file as it is now, which a server may go on using; the connection is within a transaction that reads it.

    Raises:
        apsw.Error: It cannot be opened.
        OSError: It is not there.
    """
    path.stat()
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path.absolute()))}?mode=ro", flags=flags, vfs=checked_vfs())
    try:
        # The last to close a file would otherwise copy its WAL and remove it, behind the server's back.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_timeout(BUSY_MS)
        connection.execute("BEGIN")
        # The transaction begins with the first look. As long as it lasts, a copy in steps does not begin anew.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def _open_at_rest(path: Path) -> Iterator[apsw.Connection]:
    """See ``open_untouched``, which compares no checksums."""
    refuse_damage(path)
    with open_untouched(path) as connection:
        yield connection


def _copy_file(source: AbstractContextManager[apsw.Connection], target: Path, told: Callable[[int, int], None]) -> None:
    _remove(target)
    with source as original:
        make_private(target)
        connection = apsw.Connection(str(target), vfs=checked_vfs())
        try:
            if reserves_checksums(original):
                begin_with_checksums(connection)
            with connection.backup("main", original, "main") as backup:
                while not backup.done:
                    backup.step(PAGES_PER_STEP)
                    told(backup.page_count - backup.remaining, backup.page_count)
        finally:
            connection.close()


@contextlib.contextmanager
def _named_after(path: Path, scratch: Path) -> Iterator[None]:
    """What is wrong with a copy is said of the file that was copied: nobody else knows the copy's name."""
    try:
        yield
    except StorageError as error:
        said = str(error)
        if str(scratch) not in said:
            raise
        raise type(error)(said.replace(str(scratch), str(path))) from error


@contextlib.contextmanager
def _opened_copy(journal: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(journal), vfs=checked_vfs())
    try:
        check_version(connection, journal.name.removesuffix(_PART), journal_file.KIND)
        yield connection
    finally:
        connection.close()


def _held(journal: Path, shard: int) -> Held:
    with _opened_copy(journal) as connection:
        return journal_file.read_shard(connection, shard)
    raise AssertionError("a connection swallows nothing")


def _complete(place: Place, path: Path, held: Held, first_seq: int, *, apart: bool) -> ShardCopy:
    """Bring what the journal has of a shard into its copy, and give that its name."""
    scratch, file = place.path, ShardFile(place)
    try:
        opened = file.open()
        seq = _replay(file, opened.journal_seq, held, place.keys, apart=apart)
        file.close(tidy=True)
        opened = file.open()
    finally:
        file.close(tidy=True)
    connection = apsw.Connection(str(scratch), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
    try:
        # Its own journal's numbers fit to no other journal.
        connection.execute(_SET_JOURNAL_SEQ, (first_seq,))
        seal(connection, scratch)
    finally:
        connection.close()
    os.rename(scratch, path)
    return ShardCopy(place.shard, opened.last_token, opened.latest_ms, seq, path.stat().st_size, digest_of(path))


def _replay(file: ShardFile, seq: int, held: Held, keys: Keyring | None, *, apart: bool) -> int:
    """Write what comes after batch ``seq``; returns the number of the last one."""
    overlay = Overlay()
    try:
        # The file was copied after the journal, and may be further: then it has everything.
        lacking = held.missing_from(seq, lossy=True)
    except StorageError:
        if not apart:
            raise
        lacking = []
    for row in lacking:
        batch = decode(opened_body(row, keys))
        if not overlay.fits(batch):
            _write(file, overlay.merged(), seq)
            overlay = Overlay()
        overlay.add(batch)
        seq = row.seq
    if overlay.batches:
        _write(file, overlay.merged(), seq)
    return seq


def _write(file: ShardFile, batch: Batch, seq: int) -> None:
    batch.journal_seq = seq
    if file.write(batch) is not CommitResult.OK:
        error = file.last_error
        if is_out_of_room(error, Path(file.name)):
            raise error
        raise StorageError(f"the copy cannot be written: {error}")


def digest_of(path: Path) -> str:
    """The BLAKE2b-256 of a file's bytes, hexadecimal.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while piece := file.read(_DIGEST_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def meta_of_copy(copied: Copied) -> Meta:
    """What the copy says of itself as long as nobody has served it."""
    return replace(copied.meta, workers=1, files=0, copied_ms=copied.taken_ms, taken_ms=None)
