"""How a batch becomes bytes of the journal and a batch again: the rows of ``rows.py``, in MessagePack."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from idemactor.core.tally import Tally
from idemactor.errors import DAMAGED, StorageError
from idemactor.storage import rows
from idemactor.storage.base import Batch

_VERSION: Final = 1
"""Heads every body; raised when the rows change their shape."""


def encode(batch: Batch) -> bytes:
    """The bytes of a batch. Deletes keep only what an engine needs of them: who they were.

    Raises:
        ValueError: It holds text or numbers that could not be stored, a lone surrogate for one.
        TypeError: It holds what is no value of a row.
    """
    puts = [(rows.entry_row(e), rows.outcome_row(e.record.outcome if e.record else None)) for e in batch.puts]
    deletes = [(e.id, *e.identity) for e in batch.deletes]
    incidents = [rows.incident_row(incident) for incident in batch.incidents]
    tallies = [rows.tally_row(key, tally) for key, tally in batch.tallies.items()]
    content = (_VERSION, batch.now_ms, batch.last_token, puts, deletes, incidents, batch.acknowledged, tallies)
    return bytes(msgpack.packb(content, use_bin_type=True))


def decode(body: bytes) -> Batch:
    """The batch of ``encode``.

    Raises:
        StorageError: The body is damaged, or of another release.
    """
    try:
        content = msgpack.unpackb(body, raw=False, use_list=True)
        if content[0] != _VERSION:
            raise StorageError(f"the journal holds batches of format {content[0]}; start the release that wrote it")
        return _batch_of(content)
    except (*DAMAGED, msgpack.exceptions.UnpackException) as error:
        raise StorageError(f"the journal holds a batch that cannot be read: {error}") from error


def _batch_of(content: list[Any]) -> Batch:
    _, now_ms, last_token, puts, deletes, incidents, acknowledged, tallies = content
    return Batch(
        now_ms=now_ms,
        last_token=last_token,
        puts=[rows.entry_of(tuple(row), rows.outcome_of(outcome)) for row, outcome in puts],
        deletes=[rows.entry_gone(*row) for row in deletes],
        # The id is the engine's to give; what it gave to no incident yet is left out of the row.
        incidents=[rows.incident_of((0, *row)).incident for row in incidents],
        acknowledged=acknowledged,
        tallies={(row[0], row[1]): Tally(*row[2:]) for row in tallies},
    )
