"""Whose a file is that root makes: the owner's of the directory that it is in, whose server could not use it else."""

from __future__ import annotations

import os
from pathlib import Path


def hand_over(made: int | Path, directory: Path) -> None:
    """Give what root made (a descriptor, or a path) to the owner of ``directory``, as long as it is root's.

    Raises:
        OSError: It cannot be given away.
    """
    if os.geteuid() != 0:
        return
    user, group = owner_of(directory)
    if user != 0 and os.stat(made).st_uid == 0:
        os.chown(made, user, group)


def owner_of(directory: Path) -> tuple[int, int]:
    """The user and the group of a directory.

    Raises:
        OSError: It cannot be looked at.
    """
    found = directory.stat()
    return found.st_uid, found.st_gid
