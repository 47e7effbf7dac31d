"""Small histories of one key, told by hand: good ones, which a right server may give, and bad ones, which none may.

Times are milliseconds after ``T``; a lease is 100 ms, and what is committed is kept for a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Get, Release, Reserve, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Completed,
    Doubted,
    Extended,
    Found,
    InDoubt,
    InFlight,
    Released,
    Reply,
    Reserved,
    Stale,
    Unknown,
    Withdrawn,
)
from tests.histories.calls import UNTOLD, Call

T: Final = 1_700_000_000_000
LEASE_MS: Final = 100
DAY_MS: Final = 86_400_000
KEY: Final = Identity("default", "trade", "k")
RETRY: Final = Policy(ttl_ms=DAY_MS, lease_ms=LEASE_MS)
HOLD: Final = Policy(ttl_ms=DAY_MS, lease_ms=LEASE_MS, on_lease_expiry=OnLeaseExpiry.HOLD)
AGAIN: Final = Policy(ttl_ms=DAY_MS, lease_ms=LEASE_MS, on_doubt=OnDoubt.RETRY)
ONE: Final = Outcome(200, (), b"one")
TWO: Final = Outcome(200, (), b"two")
GET: Final = Get(KEY)
UNKNOWN: Final = Unknown()


@dataclass(frozen=True, slots=True)
class Example:
    """A history and what it is about."""

    name: str
    calls: tuple[Call, ...]


def call(begin: int, end: int | None, command: Command, reply: Reply | None, policy: Policy = RETRY) -> Call:
    """A call; without a reply it is lost, and ``end`` is when its server was dead (None: it may be under way)."""
    return Call(command, policy, T + begin, None if end is None else T + end, reply)


def reserve(name: str) -> Reserve:
    return Reserve(KEY, name, lease_ms=LEASE_MS)


def reserved(token: int, at: int, attempt: int = 1, operation: str = "op", *, repeated: bool = False) -> Reserved:
    return Reserved("k", token, attempt, operation, T + at, T + at + LEASE_MS, repeated)


def commit(token: int, outcome: Outcome = ONE) -> Commit:
    return Commit(KEY, token, outcome)


def committed(at: int, *, repeated: bool = False) -> Committed:
    return Committed(T + at + DAY_MS, repeated)


def completed(at: int, outcome: Outcome = ONE, operation: str = "op") -> Completed:
    return Completed(operation, T + at, T + at + DAY_MS, outcome, rejected=False)


def release(token: int) -> Release:
    return Release(KEY, token)


def in_flight(at: int, attempt: int = 1) -> InFlight:
    return InFlight(attempt, None, T + at, T + at + LEASE_MS, 1)


def in_doubt(at: int, attempt: int = 1, operation: str = "op") -> InDoubt:
    return InDoubt(attempt, operation, None, T + at, T + at + LEASE_MS, None)


def found(state: State, token: int, at: int, attempt: int = 1, operation: str = "op") -> Found:
    record = Record(
        state=state,
        attempt=attempt,
        token=token,
        operation_id=operation,
        first_seen_at=T + at,
        reserved_at=T + at,
        lease_expires_at=T + at + LEASE_MS,
    )
    return Found("k", record)


def accept(name: str, outcome: Outcome = ONE) -> Accept:
    return Accept(KEY, name, outcome=outcome)


def accepted(at: int, attempt: int = 1, operation: str = "op", *, repeated: bool = False) -> Accepted:
    return Accepted(operation, attempt, T + at + DAY_MS, repeated)


def extend(token: int) -> Extend:
    return Extend(KEY, token, LEASE_MS)


def resolve(token: int, verdict: Verdict, outcome: Outcome | None = None) -> Resolve:
    return Resolve(KEY, token, verdict, outcome)


A: Final = reserve("a")
B: Final = reserve("b")
FIRST: Final = call(0, 2, A, reserved(7, 1))
"""Nearly all of them begin like this."""

GOOD: Final = (
    Example("reserve, commit, replay", (
        FIRST, call(10, 12, commit(7), committed(11)), call(20, 22, B, completed(11)),
    )),
    Example("two at once, one has it", (
        call(0, 9, A, reserved(7, 5)), call(1, 8, B, in_flight(5)),
    )),
    Example("released and granted anew", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, B, reserved(8, 21, operation="new")),
    )),
    Example("taken over once its lease is over", (
        FIRST, call(200, 202, B, reserved(8, 201, 2)), call(210, 212, commit(7), Stale(2)),
        call(220, 222, commit(8), committed(221)),
    )),
    Example("held once its lease is over", (
        call(0, 2, A, reserved(7, 1), HOLD), call(200, 202, B, in_doubt(1), HOLD),
        call(210, 212, resolve(7, Verdict.RELEASED), Released(False), HOLD),
        call(220, 222, B, reserved(8, 221, operation="new"), HOLD),
    )),
    Example("a late commit that nobody had overtaken", (
        FIRST, call(200, 202, commit(7), committed(201)), call(210, 212, B, completed(201)),
    )),
    Example("a lost commit that had its effect", (
        FIRST, call(10, 15, commit(7), None), call(20, 22, B, completed(12)),
    )),
    Example("a lost commit that had none", (
        FIRST, call(10, 15, commit(7), None), call(200, 202, B, reserved(8, 201, 2)),
    )),
    Example("a lost release that took effect long after", (
        FIRST, call(10, None, release(7), None), call(20, 22, B, in_flight(1)),
        call(60, 62, B, reserved(8, 61, operation="new")),
    )),
    Example("a lost reserve that somebody else runs into, and that is then repeated", (
        call(0, 5, A, None), call(10, 12, B, in_flight(3)),
        call(20, 22, A, reserved(7, 3, repeated=True)), call(30, 32, commit(7), committed(31)),
    )),
    Example("a lost reserve that lapsed unseen, and was taken over", (
        call(0, 5, A, None), call(150, 152, B, reserved(8, 151, 2)),
    )),
    Example("a lost extension keeps the lease", (
        FIRST, call(90, 95, extend(7), None), call(150, 152, B, in_flight(92)),
        call(210, 212, B, reserved(8, 211, 2)),
    )),
    Example("a lost accept, repeated", (
        call(0, 5, accept("a"), None), call(10, 12, accept("a"), accepted(3, repeated=True)),
        call(20, 22, B, completed(3)),
    )),
    Example("in doubt, and tried again where that is the rule", (
        call(0, 2, A, reserved(7, 1), AGAIN), call(10, 12, Doubt(KEY, 7), Doubted(False), AGAIN),
        call(20, 22, B, in_doubt(1), AGAIN), call(120, 122, B, reserved(8, 121, 2), AGAIN),
    )),
    Example("a late repeat of a released reserve", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, A, Withdrawn()), call(30, 32, GET, UNKNOWN),
    )),
    Example("resolved to committed while two look", (
        FIRST, call(10, 12, Doubt(KEY, 7), Doubted(False)),
        call(20, 30, resolve(7, Verdict.COMMITTED, TWO), Committed(UNTOLD, repeated=False)),
        call(21, 29, B, in_doubt(1)), call(40, 42, release(7), AlreadyCommitted(T + 25, T + 25 + DAY_MS)),
    )),
    Example("extended in time", (
        FIRST, call(90, 92, extend(7), Extended(T + 191)), call(150, 152, B, in_flight(91)),
    )),
)  # fmt: skip

BAD: Final = (
    Example("two holders at once", (
        FIRST, call(10, 12, B, reserved(8, 11, operation="new")),
    )),
    Example("taken over while the lease runs", (
        FIRST, call(50, 52, B, reserved(8, 51, 2)),
    )),
    Example("taken over though it is to be held", (
        call(0, 2, A, reserved(7, 1), HOLD), call(200, 202, B, reserved(8, 201, 2), HOLD),
    )),
    Example("a commit with the token of an attempt that was taken over", (
        FIRST, call(200, 202, B, reserved(8, 201, 2)), call(210, 212, commit(7), committed(211)),
    )),
    Example("an acknowledged commit is lost", (
        FIRST, call(10, 12, commit(7), committed(11)), call(20, 22, GET, UNKNOWN),
    )),
    Example("granted after an acknowledged commit", (
        FIRST, call(10, 12, commit(7), committed(11)), call(200, 202, B, reserved(8, 201, 2)),
    )),
    Example("replayed with another outcome", (
        FIRST, call(10, 12, commit(7), committed(11)), call(20, 22, B, completed(11, TWO)),
    )),
    Example("replayed though nobody committed", (
        FIRST, call(20, 22, B, completed(11)),
    )),
    Example("an acknowledged release is lost", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, B, in_flight(1)),
    )),
    Example("an acknowledged reserve is lost", (
        FIRST, call(10, 12, GET, UNKNOWN),
    )),
    Example("an acknowledged doubt is lost", (
        FIRST, call(10, 12, Doubt(KEY, 7), Doubted(False)), call(20, 22, B, in_flight(1)),
    )),
    Example("an acknowledged extension is lost", (
        FIRST, call(90, 92, extend(7), Extended(T + 191)), call(150, 152, B, reserved(8, 151, 2)),
    )),
    Example("a token that is no higher", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, B, reserved(6, 21, operation="new")),
    )),
    Example("a token given twice", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, B, reserved(7, 21, operation="new")),
    )),
    Example("an attempt that is not counted", (
        FIRST, call(200, 202, B, reserved(8, 201, 3)),
    )),
    Example("a takeover under another operation", (
        FIRST, call(200, 202, B, reserved(8, 201, 2, operation="new")),
    )),
    Example("a new operation under the old name", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, B, reserved(8, 21)),
    )),
    Example("in flight long after its lease", (
        FIRST, call(300, 302, B, in_flight(1)),
    )),
    Example("in doubt though its lease runs", (
        call(0, 2, A, reserved(7, 1), HOLD), call(10, 12, B, in_doubt(1), HOLD),
    )),
    Example("a grant from before it was asked for", (
        call(1_000, 1_002, A, reserved(7, 1)),
    )),
    Example("a commit that comes and goes", (
        FIRST, call(10, None, commit(7), None), call(20, 22, B, completed(15)),
        call(30, 32, GET, found(State.PENDING, 7, 1)),
    )),
    Example("a lost commit that took effect after its server was dead", (
        FIRST, call(10, 15, commit(7), None), call(20, 22, B, in_flight(1)), call(30, 32, B, completed(25)),
    )),
    Example("two lost commits, and an outcome of neither", (
        FIRST, call(10, 15, commit(7, ONE), None), call(10, 15, commit(7, TWO), None),
        call(20, 22, B, completed(12, Outcome(200, (), b"three"))),
    )),
    Example("the outcome changes after a lost second commit", (
        FIRST, call(10, 12, commit(7, ONE), committed(11)), call(13, None, commit(7, TWO), None),
        call(20, 22, B, completed(14, TWO)),
    )),
    Example("a lost release that freed the key for one, and not for the next", (
        FIRST, call(10, None, release(7), None), call(20, 22, GET, UNKNOWN), call(30, 32, B, in_flight(1)),
    )),
    Example("a lost reserve that was granted to nobody, and yet is in flight with another end", (
        call(0, 5, A, None), call(10, 12, B, in_flight(3)), call(20, 22, B, in_flight(4)),
    )),
    Example("a lost reserve within whose lease another is granted", (
        call(0, 5, A, None), call(10, 12, B, in_flight(3)), call(50, 52, B, reserved(8, 51, 2)),
    )),
    Example("a released reserve is granted when repeated", (
        FIRST, call(10, 12, release(7), Released(False)), call(20, 22, A, reserved(8, 21, operation="new")),
    )),
    Example("a repeat under another token", (
        FIRST, call(10, 12, A, reserved(8, 1, repeated=True)),
    )),
    Example("accepted twice", (
        call(0, 2, accept("a"), accepted(1)), call(10, 12, accept("b", TWO), accepted(11, operation="new")),
    )),
    Example("seen by one before it is missed by the next", (
        call(0, 50, A, reserved(7, 25)), call(1, 10, B, in_flight(25)), call(20, 24, GET, UNKNOWN),
    )),
    Example("released after its commit", (
        FIRST, call(10, 12, commit(7), committed(11)), call(20, 22, release(7), Released(False)),
    )),
)  # fmt: skip
