"""One SQLite file in WAL mode, used from one thread at a time, and what makes its commits durable.

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

What the disk changed on its own is found by the checksums of pages (``checksums.py``), where they are read, and of the
WAL (``wal_frames.py``), where it is opened. After that the whole file has to be read without an error before it is used
again: a damaged page may be one that says where others are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Concatenate, Final, Generic, Literal, ParamSpec, TypeVar

import apsw

from idemactor.errors import DAMAGED, DamagedError, StorageError
from idemactor.storage.base import CommitResult
from idemactor.storage.checksums import checked_vfs, has_checksums, is_damage
from idemactor.storage.sqlite_create import PAGE_BYTES
from idemactor.storage.wal_frames import HEADER_BYTES, damage_behind
from idemactor.storage.ways_out import NOT_ALONE, said_of

P = ParamSpec("P")
S = TypeVar("S")
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


class WalFile(ABC, Generic[S]):
    """The connection to one file. Every method blocks; readers raise ``StorageError``.

    Attributes:
        broken: Something failed: nothing is to be read or written until ``open`` succeeds again.
        last_error: What failed last, for the logs.
        sync_s: How long the latest COMMIT took, seconds: the frames' way into the cache, and the sync.
        wal_pages: How long the WAL was after the latest write.
    """

    def __init__(self, path: Path, durability: Durability, vfs: str | None, checksums: bool | None = None) -> None:
        self.broken = True
        self.last_error: Exception | None = None
        self.sync_s = 0.0
        self.wal_pages = 0
        self._name = str(path)
        self._durability = durability
        self._vfs = vfs
        self._checksums = checksums
        self._connection: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._wal_inode: tuple[int, int] | None = None
        self._checkpoint_at = CHECKPOINT_PAGES
        # Whether something that was read is not what was written; and what was found in which state of the file.
        self._suspect = False
        self._wal_end: int | None = None
        self._found: tuple[tuple[int, ...], str] | None = None
        # What SQLite answers through a pointer; made once, since a commit asks every time.
        self._has_moved = ctypes.c_int(0)
        self._has_moved_at = ctypes.addressof(self._has_moved)

    @property
    def name(self) -> str:
        """The path of the file, for people."""
        return self._name

    # ------------------------------------------------------------------------------------------------- what differs

    @abstractmethod
    def _create(self) -> None:
        """Make the file where there is none, or raise ``StorageError`` where that would forget something."""

    @abstractmethod
    def _greet(self, connection: apsw.Connection) -> None:
        """Refuse, with ``StorageError``, a file that is not what it should be."""

    @abstractmethod
    def _read_state(self, connection: apsw.Connection) -> S:
        """What ``open`` returns."""

    @abstractmethod
    def _touch(self, connection: apsw.Connection) -> None:
        """Write a row, so that a disk that refuses writes is found out."""

    # ---------------------------------------------------------------------------------------------- opening and closing

    def open(self, *, recovering: bool = False) -> S:
        """Open the file and make sure that what it shows is on the disk.

        Args:
            recovering: Also write a row, so that a disk that refuses writes is found out now.

        Raises:
            StorageError: It is missing, replaced, of another program or version, damaged, or cannot be synced.
        """
        self.close(tidy=False)
        try:
            state = self._open(recovering)
        except (apsw.Error, OSError) as error:
            self._note(error)
            self.close(tidy=False)
            raise refusal(self._name, "opened", error) from error
        except BaseException:
            self.close(tidy=False)
            raise
        self.broken = False
        return state

    def _open(self, recovering: bool) -> S:
        connection = self._connection = self._connect()
        self._greet(connection)
        self._refuse_changed_header()
        self._refuse_torn_wal(connection)
        self._refuse_suspect(connection)
        self._set_up(connection)
        state = self._read_state(connection)
        self._settle(connection, recovering)
        self._inode = _inode_of(self._name)
        self._wal_inode = _inode_of(self._name + "-wal")
        return state

    def _connect(self) -> apsw.Connection:
        self._find_file()
        if not os.stat(self._name).st_size:
            # To SQLite that is a new file, of no program in particular.
            raise DamagedError(damaged(self._name, "it is empty"))
        connection = apsw.Connection(self._name, flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs or checked_vfs())
        # Closing must only ever close: a checkpoint there would write to a file that has just proved to be unwell.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Without it a build with STAT4 plans a join anew for every binding: six times the cost of a load.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_timeout(BUSY_MS)
        return connection

    def _find_file(self) -> None:
        inode = _inode_of(self._name)
        if inode is None and self._inode is None:
            self._create()
        elif inode is None:
            raise missing(self._name)
        elif self._inode is not None and inode != self._inode:
            raise StorageError(f"{self._name} was replaced while in use; stop the server before restoring a file")
        elif self._wal_inode is not None and _inode_of(self._name + "-wal") != self._wal_inode:
            # What was acknowledged and not copied yet went with it. The file alone would look whole.
            raise StorageError(f"{self._name}-wal was deleted or replaced while in use; {NOT_ALONE}")

    def _refuse_changed_header(self) -> None:
        """What says whether there are checksums is a byte that no checksum is compared for."""
        if self._checksums is not None and has_checksums(Path(self._name)) != self._checksums:
            raise DamagedError(damaged(self._name, "its header is not as it was written"))

    def _refuse_torn_wal(self, connection: apsw.Connection) -> None:
        """Refuse a WAL that was longer once."""
        # As many as it takes for whole, now that something was read; below 0 where that cannot be said.
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        self._wal_end = HEADER_BYTES + frames * FRAME_BYTES if frames >= 0 else None
        # Where commits do not sync, a power loss may have torn any of many transactions.
        looks = self._durability == "full" and frames >= 0
        if looks and (torn := damage_behind(Path(self._name + "-wal"), frames)):
            raise DamagedError(damaged(self._name, torn))

    def _refuse_suspect(self, connection: apsw.Connection) -> None:
        """Refuse a file that gave something damaged and still does."""
        if not self._suspect:
            return
        status = os.stat(self._name)
        state = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._found is None or self._found[0] != state:
            found = _first_fault(connection)
            self._found = None if found is None else (state, found)
        if self._found is not None:
            raise DamagedError(damaged(self._name, self._found[1]))
        self._suspect = False

    def _note(self, error: Exception) -> None:
        """What failed is for the logs; what was damaged makes the file suspect."""
        self.last_error = error
        self._suspect = self._suspect or is_damage(error)

    def _set_up(self, connection: apsw.Connection) -> None:
        # No memory map: a read error would be a signal that kills the process instead of an error for one shard.
        settings = {
            "journal_mode": "WAL",
            "synchronous": _SYNCHRONOUS[self._durability],
            "cache_size": -CACHE_KIB,
            "cache_spill": "OFF",
            "mmap_size": 0,
            "temp_store": "MEMORY",
            "journal_size_limit": WAL_BYTES_KEPT,
            # What is removed is overwritten in the transaction that removes it, free pages included. Of the hot path it
            # costs nothing that could be measured: the pages are written anyway, or free for a moment only.
            "secure_delete": "ON",
            "trusted_schema": "OFF",
        }
        for name, value in settings.items():
            connection.pragma(name, value)
        # In place of SQLite's automatic checkpoint, which would delay an answer that is ready to leave.
        connection.set_wal_hook(self._note_wal)

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
        except apsw.FullError as error:
            # What is there can be read: it is in the WAL, and that is durable.
            self._note(error)
        self.wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        if recovering:
            self._prove_writable(connection)

    def _prove_writable(self, connection: apsw.Connection) -> None:
        """A disk that refuses writes is found out now; one that is full serves readers, and refuses each writer."""
        try:
            self._touch(connection)
        except apsw.FullError as error:
            self._note(error)
            _roll_back(connection)

    def _rewrite_wal(self) -> None:
        name = self._name + "-wal"
        if _inode_of(name) is None:
            return
        # Locks are on the file and on the -shm, so that another descriptor for the WAL drops none. It is opened
        # through the VFS, which is how the tests lose what was not synced.
        flags = [apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL, 0]
        wal = apsw.VFSFile(self._vfs or "", name, flags)
        try:
            size = wal.xFileSize()
            if self._wal_end is not None and size > self._wal_end:
                # What a failed COMMIT left there, or an earlier run, must not be taken for what followed a commit.
                size = self._wal_end
                wal.xTruncate(size)
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
                self._tidied()
        except apsw.Error as error:
            self.last_error = error
        try:
            connection.close()
        except apsw.Error as error:
            self.last_error = error

    def _tidied(self) -> None:
        """All that was in the WAL is in the file, and nobody uses it any more."""

    def forget(self) -> None:
        """Another file takes the place of this one, which is closed."""
        self._inode = self._wal_inode = None
        self._suspect = False

    # ------------------------------------------------------------------------------------------------------- writing

    def transact(self, work: Callable[[apsw.Connection], None]) -> CommitResult:
        """Do ``work`` as one transaction; anything but OK leaves the file ``broken`` until it is opened anew.

        Never raises an error.
        """
        if self.broken or self._connection is None:
            return CommitResult.FAILED
        # Broken until proven whole: whatever interrupts the lines below, nothing more is done with this connection.
        self.broken = True
        result = self._transact(self._connection, work)
        if result is CommitResult.OK:
            self.broken = False
            if self.wal_pages >= CHECKPOINT_LIMIT_PAGES and self.wal_pages >= self._checkpoint_at:
                self.maintain()
        return result

    def _transact(self, connection: apsw.Connection, work: Callable[[apsw.Connection], None]) -> CommitResult:
        try:
            if self._moved():
                raise _MovedError(f"{self._name} or its WAL was deleted or replaced while in use")
            connection.execute("BEGIN IMMEDIATE")
            work(connection)
        except Exception as error:
            self._note(error)
            _roll_back(connection)
            return CommitResult.FAILED
        started = perf_counter()
        try:
            connection.execute("COMMIT")
        except Exception as error:
            self._note(error)
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
            self._note(error)
            return
        self.broken = False
        self.wal_pages = pages - copied
        # A reader that holds on to an old state would otherwise make every commit try again.
        self._checkpoint_at = CHECKPOINT_PAGES + (pages if pages > copied else 0)

    def empty_wal(self) -> bool:
        """Copy the WAL into the file and cut it to nothing; whether that was possible."""
        if self.broken or self._connection is None:
            return False
        self.broken = True
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            # Another program reads what was there before.
            self.broken = False
            return False
        except apsw.Error as error:
            self._note(error)
            return False
        self.broken = False
        self.wal_pages = 0
        self._checkpoint_at = CHECKPOINT_PAGES
        return True

    def _note_wal(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        self.wal_pages = pages
        return apsw.SQLITE_OK

    def look(self) -> None:
        """Notice that the file or its WAL was deleted or replaced, without waiting for the next write."""
        try:
            if not self.broken and self._moved():
                raise _MovedError(f"{self._name} or its WAL was deleted or replaced while in use")
        except (_MovedError, apsw.Error, OSError) as error:
            self._note(error)
            self.broken = True

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
        except (apsw.Error, StorageError) as error:
            self._note(error)
            self.broken = True
            if isinstance(error, StorageError):
                raise
            raise refusal(self._name, "read", error) from error
        except DAMAGED as error:
            # The file as such is whole, as far as SQLite knows: what else stands in it is good.
            detail = "holds a row that cannot be read; `idemactor check` tells how much is damaged"
            raise StorageError(f"{self._name} {detail} ({error})") from error


def damaged(name: str, what: str) -> str:
    """What is said of a file that is not as it was written."""
    return (
        f"{name} is damaged: {what}; stop the server, and see how much of it with `idemactor check`; {NOT_ALONE}"
        " (was another program writing to it? none may)"
    )


def refusal(name: str, how: str, error: Exception) -> StorageError:
    """What is said of a file that could not be opened or read."""
    if is_damage(error):
        return DamagedError(damaged(name, str(error)))
    return StorageError(f"{name} cannot be {how}: {said_of(error, Path(name))}")


def _first_fault(connection: apsw.Connection) -> str | None:
    """What reading the whole file brings up first; None: nothing."""
    try:
        found = connection.execute("PRAGMA quick_check(1)").get
    except apsw.Error as error:
        return str(error)
    return None if found == "ok" else str(found)


def missing(name: str) -> StorageError:
    """What is said of a file that should be there."""
    return StorageError(f"{name} is missing, and an empty one would forget its keys; {NOT_ALONE}")


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
