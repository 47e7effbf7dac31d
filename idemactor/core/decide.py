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

What is dispatched has rows of its own: ``dispatching.py``. Three things come before the table: time (``at``), a
mismatch of fingerprints, and what a tombstone recognises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from idemactor.core import dispatching
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
from idemactor.core.decision import Decision, Fresh
from idemactor.core.delivery import Ending
from idemactor.core.fingerprint import contradict
from idemactor.core.ids import uuid7
from idemactor.core.keys import Identity
from idemactor.core.lifetimes import (
    alarm_of,
    at,
    committed,
    doubted,
    entry_with,
    freed,
    is_meant,
    known,
    may_take_over,
    sticking,
    unresolved_end,
    with_earlier,
)
from idemactor.core.policy import Policy
from idemactor.core.record import EarlierToken, Entry, Incident, Record, State, Tombstone
from idemactor.core.replies import (
    Accepted,
    Committed,
    Doubted,
    Extended,
    Forgotten,
    Found,
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
from idemactor.core.told import already_committed, completed, in_doubt, in_flight


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
            return dispatching.decide(entry, record, tombstone, command, policy, now, fresh)


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
    if record is entry.record and tombstone is entry.tombstone and entry.alarm_at == alarm_of(record, tombstone):
        return entry
    return entry_with(entry.id, entry.identity, record, tombstone)


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
            if may_take_over(record, policy, now):
                decision = _grant(entry, record, tombstone, command, policy, now, fresh)
                return replace(decision, rule_changed=rule_changed)
            reply = in_doubt(record)
        case State.COMMITTED:
            reply = _first_answer(record, command) or completed(record, command, policy)
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
        unresolved_end(lease_end, policy),
    )
    if previous:
        record = replace(
            record,
            attempt=previous.attempt + 1,
            first_seen_at=previous.first_seen_at,
            fingerprint=sticking(previous.fingerprint, command.fingerprint),
            contested=previous.contested,
            earlier=with_earlier(previous),
        )
    reply: Reply
    if isinstance(command, Accept):
        record = committed(record, command.outcome, None, policy, now, accepted=True)
        reply = _accepted(record, repeated=False)
    else:
        reply = _reserved(record, command, repeated=False)
    changed = entry_with(entry.id if entry else fresh.token, command.identity, record, tombstone)
    return Decision(reply, changed, True, True)


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
    if not is_meant(record, command.operation_id):
        return Decision(Stale(record.attempt))
    if record.token != command.token:
        return _stale_commit(entry, record, tombstone, command, policy, now)
    if record.state is State.COMMITTED:
        return Decision(Committed(known(record.expires_at), repeated=True))
    ending = Ending.FAILED if command.failed else Ending.SUCCEEDED
    done = committed(record, command.outcome, command.ttl_ms, policy, now, ending=ending)
    changed = entry_with(entry.id, entry.identity, done, tombstone)
    return Decision(Committed(known(done.expires_at), repeated=False), changed, changed=True)


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
    changed = entry_with(entry.id, entry.identity, kept, replace(tombstone, reported=True))
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
    changed = entry_with(entry.id, entry.identity, kept, tombstone)
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
    if not is_meant(record, command.operation_id):
        return Decision(Stale(record.attempt))
    if record.state is State.COMMITTED:
        return Decision(already_committed(record))
    if record.token != command.token:
        return Decision(Stale(record.attempt))
    ending = Ending.FAILED if command.failed else Ending.RELEASED
    return Decision(Released(repeated=False), freed(entry, record, policy, now, ending), changed=True)


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
        return Decision(already_committed(record))
    if record.token != command.token:
        return Decision(Stale(record.attempt))
    if record.lease_expires_at is None:
        # It was given back, and waits to be delivered: nobody holds it.
        return Decision(Stale(record.attempt))
    if record.state is State.DOUBTED:
        return Decision(in_doubt(record))
    # A maximum that was lowered meanwhile takes back nothing that was granted under the old one.
    furthest = max(record.reserved_at + policy.lease_total_max_ms, known(record.lease_expires_at))
    lease_end = min(now + command.lease_ms, furthest)
    given_up_at = None if record.delivery else unresolved_end(lease_end, policy)
    if lease_end <= now and given_up_at is not None:
        # Nothing was gained: asking for more time is no reason to give the operation up sooner than was stored.
        given_up_at = record.unresolved_expires_at
    kept = replace(record, state=State.PENDING, lease_expires_at=lease_end, unresolved_expires_at=given_up_at)
    return Decision(Extended(lease_end), entry_with(entry.id, entry.identity, kept, tombstone), changed=True)


def _doubt(entry: Entry | None, record: Record | None, tombstone: Tombstone | None, command: Doubt) -> Decision:
    if entry is None or record is None:
        return Decision(Unknown())
    if record.state is State.COMMITTED:
        return Decision(already_committed(record))
    if record.token != command.token or not is_meant(record, None):
        return Decision(Stale(record.attempt))
    if record.state is State.DOUBTED:
        return Decision(Doubted(repeated=True))
    kept = doubted(record, command.reason)
    return Decision(Doubted(repeated=False), entry_with(entry.id, entry.identity, kept, tombstone), changed=True)


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
            return Decision(already_committed(record))
        case State.COMMITTED:
            return Decision(Committed(known(record.expires_at), repeated=True))
        case State.LAPSED | State.DOUBTED:
            if record.token != command.token:
                return Decision(Stale(record.attempt))
            if frees:
                return Decision(Released(repeated=False), freed(entry, record, policy, now), changed=True)
            done = committed(record, command.outcome, None, policy, now)
            changed = entry_with(entry.id, entry.identity, done, tombstone)
            return Decision(Committed(known(done.expires_at), repeated=False), changed, changed=True)
        case _:
            assert_never(record.state)


def _forget(record: Record | None, tombstone: Tombstone | None, command: Forget) -> Decision:
    if record is None and tombstone is None:
        return Decision(NothingToForget())
    if record is not None and record.state is not State.COMMITTED and not command.force:
        return Decision(Unsettled())
    return Decision(Forgotten(), None, changed=True)


# ------------------------------------------------------------------------------------------------- what they share


def _reserved(record: Record, command: Reserve | Accept, *, repeated: bool) -> Reserved:
    return Reserved(
        command.identity.key,
        record.token,
        record.attempt,
        record.operation_id,
        record.reserved_at,
        known(record.lease_expires_at),
        repeated,
    )


def _accepted(record: Record, *, repeated: bool) -> Accepted:
    return Accepted(record.operation_id, record.attempt, known(record.expires_at), repeated)
