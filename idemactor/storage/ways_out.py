"""What is said to whoever has to put a data directory right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeGuard

import apsw

from idemactor.errors import StartError, StorageError

RESTORE: Final = "`idemactor restore --replace BACKUP DIR` restores the whole directory"
NOT_ALONE: Final = (
    f"a backup's copy of that file alone does not fit the others: {RESTORE}, and"
    " docs/operations.md says how to bring back one shard alone"
)
"""Of a shard's file or a journal. One that is put beside files of another moment is refused at the next start."""

ROOM_MIN: Final = 32_768
"""With less room, in bytes, nothing can be opened for writing: a WAL's index alone grows by as much at a time, see
https://www.sqlite.org/walformat.html#the_wal_index_file_format."""

_NO_WORDS: Final = "not an error"


def reason_of(error: apsw.Error) -> str:
    """What SQLite says of an error. Of a step of a copy it has no words: then the name of what it is."""
    said = str(error)
    return type(error).__name__ if said in ("", _NO_WORDS) else said


def lacking(path: Path, error: Exception) -> str | None:
    """What there is no more of where ``path`` is; None: that is not why SQLite failed.

    SQLite says that a disk is full where it writes to a file; of a new one, and of the index of a WAL, it does not.
    """
    if not isinstance(error, (apsw.IOError, apsw.CantOpenError)):
        return None
    try:
        system = os.statvfs(next(each for each in (path, *path.absolute().parents) if each.exists()))
    except OSError:
        return None
    if system.f_files > 0 and system.f_favail == 0:
        return "no inode left: remove some files"
    # A quota is no matter of the file system's numbers.
    no_index = getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
    if no_index or system.f_bavail * system.f_frsize < ROOM_MIN:
        return "no space left on its file system: free some"
    return None


def said_of(error: Exception, where: Path) -> str:
    """What an error says, and what there is no more of at ``where`` if that is why."""
    lack = lacking(where, error)
    return str(error) if lack is None else f"{error} ({lack})"


def is_out_of_room(error: Exception | None, where: Path) -> TypeGuard[apsw.Error]:
    """Whether SQLite failed because there is no room where ``where`` is."""
    return isinstance(error, apsw.FullError) or (error is not None and lacking(where, error) is not None)


def disk_full(where: Path, error: apsw.Error) -> StartError:
    """What is said of a place that SQLite found no room in: nothing is damaged, and somebody can make room."""
    why = lacking(where, error) or "the disk is full; free some space and try again"
    return StartError(f"{where} cannot be written: {why} ({reason_of(error)})")


def not_written(where: Path, error: Exception | None) -> StartError | StorageError:
    """What a tool says of a transaction in the file ``where`` that failed; ``error`` is its ``last_error``."""
    if is_out_of_room(error, where):
        return disk_full(where, error)
    return StorageError(f"{where} cannot be written: {error}")
