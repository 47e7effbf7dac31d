"""Answers to the members, the status and the words in which they leave, for both doors (contract, 5, 6 and 12).

A refusal is an answer like any other here; only what never reached a shard is an exception, see ``errors.py``.
"""

from __future__ import annotations

import json
from typing import Final, TypeAlias, assert_never

from idemactor.core.commands import Accept, Command, Dispatch, Reserve, Resolve
from idemactor.core.queries import (
    Acknowledged,
    Behind,
    IncidentsPage,
    Inspected,
    NoSuchIncident,
    Noted,
    OperationAt,
    Query,
    RecordsPage,
    StuckPage,
    Taken,
)
from idemactor.core.replies import (
    Accepted,
    Acked,
    AlreadyCommitted,
    Cancelled,
    Claimed,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    Found,
    InDoubt,
    InFlight,
    Lapsed,
    Mismatch,
    Nacked,
    NotDue,
    NothingToForget,
    OutboxFull,
    Overloaded,
    Postponed,
    QuotaExceeded,
    Released,
    Reserved,
    Stale,
    Unavailable,
    Uncancellable,
    Unknown,
    Unsettled,
    Watched,
    Withdrawn,
)
from idemactor.errors import Code
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import outcome_body
from idemactor.wire.policies import policy_body
from idemactor.wire.problems import http_status_of_code, problem
from idemactor.wire.records import record_body
from idemactor.wire.refusals import Answer, Refusal, detail_of, refusal_of, retry_after_s

__all__ = [
    "Answer",
    "Refusal",
    "body_of",
    "detail_of",
    "dispatched_body",
    "dispatched_json",
    "http_status_of_code",
    "policy_body",
    "problem",
    "refusal_of",
    "reserved_body",
    "reserved_json",
    "retry_after_s",
    "status_of",
]

_quoted: Final = json.encoder.encode_basestring_ascii
_BOOL: Final = ("false", "true")

CREATED: Final = 201
TAKEN_ON: Final = 202
OK: Final = 200


def status_of(answer: Answer, command: Command | Query) -> int:  # noqa: ARG001
    """The HTTP status of an answer: 201 where its caller may go on, 202 where it is done for it, 200 otherwise."""
    refusal = refusal_of(answer)
    if refusal is not None:
        return refusal.status
    if isinstance(answer, Dispatched):
        return TAKEN_ON
    return CREATED if isinstance(answer, Reserved | Accepted) else OK


def body_of(  # noqa: C901 - One case for each answer.
    answer: Answer, command: Command | Query, *, operator: bool, dialect: Dialect
) -> dict[str, object]:
    """The members of an answer; of a refusal without those of RFC 9457, see ``problem``.

    Args:
        answer: The answer of a shard. The pages of a listing are not among them: see ``listings.py``.
        command: What was asked.
        operator: Whether the caller may see tokens.
        dialect: How the members leave.

    Raises:
        TypeError: ``answer`` is a page or the figures of a shard, which no single call is answered with.
    """
    match answer:
        case Reserved():
            return reserved_body(answer)
        case Committed():
            if isinstance(command, Resolve):
                return {"result": "committed", "repeated": answer.repeated}
            return {"result": "committed", "expires_at": answer.expires_at, "repeated": answer.repeated}
        case Accepted():
            return {
                "result": "accepted",
                "proceed": True,
                "operation_id": answer.operation_id,
                "attempt": answer.attempt,
                "takeover": answer.takeover,
                "repeated": answer.repeated,
                "expires_at": answer.expires_at,
            }
        case Completed() if not answer.rejected:
            return _completed(answer) | {"outcome": outcome_body(answer.outcome, dialect)}
        case Released():
            return {"result": "released", "repeated": answer.repeated}
        case Extended():
            return {"result": "extended", "lease_expires_at": answer.lease_expires_at}
        case Doubted():
            return {"result": "in_doubt", "repeated": answer.repeated}
        case Found():
            record = record_body(answer.key, answer.record, operator=operator, with_outcome=True, dialect=dialect)
            return {"result": "found", "record": record}
        case Forgotten():
            return {"result": "forgotten"}
        case Acknowledged():
            return {"result": "acknowledged"}
        case Dispatched():
            return dispatched_body(answer)
        case Watched():
            return _watched(answer, dialect)
        case Cancelled():
            return {"result": "cancelled", "repeated": answer.repeated}
        case Acked():
            return {"result": "acknowledged", "repeated": answer.repeated}
        case Postponed() | Nacked():
            return {"result": "postponed", "due_at": answer.due_at}
        case Claimed() | Lapsed() | NotDue() | Taken() | Behind() | OperationAt() | Noted():
            raise TypeError(f"{type(answer).__name__} is between a shard and who delivers")
        case RecordsPage() | IncidentsPage() | StuckPage() | Inspected():
            raise TypeError(f"{type(answer).__name__} answers no single call")
        case _:
            return _refused(answer, command)


def reserved_body(answer: Reserved) -> dict[str, object]:
    """The members of the one answer that most calls get; see ``body_of``."""
    return {
        "result": "reserved",
        "proceed": True,
        "key": answer.key,
        "token": answer.token,
        "attempt": answer.attempt,
        "operation_id": answer.operation_id,
        "reserved_at": answer.reserved_at,
        "lease_expires_at": answer.lease_expires_at,
        "takeover": answer.attempt > 1,
        "repeated": answer.repeated,
    }


def reserved_json(answer: Reserved) -> bytes:
    """``reserved_body`` as JSON: the one answer that most calls get is put together, not taken apart by an encoder."""
    return (
        f'{{"result":"reserved","proceed":true,"key":{_quoted(answer.key)},"token":{answer.token}'
        f',"attempt":{answer.attempt},"operation_id":"{answer.operation_id}","reserved_at":{answer.reserved_at}'
        f',"lease_expires_at":{answer.lease_expires_at},"takeover":{_BOOL[answer.attempt > 1]}'
        f',"repeated":{_BOOL[answer.repeated]}}}'
    ).encode()


def dispatched_json(answer: Dispatched) -> bytes:
    """The members of ``Dispatched`` as JSON, put together as those of ``reserved_json``."""
    return (
        f'{{"result":"accepted","proceed":false,"operation_id":"{answer.operation_id}"'
        f',"state":"{answer.state.value}","repeated":{_BOOL[answer.repeated]}}}'
    ).encode()


def dispatched_body(answer: Dispatched) -> dict[str, object]:
    """The members of the answer to a dispatch; see ``body_of``."""
    return {
        "result": "accepted",
        "proceed": False,
        "operation_id": answer.operation_id,
        "state": answer.state.value,
        "repeated": answer.repeated,
    }


def _watched(answer: Watched, dialect: Dialect) -> dict[str, object]:
    """What most readers look for stands at the top too, where the answers of other calls have it."""
    outcome = outcome_body(answer.outcome, dialect)
    return {
        "result": "found",
        "operation_id": answer.operation_id,
        "state": answer.state.value,
        "outcome": outcome,
        "operation": {
            "operation_id": answer.operation_id,
            "key": answer.key,
            "state": answer.state.value,
            "attempt": answer.attempt,
            "accepted_at": answer.accepted_at,
            "next_attempt_at": answer.next_at,
            "lease_expires_at": answer.lease_expires_at,
            "deliver_until": answer.deliver_until,
            "ended_at": answer.ended_at,
            "expires_at": answer.expires_at,
            "order_key": answer.order_key,
            "reason": answer.reason,
            "outcome": outcome,
        },
    }


_Refused: TypeAlias = (
    Completed
    | InFlight
    | InDoubt
    | Mismatch
    | Withdrawn
    | Stale
    | AlreadyCommitted
    | Unknown
    | NothingToForget
    | Unsettled
    | Uncancellable
    | QuotaExceeded
    | OutboxFull
    | Overloaded
    | Unavailable
    | NoSuchIncident
)


def _refused(answer: _Refused, command: Command | Query) -> dict[str, object]:
    """The members of a refusal. What has no row in the table of states has a code and no result."""
    members = _told(answer)
    if isinstance(command, Reserve | Accept | Dispatch):
        members["proceed"] = False
    return members


def _told(answer: _Refused) -> dict[str, object]:  # noqa: C901 - One case for each answer.
    match answer:
        case InFlight():
            return {
                "result": "in_flight",
                "code": Code.IN_FLIGHT.value,
                "attempt": answer.attempt,
                "holder": answer.holder,
                "reserved_at": answer.reserved_at,
                "lease_expires_at": answer.lease_expires_at,
                "retry_after_ms": answer.retry_after_ms,
            }
        case Completed():
            return _completed(answer) | {"code": Code.DUPLICATE.value}
        case InDoubt():
            return {
                "result": "in_doubt",
                "code": Code.IN_DOUBT.value,
                "attempt": answer.attempt,
                "operation_id": answer.operation_id,
                "holder": answer.holder,
                "reserved_at": answer.reserved_at,
                "lease_expires_at": answer.lease_expires_at,
                "reason": answer.reason,
            }
        case Mismatch():
            return {"result": "mismatch", "code": Code.MISMATCH.value}
        case Withdrawn():
            return {"result": "released", "code": Code.RELEASED.value}
        case Stale():
            return {"result": "stale", "code": Code.STALE_TOKEN.value, "attempt": answer.attempt}
        case AlreadyCommitted():
            return {
                "result": "already_committed",
                "code": Code.ALREADY_COMMITTED.value,
                "committed_at": answer.committed_at,
                "expires_at": answer.expires_at,
            }
        case Unknown():
            return {"result": "unknown", "code": Code.UNKNOWN_KEY.value}
        case NothingToForget():
            return {"code": Code.UNKNOWN_KEY.value}
        case Unsettled():
            return {"code": Code.UNSETTLED.value}
        case Uncancellable():
            return {"result": "uncancellable", "code": Code.UNCANCELLABLE.value, "state": answer.state.value}
        case QuotaExceeded() | OutboxFull():
            return {"code": Code.QUOTA_EXCEEDED.value}
        case Overloaded():
            return {"code": Code.OVERLOADED.value}
        case Unavailable():
            return {"code": Code.UNAVAILABLE.value}
        case NoSuchIncident():
            return {"code": Code.NOT_FOUND.value}
        case _:
            assert_never(answer)


def _completed(answer: Completed) -> dict[str, object]:
    return {
        "result": "completed",
        "proceed": False,
        "operation_id": answer.operation_id,
        "committed_at": answer.committed_at,
        "expires_at": answer.expires_at,
    }
