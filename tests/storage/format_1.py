"""Files as the first format had them: tables, rows and journal bodies written out, so that no later code makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgpack

from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import identity_hash
from idemactor.core.record import EarlierToken, Entry, Incident, Outcome, Record, State, Tombstone
from tests.storage.samples import NOW, name

_APPLICATION_ID: Final = 0x49644D61
_DDL: Final = """
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
    tomb_reported INTEGER
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
    token INTEGER NOT NULL UNIQUE,
    present_token INTEGER,
    at INTEGER NOT NULL,
    status INTEGER,
    headers TEXT,
    body BLOB,
    omitted INTEGER
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

PENDING: Final = Entry(
    1,
    name("one"),
    Record(
        State.PENDING,
        2,
        3,
        "operation-1",
        NOW - 2,
        NOW - 1,
        request_id="request",
        lease_expires_at=NOW + 9,
        fingerprint=Fingerprint("abc", "v1"),
        holder="worker",
        ttl_ms=5,
        window_ms=6,
        contested=True,
        reason="why",
        earlier=(EarlierToken(1, True),),
    ),
    None,
    NOW + 9,
)
COMMITTED: Final = Entry(
    4,
    name("four"),
    Record(
        State.COMMITTED,
        1,
        4,
        "operation-4",
        NOW,
        NOW,
        committed_at=NOW,
        expires_at=NOW + 9,
        accepted=True,
        outcome=Outcome(201, (("a", "b"),), b"\x00body"),
    ),
    Tombstone(2, "r", "operation-2", NOW + 8, True),
    NOW + 8,
)
BURIED: Final = Entry(5, name("five"), None, Tombstone(5, None, "operation-5", NOW + 7), NOW + 7)
ENTRIES: Final = {entry.identity: entry for entry in (PENDING, COMMITTED, BURIED)}
LATE: Final = Incident(name("late"), "operation", 1, 3, NOW, Outcome(200))

_NONE: Final = (None,)
_PENDING_ROW: Final = (
    *(1, identity_hash(name("one")), "default", "trade", "one", NOW + 9),
    *(0, 2, 3, "operation-1", NOW - 2, NOW - 1, "request", NOW + 9, "abc", "v1", "worker", 5, 6, None, None, None),
    *(0, 1, "why", "[[1, 1]]", 0),
    *_NONE * 5,
)
_COMMITTED_ROW: Final = (
    *(4, identity_hash(name("four")), "default", "trade", "four", NOW + 8),
    *(3, 1, 4, "operation-4", NOW, NOW, *_NONE * 8, NOW, NOW + 9, 1, 0, None, None, 1),
    *(2, "r", "operation-2", NOW + 8, 1),
)
_BURIED_ROW: Final = (
    *(5, identity_hash(name("five")), "default", "trade", "five", NOW + 7),
    *_NONE * 21,
    *(5, None, "operation-5", NOW + 7, 0),
)
_OUTCOME: Final = (201, '[["a", "b"]]', b"\x00body", 0)
_INCIDENT_ROW: Final = ("default", "trade", "late", "operation", 1, 3, NOW, 200, "[]", b"", 0)
_TALLY: Final = ("default", "trade", 3, 1, 0, 1, 1, 1)


def make_file(path: Path, *, shard: int = 0, shards: int = 1, journal_seq: int = 0, filled: bool = True) -> None:
    """A shard's file of format 1, with ``ENTRIES`` and ``LATE`` in it where it is ``filled``."""
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(_DDL)
        meta = (1, 1, shard, shards, 5 if filled else 0, NOW if filled else 0, journal_seq, 0)
        _insert(connection, "meta", [meta])
        if filled:
            _insert(connection, "records", [_PENDING_ROW, _COMMITTED_ROW, _BURIED_ROW])
            _insert(connection, "outcomes", [(4, *_OUTCOME)])
            _insert(connection, "incidents", [(1, *_INCIDENT_ROW)])
            _insert(connection, "tallies", [_TALLY])
        connection.pragma("application_id", _APPLICATION_ID)
        connection.pragma("user_version", 1)
    connection.pragma("journal_mode", "WAL")
    connection.close()


def _insert(connection: apsw.Connection, table: str, rows: Sequence[Sequence[Any]]) -> None:
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def journal_body() -> bytes:
    """What a journal of then had of the batch that wrote ``ENTRIES`` and ``LATE``, and deleted entry 2."""
    puts = [
        (_PENDING_ROW, _NONE * 4),
        (_COMMITTED_ROW, _OUTCOME),
        (_BURIED_ROW, _NONE * 4),
    ]
    deletes = [(2, "default", "trade", "two")]
    content = (1, NOW, 5, puts, deletes, [_INCIDENT_ROW], [7], [_TALLY])
    return bytes(msgpack.packb(content, use_bin_type=True))
