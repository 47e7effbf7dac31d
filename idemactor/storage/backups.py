"""Backups: taking one of a directory that may be in use, and going back to one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import apsw

from idemactor.core.limits import CLOCK_BACKSTEP_MS_DEFAULT
from idemactor.errors import StartError, StorageError
from idemactor.storage.check import Severity, check_files, open_untouched
from idemactor.storage.copying import Copied, copy_files, digest_of, meta_of_copy
from idemactor.storage.directory import explain, explained, take_lock, wall_ms
from idemactor.storage.layout import (
    DIRECTORY_MODE,
    LOCK_NAME,
    MADE_NAME,
    META_NAME,
    Meta,
    is_leftover,
    read_meta,
    set_path,
    shard_name,
    unfinished,
    write_meta,
    write_whole,
)
from idemactor.storage.progress import Progress
from idemactor.storage.schema import SELECT_META
from idemactor.storage.sealing import Keyring
from idemactor.storage.sets import next_set, note_of, switch
from idemactor.storage.sqlite_create import sync_path
from idemactor.storage.tokens import leap, token_at

MANIFEST_NAME: Final = "backup.json"
"""What a backup says of itself."""
MANIFEST_VERSION: Final = 1
_UNFINISHED: Final = ".unfinished"


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
    """

    files: Path
    shards: int
    taken_ms: int
    until_ms: int
    next_token: int
    replaced: Path | None


# --------------------------------------------------------------------------------------------------------------- backup


def back_up(source: Path, target: Path, progress: Progress, keys: Keyring | None = None) -> Copied:
    """Copy a data directory, which a server may be using, into the new directory ``target``.

    What is encrypted stays so; ``keys``: see ``copy_files``.
    An interrupted one leaves ``target`` as it was, and beside it a directory that the next one removes.

    Raises:
        StartError: The message says the way out.
        StorageError: Something in ``source`` is damaged.
    """
    with explained(target), _scratch(target) as scratch:
        copied = copy_files(source, scratch, progress, keys=keys)
        write_whole(scratch / MANIFEST_NAME, json.dumps(_manifest(copied)).encode() + b"\n")
        write_meta(scratch, meta_of_copy(copied))
        try:
            os.rename(scratch, target)
        except OSError as error:
            raise explain(target, error) from error
        sync_path(target.absolute().parent)
        return copied


def _manifest(copied: Copied) -> dict[str, Any]:
    return {
        "version": MANIFEST_VERSION,
        "taken_ms": copied.taken_ms,
        "latest_ms": copied.latest_ms,
        "created_ms": copied.meta.created_ms,
        "shards": [dataclasses.asdict(shard) for shard in copied.shards],
    }


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A directory beside ``target`` that nobody else uses; what is left of it in the end is removed."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StartError(f"{target} is there already; name a new directory")
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    scratch = parent / (target.name + _UNFINISHED)
    if scratch.exists() and not is_leftover(scratch, MANIFEST_NAME):
        raise StartError(f"{scratch} is in the way, and is not what a backup left behind; name another directory")
    scratch.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    lock = take_lock(scratch / LOCK_NAME)
    try:
        for file in scratch.iterdir():
            if file.name != LOCK_NAME:
                file.unlink()
        yield scratch
    finally:
        try:
            if scratch.exists():
                shutil.rmtree(scratch, ignore_errors=True)
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
        replaced: It may also be a data directory, whose files are kept and do not count any more.
        keys: See ``copy_files``; a backup needs none.
        apart: See ``copy_files``: nobody knows what is missing, but that it came later than the latest in each shard.

    Raises:
        StartError: The message says the way out.
        StorageError: The backup is damaged.
    """
    with explained(target), contextlib.ExitStack() as locks:
        if (digests := _read_digests(source)) is not None:
            _compare(source, digests, progress)
        before = _take_target(target, locks, replaced=replaced)
        _refuse_nested(source, target)
        files = next_set(target, before)
        for left in unfinished(target, files - 1):
            shutil.rmtree(left)
        home = set_path(target, files)
        home.mkdir(mode=DIRECTORY_MODE)
        locks.callback(_discard_unless_named, target, files)
        copied = copy_files(source, home, progress, apart=apart, keys=keys)
        taken_ms = _taken(copied, apart=apart)
        last = _newest(target, before)
        token = _leap(home, copied, taken_ms, last)
        meta = replace(meta_of_copy(copied), files=files, copied_ms=None)
        _prove(home, meta)
        note = {"made_by": "restore", "at_ms": wall_ms(), "taken_ms": taken_ms, "replaced": note_of(before)}
        write_whole(home / MADE_NAME, json.dumps(note).encode() + b"\n")
        switch(target, home, meta)
        kept = None if before is None else before.home(target)
        return Restored(home, meta.shards, taken_ms, last[1] or wall_ms(), token + 1, kept)
    raise AssertionError("an exit stack swallows nothing")


def _taken(copied: Copied, *, apart: bool) -> int:
    """Until when nothing is missing."""
    if apart:
        return copied.earliest_ms
    # Of what is no backup nobody knows when it was copied.
    return copied.latest_ms if copied.meta.copied_ms is None else copied.meta.copied_ms


def _discard_unless_named(target: Path, files: int) -> None:
    """What did not come to its end leaves nothing behind, unless the process is killed."""
    with contextlib.suppress(StartError, OSError):
        meta = read_meta(target)
        if meta is None or meta.files != files:
            shutil.rmtree(set_path(target, files))


def _refuse_nested(source: Path, target: Path) -> None:
    """What lies in the directory that is replaced could be replaced with it."""
    one, other = source.resolve(), target.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise StartError(f"{source} and {target} lie in each other; move the backup to another place")


def _take_target(target: Path, locks: contextlib.ExitStack, *, replaced: bool) -> Meta | None:
    """Own the directory, made where there is none; what it says of itself, None where it is empty."""
    if not target.exists():
        target.mkdir(mode=DIRECTORY_MODE, parents=True)
    elif not target.is_dir():
        raise StartError(f"{target} is not a directory; name another path")
    ours = (target / META_NAME).exists() or unfinished(target, 0)
    if not ours and any(file.name != LOCK_NAME for file in target.iterdir()):
        raise StartError(f"{target} is not empty; name a new directory")
    locks.callback(os.close, take_lock(target / LOCK_NAME))
    meta = read_meta(target)
    if meta is not None and not replaced:
        raise StartError(f"{target} holds data; name a new directory, or say --replace to keep its files aside")
    return meta


def _newest(target: Path, before: Meta | None) -> tuple[int, int]:
    """The highest token and the latest time in the files that are to be replaced, as far as they can be read."""
    token = latest_ms = 0
    for shard in range(0 if before is None else before.shards):
        assert before is not None
        with contextlib.suppress(apsw.Error, OSError), open_untouched(before.home(target) / shard_name(shard)) as file:
            row = file.execute(SELECT_META).fetchone()
            if row is not None:
                token, latest_ms = max(token, row[3]), max(latest_ms, row[4])
    return token, latest_ms


def _leap(home: Path, copied: Copied, taken_ms: int, last: tuple[int, int]) -> int:
    """Let all shards go on behind every token that may have been granted; returns the last one of those."""
    now = wall_ms()
    known = max(taken_ms, copied.latest_ms, last[1])
    if now + CLOCK_BACKSTEP_MS_DEFAULT < known:
        raise StartError(
            f"the clock of this machine is {known - now} ms behind the latest time that is known of these data, and"
            " tokens depend on it; set the clock"
        )
    token = max(token_at(max(now, known)), last[0], copied.last_token)
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


def _read_digests(source: Path) -> dict[int, str] | None:
    """The digests of a backup's files by shard; None where it says nothing, or was served meanwhile."""
    meta = read_meta(source)
    if meta is None:
        raise StartError(f"{source} has no {META_NAME}: it is not a backup, or was never finished")
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


def _compare(source: Path, digests: dict[int, str], progress: Progress) -> None:
    for done, (shard, digest) in enumerate(sorted(digests.items())):
        progress("files compared", done, len(digests))
        if digest_of(source / shard_name(shard)) != digest:
            raise StorageError(f"{shard_name(shard)} is not as it was backed up; restore another backup")
