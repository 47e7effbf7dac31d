"""How a batch becomes rows."""

from __future__ import annotations

from typing import Final

import apsw

from idemactor.core.tally import Tally
from idemactor.storage import rows, schema
from idemactor.storage.base import Batch

_NOTHING: Final = Tally()


def apply(connection: apsw.Connection, batch: Batch, last_token: int) -> None:
    """Write a batch within the transaction that is open, one statement a table.

    Deletions come first: a key may be gone and back again under another id.

    Args:
        last_token: The highest token on disk: no entry with an id above it can be there.
    """
    many = connection.executemany
    if batch.deletes:
        gone = [(entry.id,) for entry in batch.deletes]
        many(schema.DELETE_ENTRY, gone)
        many(schema.DELETE_OUTCOME, gone)
    if batch.puts:
        _put(connection, batch, last_token)
    if batch.incidents:
        many(schema.INSERT_INCIDENT, [rows.incident_row(incident) for incident in batch.incidents])
    # After the new ones: what is acknowledged does not come back for its token.
    if batch.acknowledged:
        many(schema.DELETE_INCIDENT, [(incident_id,) for incident_id in batch.acknowledged])
    tallies = batch.tallies.items()
    if kept := [rows.tally_row(key, tally) for key, tally in tallies if tally != _NOTHING]:
        many(schema.UPSERT_TALLY, kept)
    if empty := [key for key, tally in tallies if tally == _NOTHING]:
        many(schema.DELETE_TALLY, empty)
    connection.execute(schema.UPDATE_META, (batch.last_token, batch.now_ms, batch.journal_seq))


def _put(connection: apsw.Connection, batch: Batch, last_token: int) -> None:
    connection.executemany(schema.UPSERT_ENTRY, [rows.entry_row(entry) for entry in batch.puts])
    with_outcome = []
    without = []
    for entry in batch.puts:
        record = entry.record
        if record is not None and record.outcome is not None:
            with_outcome.append((entry.id, *rows.outcome_row(record.outcome)))
        elif entry.id <= last_token:
            without.append((entry.id,))
    if with_outcome:
        connection.executemany(schema.UPSERT_OUTCOME, with_outcome)
    if without:
        connection.executemany(schema.DELETE_OUTCOME, without)
