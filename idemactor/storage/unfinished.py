"""What tools make for a while, and how it is told from what is somebody else's.

A directory that is being made carries a *mark*, an empty file that is there before anything else is in it, and goes
once it counts. So nothing is ever removed by its name alone: a directory that happens to be called ``files-2024``, or a
backup that was put where a set of files might be, carries none. Between the making of a directory and that of its mark
there is nothing in it, and removing it then takes nothing from anybody.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from idemactor.errors import StartError
from idemactor.storage.layout import (
    DIRECTORY_MODE,
    MADE_NAME,
    MANIFEST_NAME,
    META_NAME,
    SPOOL_NAME,
    Meta,
    set_path,
)
from idemactor.storage.sqlite_create import FILE_MODE, sync_path

MARK_NAME: Final = "idemactor.unfinished"
"""Only a directory with this file in it is ever removed."""

NO_USE: Final = (
    "is of a reshard, restore or import that did not come to its end, and counts for nothing: run it once more, or"
    " remove what is left"
)
"""What is said of what ``unfinished`` finds."""

_SET: Final = re.compile(r"files-([0-9]{4})")


def begin(path: Path) -> None:
    """Make a directory that counts for nothing until ``finish``; what was left of an earlier try goes first.

    Raises:
        StartError: Something that is not ours has its name.
        OSError: It cannot be made.
    """
    if is_unfinished(path):
        discard(path)
    try:
        path.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:
        raise StartError(
            f"{path} is there already, and is not what an interrupted run of idemactor left; move it away"
        ) from None
    mark(path)


def mark(path: Path) -> None:
    """Say of a new and empty directory that it counts for nothing.

    Raises:
        OSError: It cannot be written.
    """
    descriptor = os.open(path / MARK_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_path(path)


def finish(path: Path) -> None:
    """What is in a directory counts: from here on nothing of ours removes it. May be repeated.

    Raises:
        OSError: It cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        (path / MARK_NAME).unlink()
        sync_path(path)


def is_marked(path: Path) -> bool:
    """Whether a directory is one that we made and did not finish."""
    try:
        with _opened(path) as directory:
            return _has_mark(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_unfinished(path: Path) -> bool:
    """Whether a directory is one that we made and did not finish, or has nothing in it."""
    return is_marked(path) or (not path.is_symlink() and path.is_dir() and not os.listdir(path))


def discard(path: Path) -> None:
    """Remove a directory of which ``is_unfinished`` is true. May be interrupted and repeated: the mark goes last.

    What has the name by then counts, and no link is followed: it has the mark, or is empty, or stays as it is.

    Raises:
        OSError: Something of it cannot be removed, or it is no such directory.
    """
    with _opened(path) as directory:
        if _has_mark(directory):
            for name in os.listdir(directory):
                if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                    shutil.rmtree(name, dir_fd=directory)
                elif name != MARK_NAME:
                    os.unlink(name, dir_fd=directory)
            os.unlink(MARK_NAME, dir_fd=directory)
    path.rmdir()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A directory as it is under its name, whatever takes the name meanwhile.

    Raises:
        NotADirectoryError: It is none, or a link to one.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _has_mark(directory: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(MARK_NAME, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def unfinished_sets(path: Path, files: int) -> list[Path]:
    """The sets that we began and that never came to count, where the set ``files`` does."""
    return [
        found
        for number, found in _sets(path, files)
        if is_marked(found) or (number == files + 1 and is_unfinished(found))
        if not (found / META_NAME).exists() and not (found / MANIFEST_NAME).exists()
    ]


def unfinished(path: Path, files: int) -> list[Path]:
    """What was left in the data directory ``path`` by what did not come to its end."""
    spool = path / SPOOL_NAME
    return [*unfinished_sets(path, files), *([spool] if is_unfinished(spool) else [])]


def finished_sets(path: Path, files: int = 0) -> list[tuple[int, Path]]:
    """The sets of a higher number than ``files`` that were whole and counted once, with their numbers."""
    return [
        (number, found) for number, found in _sets(path, files) if (found / MADE_NAME).exists() and not is_marked(found)
    ]


def outdated(path: Path, meta: Meta) -> str | None:
    """What is wrong with an ``idemactor.json`` that is older than the files beside it; None: nothing.

    What the newer files know would be forgotten by whoever goes by it, and be granted a second time.
    """
    newer = finished_sets(path, meta.files)
    if not newer:
        return None
    return (
        f"{path / META_NAME} is older than the files: it names those in {meta.home(path)}, and {newer[-1][1].name} took"
        f" their place; restore the whole directory: `idemactor restore --replace BACKUP {path}`"
    )


def refuse_outdated(path: Path, meta: Meta) -> None:
    """Refuse an ``idemactor.json`` that is older than the files beside it.

    Raises:
        StartError: The message says the way out.
    """
    if (wrong := outdated(path, meta)) is not None:
        raise StartError(wrong)


def _sets(path: Path, files: int) -> list[tuple[int, Path]]:
    """What is called as a set of a higher number than ``files`` is."""
    numbers = [int(found[1]) for each in path.glob("files-*") if (found := _SET.fullmatch(each.name))]
    return [(number, set_path(path, number)) for number in sorted(numbers) if number > files]
