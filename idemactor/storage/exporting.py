"""Everything in a data directory that no server uses, or in a backup, as lines of JSON (``lines.py``)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from idemactor.core.record import Incident
from idemactor.storage.check import reading_alone
from idemactor.storage.directory import explained, wall_ms
from idemactor.storage.lines import VERSION, End, Head, Item, line_of, without_outcome
from idemactor.storage.progress import Progress
from idemactor.storage.reading import ShardReader, Whole
from idemactor.storage.resharding import open_readers
from idemactor.storage.sealing import Keyring

_TOLD_EVERY: Final = 1_000


def export(
    path: Path,
    write: Callable[[bytes], object],
    progress: Progress,
    *,
    outcomes: bool = True,
    keys: Keyring | None = None,
) -> End:
    """Write everything in a data directory; it is left as it is.

    Args:
        path: The directory.
        write: Takes a line at a time. An ``OSError`` of it would be said of the directory.
        progress: Is told how far it is.
        outcomes: Off, of an outcome only its status is written.
        keys: What is encrypted is opened with them, and written in clear.

    Raises:
        StartError: A server uses it, or it is none.
        StorageError: Something in it is damaged, or encrypted with another key.
    """
    with (
        explained(path),
        reading_alone(path, current=True) as meta,
        open_readers(meta.home(path), meta, keys) as readers,
    ):
        last_token = max(reader.last_token for reader in readers)
        write(line_of(Head(VERSION, wall_ms(), meta.shards, last_token, max(r.latest_ms for r in readers), outcomes)))
        counted = dict.fromkeys(("entries", "events", "incidents"), 0)
        total = sum(reader.count() for reader in readers)
        for kind, item in _items(readers):
            if isinstance(item, Whole) and counted[kind] % _TOLD_EVERY == 0:
                progress("entries", counted[kind], total)
            counted[kind] += 1
            kept = item if outcomes or not isinstance(item, (Whole, Incident)) else without_outcome(item)
            write(line_of(kept))
        end = End(**counted)
        write(line_of(end))
        return end
    raise AssertionError("a stack of contexts swallows nothing")


def _items(readers: Sequence[ShardReader]) -> Iterator[tuple[str, Item]]:
    for whole in heapq.merge(*(reader.wholes() for reader in readers), key=lambda each: each.entry.id):
        yield "entries", whole
    for event in heapq.merge(*(reader.events() for reader in readers), key=lambda each: each.seq):
        yield "events", event
    for incident in heapq.merge(*(reader.incidents() for reader in readers), key=lambda each: each.at):
        yield "incidents", incident
