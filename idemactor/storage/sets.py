"""How a new set of files takes the place of the one that counts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from idemactor.errors import StartError
from idemactor.storage.layout import SETS_MAX, Meta, set_path, write_meta
from idemactor.storage.sqlite_create import sync_path
from idemactor.storage.unfinished import finish, finished_sets, is_unfinished


def next_set(path: Path, before: Meta | None) -> int:
    """The number of the next set of files of a data directory: behind all that counted once, whatever ``before`` says.

    Something unfinished of that number may be there.

    Raises:
        StartError: There were too many.
    """
    files = 1 + max([0 if before is None else before.files, *(number for number, _ in finished_sets(path))])
    while files <= SETS_MAX and os.path.lexists(taken := set_path(path, files)) and not is_unfinished(taken):
        # Somebody's own: a backup that was put here, for one.
        files += 1
    if files > SETS_MAX:
        raise StartError(f"data directory {path} has had {SETS_MAX} sets of files; restore a backup of it elsewhere")
    return files


def switch(path: Path, home: Path, meta: Meta) -> None:
    """Let the set in ``home``, whose files are complete and on disk, be the one that counts in ``path``.

    Raises:
        OSError: It cannot be written; the set of before still counts.
    """
    sync_path(home)
    sync_path(path)
    write_meta(path, meta)
    finish(home)


def note_of(before: Meta | None) -> dict[str, Any] | None:
    """What a directory said of itself before, for ``made.json``."""
    return None if before is None else dataclasses.asdict(before)
