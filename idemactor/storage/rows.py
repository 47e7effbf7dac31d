"""Between values and rows: what ``schema.py`` calls columns becomes what ``core/record.py`` calls fields, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, assert_never

from idemactor.core.delivery import Delivery, Ending, Event, Intent, Kind, NewEvent
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity, identity_hash
from idemactor.core.record import EarlierToken, Entry, Incident, Outcome, Record, State, Tombstone
from idemactor.core.tally import Tally, TallyKey
from idemactor.errors import StorageError
from idemactor.storage import schema
from idemactor.storage.base import Open, RecordQuery, StateFilter, StoredIncident
from idemactor.storage.sealing import SEALED, Keyring, hide, reveal

Row = tuple[Any, ...]

_NO_RECORD: Final[Row] = (None,) * len(schema.RECORD_COLUMNS)
_NO_TOMBSTONE: Final[Row] = (None,) * len(schema.TOMBSTONE_COLUMNS)
_NO_OUTCOME: Final[Row] = (None,) * len(schema.OUTCOME_COLUMNS)
_RECORD_AT: Final = len(schema.IDENTITY_COLUMNS) + 1
_TOMBSTONE_AT: Final = _RECORD_AT + len(schema.RECORD_COLUMNS)
_DELIVERY_AT: Final = _TOMBSTONE_AT + len(schema.TOMBSTONE_COLUMNS)
_OUTCOME_AT: Final = _DELIVERY_AT + len(schema.DELIVERY_COLUMNS)
_HAS_OUTCOME: Final = schema.ENTRY_COLUMNS.index("has_outcome")
_HAS_DELIVERY: Final = schema.ENTRY_COLUMNS.index("has_delivery")
_STATES: Final = tuple(State)
_ENDINGS: Final = tuple(Ending)
_KINDS: Final = tuple(Kind)


def entry_row(entry: Entry) -> Row:
    """The row of ``schema.UPSERT_ENTRY``."""
    identity = entry.identity
    record = _NO_RECORD if entry.record is None else _record_row(entry.record)
    tombstone = _NO_TOMBSTONE if entry.tombstone is None else _tombstone_row(entry.tombstone)
    return (entry.id, identity_hash(identity), *identity, entry.alarm_at, *record, *tombstone)


def _record_row(record: Record) -> Row:
    fingerprint = record.fingerprint
    return (
        int(record.state),
        record.attempt,
        record.token,
        record.operation_id,
        record.first_seen_at,
        record.reserved_at,
        record.request_id,
        record.lease_expires_at,
        fingerprint.value if fingerprint else None,
        fingerprint.rule if fingerprint else None,
        record.holder,
        record.ttl_ms,
        record.window_ms,
        record.unresolved_expires_at,
        record.committed_at,
        record.expires_at,
        record.accepted,
        record.contested,
        record.reason,
        json.dumps([[e.token, int(e.reported)] for e in record.earlier]) if record.earlier else None,
        record.outcome is not None,
        1 if record.delivery is not None else None,
    )


def _tombstone_row(tombstone: Tombstone) -> Row:
    return (
        tombstone.token,
        tombstone.request_id,
        tombstone.operation_id,
        tombstone.expires_at,
        tombstone.reported,
        None if tombstone.ending is None else int(tombstone.ending),
    )


def entry_of(row: Row, outcome: Outcome | None, delivery: Delivery | None) -> Entry:
    """The entry of a row that begins with ``schema.ENTRY_COLUMNS``."""
    return Entry(
        row[0],
        Identity(row[2], row[3], row[4]),
        None if row[_RECORD_AT] is None else _record_of(row[_RECORD_AT:_TOMBSTONE_AT], outcome, delivery),
        None if row[_TOMBSTONE_AT] is None else _tombstone_of(row[_TOMBSTONE_AT:_DELIVERY_AT]),
        row[5],
    )


def loaded_entry_of(row: Row, keys: Keyring | None = None) -> Entry:
    """The entry of a row of ``schema.SELECT_BY_HASH`` or ``SELECT_BY_ID``, its outcome included.

    Raises:
        StorageError: The row says that there is an outcome and there is none: never a reason to replay an empty one.
            Or it says so of a delivery. Or it is sealed, and cannot be opened.
    """
    outcome = outcome_of(revealed(row[_OUTCOME_AT:], keys, ("outcome", row[0], *row[2:5])))
    if outcome is None and row[_HAS_OUTCOME] == 1:
        raise StorageError(f"the outcome of entry {row[0]} is missing; `idemactor check` tells how much is damaged")
    return entry_of(row, outcome, _joined_delivery(row))


def listed_entry_of(row: Row) -> Entry:
    """The entry of a row of ``schema.SELECT_LISTING``, its outcome left out.

    Raises:
        StorageError: The row says that there is a delivery and there is none.
    """
    return entry_of(row, None, _joined_delivery(row))


def _joined_delivery(row: Row) -> Delivery | None:
    if row[_HAS_DELIVERY] != 1:
        return None
    delivery = delivery_of(row[_DELIVERY_AT:_OUTCOME_AT])
    if delivery is None:
        # Taken for a record without one, it would be handed to the next caller to do the work itself.
        raise StorageError(f"the delivery of entry {row[0]} is missing; `idemactor check` tells how much is damaged")
    return delivery


def _record_of(row: Row, outcome: Outcome | None, delivery: Delivery | None) -> Record:
    (state, attempt, token, operation_id, first_seen_at, reserved_at, request_id, lease_expires_at) = row[:8]
    (fingerprint, rule, holder, ttl_ms, window_ms, unresolved_expires_at, committed_at, expires_at) = row[8:16]
    accepted, contested, reason, earlier, _, _ = row[16:]
    return Record(
        state=_STATES[state],
        attempt=attempt,
        token=token,
        operation_id=operation_id,
        first_seen_at=first_seen_at,
        reserved_at=reserved_at,
        request_id=request_id,
        lease_expires_at=lease_expires_at,
        fingerprint=None if fingerprint is None else Fingerprint(fingerprint, rule),
        holder=holder,
        ttl_ms=ttl_ms,
        window_ms=window_ms,
        unresolved_expires_at=unresolved_expires_at,
        committed_at=committed_at,
        expires_at=expires_at,
        accepted=bool(accepted),
        contested=bool(contested),
        reason=reason,
        outcome=outcome,
        earlier=() if earlier is None else earlier_of(earlier),
        delivery=delivery,
    )


def earlier_of(text: str) -> tuple[EarlierToken, ...]:
    """The earlier tokens that the column ``earlier`` lists."""
    return tuple(EarlierToken(token, bool(reported)) for token, reported in json.loads(text))


def _tombstone_of(row: Row) -> Tombstone:
    token, request_id, operation_id, expires_at, reported, ending = row
    kept = None if ending is None else _ENDINGS[ending]
    return Tombstone(token, request_id, operation_id, expires_at, bool(reported), kept)


def entry_gone(entry_id: int, tenant: str, namespace: str, key: str) -> Entry:
    """An entry of which only its row's removal is left to do."""
    return Entry(entry_id, Identity(tenant, namespace, key), None, None, None)


def outcome_row(outcome: Outcome | None) -> Row:
    """The columns ``schema.OUTCOME_COLUMNS``."""
    if outcome is None:
        return _NO_OUTCOME
    # ASCII escapes keep what no UTF-8 column can hold, a lone surrogate.
    return (outcome.status, json.dumps(outcome.headers), outcome.body, outcome.omitted)


def sealed_outcome_row(outcome: Outcome, keys: Keyring | None, entry: Entry) -> Row:
    """The columns ``schema.OUTCOME_COLUMNS`` of an entry's outcome, sealed where there are keys."""
    return hidden(outcome_row(outcome), keys, ("outcome", entry.id, *entry.identity))


def hidden(row: Row, keys: Keyring | None, about: tuple[str | int, ...]) -> Row:
    """An outcome's columns, sealed where there are keys; its status stays to be seen."""
    status, headers, body, omitted = row
    if keys is None or status is None:
        return row
    return (status, SEALED, hide(keys, (headers, body), about), omitted)


def revealed(row: Sequence[Any], keys: Keyring | None, about: tuple[str | int, ...]) -> Sequence[Any]:
    """The reverse of ``hidden``; what is in clear stays so.

    Raises:
        StorageError: It is sealed, and cannot be opened.
    """
    status, headers, body, omitted = row
    if headers != SEALED:
        return row
    headers, body = reveal(keys, body, about)
    return (status, headers, body, omitted)


def outcome_of(row: Sequence[Any]) -> Outcome | None:
    """The outcome of the columns ``schema.OUTCOME_COLUMNS``, None where they are NULL."""
    status, headers, body, omitted = row
    if status is None:
        return None
    return Outcome(status, _pairs_of(headers), body, bool(omitted))


def _pairs_of(headers: str) -> tuple[tuple[str, str], ...]:
    return () if headers == "[]" else tuple((name, value) for name, value in json.loads(headers))


def delivery_row(operation_id: str, delivery: Delivery) -> Row:
    """The columns ``schema.DELIVERY_COLUMNS``."""
    return (
        operation_id,
        delivery.seq,
        delivery.order_key,
        delivery.due_at,
        delivery.deliver_until,
        delivery.perhaps_sent,
        None if delivery.ending is None else int(delivery.ending),
    )


def delivery_of(row: Sequence[Any]) -> Delivery | None:
    """The delivery of the columns ``schema.DELIVERY_COLUMNS``, None where they are NULL."""
    _, seq, order_key, due_at, deliver_until, perhaps_sent, ending = row
    if seq is None:
        return None
    kept = None if ending is None else _ENDINGS[ending]
    return Delivery(seq, order_key, due_at, deliver_until, bool(perhaps_sent), kept)


def intent_row(entry_id: int, intent: Intent, keys: Keyring | None = None) -> Row:
    """The row of ``schema.UPSERT_INTENT``, sealed where there are keys."""
    parts = (intent.content_type, json.dumps(intent.headers), intent.body)
    return (entry_id, *(parts if keys is None else ("", SEALED, hide(keys, parts, ("intent", entry_id)))))


def intent_of(row: Row, keys: Keyring | None = None) -> tuple[int, Intent]:
    """The entry's id and the intent of a row of ``schema.SELECT_INTENT``.

    Raises:
        StorageError: It is sealed, and cannot be opened.
    """
    entry_id, content_type, headers, body = row
    if headers == SEALED:
        content_type, headers, body = reveal(keys, body, ("intent", entry_id))
    return entry_id, Intent(content_type, body, _pairs_of(headers))


def event_row(event: Event, keys: Keyring | None = None) -> Row:
    """The row of ``schema.UPSERT_EVENT``, its content sealed where there are keys."""
    content = event.content
    what: Row = (content.content_type, json.dumps(content.headers), content.body)
    if keys is not None:
        what = ("", SEALED, hide(keys, what, ("event", event.seq, *event.identity)))
    return (event.seq, *event.identity, event.id, event.operation_id, event.committed_at, *what, content.order_key)


def event_of(row: Row, keys: Keyring | None = None) -> Event:
    """The event of a row of ``schema.SELECT_EVENT``.

    Raises:
        StorageError: It is sealed, and cannot be opened.
    """
    seq, tenant, namespace, key, event_id, operation_id, committed_at, content_type, headers, body, order_key = row
    if headers == SEALED:
        content_type, headers, body = reveal(keys, body, ("event", seq, tenant, namespace, key))
    content = NewEvent(content_type, body, _pairs_of(headers), order_key)
    return Event(seq, Identity(tenant, namespace, key), event_id, operation_id, committed_at, content)


def event_without(row: Row) -> Event:
    """The event of a row, its content left out: what is sealed in it need not be opened for that."""
    seq, tenant, namespace, key, event_id, operation_id, committed_at, _, _, _, order_key = row
    content = NewEvent("", b"", (), order_key)
    return Event(seq, Identity(tenant, namespace, key), event_id, operation_id, committed_at, content).emptied()


def open_of(row: Row) -> Open:
    """What is in the outbox by a row of ``schema.SELECT_OUTBOX``."""
    kind, entry_id, tenant, namespace, seq, order_key, state, *rest = row
    return Open(_KINDS[kind], entry_id, tenant, namespace, seq, order_key, _STATES[state], *rest)


def incident_row(incident: Incident, keys: Keyring | None = None) -> Row:
    """The row of ``schema.INSERT_INCIDENT``, its outcome sealed where there are keys."""
    fields = (incident.operation_id, incident.token, incident.present_token, incident.at)
    outcome = hidden(outcome_row(incident.outcome), keys, ("incident", incident.token, *incident.identity))
    return (*incident.identity, *fields, *outcome)


def incident_of(row: Row, keys: Keyring | None = None) -> StoredIncident:
    """The incident of a row of ``schema.SELECT_INCIDENTS``.

    Raises:
        StorageError: Its outcome is sealed, and cannot be opened.
    """
    incident_id, tenant, namespace, key, operation_id, token, present_token, at, *columns = row
    outcome = revealed(columns, keys, ("incident", token, tenant, namespace, key))
    identity = Identity(tenant, namespace, key)
    incident = Incident(identity, operation_id, token, present_token, at, outcome_of(outcome))
    return StoredIncident(incident_id, incident)


def incident_without(row: Row) -> StoredIncident:
    """The incident of a row, its outcome left out: what is sealed in it need not be opened for that."""
    incident_id, tenant, namespace, key, operation_id, token, present_token, at, status, _, _, _ = row
    outcome = None if status is None else Outcome(status)
    incident = Incident(Identity(tenant, namespace, key), operation_id, token, present_token, at, outcome)
    return StoredIncident(incident_id, incident.emptied())


def tally_row(key: TallyKey, tally: Tally) -> Row:
    """The row of ``schema.UPSERT_TALLY``."""
    counts = (tally.records, tally.pending, tally.in_doubt, tally.committed, tally.contested, tally.incidents)
    return (*key, *counts)


def listing_sql(query: RecordQuery, after_id: int, limit: int) -> tuple[str, dict[str, Any]]:
    """The SELECT of a listing and its bindings.

    Left out are committed records that have expired. Whether a lapsed one has been given up depends on the
    namespace's settings, which the storage does not know: the caller decides that.
    """
    index, wheres = "records_listings", ["tenant = :tenant", "namespace = :namespace", "records.id > :after_id"]
    match query.state:
        case None:
            wheres.append("(state < 3 OR state = 3 AND expires_at > :now_ms)")
        case StateFilter.COMMITTED:
            wheres.append("state = 3 AND expires_at > :now_ms")
        case StateFilter.PENDING:
            index = "records_unsettled"
            # What waits to be delivered has no lease that could run out.
            wheres.append("state < 3 AND state = 0 AND (lease_expires_at > :now_ms OR lease_expires_at IS NULL)")
        case StateFilter.IN_DOUBT:
            index = "records_unsettled"
            wheres.append("state < 3 AND (state > 0 OR lease_expires_at <= :now_ms)")
        case _:
            assert_never(query.state)
    if query.contested:
        index = "records_contested"
        wheres.append("contested = 1")
    elif query.contested is False:
        wheres.append("contested = 0")
    if query.reserved_before_ms is not None:
        wheres.append("reserved_at < :before_ms")
    found = f"{schema.SELECT_LISTING} INDEXED BY {index} {schema.JOIN_DELIVERY} WHERE {' AND '.join(wheres)}"
    sql = f"{found} ORDER BY records.id LIMIT :limit"
    bindings = {
        "tenant": query.tenant,
        "namespace": query.namespace,
        "after_id": after_id,
        "now_ms": query.now_ms,
        "before_ms": query.reserved_before_ms,
        "limit": limit,
    }
    return sql, bindings
