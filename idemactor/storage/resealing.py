"""Brings a shard's file to the key that encrypts now: what is in clear, and what an older key encrypted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from idemactor.core.keys import worker_of
from idemactor.storage import rows, schema
from idemactor.storage.base import CommitResult
from idemactor.storage.check import open_untouched
from idemactor.storage.layout import Meta, journal_name, shard_name
from idemactor.storage.reading import read_held
from idemactor.storage.rows import Row
from idemactor.storage.sealing import SEALED, Keyring
from idemactor.storage.sqlite_file import ShardFile
from idemactor.storage.ways_out import not_written

ROWS_AT_A_TIME: Final = 256
"""Of one transaction: it may be interrupted between any two, and goes on where it was."""

_OUTCOMES: Final = (
    "SELECT outcomes.id, tenant, namespace, key, status, headers, body, omitted FROM outcomes"
    " JOIN records ON records.id = outcomes.id WHERE outcomes.id > ? ORDER BY outcomes.id LIMIT ?"
)
_INCIDENTS: Final = (
    "SELECT id, tenant, namespace, key, token, status, headers, body, omitted FROM incidents"
    " WHERE id > ? AND status IS NOT NULL ORDER BY id LIMIT ?"
)
_INTENTS: Final = "SELECT id, content_type, headers, body FROM intents WHERE id > ? ORDER BY id LIMIT ?"
_EVENTS: Final = (
    "SELECT seq, tenant, namespace, key, id, operation_id, committed_at, content_type, headers, body, order_key"
    " FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
)
_SET_BODY: Final = "UPDATE {table} SET headers = ?2, body = ?3 WHERE {key} = ?1"
_SET_CONTENT: Final = "UPDATE {table} SET content_type = ?2, headers = ?3, body = ?4 WHERE {key} = ?1"


def reseal(file: ShardFile, keys: Keyring) -> int:
    """Bring an open file to the first of ``keys``; returns how many rows were written.

    Raises:
        OutOfReach: None of these keys encrypted what is there.
        StorageError: What is there is damaged, or the file cannot be written.
        StartError: The disk is full.
    """
    return (
        _walk(file, _OUTCOMES, _SET_BODY.format(table="outcomes", key="id"), lambda row: _outcome(row, keys))
        + _walk(file, _INCIDENTS, _SET_BODY.format(table="incidents", key="id"), lambda row: _incident(row, keys))
        + _walk(file, _INTENTS, _SET_CONTENT.format(table="intents", key="id"), lambda row: _intent(row, keys))
        + _walk(file, _EVENTS, _SET_CONTENT.format(table="events", key="seq"), lambda row: _event(row, keys))
    )


def only_in_journal(home: Path, meta: Meta) -> int:
    """How many batches of files that nobody has open are in a journal alone: opening brings them in, sealed anew.

    Raises:
        StorageError: A file is damaged, or does not fit the others.
        apsw.Error: A file cannot be read.
        OSError: A file cannot be read.
    """
    count = 0
    for shard in range(meta.shards):
        held = read_held(home / journal_name(worker_of(shard, meta.workers), meta.workers), shard)
        with open_untouched(home / shard_name(shard)) as connection:
            row = connection.execute(schema.SELECT_META).fetchone()
        if row is not None:
            count += len(held.missing_from(row[-1]))
    return count


def _walk(file: ShardFile, select: str, update: str, reseal_row: Callable[[Row], Row | None]) -> int:
    after, written = -1, 0
    while True:
        found = file.read(_page, select, after)
        if not found:
            return written
        after = found[-1][0]
        changed = [new for row in found if (new := reseal_row(row)) is not None]
        written += len(changed)
        write = functools.partial(_update, update=update, changed=changed)
        if changed and file.transact(write) is not CommitResult.OK:
            raise not_written(Path(file.name), file.last_error)


def _page(connection: apsw.Connection, select: str, after: int) -> list[Row]:
    return connection.execute(select, (after, ROWS_AT_A_TIME)).fetchall()


def _update(connection: apsw.Connection, update: str, changed: list[Row]) -> None:
    connection.executemany(update, changed)


def _is_current(keys: Keyring, headers: str, body: bytes) -> bool:
    return headers == SEALED and keys.is_current(body)


def _outcome(row: Row, keys: Keyring) -> Row | None:
    entry_id, tenant, namespace, key, status, headers, body, omitted = row
    about = ("outcome", entry_id, tenant, namespace, key)
    if _is_current(keys, headers, body):
        return None
    return (entry_id, *_body((status, headers, body, omitted), keys, about))


def _incident(row: Row, keys: Keyring) -> Row | None:
    incident_id, tenant, namespace, key, token, status, headers, body, omitted = row
    about = ("incident", token, tenant, namespace, key)
    if _is_current(keys, headers, body):
        return None
    return (incident_id, *_body((status, headers, body, omitted), keys, about))


def _body(columns: Row, keys: Keyring, about: tuple[str | int, ...]) -> tuple[str, bytes]:
    _, headers, body, _ = rows.hidden(tuple(rows.revealed(columns, keys, about)), keys, about)
    return headers, body


def _intent(row: Row, keys: Keyring) -> Row | None:
    return None if _is_current(keys, row[2], row[3]) else rows.intent_row(*rows.intent_of(row, keys), keys)


def _event(row: Row, keys: Keyring) -> Row | None:
    if _is_current(keys, row[8], row[9]):
        return None
    again = rows.event_row(rows.event_of(row, keys), keys)
    return (again[0], *again[7:10])
