"""Whose the files are that a tool makes."""

from __future__ import annotations

import os
from pathlib import Path


def own_as(path: Path, like: Path) -> None:
    """What root made in a directory is the directory's owner's: the server's, which could not write it otherwise.

    Raises:
        OSError: The owner cannot be changed.
    """
    if os.geteuid() != 0:
        return
    owner = like.stat()
    for each in (path, *path.rglob("*")) if path.is_dir() else (path,):
        os.chown(each, owner.st_uid, owner.st_gid, follow_symlinks=False)
