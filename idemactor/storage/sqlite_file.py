"""One shard's SQLite file, used from one thread at a time: everything of ``sqlite.py`` that blocks.

How durability is reached, and why it holds:

- WAL with ``synchronous=FULL``: SQLite syncs the WAL inside every COMMIT, its header when it starts anew, and the
  directory when it creates the file. NORMAL with a sync of our own would be one sync as well, and would leave those
  cases to us to prove; FULL leaves them to SQLite. The price is that a sync cannot be timed by itself: what is
  reported is the COMMIT statement, which does nothing but write the frames to the cache and sync them.
- ``durability = "process"`` uses ``synchronous=NORMAL``, not OFF: commits do not sync in either, but NORMAL still
  orders the WAL before the file in a checkpoint, so that a power loss costs the latest commits and never the file.
- The cache never spills, so that nothing at all is in the WAL before COMMIT: a failure before it is FAILED for
  certain, and any failure of COMMIT itself, whose frames may have reached the disk, is UNKNOWN.
- After a failed sync the kernel calls pages clean that the disk never got. Reading them back proves nothing, and a
  later sync does not write them; worse, they break the checksum chain of the WAL, so that every commit appended
  behind them is lost with them; and a checkpoint that copies them overwrites good pages with what the WAL on disk
  cannot repair if the power goes in between. So every ``open`` first writes the WAL's own bytes over it once more
  and syncs (identical bytes: whatever a crash leaves of that is a mixture of equal halves), and only then copies it
  into the file with a checkpoint(TRUNCATE), which syncs the file before it lets go of the WAL.
- A VACUUM is not needed: pages reach the file through checkpoints alone, and a checkpoint whose sync failed does not
  count as done, so that the WAL still holds every page whose copy may be missing, and all are copied again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Concatenate, Final, Literal, ParamSpec, TypeVar

import apsw

from idemactor.core.tally import Tally
from idemactor.errors import StorageError
from idemactor.storage import schema, sqlite_writes
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.sqlite_create import PAGE_BYTES, check_version, create_file

P = ParamSpec("P")
T = TypeVar("T")

Durability = Literal["full", "process"]

CACHE_KIB: Final = 16_384
"""SQLite's own cache, KiB a shard: the inner pages of all indexes at ten million records, and the hot leaves."""
CHECKPOINT_PAGES: Final = 4_000
"""WAL pages (16 MiB) from which ``maintain`` copies them into the file. Every commit writes the same hot pages again,
and only the last copy of a page is copied: four times SQLite's default costs a third as much per commit, and the
pause grows from 4 to 6 ms."""
CHECKPOINT_LIMIT_PAGES: Final = 16_000
"""WAL pages (64 MiB) from which a commit does it itself, so that the WAL is bounded whoever forgets ``maintain``."""
FRAME_BYTES: Final = PAGE_BYTES + 24
"""One page in the WAL, with its header (https://www.sqlite.org/fileformat2.html#walformat)."""
WAL_BYTES_KEPT: Final = 2 * CHECKPOINT_PAGES * FRAME_BYTES
"""A WAL that a long reader (a backup) made longer is cut to this when it starts anew. Overwriting a WAL that has its
length already is cheaper to sync than growing one, so it is not cut below its usual size."""
BUSY_MS: Final = 250
"""How long to wait for another process's lock (a backup tool's), milliseconds. Ours never compete."""

_REWRITE_BYTES: Final = 65_536
"""How much of the WAL is written anew at a time. SQLite's VFS for Unix cuts a request to its lowest 17 bits."""

_SYNCHRONOUS: Final = {"full": "FULL", "process": "NORMAL"}


class _MovedError(Exception):
    """The file at our path is not the one that we hold open any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which file, and which shard it must be.

    Attributes:
        path: The database file; SQLite keeps ``-wal`` and ``-shm`` beside it.
        shard: The shard that the file must say it is.
        shards: The number of shards it must say there are.
        create: Make it where there is nothing. Off: a missing file is an error, never an empty shard.
        durability: ``full`` survives a power loss, ``process`` a kill.
        vfs: The name of an apsw VFS, None for the system's own.
    """

    path: Path
    shard: int = 0
    shards: int = 1
    create: bool = False
    durability: Durability = "full"
    vfs: str | None = None


class ShardFile:
    """The connection to one shard's file. Every method blocks; readers raise ``StorageError``.

    Attributes:
        broken: Something failed: nothing is to be read or written until ``open`` succeeds again.
        last_error: What failed last, for the logs.
        commit_s: How long the latest ``write`` took, seconds.
        sync_s: How long its COMMIT took, seconds: the frames' way into the cache, and the sync.
        wal_pages: How long the WAL was after the latest write.
    """

    def __init__(self, place: Place) -> None:
        self.broken = True
        self.last_error: Exception | None = None
        self.commit_s = 0.0
        self.sync_s = 0.0
        self.wal_pages = 0
        self._place = place
        self._name = str(place.path)
        self._connection: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._wal_inode: tuple[int, int] | None = None
        self._checkpoint_at = CHECKPOINT_PAGES
        self._last_token = 0
        # What SQLite answers through a pointer; made once, since a commit asks every time.
        self._has_moved = ctypes.c_int(0)
        self._has_moved_at = ctypes.addressof(self._has_moved)

    # ---------------------------------------------------------------------------------------------- opening and closing

    def open(self, *, recovering: bool = False) -> Opened:
        """Open the file and make sure that what it shows is on the disk.

        Args:
            recovering: Also write a row, so that a disk that refuses writes is found out now.

        Raises:
            StorageError: It is missing, replaced, of another program, version or shard, damaged, or cannot be synced.
        """
        self.close(tidy=False)
        try:
            opened = self._open(recovering)
        except (apsw.Error, OSError) as error:
            self.last_error = error
            self.close(tidy=False)
            raise StorageError(f"{self._name} cannot be opened: {error}") from error
        except BaseException:
            self.close(tidy=False)
            raise
        self.broken = False
        return opened

    def _open(self, recovering: bool) -> Opened:
        self._find_file()
        connection = apsw.Connection(self._name, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._place.vfs)
        self._connection = connection
        # Closing must only ever close: a checkpoint there would write to a file that has just proved to be unwell.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Without it a build with STAT4 plans a join anew for every binding: six times the cost of a load.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_timeout(BUSY_MS)
        check_version(connection, self._name)
        self._set_up(connection)
        opened = self._read_meta(connection)
        self._settle(connection, recovering)
        self._inode = _inode_of(self._name)
        self._wal_inode = _inode_of(self._name + "-wal")
        return opened

    def _find_file(self) -> None:
        inode = _inode_of(self._name)
        if inode is None and self._inode is None and self._place.create:
            create_file(self._place.path, self._place.shard, self._place.shards)
        elif inode is None:
            raise StorageError(
                f"{self._name} is missing; put it back from a backup: an empty one would forget its keys"
            )
        elif self._inode is not None and inode != self._inode:
            raise StorageError(f"{self._name} was replaced while in use; stop the server before restoring a file")
        elif self._wal_inode is not None and _inode_of(self._name + "-wal") != self._wal_inode:
            # What was acknowledged and not copied yet went with it. The file alone would look whole.
            raise StorageError(f"{self._name}-wal was deleted or replaced while in use; put both back from a backup")

    def _set_up(self, connection: apsw.Connection) -> None:
        # No memory map: a read error would be a signal that kills the process instead of an error for one shard.
        settings = {
            "journal_mode": "WAL",
            "synchronous": _SYNCHRONOUS[self._place.durability],
            "cache_size": -CACHE_KIB,
            "cache_spill": "OFF",
            "mmap_size": 0,
            "temp_store": "MEMORY",
            "journal_size_limit": WAL_BYTES_KEPT,
            "trusted_schema": "OFF",
        }
        for name, value in settings.items():
            connection.pragma(name, value)
        # In place of SQLite's automatic checkpoint, which would delay an answer that is ready to leave.
        connection.set_wal_hook(self._note_wal)

    def _read_meta(self, connection: apsw.Connection) -> Opened:
        meta = connection.execute(schema.SELECT_META).fetchone()
        if meta is None:
            raise StorageError(f"{self._name} has lost its meta row; put it back from a backup")
        _, shard, shards, last_token, latest_ms = meta
        place = self._place
        if (shard, shards) != (place.shard, place.shards):
            raise StorageError(
                f"{self._name} is shard {shard} of {shards}, not {place.shard} of {place.shards};"
                " put each file back under its own name"
            )
        tallies = {(row[0], row[1]): Tally(*row[2:]) for row in connection.execute(schema.SELECT_TALLIES)}
        self._last_token = last_token
        return Opened(last_token, latest_ms, tallies)

    def _settle(self, connection: apsw.Connection, recovering: bool) -> None:
        """Bring everything that was read to the disk; the module's head says why in this order."""
        self._rewrite_wal()
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            # A backup tool reads an older state, and its shared memory says where the WAL ends. The WAL is durable
            # as it is; but what a failed COMMIT left behind that end, complete by now, has to be written over before
            # a power loss makes somebody find it there.
            recovering = True
        self.wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        if recovering:
            connection.execute(schema.TOUCH_META)

    def _rewrite_wal(self) -> None:
        name = self._name + "-wal"
        if _inode_of(name) is None:
            return
        # Locks are on the file and on the -shm, so that another descriptor for the WAL drops none. It is opened
        # through the VFS, which is how the tests lose what was not synced.
        flags = [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0]
        wal = apsw.VFSFile(self._place.vfs or "", name, flags)
        try:
            size = wal.xFileSize()
            for offset in range(0, size, _REWRITE_BYTES):
                wal.xWrite(wal.xRead(min(_REWRITE_BYTES, size - offset), offset), offset)
            wal.xSync(apsw.SQLITE_SYNC_NORMAL)
        finally:
            wal.xClose()

    def close(self, *, tidy: bool) -> None:
        """Let go of the file. Never raises.

        Args:
            tidy: First move what is in the WAL into the file, so that the next opening is quick.
        """
        connection, self._connection = self._connection, None
        tidy = tidy and not self.broken
        self.broken = True
        if connection is None:
            return
        try:
            if tidy:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                # All of it is in the file now: other programs may do with the WAL as they like.
                self._wal_inode = None
        except apsw.Error as error:
            self.last_error = error
        try:
            connection.close()
        except apsw.Error as error:
            self.last_error = error

    # ------------------------------------------------------------------------------------------------------- writing

    def write(self, batch: Batch) -> CommitResult:
        """Write a batch; anything but OK leaves the file ``broken`` until it is opened anew. Never raises an error."""
        if self.broken or self._connection is None:
            return CommitResult.FAILED
        # Broken until proven whole: whatever interrupts the lines below, nothing more is done with this connection.
        self.broken = True
        started = perf_counter()
        result = self._write(self._connection, batch)
        self.commit_s = perf_counter() - started
        if result is CommitResult.OK:
            self.broken = False
            self._last_token = max(self._last_token, batch.last_token)
            if self.wal_pages >= CHECKPOINT_LIMIT_PAGES and self.wal_pages >= self._checkpoint_at:
                self.maintain()
        return result

    def _write(self, connection: apsw.Connection, batch: Batch) -> CommitResult:
        try:
            if self._moved():
                raise _MovedError(f"{self._name} or its WAL was deleted or replaced while in use")
            connection.execute("BEGIN IMMEDIATE")
            sqlite_writes.apply(connection, batch, self._last_token)
        except Exception as error:
            self.last_error = error
            _roll_back(connection)
            return CommitResult.FAILED
        started = perf_counter()
        try:
            connection.execute("COMMIT")
        except Exception as error:
            self.last_error = error
            _roll_back(connection)
            return CommitResult.UNKNOWN
        finally:
            self.sync_s = perf_counter() - started
        return CommitResult.OK

    @property
    def wants_maintenance(self) -> bool:
        """Whether ``maintain`` has something to do."""
        return self.wal_pages >= self._checkpoint_at and not self.broken

    def maintain(self) -> None:
        """Copy the WAL into the file. A failure shows at the next write: the file is broken then."""
        if self.broken or self._connection is None:
            return
        self.broken = True
        try:
            pages, copied = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            # Another process copies it just now.
            pages, copied = self.wal_pages, 0
        except apsw.Error as error:
            self.last_error = error
            return
        self.broken = False
        self.wal_pages = pages - copied
        # A reader that holds on to an old state would otherwise make every commit try again.
        self._checkpoint_at = CHECKPOINT_PAGES + (pages if pages > copied else 0)

    def _note_wal(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        self.wal_pages = pages
        return apsw.SQLITE_OK

    def _moved(self) -> bool:
        """Whether file or WAL were deleted or replaced: what is written to them then is gone with the process."""
        assert self._connection is not None
        self._connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, self._has_moved_at)
        return bool(self._has_moved.value) or _inode_of(self._name + "-wal") != self._wal_inode

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, query: Callable[Concatenate[apsw.Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask one of the questions of ``sqlite_reads.py``.

        Raises:
            StorageError: The file is broken, or reading it failed.
        """
        if self.broken or self._connection is None:
            raise StorageError(f"{self._name} is not open: {self.last_error or 'it was closed'}")
        try:
            return query(self._connection, *args, **kwargs)
        except apsw.Error as error:
            self.last_error = error
            self.broken = True
            raise StorageError(f"{self._name} cannot be read: {error}") from error


def _roll_back(connection: apsw.Connection) -> None:
    """End the transaction if there still is one; the connection is not used for anything but closing afterwards."""
    # What cannot be rolled back has no commit record, or the answer is UNKNOWN anyway.
    with contextlib.suppress(apsw.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _inode_of(name: str) -> tuple[int, int] | None:
    """(device, inode) of a file, None where there is none."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
