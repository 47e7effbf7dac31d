"""Records and incidents as callers see them (contract, 5 and 12)."""

from __future__ import annotations

from typing import assert_never

from idemactor.core.delivery import Delivery, OperationState
from idemactor.core.record import Incident, Record, State
from idemactor.wire.fields import Dialect, RecordState
from idemactor.wire.outcomes import outcome_body


def record_state(state: State) -> RecordState:
    """The word for where a record stands. Why it is in doubt is the server's to know."""
    match state:
        case State.PENDING:
            return RecordState.PENDING
        case State.LAPSED | State.DOUBTED:
            return RecordState.IN_DOUBT
        case State.COMMITTED:
            return RecordState.COMMITTED
        case _:
            assert_never(state)


def operation_state(record: Record, delivery: Delivery) -> OperationState:
    """How a dispatched operation stands that still has its record."""
    match record.state:
        case State.PENDING:
            return OperationState.QUEUED if record.lease_expires_at is None else OperationState.DELIVERING
        case State.LAPSED | State.DOUBTED:
            return OperationState.IN_DOUBT
        case State.COMMITTED:
            return OperationState.SUCCEEDED if delivery.ending is None else delivery.ending.state
        case _:
            assert_never(record.state)


def record_body(key: str, record: Record, operator: bool, with_outcome: bool, dialect: Dialect) -> dict[str, object]:
    """The members of a record; what does not apply is None. Only those of a dispatched one have ``dispatch``.

    Args:
        key: Whose record it is.
        record: As time has it now.
        operator: Whether the caller may see the token.
        with_outcome: Whether ``outcome`` is a member at all: listings leave it out.
        dialect: How the members leave.
    """
    members: dict[str, object] = {
        "key": key,
        "state": record_state(record.state).value,
        "attempt": record.attempt,
        "token": record.token if operator else None,
        "operation_id": record.operation_id,
        "fingerprint": record.fingerprint.value if record.fingerprint else None,
        "holder": record.holder,
        "first_seen_at": record.first_seen_at,
        "reserved_at": record.reserved_at,
        "lease_expires_at": record.lease_expires_at,
        "committed_at": record.committed_at,
        "expires_at": record.expires_at,
        "contested": record.contested,
        "reason": record.reason,
    }
    delivery = record.delivery
    if delivery is not None:
        members["dispatch"] = {
            "state": operation_state(record, delivery).value,
            "due_at": delivery.due_at,
            "deliver_until": delivery.deliver_until,
            "order_key": delivery.order_key,
        }
    if with_outcome:
        members["outcome"] = outcome_body(record.outcome, dialect)
    return members


def incident_body(incident_id: str, incident: Incident, dialect: Dialect) -> dict[str, object]:
    """The members of an incident: operators alone see them, so that the tokens show."""
    return {
        "id": incident_id,
        "key": incident.identity.key,
        "operation_id": incident.operation_id,
        "token": incident.token,
        "present_token": incident.present_token,
        "at": incident.at,
        "outcome": outcome_body(incident.outcome, dialect),
    }
