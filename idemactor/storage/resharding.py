"""Another number of shards for a data directory that no server uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from idemactor.core.keys import worker_of
from idemactor.errors import StartError, StorageError
from idemactor.storage.directory import DataDirectory, explained
from idemactor.storage.layout import SHARDS_MAX, Meta, is_none, journal_name, lost_files, read_meta, shard_name
from idemactor.storage.progress import Progress
from idemactor.storage.reading import ShardReader, read_held, read_shard
from idemactor.storage.rebuilding import Making, Rebuilt, rebuild, stamps_of
from idemactor.storage.sealing import Keyring
from idemactor.storage.sets import thrown_away
from idemactor.storage.unfinished import refuse_outdated
from idemactor.storage.ways_out import NOT_ALONE


def reshard(path: Path, shards: int, progress: Progress, keys: Keyring | None = None) -> Rebuilt | None:
    """Distribute everything in a data directory over ``shards`` shards; the files of before are kept.

    Run once more after it was interrupted, it goes on where it was; where it failed nothing is left of it. What is
    encrypted is opened with ``keys``, and encrypted anew.

    Returns:
        What was done; None where there are as many shards already.

    Raises:
        StartError: The message says the way out.
        StorageError: Something is damaged; the files of before still count.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise StartError(f"--to is 1 to {SHARDS_MAX}, not {shards}")
    with explained(path), own(path) as directory, open_readers(directory.home, directory.meta, keys) as sources:
        if directory.shards == shards:
            return None
        stamps = stamps_of(files_of(directory.home, directory.meta))
        made = Making(directory.checksums, keys)
        # What was interrupted goes on later. What failed would fail again, or fills the disk that lacked room for it.
        with thrown_away(path, Exception):
            return rebuild(path, directory.meta, "reshard", shards, sources, progress, making=made, stamps=stamps)
    raise AssertionError("a stack of contexts swallows nothing")


@contextlib.contextmanager
def own(path: Path) -> Iterator[DataDirectory]:
    """Own a data directory that is there, to change it.

    Raises:
        StartError: It is in use, it is none, ``idemactor.json`` is older than the files, or it is a backup, which would
            not be any more what ``backup.json`` says of it.
    """
    meta = read_meta(path)
    if meta is None:
        raise is_none(path)
    refuse_outdated(path, meta)
    if meta.copied_ms is not None:
        raise StartError(f"{path} is a backup, and stays one: `idemactor restore {path} DIR` makes what can be changed")
    with DataDirectory.open(path) as directory:
        directory.reread()
        yield directory


def files_of(home: Path, meta: Meta) -> list[Path]:
    """The database files of a set."""
    return [home / name for name in (*(shard_name(shard) for shard in range(meta.shards)), *meta.journals())]


@contextlib.contextmanager
def open_readers(home: Path, meta: Meta, keys: Keyring | None = None) -> Iterator[Sequence[ShardReader]]:
    """The content of every shard of a set that nobody uses, all of which ``keys`` open, as far as a look can tell.

    Raises:
        OutOfReach: A key is missing.
        StorageError: See ``read_shard``.
        apsw.Error: See ``read_shard``.
        OSError: See ``read_shard``.
    """
    if lost := lost_files(home, meta):
        raise StorageError(f"{home / lost[0]} is missing; {NOT_ALONE}")
    with contextlib.ExitStack() as stack:
        readers = []
        for shard in range(meta.shards):
            held = read_held(home / journal_name(worker_of(shard, meta.workers), meta.workers), shard)
            readers.append(stack.enter_context(read_shard(home / shard_name(shard), held, keys)))
            # Before anything is made of it.
            readers[-1].refuse_without_key()
        yield readers
