"""The tables of a shard's file, and the SQL that reads and writes them: the only place that knows the columns.

Columns are legible on purpose: an operator with the sqlite3 shell can read a file, and no format is hidden in a blob.
``records`` is an ordinary rowid table: ids ascend, so that new rows are appended to its last page. ``hash`` is not
unique: two identities may share it, and who reads compares the identity.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x49644D61
"""Marks a file as one of ours (bytes 68 to 71 of a SQLite file, https://www.sqlite.org/fileformat2.html)."""

FORMAT: Final = 2
"""The version of the tables below, kept as ``user_version``. A file of a newer one is refused."""

FORMAT_OLDEST: Final = 1
"""The oldest version that ``UPGRADE`` brings to the present one: a file of it is, when it is opened."""

IDENTITY_COLUMNS: Final = ("id", "hash", "tenant", "namespace", "key")
"""What never changes while an entry lives; an update leaves these columns, and their indexes, alone."""

RECORD_COLUMNS: Final = (
    "state",
    "attempt",
    "token",
    "operation_id",
    "first_seen_at",
    "reserved_at",
    "request_id",
    "lease_expires_at",
    "fingerprint",
    "fingerprint_rule",
    "holder",
    "ttl_ms",
    "window_ms",
    "unresolved_expires_at",
    "committed_at",
    "expires_at",
    "accepted",
    "contested",
    "reason",
    "earlier",
    "has_outcome",
    "has_delivery",
)
"""The present operation. ``state`` is NULL where there is only a tombstone; ``earlier`` is JSON, NULL when empty.

``has_delivery`` is 1 or NULL, so that rows of before there were deliveries are right as they are.
"""

TOMBSTONE_COLUMNS: Final = (
    "tomb_token",
    "tomb_request_id",
    "tomb_operation_id",
    "tomb_expires_at",
    "tomb_reported",
    "tomb_ending",
)
"""The latest released attempt; ``tomb_token`` is NULL where there is none."""

ENTRY_COLUMNS: Final = (*IDENTITY_COLUMNS, "alarm_at", *RECORD_COLUMNS, *TOMBSTONE_COLUMNS)
OUTCOME_COLUMNS: Final = ("status", "headers", "body", "omitted")
"""``headers`` is a JSON array of pairs."""

DELIVERY_COLUMNS: Final = (
    "operation_id",
    "seq",
    "order_key",
    "due_at",
    "deliver_until",
    "perhaps_sent",
    "ending",
)
"""The order to deliver an operation's intent; ``operation_id`` is the record's, so that it can be found by it."""

INTENT_COLUMNS: Final = ("content_type", "headers", "body")
EVENT_COLUMNS: Final = (
    "seq",
    "tenant",
    "namespace",
    "key",
    "id",
    "operation_id",
    "committed_at",
    "content_type",
    "headers",
    "body",
    "order_key",
)
INCIDENT_COLUMNS: Final = ("tenant", "namespace", "key", "operation_id", "token", "present_token", "at")
TALLY_COLUMNS: Final = ("records", "pending", "in_doubt", "committed", "contested", "incidents")

# Each index earns its place in every reserve. records_by_hash finds a key; alarms is the shard's alarm clock;
# listings goes through one namespace in order of id; unsettled keeps state=pending and in_doubt listings, and
# oldest_pending the age of the oldest, independent of how many committed records there are. All but the first two
# are partial or append-only; contested rows are rare, so that their index costs nothing.
_TABLES: Final = """
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    last_token INTEGER NOT NULL,
    latest_ms INTEGER NOT NULL,
    journal_seq INTEGER NOT NULL,
    recoveries INTEGER NOT NULL
) STRICT;
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    hash INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    alarm_at INTEGER,
    state INTEGER,
    attempt INTEGER,
    token INTEGER,
    operation_id TEXT,
    first_seen_at INTEGER,
    reserved_at INTEGER,
    request_id TEXT,
    lease_expires_at INTEGER,
    fingerprint TEXT,
    fingerprint_rule TEXT,
    holder TEXT,
    ttl_ms INTEGER,
    window_ms INTEGER,
    unresolved_expires_at INTEGER,
    committed_at INTEGER,
    expires_at INTEGER,
    accepted INTEGER,
    contested INTEGER,
    reason TEXT,
    earlier TEXT,
    has_outcome INTEGER,
    tomb_token INTEGER,
    tomb_request_id TEXT,
    tomb_operation_id TEXT,
    tomb_expires_at INTEGER,
    tomb_reported INTEGER,
    has_delivery INTEGER,
    tomb_ending INTEGER
) STRICT;
CREATE INDEX records_by_hash ON records (hash);
CREATE INDEX records_alarms ON records (alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX records_listings ON records (tenant, namespace, id);
CREATE INDEX records_unsettled ON records (tenant, namespace, id) WHERE state < 3;
CREATE INDEX records_oldest_pending ON records (reserved_at) WHERE state < 2;
CREATE INDEX records_contested ON records (tenant, namespace, id) WHERE contested = 1;
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    omitted INTEGER NOT NULL
) STRICT;
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    present_token INTEGER,
    at INTEGER NOT NULL,
    status INTEGER,
    headers TEXT,
    body BLOB,
    omitted INTEGER,
    UNIQUE (token, tenant, namespace, key)
) STRICT;
CREATE INDEX incidents_listings ON incidents (tenant, namespace, id);
CREATE TABLE tallies (
    tenant TEXT NOT NULL,
    namespace TEXT NOT NULL,
    records INTEGER NOT NULL,
    pending INTEGER NOT NULL,
    in_doubt INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    contested INTEGER NOT NULL,
    incidents INTEGER NOT NULL,
    PRIMARY KEY (tenant, namespace)
) STRICT;
"""

# An operation is asked for by its id: as long as it has a delivery, and afterwards in the tombstone that says how it
# ended. deliveries_open is the outbox in its order, and costs nothing for what has ended.
_ADDED_IN_2: Final = """
CREATE INDEX records_endings ON records (tomb_operation_id) WHERE tomb_ending IS NOT NULL;
CREATE TABLE deliveries (
    id INTEGER PRIMARY KEY,
    operation_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    order_key TEXT,
    due_at INTEGER,
    deliver_until INTEGER NOT NULL,
    perhaps_sent INTEGER NOT NULL,
    ending INTEGER
) STRICT;
CREATE INDEX deliveries_by_operation ON deliveries (operation_id);
CREATE INDEX deliveries_open ON deliveries (seq) WHERE ending IS NULL;
CREATE TABLE intents (
    id INTEGER PRIMARY KEY,
    content_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    namespace TEXT NOT NULL,
    key TEXT NOT NULL,
    id TEXT NOT NULL,
    operation_id TEXT NOT NULL,
    committed_at INTEGER NOT NULL,
    content_type TEXT NOT NULL,
    headers TEXT NOT NULL,
    body BLOB NOT NULL,
    order_key TEXT
) STRICT;
"""
DDL: Final = _TABLES + _ADDED_IN_2
UPGRADE: Final = f"""
ALTER TABLE records ADD COLUMN has_delivery INTEGER;
ALTER TABLE records ADD COLUMN tomb_ending INTEGER;
{_ADDED_IN_2}
UPDATE meta SET format = {FORMAT};
"""
"""What brings a file of format 1 to the present one; no row is rewritten, and nothing tells it from a new one but that
two of its incidents cannot have one token, which they only have where shards were merged into new files."""


def _insert(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _upsert(table: str, key: tuple[str, ...], fixed: tuple[str, ...], columns: tuple[str, ...]) -> str:
    """Insert a row, or set ``columns`` of the one that has its ``key``; ``fixed`` are only ever inserted."""
    sets = ", ".join(f"{name} = excluded.{name}" for name in columns)
    return f"{_insert(table, fixed + columns)} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}"


INSERT_META: Final = (
    "INSERT INTO meta (one, format, shard, shards, last_token, latest_ms, journal_seq, recoveries)"
    " VALUES (1, ?, ?, ?, 0, 0, ?, 0)"
)
SELECT_META: Final = "SELECT format, shard, shards, last_token, latest_ms, journal_seq FROM meta"
# Neither ever goes back, whatever a batch says: a token must not be granted twice.
UPDATE_META: Final = (
    "UPDATE meta SET last_token = max(last_token, ?), latest_ms = max(latest_ms, ?), journal_seq = max(journal_seq, ?)"
)
SELECT_HOLDS_NOTHING: Final = "SELECT last_token = 0 AND latest_ms = 0 AND NOT EXISTS (SELECT 1 FROM records) FROM meta"
TOUCH_META: Final = "UPDATE meta SET recoveries = recoveries + 1"

UPSERT_ENTRY: Final = _upsert("records", ("id",), IDENTITY_COLUMNS, ("alarm_at", *RECORD_COLUMNS, *TOMBSTONE_COLUMNS))
DELETE_ENTRY: Final = "DELETE FROM records WHERE id = ?"
UPSERT_OUTCOME: Final = _upsert("outcomes", ("id",), ("id",), OUTCOME_COLUMNS)
DELETE_OUTCOME: Final = "DELETE FROM outcomes WHERE id = ?"
UPSERT_DELIVERY: Final = _upsert("deliveries", ("id",), ("id",), DELIVERY_COLUMNS)
DELETE_DELIVERY: Final = "DELETE FROM deliveries WHERE id = ?"
# A key that was released and is dispatched again may keep its entry, and so brings another intent for it.
UPSERT_INTENT: Final = _upsert("intents", ("id",), ("id",), INTENT_COLUMNS)
DELETE_INTENT: Final = "DELETE FROM intents WHERE id = ?"
# As everything that a replay writes, it may be written twice.
UPSERT_EVENT: Final = _upsert("events", ("seq",), ("seq",), EVENT_COLUMNS[1:])
DELETE_EVENT: Final = "DELETE FROM events WHERE seq = ?"

_ENTRY: Final = ", ".join(f"records.{name}" for name in ENTRY_COLUMNS)
_OUTCOME: Final = ", ".join(OUTCOME_COLUMNS)
_DELIVERY: Final = ", ".join(f"deliveries.{name}" for name in DELIVERY_COLUMNS)
JOIN_DELIVERY: Final = "LEFT JOIN deliveries ON deliveries.id = records.id AND records.has_delivery = 1"
SELECT_LOADED: Final = (
    f"SELECT {_ENTRY}, {_DELIVERY}, {_OUTCOME} FROM records"
    f" LEFT JOIN outcomes ON outcomes.id = records.id AND records.has_outcome = 1 {JOIN_DELIVERY}"
)
SELECT_BY_HASH: Final = f"{SELECT_LOADED} WHERE records.hash = ?"
SELECT_BY_ID: Final = f"{SELECT_LOADED} WHERE records.id = ?"
SELECT_LISTING: Final = f"SELECT {_ENTRY}, {_DELIVERY} FROM records"
SELECT_ALARMS: Final = (
    "SELECT alarm_at, tenant, namespace, key FROM records INDEXED BY records_alarms"
    " WHERE alarm_at IS NOT NULL ORDER BY alarm_at, id LIMIT ?"
)
SELECT_OLDEST_PENDING: Final = "SELECT min(reserved_at) FROM records INDEXED BY records_oldest_pending WHERE state < 2"

_INCIDENT_ROW: Final = INCIDENT_COLUMNS + OUTCOME_COLUMNS
# Not ON CONFLICT DO NOTHING: that uses up an id for every incident that is there already.
INSERT_INCIDENT: Final = (
    f"INSERT INTO incidents ({', '.join(_INCIDENT_ROW)})"
    f" SELECT {', '.join(f'?{n}' for n in range(1, len(_INCIDENT_ROW) + 1))}"
    f" WHERE NOT EXISTS (SELECT 1 FROM incidents WHERE token = ?{INCIDENT_COLUMNS.index('token') + 1}"
    " AND tenant = ?1 AND namespace = ?2 AND key = ?3)"
)
DELETE_INCIDENT: Final = "DELETE FROM incidents WHERE id = ?"
SELECT_ANY_INCIDENT: Final = f"SELECT id, {', '.join(INCIDENT_COLUMNS)}, {_OUTCOME} FROM incidents"
SELECT_INCIDENTS: Final = f"{SELECT_ANY_INCIDENT} WHERE tenant = ? AND namespace = ? AND id > ? ORDER BY id LIMIT ?"
SELECT_INCIDENT: Final = f"{SELECT_ANY_INCIDENT} WHERE id = ?"
SELECT_INCIDENTS_OF: Final = f"{SELECT_ANY_INCIDENT} WHERE tenant = ? AND namespace = ? AND key = ?"
UPDATE_INCIDENT_OUTCOME: Final = f"UPDATE incidents SET {' = ?, '.join(OUTCOME_COLUMNS)} = ? WHERE id = ?"

UPSERT_TALLY: Final = _upsert("tallies", ("tenant", "namespace"), ("tenant", "namespace"), TALLY_COLUMNS)
DELETE_TALLY: Final = "DELETE FROM tallies WHERE tenant = ? AND namespace = ?"
SELECT_TALLIES: Final = f"SELECT tenant, namespace, {', '.join(TALLY_COLUMNS)} FROM tallies"

# The oldest and the latest of each kind of content: whose key is missing shows at once, as a rule.
SELECT_SEALED: Final = " UNION ALL ".join(
    f"SELECT * FROM (SELECT headers, body FROM {table} ORDER BY {key} {order} LIMIT 1)"
    for table, key in (("outcomes", "id"), ("intents", "id"), ("events", "seq"), ("incidents", "id"))
    for order in ("ASC", "DESC")
)
HAS_DELIVERIES: Final = "SELECT EXISTS (SELECT 1 FROM deliveries)"
# CROSS JOIN keeps SQLite from going through the records, of which nearly all have no delivery.
SELECT_OUTBOX: Final = """
SELECT * FROM (
    SELECT 0, deliveries.id, tenant, namespace, seq, order_key, state, lease_expires_at, due_at, holder
    FROM deliveries INDEXED BY deliveries_open CROSS JOIN records ON records.id = deliveries.id
    WHERE ending IS NULL AND has_delivery = 1 AND (state <> 2 OR order_key IS NOT NULL) AND seq > ?1
    ORDER BY seq LIMIT ?2
)
UNION ALL
SELECT * FROM (
    SELECT 1, seq, tenant, namespace, seq, order_key, 0, NULL, committed_at, NULL FROM events
    WHERE seq > ?1 ORDER BY seq LIMIT ?2
)
ORDER BY 5 LIMIT ?2
"""
SELECT_LAST_SEQ: Final = """
SELECT max(
    coalesce((SELECT max(seq) FROM deliveries INDEXED BY deliveries_open WHERE ending IS NULL), 0),
    coalesce((SELECT max(seq) FROM events), 0)
)
"""
SELECT_INTENT: Final = f"SELECT id, {', '.join(INTENT_COLUMNS)} FROM intents WHERE id = ?"
# There is no index for it: whoever forgets a key looks at every event that nobody has fetched yet, but not into it.
SELECT_EVENTS_OF: Final = (
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE tenant = ? AND namespace = ? AND key = ?"
)
SELECT_EVENT: Final = f"SELECT {', '.join(EVENT_COLUMNS)} FROM events WHERE seq = ?"
SELECT_OPERATION: Final = """
SELECT tenant, namespace, key FROM deliveries CROSS JOIN records ON records.id = deliveries.id
WHERE deliveries.operation_id = ?1 AND has_delivery = 1 AND tenant = ?2 AND namespace = ?3
UNION ALL
SELECT tenant, namespace, key FROM records INDEXED BY records_endings
WHERE tomb_operation_id = ?1 AND tomb_ending IS NOT NULL AND tenant = ?2 AND namespace = ?3
LIMIT 1
"""
