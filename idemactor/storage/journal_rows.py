"""How a batch becomes bytes of the journal and a batch again: the rows of ``rows.py``, in MessagePack."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.core.tally import Tally
from idemactor.errors import DAMAGED, OutOfReach, StorageError
from idemactor.storage import rows, schema
from idemactor.storage.base import Batch

_VERSION: Final = 3
"""Heads every body; raised when the rows change their shape."""
_VERSION_OLDEST: Final = 1
"""Bodies of before there were deliveries, which a server that was killed before an update left, are read as well."""
_VERSION_DELIVERIES: Final = 2
"""From this one on there are deliveries; what it lacks of the present one is the last member, ``emptied``."""
_NEW_RECORD_COLUMN: Final = schema.ENTRY_COLUMNS.index("has_delivery")
"""Where an entry's row of version 1 lacks a column; the other one that it lacks is the last."""


def encode(batch: Batch) -> bytes:
    """The bytes of a batch. Deletes keep only what an engine needs of them: who they were.

    Raises:
        ValueError: It holds text or numbers that could not be stored, a lone surrogate for one.
        TypeError: It holds what is no value of a row.
    """
    puts = [_put_row(entry) for entry in batch.puts]
    deletes = [(e.id, *e.identity) for e in batch.deletes]
    incidents = [rows.incident_row(incident) for incident in batch.incidents]
    tallies = [rows.tally_row(key, tally) for key, tally in batch.tallies.items()]
    before = (_VERSION, batch.now_ms, batch.last_token, puts, deletes, incidents, batch.acknowledged, tallies)
    intents = [rows.intent_row(*each) for each in batch.intents.items()]
    events = [rows.event_row(event) for event in batch.events]
    content = (*before, intents, batch.undelivered, events, batch.acked, batch.emptied)
    return bytes(msgpack.packb(content, use_bin_type=True))


def _put_row(entry: Entry) -> tuple[rows.Row, rows.Row, rows.Row | None]:
    record = entry.record
    if record is None:
        return rows.entry_row(entry), rows.outcome_row(None), None
    delivery = None if record.delivery is None else rows.delivery_row(record.operation_id, record.delivery)
    return rows.entry_row(entry), rows.outcome_row(record.outcome), delivery


def decode(body: bytes) -> Batch:
    """The batch of ``encode``.

    Raises:
        OutOfReach: The body is of another release.
        StorageError: It is damaged.
    """
    try:
        content = msgpack.unpackb(body, raw=False, use_list=True)
        if not _VERSION_OLDEST <= content[0] <= _VERSION:
            raise OutOfReach(f"the journal holds batches of format {content[0]}; start the release that wrote it")
        return _batch_of(content if content[0] == _VERSION else _brought_up(content))
    except (*DAMAGED, msgpack.exceptions.UnpackException) as error:
        raise StorageError(f"the journal holds a batch that cannot be read: {error}") from error


def _brought_up(content: list[Any]) -> list[Any]:
    """The content of a body of an earlier version, as the present one has it."""
    if content[0] == _VERSION_DELIVERIES:
        return [*content, []]
    head, puts, rest = content[:3], content[3], content[4:]
    at = _NEW_RECORD_COLUMN
    puts = [((*row[:at], None, *row[at:], None), outcome, None) for row, outcome in puts]
    return [*head, puts, *rest, [], [], [], [], []]


def _put_of(row: list[Any], outcome: list[Any], delivery: list[Any] | None) -> Entry:
    ordered = None if delivery is None else rows.delivery_of(delivery)
    return rows.entry_of(tuple(row), rows.outcome_of(outcome), ordered)


def _batch_of(content: list[Any]) -> Batch:
    _, now_ms, last_token, puts, deletes, incidents, acknowledged, tallies, *added = content
    intents, undelivered, events, acked, emptied = added
    return Batch(
        now_ms=now_ms,
        last_token=last_token,
        puts=[_put_of(*put) for put in puts],
        deletes=[rows.entry_gone(*row) for row in deletes],
        # The id is the engine's to give; what it gave to no incident yet is left out of the row.
        incidents=[rows.incident_of((0, *row)).incident for row in incidents],
        acknowledged=acknowledged,
        tallies={(row[0], row[1]): Tally(*row[2:]) for row in tallies},
        intents=dict(rows.intent_of(tuple(row)) for row in intents),
        undelivered=undelivered,
        events=[rows.event_of(tuple(row)) for row in events],
        acked=acked,
        emptied=[Identity(*each) for each in emptied],
    )
