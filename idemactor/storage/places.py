"""Where tools may write: to nobody's files, and into nothing that they read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from idemactor.errors import StartError
from idemactor.storage.directory import take_lock
from idemactor.storage.layout import DIRECTORY_MODE, LOCK_NAME, META_NAME, SCRATCH_SUFFIX
from idemactor.storage.unfinished import finished_sets, unfinished

_SHARD: Final = re.compile(r"shard-[0-9]{4}\.db")


def refuse_overlap(read: Path, written: Path) -> None:
    """Refuse to write into what is read, or to read what lies in what is written.

    Raises:
        StartError: One of the two directories is in the other, or they are one.
    """
    if read.resolve() == written.resolve():
        raise StartError(f"{read} and {written} are one directory; name another one")
    for inner, outer in ((read, written), (written, read)):
        if inner.resolve().is_relative_to(outer.resolve()):
            raise StartError(f"{inner} is inside of {outer}; name a directory that is not")


def is_mount_point(path: Path) -> bool:
    """Whether something is mounted at ``path``, which exists: no other directory can take its place.

    ``os.path.ismount`` takes a part of the same file system that is mounted there (``mount --bind``) for a directory.
    """
    return os.path.ismount(path) or _mount_of(path) != _mount_of(path.resolve().parent)


def _mount_of(path: Path) -> str:
    """The number of the mount that a path is in, see proc_pid_fdinfo(5); empty where the kernel tells none."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        told = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    except OSError:  # No /proc, or one that shows less.
        return ""
    finally:
        os.close(descriptor)
    return next((line for line in told.splitlines() if line.startswith("mnt_id:")), "")


def holds_data(path: Path) -> bool:
    """Whether there are files of a data directory in ``path``, that count or counted once."""
    return (
        os.path.lexists(path / META_NAME)
        or bool(finished_sets(path))
        or any(_SHARD.fullmatch(each.name) for each in path.iterdir())
    )


def refuse_strangers(path: Path) -> None:
    """Refuse a directory that holds no data and has something else in it.

    Raises:
        StartError: It does; the message names it.
    """
    ours = {LOCK_NAME, f"{META_NAME}{SCRATCH_SUFFIX}", *(each.name for each in unfinished(path, 0))}
    for each in sorted(path.iterdir()):
        if each.name not in ours:
            raise StartError(f"{path} is not empty ({each.name} is in it) and no data directory; name a new one")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Own a directory, made where there is none. If nothing comes into it, it is left as it was.

    Raises:
        StartError: Another process owns it, or it is no directory.
        OSError: It cannot be made.
    """
    if path.is_symlink() and not path.exists():
        raise StartError(f"{path} is a symbolic link to nothing; name a directory")
    if path.exists() and not path.is_dir():
        raise StartError(f"{path} is not a directory; name another path")
    made = [each for each in (path, *path.absolute().parents) if not each.exists()]
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    before = set(os.listdir(path))
    descriptor = take_lock(path / LOCK_NAME)
    try:
        yield
    finally:
        try:
            if LOCK_NAME not in before and set(os.listdir(path)) <= {LOCK_NAME, *before}:
                # Who waits for the lock finds out that it is gone, and makes another one.
                (path / LOCK_NAME).unlink()
                for each in made:
                    each.rmdir()
        except OSError:
            pass
        finally:
            os.close(descriptor)
