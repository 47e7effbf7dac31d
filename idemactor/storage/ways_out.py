"""What is said to whoever has to put a data directory right."""

from __future__ import annotations

from typing import Final

import apsw

from idemactor.errors import StartError, StorageError

RESTORE: Final = "`idemactor restore --replace BACKUP DIR` restores the whole directory"
NOT_ALONE: Final = (
    f"a backup's copy of that file alone does not fit the others: {RESTORE}, and"
    " docs/operations.md says how to bring back one shard alone"
)
"""Of a shard's file or a journal. One that is put beside files of another moment is refused at the next start."""

_NO_WORDS: Final = "not an error"


def reason_of(error: apsw.Error) -> str:
    """What SQLite says of an error. Of a step of a copy it has no words: then the name of what it is."""
    said = str(error)
    return type(error).__name__ if said in ("", _NO_WORDS) else said


def disk_full(where: object, error: apsw.FullError) -> StartError:
    """What is said of a place that SQLite found no room in: nothing is damaged, and somebody can make room."""
    why = f"the disk is full; free some space and try again ({reason_of(error)})"
    return StartError(f"{where} cannot be written: {why}")


def not_written(where: object, error: Exception | None) -> StartError | StorageError:
    """What a tool says of a transaction that failed; ``error`` is the file's ``last_error``."""
    if isinstance(error, apsw.FullError):
        return disk_full(where, error)
    return StorageError(f"{where} cannot be written: {error}")
