"""How a new set of files takes the place of the one that counts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idemactor.errors import StartError
from idemactor.storage.layout import SETS_MAX, Meta, read_meta, set_path, write_meta
from idemactor.storage.sqlite_create import sync_path
from idemactor.storage.unfinished import discard, finish, finished_sets, is_unfinished, unfinished_sets


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


@contextlib.contextmanager
def thrown_away(path: Path, when: type[BaseException]) -> Iterator[None]:
    """While a set is made in ``path``: what is not finished goes if it ends in one of ``when``.

    It would be in the way of a start, of all that a full disk has still to take, and of who cannot go on with it.

    What does not go is named by the next start.
    """
    try:
        yield
    except when:
        for left in _left_in(path):
            with contextlib.suppress(OSError):
                discard(left)
        raise


def _left_in(path: Path) -> list[Path]:
    try:
        meta = read_meta(path)
    except (StartError, OSError):
        # Which sets count is not known.
        return []
    return unfinished_sets(path, 0 if meta is None else meta.files)


def note_of(before: Meta | None) -> dict[str, Any] | None:
    """What a directory said of itself before, for ``made.json``."""
    return None if before is None else dataclasses.asdict(before)
