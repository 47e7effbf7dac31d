"""How a new set of files takes the place of the one that counts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from idemactor.errors import StartError
from idemactor.storage.layout import META_NAME, SETS_MAX, Meta, is_leftover, set_path, write_meta
from idemactor.storage.sqlite_create import sync_path


def next_set(path: Path, before: Meta | None) -> int:
    """The number of the next set of files of a data directory; something unfinished of that number may be there.

    Raises:
        StartError: There were too many.
    """
    files = 1 if before is None else before.files + 1
    while files <= SETS_MAX and (taken := set_path(path, files)).exists() and not is_leftover(taken):
        # Somebody's own, a backup that was put here for one.
        files += 1
    if files > SETS_MAX:
        raise StartError(f"data directory {path} has had {SETS_MAX} sets of files; restore a backup of it elsewhere")
    return files


def switch(path: Path, home: Path, meta: Meta) -> None:
    """Let the set in ``home``, whose files are complete and on disk, be the one that counts in ``path``.

    Raises:
        OSError: It cannot be written; the set of before still counts.
    """
    _own_as(home, path)
    sync_path(home)
    sync_path(path)
    write_meta(path, meta)
    _own_as(path / META_NAME, path)


def note_of(before: Meta | None) -> dict[str, Any] | None:
    """What a directory said of itself before, for ``made.json``."""
    return None if before is None else dataclasses.asdict(before)


def _own_as(path: Path, like: Path) -> None:
    """What root made in a directory is the directory's owner's: the server's, which could not write it otherwise."""
    if os.geteuid() != 0:
        return
    owner = like.stat()
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
