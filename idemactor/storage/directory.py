"""The data directory: who owns it, what belongs in it, and how it comes to be.

``idemactor.json`` is written last, after every shard's file is whole and on disk. So a directory without it was never
finished and holds nothing, and one with it must have every file: a missing one is an error, never made anew, since an
empty shard would forget what it promised.

Ownership is a ``flock`` on files of their own. SQLite's locks live on the database file, and closing any other
descriptor of that file in this process would silently drop them: nothing here opens a database file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

import apsw

from idemactor.core.keys import worker_of
from idemactor.core.limits import SHARDS_DEFAULT
from idemactor.errors import StartError, StorageError
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import create_journal
from idemactor.storage.sqlite_create import create_file, holds_nothing, sync_directory

META_NAME: Final = "idemactor.json"
LOCK_NAME: Final = "LOCK"
META_FORMAT: Final = 1
"""The version of the layout of the directory; a newer one is refused."""
SHARDS_MAX: Final = 1024
"""The most shards of a directory: each takes three or four file descriptors."""
SEQ_BITS: Final = 53
"""Of the number that a directory's batches begin behind: far more directories than anybody mixes up, and still far
from the end of SQLite's integers (63 bits)."""
ORPHANS_MS_MAX: Final = 10_000
"""How long a start waits for the workers of a server that was killed: they die with it, but each in its own time."""
ORPHANS_POLL_MS: Final = 5
DIRECTORY_MODE: Final = 0o700
"""Keys and outcomes are nobody else's business."""
FILE_MODE: Final = 0o600

_MS_PER_S: Final = 1_000
_WAYS_OUT: Final = {
    errno.EACCES: "this user may not use it; give it to the user that runs idemactor",
    errno.EPERM: "this user may not use it; give it to the user that runs idemactor",
    errno.EROFS: "it is on a read-only file system; name a directory that can be written",
    errno.ENOSPC: "the disk is full, or has no inode left; free some space and start again",
    errno.EDQUOT: "the disk quota is used up; free some space and start again",
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


@dataclass(frozen=True, slots=True)
class Meta:
    """What ``idemactor.json`` says.

    Attributes:
        shards: How many there are.
        created_ms: When the directory was made, milliseconds since the epoch.
        workers: How many processes served it last: each has a journal of its own.
    """

    shards: int
    created_ms: int
    workers: int = 1


class DataDirectory:
    """A directory that this process owns until it is closed."""

    def __init__(self, path: Path, meta: Meta, locks: contextlib.ExitStack) -> None:
        self.path = path
        self.shards = meta.shards
        self.created_ms = meta.created_ms
        self._meta = meta
        self._locks = locks

    @classmethod
    def open(cls, path: Path, shards: int | None = None, *, workers: int = 1) -> DataDirectory:
        """Take a data directory, made anew where there is none.

        Args:
            path: The directory.
            shards: What the configuration says, None where it says nothing: the directory's own, 4 for a new one.
            workers: How many processes are to serve it. One owns every shard from here on; of several each takes its
                own, see ``claim``.

        Raises:
            StartError: It cannot be used; the message says the way out.
        """
        if shards is not None and not 1 <= shards <= SHARDS_MAX:
            raise StartError(f"shards is 1 to {SHARDS_MAX}, not {shards}")
        with contextlib.ExitStack() as locks:
            try:
                meta = _take(path, shards, workers, locks)
                if workers == 1:
                    _claim(path, range(meta.shards), locks)
            except OSError as error:
                raise explain(path, error) from error
            except apsw.FullError as error:
                raise explain(path, OSError(errno.ENOSPC, str(error))) from error
            except (apsw.Error, StorageError) as error:
                raise StartError(f"data directory {path} cannot be used: {error}") from error
            return cls(path, meta, locks.pop_all())
        raise AssertionError("an exit stack swallows nothing")

    def engine_path(self, shard: int) -> Path:
        """The database file of a shard, from 0 to ``shards - 1``."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"there is no shard {shard} of {self.shards}")
        return self.path / shard_name(shard)

    @property
    def workers(self) -> int:
        """How many journals there are: one for each process that served the directory last."""
        return self._meta.workers

    def journal_path(self, shard: int) -> Path:
        """The database file of the journal of a shard's worker."""
        return self.path / journal_name(worker_of(shard, self.workers), self.workers)

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
                create_journal(self.path / journal_name(worker, workers), own)
            self._meta = replace(before, workers=workers)
            _write_meta(self.path, self._meta)
        except OSError as error:
            raise explain(self.path, error) from error
        except apsw.Error as error:
            raise StartError(f"data directory {self.path} cannot be given its journals: {error}") from error
        if before.workers != workers:
            _remove_journals(self.path, before.workers)

    def close(self) -> None:
        """Let another process have it. Close every engine first."""
        self._locks.close()

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shard_name(shard: int) -> str:
    """The name of a shard's database file."""
    return f"shard-{shard:04d}.db"


def lock_name(shard: int) -> str:
    """The name of a shard's lock file."""
    return f"shard-{shard:04d}.lock"


def journal_name(worker: int, workers: int) -> str:
    """The name of a worker's journal; no two numbers of workers share a name."""
    return JOURNAL_NAME if workers == 1 else f"journal-{worker}-of-{workers}.db"


def _remove_journals(path: Path, workers: int) -> None:
    """Remove those of another number of workers: nothing is in them that the shards' files do not have."""
    for worker in range(workers):
        for suffix in ("", "-wal", "-shm"):
            (path / (journal_name(worker, workers) + suffix)).unlink(missing_ok=True)


def _claim(path: Path, shards: Iterable[int], locks: contextlib.ExitStack) -> None:
    for shard in shards:
        locks.callback(os.close, take_lock(path / lock_name(shard)))


def _take(path: Path, shards: int | None, workers: int, locks: contextlib.ExitStack) -> Meta:
    if not path.exists():
        path.mkdir(mode=DIRECTORY_MODE, parents=True)
        sync_directory(path.parent)
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
        meta = _create(path, count)
    if shards is not None and shards != meta.shards:
        raise StartError(
            f"data directory {path} has {meta.shards} shards and the configuration says {shards}; the number is fixed"
            f" when a directory is made: set shards = {meta.shards}, leave it out, or name a new directory"
        )
    for name in (journal_name(worker, meta.workers) for worker in range(meta.workers)):
        if not (path / name).is_file():
            raise StartError(
                f"data directory {path} has lost {name}; put it back from a backup: it may hold what the shards'"
                " files do not have yet"
            )
    for shard in range(meta.shards):
        if not (path / shard_name(shard)).is_file():
            raise StartError(
                f"data directory {path} has lost {shard_name(shard)}; put it back from a backup:"
                " an empty one would forget its keys"
            )
    return meta


def take_lock(path: Path) -> int:
    """Lock a lock file, made where there is none, and say in it who holds it; the lock ends with the descriptor.

    Returns:
        The descriptor. It is not inherited by programs that are started, so that a child cannot hold on to it.

    Raises:
        StartError: Another process holds it.
        OSError: It cannot be made or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        lock(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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


def read_meta(path: Path) -> Meta | None:
    """What ``idemactor.json`` says, None where there is none.

    Raises:
        StartError: It is damaged, or of a newer release.
        OSError: It cannot be read.
    """
    try:
        text = (path / META_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        layout, shards, created_ms = content["format"], content["shards"], content["created_ms"]
        workers = content.get("workers", 1)
    except (ValueError, TypeError, KeyError):
        raise StartError(f"{path / META_NAME} is damaged; put it back from a backup") from None
    if layout != META_FORMAT:
        raise StartError(
            f"data directory {path} has format {layout}, this release knows {META_FORMAT};"
            " start the release that wrote it"
        )
    numbers = type(shards) is int and type(created_ms) is int and type(workers) is int
    if not numbers or not 1 <= workers <= shards <= SHARDS_MAX:
        raise StartError(f"{path / META_NAME} is damaged; put it back from a backup")
    return Meta(shards, created_ms, workers)


def _create(path: Path, shards: int) -> Meta:
    """Make the files of a new directory, those of an earlier try that did not come to its end thrown away."""
    _discard_unfinished(path)
    first_seq = _first_seq()
    for shard in range(shards):
        create_file(path / shard_name(shard), shard, shards, first_seq)
    create_journal(path / JOURNAL_NAME, dict.fromkeys(range(shards), first_seq))
    meta = Meta(shards, time.time_ns() // 1_000_000)
    _write_meta(path, meta)
    return meta


def _write_meta(path: Path, meta: Meta) -> None:
    content = {"format": META_FORMAT, "shards": meta.shards, "created_ms": meta.created_ms}
    if meta.workers > 1:
        content["workers"] = meta.workers
    _write_whole(path / META_NAME, json.dumps(content).encode() + b"\n")


def _first_seq() -> int:
    """Where the numbers of a directory's batches begin: those of two directories never fit together by accident."""
    return random.SystemRandom().getrandbits(SEQ_BITS)


def _discard_unfinished(path: Path) -> None:
    for file in sorted(path.glob("shard-*.db")):
        if not holds_nothing(file):
            raise StartError(
                f"data directory {path} has {file.name} with keys in it but no {META_NAME};"
                " put that back from a backup, or name a new directory"
            )
    # What SQLite keeps beside them, and what never got its name, goes with them. Shards that hold nothing have nothing
    # in the journal either: they begin to grant only once the directory is finished.
    for file in (*path.glob("shard-*.db*"), *path.glob(JOURNAL_NAME + "*")):
        file.unlink()


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file so that under its name there is all of it or nothing, whenever the power goes."""
    scratch = path.with_name(path.name + ".new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.rename(scratch, path)
    sync_directory(path.parent)


def explain(path: Path, error: OSError) -> StartError:
    """What the operating system refused, as a sentence with the way out."""
    if error.errno in _NETWORK:
        why = "its file system cannot lock files or its server does not answer; use a local disk"
    else:
        why = _WAYS_OUT.get(error.errno or 0, os.strerror(error.errno or 0))
    return StartError(f"data directory {path} cannot be used: {why} ({error})")
