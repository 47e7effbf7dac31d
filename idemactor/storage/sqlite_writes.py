"""How a batch becomes rows."""

from __future__ import annotations

from typing import Final

import apsw

from idemactor.core.keys import Identity
from idemactor.core.tally import Tally
from idemactor.storage import rows, schema
from idemactor.storage.base import Batch
from idemactor.storage.sealing import Keyring

_NOTHING: Final = Tally()


def apply(
    connection: apsw.Connection, batch: Batch, last_token: int, delivers: bool, keys: Keyring | None = None
) -> bool:
    """Write a batch within the transaction that is open, one statement a table.

    Deletions come first: a key may be gone and back again under another id, or dispatched anew under its old one.

    Args:
        last_token: The highest token on disk: no entry with an id above it can be there.
        delivers: Whether the file may hold deliveries; off, none are looked for.
        keys: What callers stored is sealed with them.

    Returns:
        Whether the file may hold deliveries from now on.
    """
    many = connection.executemany
    if batch.deletes:
        gone = [(entry.id,) for entry in batch.deletes]
        many(schema.DELETE_ENTRY, gone)
        many(schema.DELETE_OUTCOME, gone)
        if delivers:
            _undeliver(connection, gone)
    if batch.undelivered:
        _undeliver(connection, [(entry_id,) for entry_id in batch.undelivered])
    if batch.puts:
        delivers = _put(connection, batch, last_token, keys) or delivers
    if batch.intents:
        many(schema.UPSERT_INTENT, [rows.intent_row(*each, keys) for each in batch.intents.items()])
    _leave(connection, batch, keys)
    tallies = batch.tallies.items()
    if kept := [rows.tally_row(key, tally) for key, tally in tallies if tally != _NOTHING]:
        many(schema.UPSERT_TALLY, kept)
    if empty := [key for key, tally in tallies if tally == _NOTHING]:
        many(schema.DELETE_TALLY, empty)
    connection.execute(schema.UPDATE_META, (batch.last_token, batch.now_ms, batch.journal_seq))
    return delivers or bool(batch.intents)


def _empty(connection: apsw.Connection, identities: list[Identity], keys: Keyring | None) -> None:
    """What incidents and events of these keys hold is let go of; they stay."""
    for identity in identities:
        incidents = [rows.incident_without(row) for row in connection.execute(schema.SELECT_INCIDENTS_OF, identity)]
        outcomes = [(*rows.incident_row(each.incident, keys)[-4:], each.id) for each in incidents]
        connection.executemany(schema.UPDATE_INCIDENT_OUTCOME, outcomes)
        events = [rows.event_without(row) for row in connection.execute(schema.SELECT_EVENTS_OF, identity)]
        connection.executemany(schema.UPSERT_EVENT, [rows.event_row(event, keys) for event in events])


def _leave(connection: apsw.Connection, batch: Batch, keys: Keyring | None) -> None:
    """Incidents and events, which outlive their records."""
    many = connection.executemany
    if batch.emptied:
        _empty(connection, batch.emptied, keys)
    if batch.events:
        many(schema.UPSERT_EVENT, [rows.event_row(event, keys) for event in batch.events])
    if batch.incidents:
        many(schema.INSERT_INCIDENT, [rows.incident_row(incident, keys) for incident in batch.incidents])
    # After the new ones: what is acknowledged does not come back for its token.
    if batch.acked:
        many(schema.DELETE_EVENT, [(seq,) for seq in batch.acked])
    if batch.acknowledged:
        many(schema.DELETE_INCIDENT, [(incident_id,) for incident_id in batch.acknowledged])


def _undeliver(connection: apsw.Connection, ids: list[tuple[int]]) -> None:
    connection.executemany(schema.DELETE_DELIVERY, ids)
    connection.executemany(schema.DELETE_INTENT, ids)


def _put(connection: apsw.Connection, batch: Batch, last_token: int, keys: Keyring | None) -> bool:
    """Returns whether one of the entries has a delivery."""
    connection.executemany(schema.UPSERT_ENTRY, [rows.entry_row(entry) for entry in batch.puts])
    with_outcome = []
    without = []
    deliveries = []
    for entry in batch.puts:
        record = entry.record
        if record is not None and record.outcome is not None:
            with_outcome.append((entry.id, *rows.sealed_outcome_row(record.outcome, keys, entry)))
        elif entry.id <= last_token:
            without.append((entry.id,))
        if record is not None and record.delivery is not None:
            deliveries.append((entry.id, *rows.delivery_row(record.operation_id, record.delivery)))
    if with_outcome:
        connection.executemany(schema.UPSERT_OUTCOME, with_outcome)
    if without:
        connection.executemany(schema.DELETE_OUTCOME, without)
    if deliveries:
        connection.executemany(schema.UPSERT_DELIVERY, deliveries)
    return bool(deliveries)
