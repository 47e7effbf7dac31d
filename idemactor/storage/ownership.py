"""Whose a file is that root makes: the owner's of the directory that it is in, whose server could not use it else."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def hand_over(made: int, directory: Path) -> None:
    """Give a file that root made (its descriptor) to the owner of ``directory``, as long as it is root's.

    That owner may have put a link there, so that who opens it may not follow one (``O_NOFOLLOW``); a file with a second
    name somewhere is not given away. This is for a server that root runs: a tool becomes that owner before.

    Raises:
        OSError: It cannot be given away.
    """
    if os.geteuid() != 0:
        return
    user, group = owner_of(directory)
    found = os.fstat(made)
    has_another_name = stat.S_ISREG(found.st_mode) and found.st_nlink > 1
    if user == 0 or found.st_uid != 0 or has_another_name:
        return
    os.fchown(made, user, group)


def owner_of(directory: Path) -> tuple[int, int]:
    """The user and the group of a directory.

    Raises:
        OSError: It cannot be looked at.
    """
    found = directory.stat()
    return found.st_uid, found.st_gid
