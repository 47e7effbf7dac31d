"""What the files of a data directory are called, and what ``idemactor.json`` says of them.

The files that count are those of one *set*: the first one lies in the directory itself, what took its place lies in
``files-0001`` and so on. ``idemactor.json`` names the one that counts, so that writing it is the one step in which a
new set takes the place of an old one. A set with a higher number than that was never finished and holds nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from idemactor.core.limits import TOKEN_MAX
from idemactor.errors import StartError, StorageError
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.ownership import hand_over
from idemactor.storage.sqlite_create import FILE_MODE, sync_path

META_NAME: Final = "idemactor.json"
LOCK_NAME: Final = "LOCK"
MADE_NAME: Final = "made.json"
"""What made a set of files, and what it took the place of: for whoever looks at it later."""
MANIFEST_NAME: Final = "backup.json"
"""What a backup says of itself."""
SCRATCH_SUFFIX: Final = ".new"
"""What a file of ours is called that is being written."""
SPOOL_NAME: Final = "import.unfinished"
"""Where an import puts what it read, until it is done."""
META_FORMAT: Final = 2
"""The version of the layout of the directory; a newer one is refused."""
META_FORMAT_PLAIN: Final = 1
"""What a directory says that holds nothing that version 1 did not have: the release before can serve it as well."""
SHARDS_MAX: Final = 1024
"""The most shards of a directory: each takes three or four file descriptors."""
SETS_MAX: Final = 9_999
"""The most sets that a directory ever has."""
DIRECTORY_MODE: Final = 0o700
"""Keys and outcomes are nobody else's business."""


class MetaDamaged(StartError):
    """``idemactor.json`` makes no sense. No other one will do: only it says which files count."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What ``idemactor.json`` says.

    Attributes:
        shards: How many there are.
        created_ms: When the directory was made, milliseconds since the epoch.
        workers: How many processes served it last: each has a journal of its own.
        files: The number of the set of files that counts.
        copied_ms: When the files were copied, of a copy that nobody has served yet: before anybody does, its tokens
            jump beyond what the original may have granted since.
        merged: Entries and tokens up to this number came from several shards: a token may be that of several keys.
        taken_ms: When the files were copied, of a copy that was served since: what the original acknowledged later is
            not in it, however late the latest in it is. A release that does not know it loses it.
    """

    shards: int
    created_ms: int
    workers: int = 1
    files: int = 0
    copied_ms: int | None = None
    merged: int = 0
    taken_ms: int | None = None

    def home(self, path: Path) -> Path:
        """Where in the data directory ``path`` the files that count are."""
        return set_path(path, self.files)

    def journals(self) -> list[str]:
        """The names of the journals, by worker."""
        return [journal_name(worker, self.workers) for worker in range(self.workers)]


def lost_files(home: Path, meta: Meta) -> list[str]:
    """The names of those files of a set that are not in ``home``, where they are."""
    names = [*meta.journals(), *map(shard_name, range(meta.shards))]
    return [name for name in names if not (home / name).is_file()]


def set_path(path: Path, files: int) -> Path:
    """Where in the data directory ``path`` a set of files is."""
    return path if files == 0 else path / f"files-{files:04d}"


def shard_name(shard: int) -> str:
    """The name of a shard's database file."""
    return f"shard-{shard:04d}.db"


def lock_name(shard: int) -> str:
    """The name of a shard's lock file."""
    return f"shard-{shard:04d}.lock"


def journal_name(worker: int, workers: int) -> str:
    """The name of a worker's journal; no two numbers of workers share a name."""
    return JOURNAL_NAME if workers == 1 else f"journal-{worker}-of-{workers}.db"


def is_none(path: Path, what: str = "data directory") -> StartError:
    """What is said where ``path`` has no ``idemactor.json``, and something of the kind of ``what`` was to be read."""
    if not path.exists():
        return StartError(f"{path} is not there; name a {what} that is")
    return StartError(f"{path} has no {META_NAME}: it is not a {what}, or was never finished")


def read_meta(path: Path) -> Meta | None:
    """What ``idemactor.json`` says, None where there is none.

    Raises:
        MetaDamaged: It makes no sense.
        StartError: It is of a newer release.
        OSError: It cannot be read.
    """
    try:
        text = (path / META_NAME).read_bytes()
    except FileNotFoundError:
        return None
    damaged = MetaDamaged(
        f"{path / META_NAME} is damaged, and that of a backup names other files; restore the whole directory:"
        f" `idemactor restore --replace BACKUP {path}`"
    )
    try:
        content = json.loads(text)
        layout, shards, created_ms = content["format"], content["shards"], content["created_ms"]
        numbers = [shards, created_ms, content.get("workers", 1), content.get("files", 0)]
        copied_ms, merged = content.get("copied_ms"), content.get("merged", 0)
        taken_ms = content.get("taken_ms")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise damaged from None
    if type(layout) is not int or not META_FORMAT_PLAIN <= layout <= META_FORMAT:
        raise StartError(
            f"data directory {path} has format {layout}, this release knows {META_FORMAT};"
            " start the release that wrote it"
        )
    moments = [0 if moment is None else moment for moment in (copied_ms, taken_ms)]
    if any(type(number) is not int for number in (*numbers, merged, *moments)):
        raise damaged
    meta = Meta(numbers[0], numbers[1], numbers[2], numbers[3], copied_ms, merged, taken_ms)
    if not _is_possible(meta):
        raise damaged
    return meta


def _is_possible(meta: Meta) -> bool:
    shards = 1 <= meta.workers <= meta.shards <= SHARDS_MAX
    return shards and 0 <= meta.files <= SETS_MAX and 0 <= meta.merged <= TOKEN_MAX


def write_meta(path: Path, meta: Meta) -> None:
    """Make ``meta`` what counts, all of it or nothing, whenever the power goes.

    Raises:
        StorageError: ``read_meta`` would refuse it; what is there stays.
        OSError: It cannot be written.
    """
    if not _is_possible(meta):
        raise StorageError(f"{path / META_NAME} would say what nobody can read: {meta}; nothing was changed")
    plain = meta.files == 0 and meta.copied_ms is None and meta.merged == 0
    layout = META_FORMAT_PLAIN if plain else META_FORMAT
    content: dict[str, Any] = {"format": layout, "shards": meta.shards, "created_ms": meta.created_ms}
    if meta.workers > 1:
        content["workers"] = meta.workers
    if meta.files:
        content["files"] = meta.files
    if meta.copied_ms is not None:
        content["copied_ms"] = meta.copied_ms
    if meta.merged:
        content["merged"] = meta.merged
    if meta.taken_ms is not None:
        content["taken_ms"] = meta.taken_ms
    write_whole(path / META_NAME, json.dumps(content).encode() + b"\n")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that under its name there is all of it or nothing, whenever the power goes.

    Raises:
        OSError: It cannot be written.
    """
    scratch = path.with_name(path.name + SCRATCH_SUFFIX)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with open(descriptor, "wb") as file:
        hand_over(descriptor, scratch.absolute().parent)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.rename(scratch, path)
    sync_path(path.parent)
