"""One of each answer, with the call that it answers and exactly the members that it leaves with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from idemactor.core.commands import (
    Accept,
    AckEvent,
    Cancel,
    Command,
    Commit,
    Dispatch,
    Doubt,
    Extend,
    Forget,
    Get,
    NackEvent,
    Postpone,
    Release,
    Reserve,
    Resolve,
    Verdict,
    Watch,
)
from idemactor.core.delivery import Delivery, Intent, OperationState
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.queries import Acknowledge, Acknowledged, NoSuchIncident, Query
from idemactor.core.record import Incident, Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    Acked,
    AlreadyCommitted,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    Found,
    InDoubt,
    InFlight,
    Mismatch,
    Nacked,
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
    Untold,
    Watched,
    Withdrawn,
)
from idemactor.wire.answers import Answer

WHO: Final = Identity("acme", "trade", "k")
OPERATION: Final = "01890a5d-ac96-774b-bcce-b302099a8057"

RESERVE: Final = Reserve(WHO)
ACCEPT: Final = Accept(WHO)
COMMIT: Final = Commit(WHO, 7)
RELEASE: Final = Release(WHO, 7)
EXTEND: Final = Extend(WHO, 7, 5)
DOUBT: Final = Doubt(WHO, 7)
RESOLVE: Final = Resolve(WHO, 7, Verdict.COMMITTED)
GET: Final = Get(WHO)
FORGET: Final = Forget(WHO)
DISPATCH: Final = Dispatch(WHO, Intent("text/plain", b"do it"))
WATCH: Final = Watch(WHO, OPERATION)
CANCEL: Final = Cancel(WHO, OPERATION)
ACKNOWLEDGE: Final = Acknowledge("acme", "trade", 3)

PENDING: Final = Record(State.PENDING, 1, 7, OPERATION, 10, 10, "secret request", 20)
DOUBTED: Final = Record(
    State.DOUBTED,
    2,
    8,
    OPERATION,
    10,
    15,
    lease_expires_at=30,
    fingerprint=Fingerprint("f", "caller"),
    holder="h",
    contested=True,
    reason="r",
)
COMMITTED: Final = Record(
    State.COMMITTED, 1, 7, OPERATION, 10, 10, committed_at=12, expires_at=99, outcome=Outcome(200, body=b"\xff")
)
QUEUED: Final = Record(State.PENDING, 0, 7, OPERATION, 10, 10, delivery=Delivery(10_000, "acct", 15, 99))
INCIDENT: Final = Incident(WHO, OPERATION, 7, None, 40, Outcome(201, (("a", "b"),), b"late"))

PENDING_MEMBERS: Final[dict[str, Any]] = {
    "key": "k",
    "state": "pending",
    "attempt": 1,
    "token": None,
    "operation_id": OPERATION,
    "fingerprint": None,
    "holder": None,
    "first_seen_at": 10,
    "reserved_at": 10,
    "lease_expires_at": 20,
    "committed_at": None,
    "expires_at": None,
    "contested": False,
    "reason": None,
    "outcome": None,
}
DOUBTED_MEMBERS: Final[dict[str, Any]] = PENDING_MEMBERS | {
    "state": "in_doubt",
    "attempt": 2,
    "reserved_at": 15,
    "lease_expires_at": 30,
    "fingerprint": "f",
    "holder": "h",
    "contested": True,
    "reason": "r",
}
COMMITTED_MEMBERS: Final[dict[str, Any]] = PENDING_MEMBERS | {
    "state": "committed",
    "lease_expires_at": None,
    "committed_at": 12,
    "expires_at": 99,
    "outcome": {"status": 200, "headers": [], "body_b64": "/w=="},
}
QUEUED_MEMBERS: Final[dict[str, Any]] = PENDING_MEMBERS | {
    "attempt": 0,
    "lease_expires_at": None,
    "dispatch": {"state": "queued", "due_at": 15, "deliver_until": 99, "order_key": "acct"},
}


@dataclass(frozen=True)
class Sample:
    """An answer over HTTP to a caller who is no operator."""

    op: str
    answer: Answer
    command: Command | Query
    status: int
    members: dict[str, Any]

    @property
    def refused(self) -> bool:
        """Whether it is a refusal."""
        return self.status >= 400


def _reserved(attempt: int, *, repeated: bool) -> Sample:
    members = {
        "result": "reserved",
        "proceed": True,
        "key": "k",
        "token": 7,
        "attempt": attempt,
        "operation_id": OPERATION,
        "reserved_at": 10,
        "lease_expires_at": 20,
        "takeover": attempt > 1,
        "repeated": repeated,
    }
    return Sample("reserve", Reserved("k", 7, attempt, OPERATION, 10, 20, repeated), RESERVE, 201, members)


def _accepted(attempt: int, *, repeated: bool) -> Sample:
    members = {
        "result": "accepted",
        "proceed": True,
        "operation_id": OPERATION,
        "attempt": attempt,
        "takeover": attempt > 1,
        "repeated": repeated,
        "expires_at": 99,
    }
    return Sample("accept", Accepted(OPERATION, attempt, 99, repeated), ACCEPT, 201, members)


_DONE: Final = {
    "result": "completed",
    "proceed": False,
    "operation_id": OPERATION,
    "committed_at": 12,
    "expires_at": 99,
}
_HELD: Final = {"attempt": 1, "holder": "h", "reserved_at": 10, "lease_expires_at": 20}
_IN_FLIGHT: Final = {"result": "in_flight", "code": "IDEMPOTENCY_IN_FLIGHT", **_HELD, "retry_after_ms": 10}
_IN_DOUBT: Final = {
    "result": "in_doubt",
    "code": "IDEMPOTENCY_IN_DOUBT",
    **_HELD,
    "operation_id": OPERATION,
    "reason": None,
}
_STALE: Final = {"result": "stale", "code": "IDEMPOTENCY_STALE_TOKEN", "attempt": 2}
_COMMITTED_BEFORE: Final = {
    "result": "already_committed",
    "code": "IDEMPOTENCY_ALREADY_COMMITTED",
    "committed_at": 12,
    "expires_at": 99,
}
_UNKNOWN: Final = {"result": "unknown", "code": "IDEMPOTENCY_UNKNOWN_KEY"}
_NO: Final = {"proceed": False}

_queued: Final = InFlight(0, None, 10, None, 10)
_QUEUED: Final = _IN_FLIGHT | {"attempt": 0, "holder": None, "lease_expires_at": None}

_in_flight: Final = InFlight(1, "h", 10, 20, 10)
_in_doubt: Final = InDoubt(1, OPERATION, "h", 10, 20, None)

_CALLS: Final[list[tuple[str, Command]]] = [
    ("reserve", RESERVE),
    ("accept", ACCEPT),
    ("commit", COMMIT),
    ("release", RELEASE),
    ("extend", EXTEND),
    ("doubt", DOUBT),
    ("resolve", RESOLVE),
    ("get", GET),
    ("dispatch", DISPATCH),
]
_ACQUIRING: Final = [_CALLS[0], _CALLS[1], _CALLS[8]]


def _dispatched(state: str, *, repeated: bool) -> Sample:
    members = {
        "result": "accepted",
        "proceed": False,
        "operation_id": OPERATION,
        "state": state,
        "repeated": repeated,
    }
    return Sample("dispatch", Dispatched(OPERATION, OperationState(state), repeated), DISPATCH, 202, members)


def _watched(watched: Watched, **members: Any) -> Sample:
    nothing = dict.fromkeys(
        (
            *("attempt", "accepted_at", "next_attempt_at", "lease_expires_at", "deliver_until", "ended_at"),
            *("expires_at", "order_key", "reason", "outcome"),
        )
    )
    state = watched.state.value
    operation = {"operation_id": OPERATION, "key": "k", "state": state, **nothing, **members}
    told = {
        "result": "found",
        "operation_id": OPERATION,
        "state": state,
        "outcome": operation["outcome"],
        "operation": operation,
    }
    return Sample("operation", watched, WATCH, 200, told)


def _acquiring(answer: Answer, status: int, members: dict[str, Any]) -> list[Sample]:
    return [Sample(op, answer, command, status, members) for op, command in _ACQUIRING]


def _everywhere(answer: Answer, status: int, members: dict[str, Any]) -> list[Sample]:
    return [
        Sample(op, answer, command, status, members | (_NO if op in ("reserve", "accept", "dispatch") else {}))
        for op, command in _CALLS
    ]


SAMPLES: Final[list[Sample]] = [
    _reserved(1, repeated=False),
    _reserved(3, repeated=True),
    _accepted(1, repeated=True),
    _accepted(2, repeated=False),
    *_acquiring(Completed(OPERATION, 12, 99, None, False), 200, {**_DONE, "outcome": None}),
    *_acquiring(
        Completed(OPERATION, 12, 99, Outcome(200, body=b"a"), False),
        200,
        {**_DONE, "outcome": {"status": 200, "headers": [], "body": "a"}},
    ),
    *_acquiring(
        Completed(OPERATION, 12, 99, Outcome(500, omitted=True), False),
        200,
        {**_DONE, "outcome": {"status": 500, "headers": [], "omitted": True}},
    ),
    *_acquiring(
        Completed(OPERATION, 12, 99, Outcome(200, body=b"a"), True), 409, {**_DONE, "code": "IDEMPOTENCY_DUPLICATE"}
    ),
    *_acquiring(_in_flight, 409, {**_IN_FLIGHT, **_NO}),
    *_acquiring(_in_doubt, 409, {**_IN_DOUBT, **_NO}),
    *_acquiring(Mismatch(), 422, {"result": "mismatch", "code": "IDEMPOTENCY_MISMATCH", **_NO}),
    *_acquiring(_queued, 409, {**_QUEUED, **_NO}),
    *_acquiring(Withdrawn(), 409, {"result": "released", "code": "IDEMPOTENCY_RELEASED", **_NO})[:2],
    *_acquiring(QuotaExceeded(5), 429, {"code": "IDEMPOTENCY_QUOTA_EXCEEDED", **_NO}),
    Sample("dispatch", OutboxFull(7), DISPATCH, 429, {"code": "IDEMPOTENCY_QUOTA_EXCEEDED", **_NO}),
    _dispatched("queued", repeated=False),
    _dispatched("in_doubt", repeated=True),
    _watched(
        Watched("k", OPERATION, OperationState.QUEUED, 0, 10, 15, None, 99, None, None, "acct", "not now"),
        attempt=0,
        accepted_at=10,
        next_attempt_at=15,
        deliver_until=99,
        order_key="acct",
        reason="not now",
    ),
    _watched(
        Watched(
            "k", OPERATION, OperationState.SUCCEEDED, 2, 10, None, None, 99, 30, 90, None, None, Outcome(200, body=b"a")
        ),
        attempt=2,
        accepted_at=10,
        deliver_until=99,
        ended_at=30,
        expires_at=90,
        outcome={"status": 200, "headers": [], "body": "a"},
    ),
    _watched(Watched("k", OPERATION, OperationState.CANCELLED, expires_at=90), expires_at=90),
    Sample("cancel", Cancelled(False), CANCEL, 200, {"result": "cancelled", "repeated": False}),
    Sample(
        "cancel",
        Uncancellable(OperationState.DELIVERING),
        CANCEL,
        409,
        {"result": "uncancellable", "code": "IDEMPOTENCY_UNCANCELLABLE", "state": "delivering"},
    ),
    Sample("ack", Acked(True), AckEvent(WHO, 9, "o.1"), 200, {"result": "acknowledged", "repeated": True}),
    Sample("ack", Committed(99, True), COMMIT, 200, {"result": "committed", "expires_at": 99, "repeated": True}),
    Sample("ack", Stale(0), COMMIT, 409, _STALE | {"attempt": 0}),
    Sample("ack", Unknown(), COMMIT, 404, _UNKNOWN),
    Sample("nack", Nacked(20), NackEvent(WHO, 9, "o.1", 20), 200, {"result": "postponed", "due_at": 20}),
    Sample("nack", Postponed(20), Postpone(WHO, 7, 20, False), 200, {"result": "postponed", "due_at": 20}),
    Sample("nack", AlreadyCommitted(12, 99), Postpone(WHO, 7, 20, False), 409, _COMMITTED_BEFORE),
    Sample("commit", Committed(99, False), COMMIT, 200, {"result": "committed", "expires_at": 99, "repeated": False}),
    Sample("commit", Stale(None), COMMIT, 409, _STALE | {"attempt": None}),
    *(Sample(op, Stale(2), command, 409, _STALE) for op, command in _CALLS[2:7]),
    *(Sample(op, AlreadyCommitted(12, 99), command, 409, _COMMITTED_BEFORE) for op, command in _CALLS[3:7]),
    *(Sample(op, Unknown(), command, 404, _UNKNOWN) for op, command in _CALLS[2:8]),
    Sample("release", Released(True), RELEASE, 200, {"result": "released", "repeated": True}),
    Sample("extend", Extended(20), EXTEND, 200, {"result": "extended", "lease_expires_at": 20}),
    Sample("extend", _in_doubt, EXTEND, 409, _IN_DOUBT),
    Sample("doubt", Doubted(False), DOUBT, 200, {"result": "in_doubt", "repeated": False}),
    Sample("resolve", Committed(99, True), RESOLVE, 200, {"result": "committed", "repeated": True}),
    Sample("resolve", Released(False), RESOLVE, 200, {"result": "released", "repeated": False}),
    Sample("resolve", _in_flight, RESOLVE, 409, _IN_FLIGHT),
    Sample("get", Found("k", PENDING), GET, 200, {"result": "found", "record": PENDING_MEMBERS}),
    Sample("get", Found("k", DOUBTED), GET, 200, {"result": "found", "record": DOUBTED_MEMBERS}),
    Sample("get", Found("k", COMMITTED), GET, 200, {"result": "found", "record": COMMITTED_MEMBERS}),
    Sample("get", Found("k", QUEUED), GET, 200, {"result": "found", "record": QUEUED_MEMBERS}),
    Sample("forget", Forgotten(), FORGET, 200, {"result": "forgotten"}),
    Sample("forget", NothingToForget(), FORGET, 404, {"code": "IDEMPOTENCY_UNKNOWN_KEY"}),
    Sample("forget", Unsettled(), FORGET, 409, {"code": "IDEMPOTENCY_UNSETTLED"}),
    *_everywhere(Overloaded(1500), 503, {"code": "IDEMPOTENCY_OVERLOADED"}),
    *_everywhere(Overloaded(1500, Untold.BATCH_FULL), 503, {"code": "IDEMPOTENCY_OVERLOADED"}),
    *_everywhere(Unavailable(100), 503, {"code": "IDEMPOTENCY_UNAVAILABLE"}),
    Sample("acknowledge", Acknowledged(), ACKNOWLEDGE, 200, {"result": "acknowledged"}),
    Sample("acknowledge", NoSuchIncident(), ACKNOWLEDGE, 404, {"code": "IDEMPOTENCY_NOT_FOUND"}),
]
