"""Backups: taking one of a directory that may be in use, and going back to one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from idemactor.core.limits import CLOCK_BACKSTEP_MS_DEFAULT
from idemactor.errors import StartError, StorageError
from idemactor.storage.check import Severity, check_files
from idemactor.storage.copying import Copied, copy_files, digest_of, meta_of_copy
from idemactor.storage.directory import explain, explained, take_lock, wall_ms
from idemactor.storage.journal_file import LOST_MAX
from idemactor.storage.layout import (
    LOCK_NAME,
    MADE_NAME,
    MANIFEST_NAME,
    Meta,
    MetaDamaged,
    is_none,
    read_meta,
    set_path,
    shard_name,
    write_meta,
    write_whole,
)
from idemactor.storage.newest import Newest, newest
from idemactor.storage.places import holds_data, is_mount_point, locked, refuse_overlap, refuse_strangers
from idemactor.storage.progress import Progress
from idemactor.storage.sealing import Keyring
from idemactor.storage.sets import next_set, note_of, switch
from idemactor.storage.sqlite_create import sync_path
from idemactor.storage.tokens import TOKENS_PER_MS, leap, token_at
from idemactor.storage.unfinished import (
    begin,
    discard,
    finish,
    finished_sets,
    is_marked,
    is_unfinished,
    mark,
    unfinished,
)

MANIFEST_VERSION: Final = 1
_UNFINISHED: Final = ".unfinished-"
_TAKEN: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""What is said where a directory is to take the place of a file, or of a directory with something in it: rename(2)."""
_UNREAD_TOKENS: Final = CLOCK_BACKSTEP_MS_DEFAULT * TOKENS_PER_MS
"""How many may have been granted beyond what is known where not everything can be read: more than a journal holds, and
no more than the clock may lag."""
_ANSWERED_MS: Final = 2_000
"""How much later than it was decided at a command may be acknowledged: a caller goes by when its answer came."""
_RANDOM_LETTERS: Final = 8
"""How many ``tempfile`` puts behind a name."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did.

    Attributes:
        files: Where in the directory the files are now.
        shards: How many there are.
        taken_ms: What was acknowledged before is there again.
        until_ms: What was acknowledged between ``taken_ms`` and this moment may be lost: the latest time in the files
            that were replaced, or else the present.
        next_token: The first token that can be granted from now on: higher than any before it.
        replaced: Where the files are that counted before; None: there were none.
        compared: Whether the files were compared with what the backup says of them.
        unread: The names of the files that counted before and could not be read to their end, or are not there.
    """

    files: Path
    shards: int
    taken_ms: int
    until_ms: int
    next_token: int
    replaced: Path | None
    compared: bool
    unread: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------------------------- backup


def back_up(source: Path, target: Path, progress: Progress, keys: Keyring | None = None) -> Copied:
    """Copy a data directory, which a server may be using, into the new directory ``target``.

    What is encrypted stays so; ``keys``: see ``copy_files``.
    An interrupted one leaves ``target`` as it was, and beside it a directory that the next one removes.

    Raises:
        StartError: The message says the way out.
        StorageError: Something in ``source`` is damaged.
    """
    _refuse_target(source, target)
    with explained(target), _scratch(source, target) as scratch:
        copied = copy_files(source, scratch, progress, keys=keys)
        write_whole(scratch / MANIFEST_NAME, json.dumps(_manifest(copied)).encode() + b"\n")
        write_meta(scratch, meta_of_copy(copied))
        try:
            os.rename(scratch, target)
        except OSError as error:
            if error.errno in _TAKEN:
                raise StartError(f"{target} came to be there meanwhile; name a new directory") from error
            raise explain(target, error, "backup") from error
        finish(target)
        sync_path(target.absolute().parent)
        return copied
    raise AssertionError("a stack of contexts swallows nothing")


def _refuse_target(source: Path, target: Path) -> None:
    """Refuse what could not take the copy, before it is made."""
    if target.is_symlink():
        raise StartError(f"{target} is a symbolic link, whose place the backup would take; name a new directory")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StartError(f"{target} is there already; name a new directory")
    if target.exists() and is_mount_point(target):
        raise StartError(f"{target} is a mount point, whose place no directory can take; name a new one inside of it")
    if target.exists() and target.samefile(os.curdir):
        raise StartError(f"{target} is the directory this runs in, whose place the backup would take; name a new one")
    refuse_overlap(source, target)


def _manifest(copied: Copied) -> dict[str, Any]:
    return {
        "version": MANIFEST_VERSION,
        "taken_ms": copied.taken_ms,
        "latest_ms": copied.latest_ms,
        "created_ms": copied.meta.created_ms,
        "shards": [dataclasses.asdict(shard) for shard in copied.shards],
    }


@contextlib.contextmanager
def _scratch(source: Path, target: Path) -> Iterator[Path]:
    """A directory beside ``target`` that nobody else uses; what is left of it in the end is removed."""
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    prefix = target.name + _UNFINISHED
    for left in sorted(parent.iterdir()):
        if left.name.startswith(prefix) and len(left.name) == len(prefix) + _RANDOM_LETTERS:
            _discard_left(left, source)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    mark(scratch)
    lock = take_lock(scratch / LOCK_NAME)
    try:
        yield scratch
    finally:
        try:
            # Once it has the name of the backup it is not there any more.
            with contextlib.suppress(OSError):
                discard(scratch)
        finally:
            os.close(lock)


def _discard_left(left: Path, source: Path) -> None:
    """Remove what an interrupted backup left, unless that goes on, or holds what is to be copied."""
    if not is_unfinished(left) or source.resolve().is_relative_to(left.resolve()):
        return
    with contextlib.suppress(StartError, OSError):
        if not is_marked(left):
            left.rmdir()
            return
        lock = take_lock(left / LOCK_NAME)
        try:
            discard(left)
        finally:
            os.close(lock)


# -------------------------------------------------------------------------------------------------------------- restore


def restore(
    source: Path,
    target: Path,
    progress: Progress,
    *,
    replaced: bool = False,
    apart: bool = False,
    keys: Keyring | None = None,
) -> Restored:
    """Let the data directory ``target`` hold what the backup ``source`` does.

    Args:
        source: A backup, or any data directory.
        target: A directory that is empty or not there. An interrupted restore leaves it without anything that counts.
        replaced: It may also be a data directory, whose files are kept and do not count any more; also one whose
            ``idemactor.json`` is damaged, lost, or older than its files.
        keys: See ``copy_files``; a backup needs none. The journals of what is replaced are read with them.
        apart: See ``copy_files``: nobody knows what is missing, but that it came later than the latest in each shard.

    Raises:
        StartError: The message says the way out.
        StorageError: The backup is damaged.
    """
    refuse_overlap(source, target)
    with explained(target), contextlib.ExitStack() as stack:
        compared = _compare(source, progress)
        stack.enter_context(locked(target))
        before, kept = _settled(target, replaced=replaced)
        files = next_set(target, before)
        for left in unfinished(target, files - 1):
            discard(left)
        home = set_path(target, files)
        begin(home)
        stack.callback(_discard_unless_named, target, files)
        copied = copy_files(source, home, progress, apart=apart, keys=keys)
        last = newest(target, before, keys)
        taken_ms = _taken(source, copied, last, apart=apart)
        token = _leap(home, copied, taken_ms, last)
        meta = replace(meta_of_copy(copied), files=files, copied_ms=None)
        _prove(home, meta)
        note = {"made_by": "restore", "at_ms": wall_ms(), "taken_ms": taken_ms, "replaced": note_of(before)}
        write_whole(home / MADE_NAME, json.dumps(note).encode() + b"\n")
        switch(target, home, meta)
        return Restored(home, meta.shards, taken_ms, _until(taken_ms, last), token + 1, kept, compared, last.unread)
    raise AssertionError("an exit stack swallows nothing")


def _taken(source: Path, copied: Copied, last: Newest, *, apart: bool) -> int:
    """Until when nothing is missing: of all that is known of it the earliest."""
    meta = copied.meta
    known = [moment for moment in (meta.copied_ms, meta.taken_ms, _taken_of(source, meta)) if moment is not None]
    if apart:
        known.append(copied.earliest_ms)
    if _parted(copied, last):
        known += _restored(source, meta)
    # Of what is no backup nobody knows when it was copied. A backup that was served has later times of its own in it.
    return min([*known, copied.latest_ms] if meta.copied_ms is None else known)


def _parted(copied: Copied, last: Newest) -> bool:
    """Whether what is replaced went on apart from what was copied: their batches' numbers are of two directories."""
    if not last.ends and not last.unread:
        return False
    return all(abs(end - shard.journal_seq) > LOST_MAX for end in last.ends for shard in copied.shards)


def _restored(source: Path, meta: Meta) -> list[int]:
    """When what restores put into ``source`` was taken: what is later in it is its own."""
    moments = []
    for home in (home for number, home in finished_sets(source) if number <= meta.files):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            note = json.loads((home / MADE_NAME).read_bytes())
            if note["made_by"] == "restore":
                moments.append(int(note["taken_ms"]))
    return moments


def _taken_of(source: Path, meta: Meta) -> int | None:
    """When a backup was taken, by what it says of itself; None where it says nothing."""
    try:
        return int(json.loads((source / MANIFEST_NAME).read_bytes())["taken_ms"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        # It was one, of whatever time since there was anything to take.
        return meta.created_ms


def _until(taken_ms: int, last: Newest) -> int:
    """Until when something may be missing; never before ``taken_ms``."""
    present_ms = wall_ms()
    known = last.latest_ms > 0 and not last.unread
    latest_ms = min(last.latest_ms + _ANSWERED_MS, present_ms) if known else present_ms
    return max(taken_ms, last.latest_ms, latest_ms)


def _discard_unless_named(target: Path, files: int) -> None:
    """What did not come to its end leaves nothing behind, unless the process is killed."""
    with contextlib.suppress(StartError, OSError):
        try:
            meta = read_meta(target)
        except MetaDamaged:
            meta = None
        if (meta is None or meta.files != files) and is_unfinished(set_path(target, files)):
            discard(set_path(target, files))


def _settled(target: Path, *, replaced: bool) -> tuple[Meta | None, Path | None]:
    """What the directory says of itself, None where that is lost or nothing is there; and where its files are."""
    there = holds_data(target)
    if not there:
        refuse_strangers(target)
        return None, None
    if not replaced:
        raise StartError(f"{target} holds data; name a new directory, or say --replace to keep its files aside")
    try:
        meta = read_meta(target)
    except MetaDamaged:
        meta = None
    return meta, target if meta is None else meta.home(target)


def _leap(home: Path, copied: Copied, taken_ms: int, last: Newest) -> int:
    """Let all shards go on behind every token that may have been granted; returns the last one of those."""
    now = wall_ms()
    known = max(taken_ms, copied.latest_ms, last.latest_ms)
    if now + CLOCK_BACKSTEP_MS_DEFAULT < known:
        raise StartError(
            f"the clock of this machine is {known - now} ms behind the latest time that is known of these data, and"
            " tokens depend on it; set the clock"
        )
    token = max(token_at(max(now, known)), last.last_token + (_UNREAD_TOKENS if last.unread else 0), copied.last_token)
    leap([home / shard_name(shard) for shard in range(copied.meta.shards)], token)
    return token


def _prove(home: Path, meta: Meta) -> None:
    report = check_files(home, meta)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if errors:
        where = "" if errors[0].shard is None else f"shard {errors[0].shard}: "
        raise StorageError(
            f"what was to be restored is damaged: {where}{errors[0].what}; restore another backup ({len(errors)} found)"
        )


# ------------------------------------------------------------------------------------------------------------- manifest


def _compare(source: Path, progress: Progress) -> bool:
    """Compare the files of a backup with what it says of them; returns whether it says anything.

    Raises:
        StartError: It is none.
        StorageError: They are not as they were.
    """
    if (digests := _read_digests(source)) is None:
        return False
    for done, (shard, digest) in enumerate(sorted(digests.items())):
        progress("files compared", done, len(digests))
        try:
            found = digest_of(source / shard_name(shard))
        except FileNotFoundError:
            raise StorageError(f"{source / shard_name(shard)} is missing; restore another backup") from None
        if found != digest:
            raise StorageError(f"{shard_name(shard)} is not as it was backed up; restore another backup")
    return True


def _read_digests(source: Path) -> dict[int, str] | None:
    """The digests of a backup's files by shard; None where it says nothing, or was served meanwhile."""
    meta = read_meta(source)
    if meta is None:
        raise is_none(source, "backup")
    if meta.copied_ms is None:
        return None
    try:
        manifest = json.loads((source / MANIFEST_NAME).read_bytes())
        if manifest["version"] != MANIFEST_VERSION:
            raise StartError(f"{source / MANIFEST_NAME} is of another release; restore with that one")
        digests = {int(shard["shard"]): str(shard["digest"]) for shard in manifest["shards"]}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        raise StorageError(f"{source / MANIFEST_NAME} is damaged; restore another backup") from None
    return digests
