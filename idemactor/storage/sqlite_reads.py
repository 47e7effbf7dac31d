"""The questions that a shard asks its file, as functions of a connection."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from idemactor.core.delivery import Event, Intent
from idemactor.core.keys import Identity, identity_hash
from idemactor.core.record import Entry
from idemactor.errors import StorageError
from idemactor.storage import rows, schema
from idemactor.storage.base import Open, RecordQuery, StoredIncident
from idemactor.storage.sealing import Keyring


def load(
    connection: apsw.Connection, identities: Sequence[Identity], keys: Keyring | None = None
) -> dict[Identity, Entry]:
    """The entries of those identities that have one.

    Raises:
        StorageError: A key is there twice: no answer for it can be right.
    """
    found: dict[Identity, Entry] = {}
    hashes = {identity: identity_hash(identity) for identity in identities}
    # Two identities may share a hash; asked once, answered for both.
    asked = [(value,) for value in set(hashes.values())]
    for row in connection.executemany(schema.SELECT_BY_HASH, asked):
        entry = rows.loaded_entry_of(row, keys)
        if entry.identity not in hashes:
            continue
        if entry.identity in found:
            raise StorageError(f"entries {found[entry.identity].id} and {entry.id} are of the same key")
        found[entry.identity] = entry
    return found


def alarms(connection: apsw.Connection, limit: int) -> list[tuple[int, Identity]]:
    """The earliest ``limit`` alarms, in order of time."""
    return [(row[0], Identity(*row[1:])) for row in connection.execute(schema.SELECT_ALARMS, (limit,))]


def list_records(connection: apsw.Connection, query: RecordQuery, after_id: int, limit: int) -> list[Entry]:
    """One page of a listing, in order of id, without outcomes."""
    sql, bindings = rows.listing_sql(query, after_id, limit)
    return [rows.listed_entry_of(row) for row in connection.execute(sql, bindings)]


def list_incidents(
    connection: apsw.Connection,
    tenant: str,
    namespace: str,
    after_id: int,
    limit: int,
    keys: Keyring | None = None,
) -> list[StoredIncident]:
    """One page of incidents, in order of id."""
    bindings = (tenant, namespace, after_id, limit)
    return [rows.incident_of(row, keys) for row in connection.execute(schema.SELECT_INCIDENTS, bindings)]


def find_incident(connection: apsw.Connection, incident_id: int, keys: Keyring | None = None) -> StoredIncident | None:
    """One incident by id."""
    row = connection.execute(schema.SELECT_INCIDENT, (incident_id,)).fetchone()
    return None if row is None else rows.incident_of(row, keys)


def oldest_pending_at(connection: apsw.Connection) -> int | None:
    """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
    oldest: int | None = connection.execute(schema.SELECT_OLDEST_PENDING).get
    return oldest


def last_seq(connection: apsw.Connection) -> int:
    """The highest ``seq`` in the outbox; 0 where there is nothing."""
    highest: int = connection.execute(schema.SELECT_LAST_SEQ).get
    return highest


def outbox(connection: apsw.Connection, after_seq: int, limit: int) -> list[Open]:
    """A page of the outbox, in order of ``seq``."""
    return [rows.open_of(row) for row in connection.execute(schema.SELECT_OUTBOX, (after_seq, limit))]


def load_ids(connection: apsw.Connection, ids: Sequence[int], keys: Keyring | None = None) -> dict[int, Entry]:
    """The entries of those ids that are there."""
    asked = [(entry_id,) for entry_id in ids]
    return {row[0]: rows.loaded_entry_of(row, keys) for row in connection.executemany(schema.SELECT_BY_ID, asked)}


def load_intents(connection: apsw.Connection, ids: Sequence[int], keys: Keyring | None = None) -> dict[int, Intent]:
    """The intents of those entries that have one."""
    asked = [(entry_id,) for entry_id in ids]
    return dict(rows.intent_of(row, keys) for row in connection.executemany(schema.SELECT_INTENT, asked))


def load_events(connection: apsw.Connection, seqs: Sequence[int], keys: Keyring | None = None) -> dict[int, Event]:
    """Those events that are there."""
    asked = [(seq,) for seq in seqs]
    return {row[0]: rows.event_of(row, keys) for row in connection.executemany(schema.SELECT_EVENT, asked)}


def find_operation(connection: apsw.Connection, tenant: str, namespace: str, operation_id: str) -> Identity | None:
    """Whose dispatched operation this is."""
    row = connection.execute(schema.SELECT_OPERATION, (operation_id, tenant, namespace)).fetchone()
    return None if row is None else Identity(*row)
