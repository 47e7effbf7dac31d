"""Whose a file is that root makes: the owner's of the directory that it is in, whose server could not use it else."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def hand_over(made: int | Path, directory: Path) -> None:
    """Give what root made (a descriptor, or a path) to the owner of ``directory``, as long as it is root's.

    That owner may have put a link there, so that a path is not followed, and who opens a descriptor for this may not
    follow one either (``O_NOFOLLOW``); a file with a second name somewhere is not given away.

    Raises:
        OSError: It cannot be given away.
    """
    if os.geteuid() != 0:
        return
    user, group = owner_of(directory)
    found = os.lstat(made) if isinstance(made, Path) else os.fstat(made)
    has_another_name = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
    if user == 0 or found.st_uid != 0 or has_another_name:
        return
    if isinstance(made, Path):
        os.chown(made, user, group, follow_symlinks=False)
    else:
        os.fchown(made, user, group)


def owner_of(directory: Path) -> tuple[int, int]:
    """The user and the group of a directory.

    Raises:
        OSError: It cannot be looked at.
    """
    found = directory.stat()
    return found.st_uid, found.st_gid
