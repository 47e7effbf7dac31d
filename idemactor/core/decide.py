"""The state table: one entry, one command, one moment, one decision.

Pure: the time, the next token and the random bits are arguments. The table (``docs/contract.md``, section 3), which
the functions below are, column by column; a lease that ran out without a word is "lapsed", the holder's own word is
"doubted":

=============  ===========  ======================  =======================================  =================
command        absent       pending                 in doubt (lapsed, doubted)               committed
=============  ===========  ======================  =======================================  =================
reserve        reserved     in_flight; same         reserved as a takeover where the policy  completed
                            request_id: reserved    lets another go on, otherwise in_doubt
accept         accepted     in_flight               as reserve, then committed               completed; same
                                                                                             request_id: accepted
commit         unknown      committed, stale        committed, stale                         committed, stale
release        unknown      released, stale         released, stale                          already_committed
extend         unknown      extended, stale         lapsed: extended; doubted: in_doubt;     already_committed
                                                    stale
doubt          unknown      in_doubt, stale         in_doubt, stale                          already_committed
resolve        unknown      in_flight               committed, released, stale               committed or
                                                                                             already_committed
get            unknown      found                   found                                    found
forget         nothing      unsettled, forgotten    unsettled, forgotten                     forgotten
=============  ===========  ======================  =======================================  =================

Three things come before the table: time (``at``), a mismatch of fingerprints, and what a tombstone recognises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from idemactor.core import limits
from idemactor.core.commands import (
    Accept,
    Command,
    Commit,
    Doubt,
    Extend,
    Forget,
    Get,
    Release,
    Reserve,
    Resolve,
    Verdict,
)
from idemactor.core.fingerprint import Fingerprint, contradict
from idemactor.core.ids import uuid7
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, Policy
from idemactor.core.record import EarlierToken, Entry, Incident, Outcome, Record, State, Tombstone
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
from idemactor.core.values import slotted


@slotted
class Fresh:
    """What a grant uses up.

    Attributes:
        token: Above every token that this shard ever granted.
        entropy: Random bits for an operation id, see ``ids.ENTROPY_BITS``.
        room: Whether the tenant may have one more key in this namespace.
    """

    token: int
    entropy: int
    room: bool


@slotted
class Decision:
    """What one command did.

    Attributes:
        reply: The answer, which leaves once ``entry`` is durable.
        entry: What the shard holds of the key from now on; meaningful where ``changed``.
        changed: Whether ``entry`` differs from what was given.
        granted: Whether ``Fresh`` was used up.
        incident: Evidence that something may have happened twice.
        rule_changed: Whether a fingerprint was set aside because it was made under another rule.
    """

    reply: Reply
    entry: Entry | None = None
    changed: bool = False
    granted: bool = False
    incident: Incident | None = None
    rule_changed: bool = False


def at(record: Record | None, policy: Policy, now: int) -> Record | None:
    """The record as time has it at ``now``: time decides, whether or not an alarm has been here."""
    if record is None:
        return None
    match record.state:
        case State.COMMITTED:
            return record if now < _known(record.expires_at) else None
        case State.PENDING:
            if now < _known(record.lease_expires_at):
                return record
            return at(replace(record, state=State.LAPSED), policy, now)
        case State.LAPSED:
            gives_up = policy.on_lease_expiry is OnLeaseExpiry.RETRY
            end = record.unresolved_expires_at
            return None if gives_up and end is not None and now >= end else record
        case State.DOUBTED:
            return record
        case _:
            assert_never(record.state)


def decide(entry: Entry | None, command: Command, policy: Policy, now: int, fresh: Fresh) -> Decision:
    """Decide one command on what the shard holds of its key.

    Args:
        entry: All that is held of ``command.identity``, or None.
        command: What is asked.
        policy: Today's settings of the namespace.
        now: The shard's time, milliseconds since the epoch.
        fresh: What a grant would use up.
    """
    record = at(entry.record, policy, now) if entry else None
    tombstone = entry.tombstone if entry else None
    if tombstone is not None and now >= tombstone.expires_at:
        tombstone = None
    match command:
        case Reserve() | Accept():
            return _acquire(entry, record, tombstone, command, policy, now, fresh)
        case Commit():
            return _commit(entry, record, tombstone, command, policy, now)
        case Release():
            return _release(entry, record, tombstone, command, policy, now)
        case Extend():
            return _extend(entry, record, tombstone, command, policy, now)
        case Doubt():
            return _doubt(entry, record, tombstone, command)
        case Resolve():
            return _resolve(entry, record, tombstone, command, policy, now)
        case Get():
            return Decision(Found(command.identity.key, record) if record else Unknown())
        case Forget():
            return _forget(record, tombstone, command)
        case _:
            assert_never(command)


def sweep(entry: Entry, policy: Policy, now: int) -> Entry | None:
    """The entry once its alarm has been here at ``now``: what time has ended is gone, a lapse is noted.

    Never drops an operation that nobody settled, but for a lapsed one that the policy lets go.
    """
    record = at(entry.record, policy, now)
    tombstone = entry.tombstone
    if tombstone is not None and now >= tombstone.expires_at:
        tombstone = None
    if record is None and tombstone is None:
        return None
    if record is not None and record.state is State.LAPSED:
        end = record.unresolved_expires_at
        if end is not None and now >= end:
            # The policy holds what lapsed. Were the deadline kept, changing the policy back would free a live key.
            record = replace(record, unresolved_expires_at=None)
    if record is entry.record and tombstone is entry.tombstone and entry.alarm_at == _alarm(record, tombstone):
        return entry
    return _entry(entry.id, entry.identity, record, tombstone)


# ---------------------------------------------------------------------------------------------- reserve and accept


def _acquire(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Reserve | Accept,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    reply: Reply
    given, held = command.fingerprint, record.fingerprint if record else None
    if given is not None and held is not None and contradict(given, held):
        return Decision(Mismatch())
    rule_changed = given is not None and held is not None and given.rule != held.rule
    if tombstone is not None and command.request_id is not None and command.request_id == tombstone.request_id:
        return Decision(Withdrawn(), rule_changed=rule_changed)
    if record is None:
        # An entry that is still there was counted when it came.
        if entry is None and not fresh.room:
            return Decision(QuotaExceeded(policy.records_max))
        return _grant(entry, None, tombstone, command, policy, now, fresh)
    match record.state:
        case State.PENDING:
            reply = _first_answer(record, command) or in_flight(record, now)
        case State.LAPSED | State.DOUBTED:
            if _may_take_over(record, policy, now):
                decision = _grant(entry, record, tombstone, command, policy, now, fresh)
                return replace(decision, rule_changed=rule_changed)
            reply = in_doubt(record)
        case State.COMMITTED:
            reply = _first_answer(record, command) or _completed(record, command, policy)
        case _:
            assert_never(record.state)
    return Decision(reply, rule_changed=rule_changed)


def _first_answer(record: Record, command: Reserve | Accept) -> Reply | None:
    """What this very acquisition was answered before, if it is one that still stands."""
    if command.request_id is None or command.request_id != record.request_id:
        return None
    if isinstance(command, Accept):
        return _accepted(record, repeated=True) if record.accepted else None
    return _reserved(record, command, repeated=True) if record.state is State.PENDING else None


def _may_take_over(record: Record, policy: Policy, now: int) -> bool:
    if record.state is State.LAPSED:
        return policy.on_lease_expiry is OnLeaseExpiry.RETRY
    return policy.on_doubt is OnDoubt.RETRY and now >= _known(record.lease_expires_at)


def _grant(
    entry: Entry | None,
    previous: Record | None,
    tombstone: Tombstone | None,
    command: Reserve | Accept,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    """Let this caller go on: as attempt 1 of a new operation, or as the next attempt of ``previous``."""
    lease_ms = (command.lease_ms if isinstance(command, Reserve) else None) or policy.lease_ms
    lease_end = now + min(lease_ms, policy.lease_total_max_ms)
    record = Record(
        State.PENDING,
        1,
        fresh.token,
        previous.operation_id if previous else uuid7(now, fresh.entropy),
        now,
        now,
        command.request_id,
        lease_end,
        command.fingerprint,
        command.holder,
        command.ttl_ms,
        command.window_ms,
        _unresolved_end(lease_end, policy),
    )
    if previous:
        record = replace(
            record,
            attempt=previous.attempt + 1,
            first_seen_at=previous.first_seen_at,
            fingerprint=_sticking(previous.fingerprint, command.fingerprint),
            contested=previous.contested,
            earlier=_with_earlier(previous),
        )
    reply: Reply
    if isinstance(command, Accept):
        record = _committed(record, command.outcome, None, policy, now, accepted=True)
        reply = _accepted(record, repeated=False)
    else:
        reply = _reserved(record, command, repeated=False)
    changed = _entry(entry.id if entry else fresh.token, command.identity, record, tombstone)
    return Decision(reply, changed, True, True)


def _sticking(held: Fingerprint | None, given: Fingerprint | None) -> Fingerprint | None:
    """The first fingerprint sticks; one made under another rule counts as absent once a new one is granted."""
    if held is None or (given is not None and given.rule != held.rule):
        return given
    return held


def _with_earlier(previous: Record) -> tuple[EarlierToken, ...]:
    return (*previous.earlier, EarlierToken(previous.token))[-limits.EARLIER_TOKENS_MAX :]


def _unresolved_end(lease_end: int, policy: Policy) -> int | None:
    return lease_end + policy.unresolved_ttl_ms if policy.on_lease_expiry is OnLeaseExpiry.RETRY else None


# ------------------------------------------------------------------------------------------- the holder's commands


def _commit(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Commit,
    policy: Policy,
    now: int,
) -> Decision:
    if entry is not None and tombstone is not None and tombstone.token == command.token:
        return _late_after_release(entry, record, tombstone, command, policy, now)
    if entry is None or record is None:
        return Decision(Unknown())
    if record.token != command.token:
        return _stale_commit(entry, record, tombstone, command, policy, now)
    if record.state is State.COMMITTED:
        return Decision(Committed(_known(record.expires_at), repeated=True))
    done = _committed(record, command.outcome, command.ttl_ms, policy, now)
    changed = _entry(entry.id, entry.identity, done, tombstone)
    return Decision(Committed(_known(done.expires_at), repeated=False), changed, changed=True)


def _late_after_release(
    entry: Entry, record: Record | None, tombstone: Tombstone, command: Commit, policy: Policy, now: int
) -> Decision:
    """The released attempt says that it did succeed: evidence, and nothing changes for the present holder."""
    reply = Stale(record.attempt if record else None)
    if tombstone.reported and (record is None or record.contested):
        return Decision(reply)
    # One incident for each token, but every record that stands beside such a commit is contested.
    incident = None
    if not tombstone.reported:
        incident = _incident(entry.identity, tombstone.operation_id, command, record, policy, now)
    kept = replace(record, contested=True) if record else None
    changed = _entry(entry.id, entry.identity, kept, replace(tombstone, reported=True))
    return Decision(reply, changed, changed=True, incident=incident)


def _stale_commit(
    entry: Entry, record: Record, tombstone: Tombstone | None, command: Commit, policy: Policy, now: int
) -> Decision:
    """An attempt given up for dead says that it did succeed, or the token was never of this operation."""
    reply = Stale(record.attempt)
    if EarlierToken(command.token) not in record.earlier:
        return Decision(reply)
    incident = _incident(entry.identity, record.operation_id, command, record, policy, now)
    earlier = tuple(EarlierToken(e.token, e.reported or e.token == command.token) for e in record.earlier)
    kept = replace(record, contested=True, earlier=earlier)
    changed = _entry(entry.id, entry.identity, kept, tombstone)
    return Decision(reply, changed, changed=True, incident=incident)


def _incident(
    identity: Identity, operation_id: str, command: Commit, record: Record | None, policy: Policy, now: int
) -> Incident:
    outcome = command.outcome.within(policy.outcome_max_bytes) if command.outcome else None
    return Incident(identity, operation_id, command.token, record.token if record else None, now, outcome)


def _release(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Release,
    policy: Policy,
    now: int,
) -> Decision:
    if tombstone is not None and tombstone.token == command.token:
        return Decision(Released(repeated=True))
    if entry is None or record is None:
        return Decision(Unknown())
    if record.state is State.COMMITTED:
        return Decision(_already_committed(record))
    if record.token != command.token:
        return Decision(Stale(record.attempt))
    return _freed(entry, record, policy, now)


def _freed(entry: Entry, record: Record, policy: Policy, now: int) -> Decision:
    """The effect did not happen: only a tombstone is left, as long as a commit made now would have blocked."""
    expires_at = _blocks_until(record, None, policy, now)
    tombstone = Tombstone(record.token, record.request_id, record.operation_id, expires_at)
    return Decision(Released(repeated=False), _entry(entry.id, entry.identity, None, tombstone), changed=True)


def _extend(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Extend,
    policy: Policy,
    now: int,
) -> Decision:
    if entry is None or record is None:
        return Decision(Unknown())
    if record.state is State.COMMITTED:
        return Decision(_already_committed(record))
    if record.token != command.token:
        return Decision(Stale(record.attempt))
    if record.state is State.DOUBTED:
        return Decision(in_doubt(record))
    # A maximum that was lowered meanwhile takes back nothing that was granted under the old one.
    furthest = max(record.reserved_at + policy.lease_total_max_ms, _known(record.lease_expires_at))
    lease_end = min(now + command.lease_ms, furthest)
    unresolved_end = _unresolved_end(lease_end, policy)
    if lease_end <= now and unresolved_end is not None:
        # Nothing was gained: asking for more time is no reason to give the operation up sooner than was stored.
        unresolved_end = record.unresolved_expires_at
    kept = replace(record, state=State.PENDING, lease_expires_at=lease_end, unresolved_expires_at=unresolved_end)
    return Decision(Extended(lease_end), _entry(entry.id, entry.identity, kept, tombstone), changed=True)


def _doubt(entry: Entry | None, record: Record | None, tombstone: Tombstone | None, command: Doubt) -> Decision:
    if entry is None or record is None:
        return Decision(Unknown())
    if record.state is State.COMMITTED:
        return Decision(_already_committed(record))
    if record.token != command.token:
        return Decision(Stale(record.attempt))
    if record.state is State.DOUBTED:
        return Decision(Doubted(repeated=True))
    kept = replace(record, state=State.DOUBTED, reason=command.reason, unresolved_expires_at=None)
    return Decision(Doubted(repeated=False), _entry(entry.id, entry.identity, kept, tombstone), changed=True)


# --------------------------------------------------------------------------------------------------- the operator's


def _resolve(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Resolve,
    policy: Policy,
    now: int,
) -> Decision:
    frees = command.verdict is Verdict.RELEASED
    if frees and tombstone is not None and tombstone.token == command.token:
        return Decision(Released(repeated=True))
    if entry is None or record is None:
        return Decision(Unknown())
    match record.state:
        case State.PENDING:
            return Decision(in_flight(record, now))
        case State.COMMITTED if frees:
            return Decision(_already_committed(record))
        case State.COMMITTED:
            return Decision(Committed(_known(record.expires_at), repeated=True))
        case State.LAPSED | State.DOUBTED:
            if record.token != command.token:
                return Decision(Stale(record.attempt))
            if frees:
                return _freed(entry, record, policy, now)
            done = _committed(record, command.outcome, None, policy, now)
            changed = _entry(entry.id, entry.identity, done, tombstone)
            return Decision(Committed(_known(done.expires_at), repeated=False), changed, changed=True)
        case _:
            assert_never(record.state)


def _forget(record: Record | None, tombstone: Tombstone | None, command: Forget) -> Decision:
    if record is None and tombstone is None:
        return Decision(NothingToForget())
    if record is not None and record.state is not State.COMMITTED and not command.force:
        return Decision(Unsettled())
    return Decision(Forgotten(), None, changed=True)


# ------------------------------------------------------------------------------------------------- what they share


def _committed(
    record: Record,
    outcome: Outcome | None,
    ttl_ms: int | None,
    policy: Policy,
    now: int,
    *,
    accepted: bool = False,
) -> Record:
    return replace(
        record,
        state=State.COMMITTED,
        lease_expires_at=None,
        unresolved_expires_at=None,
        committed_at=now,
        expires_at=_blocks_until(record, ttl_ms, policy, now),
        accepted=accepted,
        outcome=outcome.within(policy.outcome_max_bytes) if outcome else None,
    )


def _blocks_until(record: Record, ttl_ms: int | None, policy: Policy, now: int) -> int:
    """Until when a commit made now blocks: the commit's ttl, else the reserve's window or ttl, else the policy's."""
    if ttl_ms is not None:
        return now + ttl_ms
    if record.window_ms is not None:
        end = record.first_seen_at + record.window_ms
        return end if now < end else now + policy.ttl_ms
    return now + (record.ttl_ms if record.ttl_ms is not None else policy.ttl_ms)


def _entry(entry_id: int, identity: Identity, record: Record | None, tombstone: Tombstone | None) -> Entry:
    return Entry(entry_id, identity, record, tombstone, _alarm(record, tombstone))


def _alarm(record: Record | None, tombstone: Tombstone | None) -> int | None:
    """When time next changes something about a key."""
    due = _record_alarm(record) if record else None
    if tombstone is not None and (due is None or tombstone.expires_at < due):
        return tombstone.expires_at
    return due


def _record_alarm(record: Record) -> int | None:
    match record.state:
        case State.PENDING:
            return record.lease_expires_at
        case State.LAPSED:
            return record.unresolved_expires_at
        case State.DOUBTED:
            return None
        case State.COMMITTED:
            return record.expires_at
        case _:
            assert_never(record.state)


def _reserved(record: Record, command: Reserve | Accept, *, repeated: bool) -> Reserved:
    return Reserved(
        command.identity.key,
        record.token,
        record.attempt,
        record.operation_id,
        record.reserved_at,
        _known(record.lease_expires_at),
        repeated,
    )


def _accepted(record: Record, *, repeated: bool) -> Accepted:
    return Accepted(record.operation_id, record.attempt, _known(record.expires_at), repeated)


def _completed(record: Record, command: Reserve | Accept, policy: Policy) -> Completed:
    return Completed(
        operation_id=record.operation_id,
        committed_at=_known(record.committed_at),
        expires_at=_known(record.expires_at),
        outcome=record.outcome,
        rejected=(command.on_duplicate or policy.on_duplicate) is OnDuplicate.REJECT,
    )


def in_flight(record: Record, now: int) -> InFlight:
    """What is told of a pending record whose lease runs."""
    end = _known(record.lease_expires_at)
    return InFlight(record.attempt, record.holder, record.reserved_at, end, max(1, end - now))


def in_doubt(record: Record) -> InDoubt:
    """What is told of a record in doubt."""
    return InDoubt(
        attempt=record.attempt,
        operation_id=record.operation_id,
        holder=record.holder,
        reserved_at=record.reserved_at,
        lease_expires_at=_known(record.lease_expires_at),
        reason=record.reason,
    )


def _already_committed(record: Record) -> AlreadyCommitted:
    return AlreadyCommitted(_known(record.committed_at), _known(record.expires_at))


def _known(value: int | None) -> int:
    """A time that the record's state says is there."""
    assert value is not None
    return value
