"""The data directory: who owns it, what belongs in it, and how it comes to be.

``idemactor.json`` is written last, after every shard's file is whole and on disk. So a directory without it was never
finished and holds nothing, and one with it must have every file: a missing one is never made anew, since an empty shard
would forget what it promised. Whoever serves the others all the same finds that out when it opens them.

Ownership is a ``flock`` on files of their own. SQLite's locks live on the database file, and closing any other
descriptor of that file in this process would silently drop them: nothing here opens a database file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

import apsw

from idemactor.core.keys import worker_of
from idemactor.core.limits import SHARDS_DEFAULT
from idemactor.errors import OutOfReach, StartError, StorageError
from idemactor.storage.checksums import checked_vfs, says_checksums
from idemactor.storage.journal_file import KIND, create_journal, journal_holds_nothing
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.layout import (
    DIRECTORY_MODE,
    LOCK_NAME,
    META_NAME,
    SHARDS_MAX,
    Meta,
    journal_name,
    lock_name,
    lost_files,
    read_meta,
    shard_name,
    write_meta,
)
from idemactor.storage.ownership import hand_over
from idemactor.storage.sqlite_create import FILE_MODE, check_version, create_file, holds_nothing, sync_path
from idemactor.storage.tokens import leap, token_at
from idemactor.storage.unfinished import finish, finished_sets, refuse_outdated, unfinished
from idemactor.storage.watermark import SUFFIX as SYNCED_SUFFIX
from idemactor.storage.ways_out import NOT_ALONE, disk_full, is_out_of_room, reason_of, said_of

SEQ_BITS: Final = 53
"""Of the number that a directory's batches begin behind: far more directories than anybody mixes up, and still far
from the end of SQLite's integers (63 bits)."""
ORPHANS_MS_MAX: Final = 10_000
"""How long a start waits for the workers of a server that was killed: they die with it, but each in its own time."""
ORPHANS_POLL_MS: Final = 5

_MS_PER_S: Final = 1_000
_MADE: Final = re.compile(r"(shard-[0-9]{4}|journal)\.db(\.new)?(-wal|-shm|-journal|-synced)?")
"""What a creation that was interrupted leaves."""
_WAYS_OUT: Final = {
    errno.ELOOP: "it is a symbolic link, and none is followed there; put the file itself in its place",
    errno.EACCES: "this user may not use it; give it to the user that runs idemactor",
    errno.EPERM: "this user may not use it; give it to the user that runs idemactor",
    errno.EROFS: "it is on a read-only file system; name a directory that can be written",
    errno.ENOSPC: "the disk is full, or has no inode left; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.ENOTDIR: "it, or something on the way to it, is not a directory; name another path",
    errno.EEXIST: "it is not a directory; name another path",
    errno.ENAMETOOLONG: "the path is too long; name a shorter one",
    errno.ELOOP: "its symbolic links go in a circle; name another path",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine; raise the limit (fs.file-max)",
    errno.EIO: "the disk reports an error; replace it and restore a backup",
}
_NETWORK: Final = frozenset(
    {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EHOSTDOWN}
)
"""What network file systems answer that cannot lock, or whose server is away."""


class DataDirectory:
    """A directory that this process owns until it is closed.

    Attributes:
        path: Where it is.
        shards: How many there are.
        created_ms: When it was made, milliseconds since the epoch.
        checksums: Whether the pages of its files have some.
    """

    def __init__(self, path: Path, meta: Meta, locks: contextlib.ExitStack, *, checksums: bool) -> None:
        self.path = path
        self.shards = meta.shards
        self.created_ms = meta.created_ms
        self.checksums = checksums
        self._meta = meta
        self._locks = locks

    @classmethod
    def open(
        cls,
        path: Path,
        shards: int | None = None,
        *,
        workers: int = 1,
        checksums: bool | None = None,
        whole: bool = True,
    ) -> DataDirectory:
        """Take a data directory, made anew where there is none.

        Args:
            path: The directory.
            shards: What the configuration says, None where it says nothing: the directory's own, 4 for a new one.
            workers: How many processes are to serve it. One owns every shard from here on; of several each takes its
                own, see ``claim``.
            checksums: What the configuration says, None where it says nothing: as the directory has them, and a new
                one does.
            whole: Refuse a directory that lost a file. Off: that is for whoever opens it.

        Raises:
            StartError: It cannot be used; the message says the way out.
        """
        if shards is not None and not 1 <= shards <= SHARDS_MAX:
            raise StartError(f"shards is 1 to {SHARDS_MAX}, not {shards}")
        with contextlib.ExitStack() as locks:
            try:
                meta = _take(path, shards, workers, locks, checksums=checksums is not False)
                if whole:
                    refuse_missing(meta.home(path), meta)
                has_some = _settle_checksums(path, meta, checksums)
                if workers == 1:
                    _claim(path, range(meta.shards), locks)
            except OSError as error:
                raise explain(path, error) from error
            except apsw.FullError as error:
                raise explain(path, OSError(errno.ENOSPC, str(error))) from error
            except (apsw.Error, StorageError) as error:
                raise StartError(f"data directory {path} cannot be used: {said_of(error, path)}") from error
            return cls(path, meta, locks.pop_all(), checksums=has_some)
        raise AssertionError("an exit stack swallows nothing")

    def engine_path(self, shard: int) -> Path:
        """The database file of a shard, from 0 to ``shards - 1``."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"there is no shard {shard} of {self.shards}")
        return self.home / shard_name(shard)

    @property
    def home(self) -> Path:
        """Where the files that count are."""
        return self._meta.home(self.path)

    @property
    def meta(self) -> Meta:
        """What ``idemactor.json`` says."""
        return self._meta

    @property
    def workers(self) -> int:
        """How many journals there are: one for each process that served the directory last."""
        return self._meta.workers

    def journal_path(self, shard: int) -> Path:
        """The database file of the journal of a shard's worker."""
        return self.home / journal_name(worker_of(shard, self.workers), self.workers)

    def reread(self) -> None:
        """Another process of the same owner may have handed out journals.

        Raises:
            StartError: See ``read_meta``.
            OSError: See ``read_meta``.
        """
        self._meta = read_meta(self.path) or self._meta

    def claim(self, shards: Iterable[int]) -> None:
        """Own shards of a directory that several processes serve, until it is closed.

        Raises:
            StartError: Another process owns one of them.
        """
        try:
            _claim(self.path, shards, self._locks)
        except OSError as error:
            raise explain(self.path, error) from error

    def hand_out_journals(self, workers: int, ends: Mapping[int, int]) -> None:
        """Give each of ``workers`` processes an empty journal of its own, whenever the power goes.

        Args:
            workers: How many from now on. No journal may be open, and the shards' files have everything.
            ends: By shard, the number of the latest batch that its file includes.

        Raises:
            StartError: It cannot be written; the journals of before are still good.
        """
        before = self._meta
        try:
            for worker in range(workers):
                own = {shard: end for shard, end in ends.items() if worker_of(shard, workers) == worker}
                create_journal(self.home / journal_name(worker, workers), own, checksums=self.checksums)
            self._meta = replace(before, workers=workers)
            write_meta(self.path, self._meta)
        except OSError as error:
            raise explain(self.path, error) from error
        except apsw.Error as error:
            why = said_of(error, self.path)
            raise StartError(f"data directory {self.path} cannot be given its journals: {why}") from error
        if before.workers != workers:
            _remove_journals(self.home, before.workers)

    def renew_journal(self, path: Path, ends: Mapping[int, int]) -> None:
        """Put an empty journal in the place of one of which the shards' files have everything, and nobody has open.

        Args:
            path: Its file.
            ends: By shard of its worker, the number of the latest batch that its file includes.

        Raises:
            StorageError: It cannot be written; the one of before is still there.
        """
        try:
            # Its WAL goes before it does: whatever it ends with has to be in the file by then.
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
            try:
                check_version(connection, str(path), KIND)
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connection.close()
            create_journal(path, ends, checksums=self.checksums)
        except (apsw.Error, OSError) as error:
            raise StorageError(f"{path} cannot be made anew: {said_of(error, path)}") from error

    def close(self) -> None:
        """Let another process have it. Close every engine first."""
        self._locks.close()

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _remove_journals(path: Path, workers: int) -> None:
    """Remove those of another number of workers: nothing is in them that the shards' files do not have."""
    for worker in range(workers):
        for suffix in ("", "-wal", "-shm", SYNCED_SUFFIX):
            (path / (journal_name(worker, workers) + suffix)).unlink(missing_ok=True)


def _claim(path: Path, shards: Iterable[int], locks: contextlib.ExitStack) -> None:
    for shard in shards:
        locks.callback(os.close, take_lock(path / lock_name(shard)))


def _take(path: Path, shards: int | None, workers: int, locks: contextlib.ExitStack, *, checksums: bool) -> Meta:
    if not path.exists():
        path.mkdir(mode=DIRECTORY_MODE, parents=True)
        sync_path(path.parent)
    elif not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
    locks.callback(os.close, take_lock(path / LOCK_NAME))
    meta = read_meta(path)
    count = meta.shards if meta is not None else SHARDS_DEFAULT if shards is None else shards
    if workers > count:
        raise StartError(
            f"data directory {path} has {count} shards and {workers} workers are to serve it: each needs a shard of its"
            f" own; set workers to at most {count}"
        )
    if meta is None:
        _refuse_unfinished(path)
        meta = _create(path, count, checksums=checksums)
    if shards is not None and shards != meta.shards:
        raise StartError(
            f"data directory {path} has {meta.shards} shards and the configuration says {shards}: set shards ="
            f" {meta.shards}, leave it out, name a new directory, or change the number with `idemactor reshard`"
        )
    refuse_outdated(path, meta)
    # Whoever made it may have been killed just after it came to count.
    finish(meta.home(path))
    return meta if meta.copied_ms is None else _serve_copy(path, meta)


def refuse_missing(home: Path, meta: Meta) -> None:
    """Refuse files that count, and are ``home``'s, of which not all are there.

    Raises:
        StartError: The message says the way out.
    """
    for name in lost_files(home, meta):
        holds = "its keys" if name.startswith("shard") else "what the shards' files do not have yet"
        raise StartError(f"data directory {home} has lost {name}, and an empty one would forget {holds}; {NOT_ALONE}")


def _settle_checksums(path: Path, meta: Meta, wanted: bool | None) -> bool:
    """Whether the files have checksums: all were made alike, and most say how. Nobody may have one open."""
    home = meta.home(path)
    said = [says_checksums(home / name) for name in (*map(shard_name, range(meta.shards)), *meta.journals())]
    has_some = said.count(True) >= said.count(False)
    if wanted is not None and wanted != has_some:
        has, says = ("has", "false") if has_some else ("has no", "true")
        raise StartError(
            f"data directory {path} {has} checksums in its files and the configuration says page_checksums = {says}:"
            " leave it out, or make a new directory with it: `idemactor export`, and `idemactor import --config`"
        )
    return has_some


def _serve_copy(path: Path, meta: Meta) -> Meta:
    """Nobody has served this copy: no token that the original granted since is granted by it. May be repeated."""
    refuse_missing(meta.home(path), meta)
    files = [meta.home(path) / shard_name(shard) for shard in range(meta.shards)]
    leap(files, token_at(max(wall_ms(), meta.copied_ms or 0)))
    served = replace(meta, copied_ms=None, taken_ms=meta.copied_ms)
    write_meta(path, served)
    return served


def take_lock(path: Path) -> int:
    """Lock a lock file, made where there is none, and say in it who holds it; the lock ends with the descriptor.

    Returns:
        The descriptor. It is not inherited by programs that are started, so that a child cannot hold on to it.

    Raises:
        StartError: Another process holds it.
        OSError: It cannot be made or locked.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            hand_over(descriptor, path.absolute().parent)
            lock(descriptor, path)
            if _is_there(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Whoever had it took it away with its lock; the next one is another file.
        os.close(descriptor)


def _is_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def lock(descriptor: int, path: Path) -> None:
    """Lock an open lock file; wait only where whoever locked it is dead, and its workers are about to be.

    Raises:
        StartError: Another process holds it; the message names it where that is known.
        OSError: The file system cannot lock.
    """
    end = time.monotonic() + ORPHANS_MS_MAX / _MS_PER_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).strip().decode("ascii", "replace")
            if time.monotonic() > end or not _is_gone(pid):
                holder = f"process {pid}" if pid.isdigit() else "another process"
                raise StartError(
                    f"data directory {path.parent} is in use by {holder} ({path.name} is locked); stop it first"
                ) from None
        time.sleep(ORPHANS_POLL_MS / _MS_PER_S)


def _is_gone(pid: str) -> bool:
    """Whether there is no such process any more."""
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


def _create(path: Path, shards: int, *, checksums: bool) -> Meta:
    """Make the files of a new directory, those of an earlier try that did not come to its end thrown away."""
    _discard_unfinished(path)
    first_seq = new_first_seq()
    for shard in range(shards):
        create_file(path / shard_name(shard), shard, shards, first_seq, checksums=checksums)
    create_journal(path / JOURNAL_NAME, dict.fromkeys(range(shards), first_seq), checksums=checksums)
    meta = Meta(shards, wall_ms())
    write_meta(path, meta)
    return meta


def new_first_seq() -> int:
    """Where the numbers of a directory's batches begin: those of two directories never fit together by accident."""
    return random.SystemRandom().getrandbits(SEQ_BITS)


def _refuse_unfinished(path: Path) -> None:
    """What is being restored here must not be taken for a new directory, which would forget every key."""
    if finished := finished_sets(path):
        raise StartError(
            f"data directory {path} has lost {META_NAME}, which says which files count: {finished[-1][1].name} did;"
            f" restore the whole directory: `idemactor restore --replace BACKUP {path}`"
        )
    if unfinished(path, 0):
        raise StartError(
            f"data directory {path} is that of a restore or an import that did not come to its end; run it once more,"
            " or remove the directory to begin with nothing"
        )


def _discard_unfinished(path: Path) -> None:
    """Remove what an interrupted creation left: files with our names that say that they are ours and hold nothing.

    What SQLite keeps beside them, and what never got its name, goes with them.
    """
    found = [file for file in sorted(path.iterdir()) if _MADE.fullmatch(file.name)]
    for file in found:
        empty = journal_holds_nothing if file.name == JOURNAL_NAME else holds_nothing
        if file.suffix == ".db" and not empty(file):
            raise StartError(
                f"data directory {path} has {file.name} with keys in it but no {META_NAME}; restore the whole"
                f" directory: `idemactor restore --replace BACKUP {path}`, or name a new one"
            )
    for file in found:
        file.unlink(missing_ok=True)


def wall_ms() -> int:
    """The wall clock, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def explain(path: Path, error: OSError, what: str = "data directory") -> StartError:
    """What the operating system refused, as a sentence with the way out; ``what`` is at ``path``."""
    if error.errno is None:
        return StartError(f"{what} {path}".lstrip() + f" cannot be used: {error}")
    if error.errno in _NETWORK:
        why = "its file system cannot lock files or its server does not answer; use a local disk"
    else:
        why = _WAYS_OUT.get(error.errno, os.strerror(error.errno))
    return StartError(f"{what} {path}".lstrip() + f" cannot be used: {why} ({error})")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """What the operating system or SQLite refuses, as a sentence; ``path`` is what a tool writes, if it writes.

    What is whole and takes another release or key to be read is no damage, and refused as well.
    """
    try:
        yield
    except BrokenPipeError:  # Who reads an export has seen enough.
        raise
    except OSError as error:
        raise explain(Path(error.filename or path), error, "") from error
    except apsw.Error as error:
        if is_out_of_room(error, path):
            raise disk_full(path, error) from error
        raise StorageError(f"a file cannot be read or written: {reason_of(error)}") from error
    except OutOfReach as error:
        raise StartError(str(error)) from error
