"""As whom a tool works that root runs: as the user who could lead it elsewhere, if there is one.

Whoever owns a directory may put a link in the place of anything in it, at any moment, and root would follow it to what
is none of that user's. So root becomes that user for good before it opens or makes anything there. Then a link leads
nowhere where that user could not have gone alone, and what is made is theirs without being given away.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idemactor.errors import StartError

LINKS_MAX: Final = 40
"""How many symbolic links a path may lead over, as Linux has it."""

_OURS: Final = ("*.json", "shard-*", "journal*", "LOCK*")
"""What tools open in a data directory, and in a set of its files, as patterns."""
_SETS: Final = "files-[0-9][0-9][0-9][0-9]"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose something is.

    Attributes:
        user: The user's number.
        group: The number of the group that it belongs to.
    """

    user: int
    group: int

    @property
    def name(self) -> str:
        """What people call the user; the number where it has no name."""
        try:
            return pwd.getpwuid(self.user).pw_name
        except KeyError:
            return str(self.user)


@dataclass(frozen=True, slots=True)
class Way:
    """How a path comes to what is there of it.

    Attributes:
        there: The last directory or file that is there, with no link on the way to it.
        stranger: The last owner of anything on the way who is not root; None: all is root's.
        owner: The owner of ``there``, or of ``link``; None: it is root's.
        link: Somebody else's symbolic link, at which the way ends; None: there is none.
    """

    there: Path
    stranger: Owner | None
    owner: Owner | None
    link: Path | None


def caller() -> str:
    """The name of the user who runs this; the number where it has none."""
    return Owner(os.getuid(), os.getgid()).name


def become_owner(written: Path | None, read: Path | None = None) -> None:
    """Be, from here on, the user whom ``written`` belongs to, if root runs this; what takes root's rights comes before.

    Python finds no module any more that this user may not read: import everything before.

    Args:
        written: What is going to be written. It belongs to the last one who is not root and owns something on the way
            to it: they may put anything in its place. None: nothing is written.
        read: A file or a directory that is only read. Where nothing is written, its own owner counts.

    Raises:
        StartError: That user cannot read ``read``, or use what is there of ``written``; or root, who stays root, would
            be led elsewhere by what somebody else put into ``read``. The message says the way out.
        StorageError: See ``checked_vfs``.
    """
    if os.geteuid() != 0:
        return
    place = written or read or Path()
    way = way_to(place)
    owner = way.owner if written is None else way.stranger
    if owner is not None:
        _become(owner)
        _refuse_unusable(owner, place, way, written, read)
    elif read is not None:
        _refuse_links(read, way_to(read))


def way_to(path: Path) -> Way:
    """Go along a path, without following somebody else's link.

    Raises:
        StartError: Its links go in a circle.
        OSError: It cannot be looked at.
    """
    here = Path("/")
    # Whoever owns that leads everybody anywhere: in a container whose root is a user of the host, the host's root.
    trusted = {0, os.lstat(here).st_uid}
    stranger = owner = None
    left = list(reversed(path.absolute().parts[1:]))
    links = 0
    while left:
        at = Path(os.path.normpath(here / left.pop()))
        try:
            found = os.lstat(at)
        except (FileNotFoundError, NotADirectoryError):
            break
        owner = None if found.st_uid in trusted else Owner(found.st_uid, found.st_gid)
        stranger = owner or stranger
        if not stat.S_ISLNK(found.st_mode):
            here = at
            continue
        if owner is not None:
            return Way(here, stranger, owner, at)
        links += 1
        if links > LINKS_MAX:
            raise StartError(f"{path}: its symbolic links go in a circle; name another path")
        left += reversed((here / os.readlink(at)).parts[1:])
        here = Path("/")
    return Way(here, stranger, owner, None)


def _become(owner: Owner) -> None:
    """Be a user for good, with no right that this user has not.

    Raises:
        StartError: Root may not do that here.
        StorageError: See ``checked_vfs``.
    """
    from idemactor.storage.checksums import checked_vfs

    # SQLite loads it from a file, which this user may not be able to read.
    checked_vfs()
    try:
        try:
            entry = pwd.getpwuid(owner.user)
        except KeyError:
            # A directory may be of root's group, and that may read much that is nobody else's business.
            group = owner.group or owner.user
            os.setgroups([group])
        else:
            group = entry.pw_gid
            os.initgroups(entry.pw_name, group)
        os.setresgid(group, group, group)
        os.setresuid(owner.user, owner.user, owner.user)
    except OSError as error:
        raise StartError(
            f"root works as {owner.name} in what is in the hands of {owner.name}, and may not become that user here"
            f" ({error.strerror}); run this as {owner.name}"
        ) from error


def _refuse_unusable(owner: Owner, place: Path, way: Way, written: Path | None, read: Path | None) -> None:
    """Raises: StartError: the user whom root has become cannot read or write what is there."""
    for path, mode in _needed(way, written, read):
        if not _may(path, mode):
            done = "read" if mode == os.R_OK else "written"
            raise StartError(
                f"{path} cannot be {done} by {owner.name}, as whom root works here, since {place} is in the hands of"
                f" {owner.name}; give it to that user (chown -R {owner.name} {path}), or name another place"
            )


def _needed(way: Way, written: Path | None, read: Path | None) -> Iterator[tuple[Path, int]]:
    """What a tool has to be able to use, and how."""
    for path in (read, written):
        # What is written and no directory is a device or a pipe.
        if path is not None and (path is read or os.path.isdir(path)):
            yield path, os.R_OK
            for each in _ours(path):
                yield each, os.R_OK
    if written is not None:
        yield way.there, os.W_OK


def _may(path: Path, mode: int) -> bool:
    """Whether this user may read or write what is there, and go into it; what is not there hinders nobody."""
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except PermissionError:
        return False
    except OSError:
        return True
    return os.access(path, mode | os.X_OK if is_directory else mode)


def _refuse_links(source: Path, way: Way) -> None:
    """Raises: StartError: root would read what somebody else's link leads to, or wait for what is no file."""
    if way.stranger is None:
        return
    strange = [each for each in _ours(source) if not _is_plain(each)]
    for each in (*([] if way.link is None else [way.link]), *strange):
        raise StartError(
            f"{each} is no regular file, and {way.stranger.name} may have put it there to lead root elsewhere; name or"
            f" put there the file itself, or run this as {way.stranger.name}"
        )


def _ours(path: Path) -> Iterator[Path]:
    """What there is of ours in a data directory: its files, its sets, and their files."""
    for home in (path, *sorted(path.glob(_SETS))):
        if home != path:
            yield home
        for pattern in _OURS:
            yield from sorted(home.glob(pattern))


def _is_plain(path: Path) -> bool:
    """Whether it is a file, or the directory of a set, and no link to one."""
    mode = os.lstat(path).st_mode
    return stat.S_ISREG(mode) or (path.match(_SETS) and stat.S_ISDIR(mode))
