"""How far what is in a data directory goes: the latest time and the highest token of all that counted there once.

The latest batches are in the journals alone, so these are read as the shards' files are; and what cannot be read, or is
not there, may be what went furthest. It is named, so that nobody takes the rest for all there was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import apsw

from idemactor.errors import StorageError
from idemactor.storage import journal_file
from idemactor.storage.copying import open_beside
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import opened_body
from idemactor.storage.journal_rows import decode
from idemactor.storage.layout import Meta, shard_name
from idemactor.storage.schema import SELECT_META
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_create import check_version
from idemactor.storage.unfinished import finished_sets
from idemactor.storage.watermark import synced_up_to


@dataclass(frozen=True, slots=True)
class Newest:
    """How far files go.

    Attributes:
        last_token: The highest token granted, as far as they could be read; 0: none.
        latest_ms: The latest time that anything was decided at, as far as they could be read; 0: nothing was.
        unread: The names of those that could not be read to their end, or are not there, within the directory.
        ends: The numbers of the latest batches that the shards' files include.
    """

    last_token: int
    latest_ms: int
    unread: tuple[str, ...]
    ends: tuple[int, ...]


def newest(path: Path, meta: Meta | None, keys: Keyring | None) -> Newest:
    """How far all files go that are in the data directory ``path`` and counted once. Nobody may use it.

    Args:
        path: The data directory.
        meta: What it says of itself, None where that is lost; what it names need not be the latest, see
            ``unfinished.outdated``.
        keys: What is encrypted in the journals is opened with them.
    """
    counts = None if meta is None else meta.home(path)
    homes = {path, *(home for _, home in finished_sets(path)), *([] if counts is None else [counts])}
    found = _Found(keys)
    for home in sorted(homes):
        _Set(home, found).look(meta if home == counts else None)
    unread = sorted({str(each.relative_to(path)) for each in found.unread})
    return Newest(found.last_token, found.latest_ms, tuple(unread), tuple(found.ends))


@dataclass(slots=True)
class _Found:
    """What was found up to here."""

    keys: Keyring | None
    last_token: int = 0
    latest_ms: int = 0
    unread: list[Path] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def add(self, token: int, at_ms: int) -> None:
        self.last_token, self.latest_ms = max(self.last_token, token), max(self.latest_ms, at_ms)


@dataclass(slots=True)
class _Set:
    """The files of one set.

    Attributes:
        shards: How many there are, as far as one of them says so.
        dropped: By shard, the number up to which a journal let go of its batches.
        ends: By shard, the number of the latest batch that its file includes.
    """

    home: Path
    found: _Found
    shards: int = 0
    dropped: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def look(self, meta: Meta | None) -> None:
        """Look at all of them; ``meta``: what ``idemactor.json`` says of them, None where it names others."""
        journals = sorted(self.home.glob("journal*.db"))
        files = sorted(self.home.glob("shard-????.db"))
        if meta is None and not journals and not files:
            return
        for path in journals:
            self._try(path, partial(self._journal, path))
        for path in files:
            self._try(path, partial(self._file, path))
        expected = {shard_name(shard) for shard in range(self.shards if meta is None else meta.shards)}
        # Those of another number of workers may lie beside, whatever the number is.
        expected.update(([] if journals else [JOURNAL_NAME]) if meta is None else meta.journals())
        there = {path.name for path in (*journals, *files)}
        self.found.unread += [self.home / name for name in expected - there]
        # What such a file lacks no journal has any more: it lost its end, or is an older one.
        older = [shard for shard, end in self.ends.items() if end < self.dropped.get(shard, 0)]
        self.found.unread += [self.home / shard_name(shard) for shard in older]

    def _try(self, path: Path, read: Callable[[], None]) -> None:
        try:
            read()
        except (apsw.Error, StorageError, OSError):
            self.found.unread.append(path)

    def _journal(self, path: Path) -> None:
        synced = synced_up_to(path)
        with open_beside(path) as connection:
            check_version(connection, path.name, journal_file.KIND)
            for shard, dropped in journal_file.read_dropped(connection).items():
                self.dropped[shard] = max(dropped, self.dropped.get(shard, 0))
            for row in journal_file.read_rows(connection):
                batch = decode(opened_body(row, self.found.keys))
                self.found.add(batch.last_token, batch.now_ms)
            # Last: what it still has counts all the same.
            journal_file.refuse_lost_end(connection, path.name, synced)

    def _file(self, path: Path) -> None:
        with open_beside(path) as connection:
            check_version(connection, path.name)
            row = connection.execute(SELECT_META).fetchone()
            if row is None:
                raise StorageError(f"{path.name} has lost its meta row")
            _, shard, shards, last_token, latest_ms, journal_seq = row
            self.shards = max(self.shards, shards)
            self.ends[shard] = journal_seq
            self.found.ends.append(journal_seq)
            self.found.add(last_token, latest_ms)
