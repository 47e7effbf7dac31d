"""The state table once more, as plainly as it can be said, by someone who has not seen the program.

A state is what an ideal server would remember of one key. ``follow`` takes a state, a command and the moment of the
decision, and says what the answer has to be and what is remembered then. Tokens and operation ids are the server's to
choose: None stands for one that was granted to nobody who lived to tell, and is filled in when an answer reveals it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from idemactor.core.commands import (
    Accept,
    AckEvent,
    Cancel,
    Claim,
    Command,
    Commit,
    Dispatch,
    Doubt,
    Extend,
    Forget,
    Get,
    Lapse,
    NackEvent,
    Postpone,
    Release,
    Reserve,
    Resolve,
    Verdict,
    Watch,
)
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.limits import EARLIER_TOKENS_MAX
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, Policy
from idemactor.core.record import Outcome
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Completed,
    Doubted,
    Extended,
    Forgotten,
    Found,
    InDoubt,
    InFlight,
    Mismatch,
    NothingToForget,
    QuotaExceeded,
    Released,
    Reply,
    Reserved,
    Stale,
    Unknown,
    Unsettled,
    Withdrawn,
)

Essence = tuple[object, ...]
"""What counts of an answer: its word, then what has to be exactly so."""


@dataclass(frozen=True)
class Attempt:
    """The latest attempt of the present operation."""

    phase: str
    token: int | None
    number: int
    request_id: str | None
    lease_end: int
    give_up_at: int | None
    ttl_ms: int | None
    window_ms: int | None
    first_seen_at: int
    reserved_at: int
    fingerprint: Fingerprint | None
    holder: str | None
    earlier: tuple[tuple[int | None, bool], ...] = ()
    contested: bool = False
    reason: str | None = None
    expires_at: int | None = None
    outcome: Outcome | None = None
    accepted: bool = False


@dataclass(frozen=True)
class Grave:
    """What a release left."""

    token: int | None
    request_id: str | None
    expires_at: int
    reported: bool = False


@dataclass(frozen=True)
class State:
    """All that is remembered of a key; of ``incidents`` the tokens that came too late."""

    attempt: Attempt | None = None
    grave: Grave | None = None
    incidents: frozenset[int] = frozenset()


def essence(reply: Reply) -> Essence:
    """What counts of an answer."""
    match reply:
        case Reserved():
            return ("reserved", reply.token, reply.attempt, reply.lease_expires_at, reply.repeated)
        case Accepted():
            return ("accepted", reply.attempt, reply.expires_at, reply.repeated)
        case Completed():
            return ("completed", reply.expires_at, reply.outcome, reply.rejected)
        case InFlight():
            return ("in_flight", reply.attempt, reply.lease_expires_at, reply.holder)
        case InDoubt():
            return ("in_doubt", reply.attempt, reply.holder, reply.reason)
        case Committed() | Extended() | AlreadyCommitted():
            return (
                type(reply).__name__,
                getattr(reply, "expires_at", None) or getattr(reply, "lease_expires_at", None),
            )
        case Found(record=record):
            name = "in_doubt" if record.state.name in ("LAPSED", "DOUBTED") else record.state.name.lower()
            return ("found", name, record.attempt, record.token, record.contested)
        case Stale():
            return ("stale", reply.attempt)
        case _:
            return (type(reply).__name__,)


def at(state: State, policy: Policy, now: int) -> State:
    """Time decides."""
    attempt, grave = state.attempt, state.grave
    if grave and now >= grave.expires_at:
        grave = None
    if attempt and attempt.phase == "pending" and now >= attempt.lease_end:
        attempt = replace(attempt, phase="lapsed")
    if attempt and attempt.phase == "lapsed" and policy.on_lease_expiry is OnLeaseExpiry.RETRY:
        attempt = None if attempt.give_up_at is not None and now >= attempt.give_up_at else attempt
    if attempt and attempt.expires_at is not None and now >= attempt.expires_at:
        attempt = None
    return replace(state, attempt=attempt, grave=grave)


def follow(state: State, command: Command, policy: Policy, now: int, reply: Reply | None) -> tuple[Essence, State]:
    """The answer that is due, and what is remembered then. ``reply`` only names tokens that the server chose.

    An answer that changes nothing leaves what has run out where it was: the server's time is on disk only with what it
    writes, and after a restart with a wall clock that was set back it may be a little earlier again.
    """
    then = at(state, policy, now)
    due, after = _answer(then, command, policy, now, reply)
    if after == then:
        return due, state
    if state.attempt and state.attempt.token is None and after.attempt and then.attempt:
        revealed = replace(then, attempt=replace(then.attempt, token=after.attempt.token))
        if after == revealed:
            return due, replace(state, attempt=replace(state.attempt, token=after.attempt.token))
    return due, after


def _answer(state: State, command: Command, policy: Policy, now: int, reply: Reply | None) -> tuple[Essence, State]:
    match command:
        case Reserve() | Accept():
            return _acquire(state, command, policy, now, reply)
        case Get():
            return _get(state, reply)
        case Commit() | Release() | Extend() | Doubt() | Resolve():
            return _end(state, command, policy, now)
        case Forget():
            return _forget(state, command)
        case Dispatch() | Claim() | Lapse() | Postpone() | Cancel() | Watch() | AckEvent() | NackEvent():
            raise NotImplementedError
        case _:
            assert_never(command)


def _acquire(
    state: State, command: Reserve | Accept, policy: Policy, now: int, reply: Reply | None
) -> tuple[Essence, State]:
    attempt, grave = state.attempt, state.grave
    if attempt and _differ(command.fingerprint, attempt.fingerprint):
        return (Mismatch.__name__,), state
    if grave and command.request_id is not None and grave.request_id == command.request_id:
        return (Withdrawn.__name__,), state
    if attempt is None:
        if isinstance(reply, QuotaExceeded):
            # How many keys there are is nothing that one of them knows; ``checks/quota.py`` does.
            return (QuotaExceeded.__name__,), state
        return _grant(state, None, command, policy, now, reply)
    same = command.request_id is not None and attempt.request_id == command.request_id
    if attempt.phase == "committed":
        return _completed(attempt, command, policy, repeats=same), state
    if attempt.phase == "pending":
        if same and isinstance(command, Reserve):
            token = attempt.token
            if token is None and isinstance(reply, Reserved):
                token = reply.token
            known = replace(state, attempt=replace(attempt, token=token))
            return ("reserved", token, attempt.number, attempt.lease_end, True), known
        return _in_flight(attempt), state
    over = attempt.phase == "lapsed" and policy.on_lease_expiry is OnLeaseExpiry.RETRY
    if over or (attempt.phase == "doubted" and policy.on_doubt is OnDoubt.RETRY and now >= attempt.lease_end):
        return _grant(state, attempt, command, policy, now, reply)
    return _in_doubt(attempt), state


def _completed(attempt: Attempt, command: Reserve | Accept, policy: Policy, *, repeats: bool) -> Essence:
    if repeats and attempt.accepted and isinstance(command, Accept):
        return ("accepted", attempt.number, attempt.expires_at, True)
    rejected = (command.on_duplicate or policy.on_duplicate) is OnDuplicate.REJECT
    return ("completed", attempt.expires_at, attempt.outcome, rejected)


def _differ(one: Fingerprint | None, other: Fingerprint | None) -> bool:
    return one is not None and other is not None and one.rule == other.rule and one.value != other.value


def _in_flight(attempt: Attempt) -> Essence:
    return ("in_flight", attempt.number, attempt.lease_end, attempt.holder)


def _in_doubt(attempt: Attempt) -> Essence:
    return ("in_doubt", attempt.number, attempt.holder, attempt.reason)


def _grant(
    state: State, previous: Attempt | None, command: Reserve | Accept, policy: Policy, now: int, reply: Reply | None
) -> tuple[Essence, State]:
    lease_ms = command.lease_ms if isinstance(command, Reserve) and command.lease_ms else policy.lease_ms
    lease_end = now + min(lease_ms, policy.lease_total_max_ms)
    token = reply.token if isinstance(reply, Reserved) else None
    number = previous.number + 1 if previous else 1
    fingerprint = command.fingerprint
    if previous and previous.fingerprint and (fingerprint is None or fingerprint.rule == previous.fingerprint.rule):
        fingerprint = previous.fingerprint
    granted = Attempt(
        "pending", token, number, command.request_id, lease_end, _give_up(lease_end, policy), command.ttl_ms,
        command.window_ms, previous.first_seen_at if previous else now, now, fingerprint, command.holder,
        (*previous.earlier, (previous.token, False))[-EARLIER_TOKENS_MAX:] if previous else (),
        previous.contested if previous else False,
    )  # fmt: skip
    if isinstance(command, Accept):
        done = replace(_done(granted, command.outcome, None, policy, now), accepted=True)
        return ("accepted", number, done.expires_at, False), replace(state, attempt=done)
    return ("reserved", token, number, granted.lease_end, False), replace(state, attempt=granted)


def _forget(state: State, command: Forget) -> tuple[Essence, State]:
    attempt = state.attempt
    if attempt is None and state.grave is None:
        return (NothingToForget.__name__,), state
    if attempt is not None and attempt.phase != "committed" and not command.force:
        return (Unsettled.__name__,), state
    return (Forgotten.__name__,), State(incidents=state.incidents)


def _end(
    state: State, command: Commit | Release | Extend | Doubt | Resolve, policy: Policy, now: int
) -> tuple[Essence, State]:
    attempt, grave = state.attempt, state.grave
    buried = grave is not None and grave.token == command.token
    frees = isinstance(command, Release) or (isinstance(command, Resolve) and command.verdict is Verdict.RELEASED)
    if buried and frees:
        return (Released.__name__,), state
    if buried and isinstance(command, Commit):
        return _late(state, command.token)
    if attempt is None:
        return (Unknown.__name__,), state
    ours = attempt.token == command.token
    if isinstance(command, Commit) and not ours:
        return _late(state, command.token)
    if attempt.phase == "committed":
        if isinstance(command, Commit) or (isinstance(command, Resolve) and not frees):
            return (Committed.__name__, attempt.expires_at), state
        return (AlreadyCommitted.__name__, attempt.expires_at), state
    if isinstance(command, Resolve) and attempt.phase == "pending":
        return _in_flight(attempt), state
    if not ours:
        return ("stale", attempt.number), state
    if frees:
        grave = Grave(attempt.token, attempt.request_id, _blocks_until(attempt, None, policy, now))
        return (Released.__name__,), replace(state, attempt=None, grave=grave)
    return _go_on(state, attempt, command, policy, now)


def _late(state: State, token: int) -> tuple[Essence, State]:
    """A commit of an attempt that is not the present one: where that is known to have been one, it proves too much."""
    attempt, grave = state.attempt, state.grave
    due = ("stale", attempt.number if attempt else None)
    if grave is not None and grave.token == token:
        state = replace(state, grave=replace(grave, reported=True), incidents=state.incidents | {token})
    elif attempt is not None and (token, False) in attempt.earlier:
        earlier = tuple((each, told or each == token) for each, told in attempt.earlier)
        attempt = replace(attempt, earlier=earlier)
        state = replace(state, incidents=state.incidents | {token})
    else:
        return due, state
    return due, replace(state, attempt=replace(attempt, contested=True) if attempt else None)


def _go_on(
    state: State, attempt: Attempt, command: Commit | Release | Extend | Doubt | Resolve, policy: Policy, now: int
) -> tuple[Essence, State]:
    """The holder of an unsettled operation, or who speaks for it, says anything but that it is to be freed."""
    match command:
        case Commit() | Resolve():
            given = command.ttl_ms if isinstance(command, Commit) else None
            done = _done(attempt, command.outcome, given, policy, now)
            return (Committed.__name__, done.expires_at), replace(state, attempt=done)
        case Doubt():
            if attempt.phase == "doubted":
                return (Doubted.__name__,), state
            doubted = replace(attempt, phase="doubted", reason=command.reason)
            return (Doubted.__name__,), replace(state, attempt=doubted)
        case Extend():
            if attempt.phase == "doubted":
                return _in_doubt(attempt), state
            furthest = max(attempt.reserved_at + policy.lease_total_max_ms, attempt.lease_end)
            end = min(now + command.lease_ms, furthest)
            give_up_at = _give_up(end, policy)
            if end <= now and give_up_at is not None:
                give_up_at = attempt.give_up_at
            longer = replace(attempt, phase="pending", lease_end=end, give_up_at=give_up_at)
            return (Extended.__name__, end), replace(state, attempt=longer)
        case Release():
            raise AssertionError("a release frees")
        case _:
            assert_never(command)


def _get(state: State, reply: Reply | None) -> tuple[Essence, State]:
    attempt = state.attempt
    if attempt is None:
        return (Unknown.__name__,), state
    if attempt.token is None and isinstance(reply, Found):
        attempt = replace(attempt, token=reply.record.token)
    name = "in_doubt" if attempt.phase in ("lapsed", "doubted") else attempt.phase
    return ("found", name, attempt.number, attempt.token, attempt.contested), replace(state, attempt=attempt)


def _done(attempt: Attempt, outcome: Outcome | None, given: int | None, policy: Policy, now: int) -> Attempt:
    kept = outcome.within(policy.outcome_max_bytes) if outcome else None
    expires_at = _blocks_until(attempt, given, policy, now)
    return replace(attempt, phase="committed", outcome=kept, expires_at=expires_at)


def _blocks_until(attempt: Attempt, given: int | None, policy: Policy, now: int) -> int:
    if given is not None:
        return now + given
    if attempt.window_ms is not None:
        end = attempt.first_seen_at + attempt.window_ms
        return end if end > now else now + policy.ttl_ms
    return now + (attempt.ttl_ms if attempt.ttl_ms is not None else policy.ttl_ms)


def _give_up(lease_end: int, policy: Policy) -> int | None:
    return lease_end + policy.unresolved_ttl_ms if policy.on_lease_expiry is OnLeaseExpiry.RETRY else None
