"""What the client returns, and the members of an answer to it. What is no success is raised, see ``errors.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from idemactor.client import errors
from idemactor.client.dispatching import EntryRef, Operation, OutboxEntry
from idemactor.client.errors import IdemactorClientError, ProtocolViolation, Refused
from idemactor.core.commands import Verdict
from idemactor.core.delivery import OperationState
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, OnUnavailable
from idemactor.core.record import Outcome
from idemactor.core.replies import (
    Accepted,
    Acked,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    Postponed,
    Released,
    Reserved,
)
from idemactor.errors import Code

__all__ = [
    "Accepted",
    "Acked",
    "Acknowledged",
    "Cancelled",
    "Committed",
    "Completed",
    "Dispatched",
    "Doubted",
    "EntryRef",
    "Extended",
    "Forgotten",
    "Incident",
    "KeyRecord",
    "NamespacePolicy",
    "Operation",
    "OutboxEntry",
    "Outcome",
    "Page",
    "Postponed",
    "Released",
    "Reserved",
    "Resolved",
]

Members = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolved:
    """An operation in doubt is settled."""

    verdict: Verdict
    repeated: bool


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The incident is no longer kept."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A record as the server shows it; times in milliseconds since the epoch, None for what does not apply.

    Attributes:
        state: ``pending``, ``in_doubt`` or ``committed``.
        token: Shown to operators only.
        outcome: Left out of listings.
        dispatch: ``state``, ``due_at``, ``deliver_until`` and ``order_key`` of a dispatched one.
    """

    key: str
    state: str
    attempt: int
    token: int | None
    operation_id: str
    fingerprint: str | None
    holder: str | None
    first_seen_at: int
    reserved_at: int
    lease_expires_at: int | None
    committed_at: int | None
    expires_at: int | None
    contested: bool
    reason: str | None
    outcome: Outcome | None
    dispatch: Members | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """A proof that something may have happened twice; ``at`` in milliseconds since the epoch."""

    id: str
    key: str
    operation_id: str
    token: int
    present_token: int | None
    at: int
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of records; ``next`` is the cursor of the one after it."""

    records: tuple[KeyRecord, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class NamespacePolicy:
    """The published settings of a namespace; times in milliseconds, sizes in bytes."""

    lease_ms: int
    ttl_ms: int
    on_lease_expiry: OnLeaseExpiry
    on_doubt: OnDoubt
    on_duplicate: OnDuplicate
    on_unavailable: OnUnavailable
    unavailable_after_ms: int
    unresolved_ttl_ms: int
    lease_total_max_ms: int
    outcome_max_bytes: int
    records_max: int
    fingerprint: Members
    limits: Members
    dispatch: Members = field(default_factory=dict)


Result = (
    Reserved
    | Accepted
    | Completed
    | Committed
    | Released
    | Extended
    | Doubted
    | Resolved
    | KeyRecord
    | Forgotten
    | Acknowledged
    | Dispatched
    | Operation
    | Cancelled
    | Acked
    | Postponed
)


# --------------------------------------------------------------------------------------------------- answers to results


def result_of(method: str, members: object) -> Result:
    """The result that the members of an answer to ``method`` are.

    Raises:
        Refused: The answer is a no.
        ProtocolViolation: It is none that the server may give.
    """
    table = as_members(members)
    code = table.get("code")
    if code is not None:
        raise refusal_of(str(code), str(table.get("detail", "")), table)
    build = _BUILD.get((method, table.get("result")))
    if build is None:
        raise ProtocolViolation(f"the server answered {method} with what it may not answer")
    return _read(build, table)  # type: ignore[no-any-return]


def as_members(members: object) -> Members:
    """The members of an answer.

    Raises:
        ProtocolViolation: It has none.
    """
    if not isinstance(members, dict):
        raise ProtocolViolation("the server's answer is no map")
    return members


def _read(build: Callable[[Members], Any], members: Members) -> Any:
    try:
        return build(members)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolViolation("the server's answer lacks a member, or has one of the wrong type") from error


def _reserved(m: Members) -> Reserved:
    return Reserved(
        key=m["key"],
        token=m["token"],
        attempt=m["attempt"],
        operation_id=m["operation_id"],
        reserved_at=m["reserved_at"],
        lease_expires_at=m["lease_expires_at"],
        repeated=m["repeated"],
    )


def _completed(m: Members) -> Completed:
    outcome = outcome_of(m.get("outcome"))
    return Completed(m["operation_id"], m["committed_at"], m["expires_at"], outcome, rejected=False)


def _record(m: Members) -> KeyRecord:
    return KeyRecord(
        key=m["key"],
        state=m["state"],
        attempt=m["attempt"],
        token=m.get("token"),
        operation_id=m["operation_id"],
        fingerprint=m.get("fingerprint"),
        holder=m.get("holder"),
        first_seen_at=m["first_seen_at"],
        reserved_at=m["reserved_at"],
        lease_expires_at=m.get("lease_expires_at"),
        committed_at=m.get("committed_at"),
        expires_at=m.get("expires_at"),
        contested=m["contested"],
        reason=m.get("reason"),
        outcome=outcome_of(m.get("outcome")),
        dispatch=m.get("dispatch"),
    )


def _operation(m: Members) -> Operation:
    return Operation(
        operation_id=m["operation_id"],
        key=m["key"],
        state=OperationState(m["state"]),
        attempt=m["attempt"],
        accepted_at=m["accepted_at"],
        next_attempt_at=m["next_attempt_at"],
        lease_expires_at=m["lease_expires_at"],
        deliver_until=m["deliver_until"],
        ended_at=m["ended_at"],
        expires_at=m["expires_at"],
        order_key=m["order_key"],
        reason=m["reason"],
        outcome=outcome_of(m["outcome"]),
    )


def _entry(m: Members) -> OutboxEntry:
    body = m["body"]
    return OutboxEntry(
        id=m["id"],
        key=m["key"],
        token=m["token"],
        kind=m["kind"],
        operation_id=m["operation_id"],
        attempt=m["attempt"],
        order_key=m["order_key"],
        at=m["at"],
        visible_until=m["visible_until"],
        takeover=m["takeover"],
        content_type=m["content_type"],
        headers=tuple((str(name), str(value)) for name, value in m["headers"]),
        body=body.encode() if isinstance(body, str) else bytes(body),
    )


def _committed(m: Members) -> Committed:
    return Committed(m["expires_at"], m["repeated"])


def _incident(m: Members) -> Incident:
    outcome = outcome_of(m.get("outcome"))
    return Incident(str(m["id"]), m["key"], m["operation_id"], m["token"], m.get("present_token"), m["at"], outcome)


def _policy(m: Members) -> NamespacePolicy:
    return NamespacePolicy(
        lease_ms=m["lease_ms"],
        ttl_ms=m["ttl_ms"],
        on_lease_expiry=OnLeaseExpiry(m["on_lease_expiry"]),
        on_doubt=OnDoubt(m["on_doubt"]),
        on_duplicate=OnDuplicate(m["on_duplicate"]),
        on_unavailable=OnUnavailable(m["on_unavailable"]),
        unavailable_after_ms=m["unavailable_after_ms"],
        unresolved_ttl_ms=m["unresolved_ttl_ms"],
        lease_total_max_ms=m["lease_total_max_ms"],
        outcome_max_bytes=m["outcome_max_bytes"],
        records_max=m["records_max"],
        fingerprint=m["fingerprint"],
        limits=m["limits"],
        dispatch=m.get("dispatch", {}),
    )


_BUILD: Final[Mapping[tuple[str, object], Callable[[Members], Result]]] = {
    ("reserve", "reserved"): _reserved,
    ("reserve", "completed"): _completed,
    ("accept", "accepted"): lambda m: Accepted(m["operation_id"], m["attempt"], m["expires_at"], m["repeated"]),
    ("accept", "completed"): _completed,
    ("commit", "committed"): _committed,
    ("dispatch", "accepted"): lambda m: Dispatched(m["operation_id"], OperationState(m["state"]), m["repeated"]),
    ("dispatch", "completed"): _completed,
    ("operation", "found"): lambda m: _operation(m["operation"]),
    ("cancel", "cancelled"): lambda m: Cancelled(m["repeated"]),
    ("outbox.ack", "committed"): _committed,
    ("outbox.ack", "acknowledged"): lambda m: Acked(m["repeated"]),
    ("outbox.nack", "committed"): _committed,
    ("outbox.nack", "released"): lambda m: Released(m["repeated"]),
    ("outbox.nack", "postponed"): lambda m: Postponed(m["due_at"]),
    ("release", "released"): lambda m: Released(m["repeated"]),
    ("extend", "extended"): lambda m: Extended(m["lease_expires_at"]),
    ("doubt", "in_doubt"): lambda m: Doubted(m["repeated"]),
    ("resolve", "committed"): lambda m: Resolved(Verdict.COMMITTED, m["repeated"]),
    ("resolve", "released"): lambda m: Resolved(Verdict.RELEASED, m["repeated"]),
    ("get", "found"): lambda m: _record(m["record"]),
    ("forget", "forgotten"): lambda _: Forgotten(),
    ("acknowledge", "acknowledged"): lambda _: Acknowledged(),
}


def outcome_of(members: Members | None) -> Outcome | None:
    """The outcome in an answer."""
    if members is None:
        return None
    if members.get("omitted"):
        return Outcome(members["status"], omitted=True)
    body = members.get("body", b"")
    pairs = tuple((str(name), str(value)) for name, value in members.get("headers", ()))
    return Outcome(members["status"], pairs, body.encode() if isinstance(body, str) else bytes(body))


def page_of(members: object) -> Page:
    """A page of records."""
    return _read(lambda m: Page(tuple(map(_record, m["records"])), m["next"]), as_members(members))  # type: ignore[no-any-return]


def incidents_of(members: object) -> tuple[tuple[Incident, ...], str | None]:
    """A page of incidents, and the cursor of the next."""
    return _read(lambda m: (tuple(map(_incident, m["incidents"])), m["next"]), as_members(members))  # type: ignore[no-any-return]


def entries_of(members: object) -> tuple[OutboxEntry, ...]:
    """What a poll fetched."""
    return _read(lambda m: tuple(map(_entry, m["entries"])), as_members(members))  # type: ignore[no-any-return]


def policy_of(members: object) -> NamespacePolicy:
    """The published settings."""
    return _read(_policy, as_members(members))  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------- refusals

_PLAIN: Final[Mapping[str, type[Refused]]] = {
    Code.MISMATCH: errors.MismatchError,
    Code.RELEASED: errors.ReleasedError,
    Code.UNKNOWN_KEY: errors.UnknownKeyError,
    Code.UNSETTLED: errors.UnsettledError,
    Code.NOT_FOUND: errors.NotFound,
    Code.INVALID_REQUEST: errors.InvalidRequest,
    Code.TOO_LARGE: errors.TooLarge,
    Code.UNAUTHENTICATED: errors.Unauthenticated,
    Code.BAD_SIGNATURE: errors.BadSignature,
    Code.FORBIDDEN: errors.Forbidden,
    Code.UNKNOWN_NAMESPACE: errors.UnknownNamespace,
    Code.QUOTA_EXCEEDED: errors.QuotaExceeded,
}

_OUT_OF_SERVICE: Final[Mapping[str, type[errors.OutOfService]]] = {
    Code.OVERLOADED: errors.Overloaded,
    Code.UNAVAILABLE: errors.Unavailable,
}

_DETAILED: Final[Mapping[str, tuple[type[Refused], tuple[str, ...]]]] = {
    Code.IN_FLIGHT: (
        errors.InFlightError,
        ("attempt", "holder", "reserved_at", "lease_expires_at", "retry_after_ms"),
    ),
    Code.IN_DOUBT: (
        errors.InDoubtError,
        ("attempt", "operation_id", "holder", "reserved_at", "lease_expires_at", "reason"),
    ),
    Code.DUPLICATE: (errors.DuplicateError, ("operation_id", "committed_at", "expires_at")),
    Code.STALE_TOKEN: (errors.StaleTokenError, ("attempt",)),
    Code.ALREADY_COMMITTED: (errors.AlreadyCommittedError, ("committed_at", "expires_at")),
    Code.UNCANCELLABLE: (errors.UncancellableError, ("state",)),
}
"""Refusals that carry members of the answer, as far as it has them."""


def refusal_of(code: str, detail: str, members: Members) -> IdemactorClientError:
    """The exception of a refusal; a code that this client does not know is a plain ``Refused``."""
    if code in _OUT_OF_SERVICE:
        return _OUT_OF_SERVICE[code](f"{code}: {detail}" if detail else code)
    if code in _DETAILED:
        kind, names = _DETAILED[code]
        return kind(code, detail, **{name: members.get(name) for name in names})
    return _PLAIN.get(code, Refused)(code, detail)


def error_of(text: object) -> IdemactorClientError:
    """The exception of an RPC error, ``CODE: detail``."""
    code, _, detail = str(text).partition(": ")
    return refusal_of(code, detail, {})
