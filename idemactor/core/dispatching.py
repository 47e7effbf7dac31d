"""The rows of the state table for what is dispatched: an intent that is kept here and delivered by somebody else.

=============  ==============  =======================  ==========================  ==============================
command        absent          queued                   being delivered             in doubt; ended
=============  ==============  =======================  ==========================  ==============================
dispatch       accepted        accepted (repeated),     accepted (repeated)         accepted (repeated)
                               with the present state
claim          not due         claimed once it is due   not due                     lapsed, and the destination
                                                                                    recognises it: claimed
lapse          not due         not due                  in doubt, where another     not due
                                                        relay than today's has it
postpone       unknown         postponed (again)        postponed, stale            in doubt: postponed, stale;
                                                                                    ended: already_committed
cancel         unknown         cancelled, where         uncancellable               uncancellable
                               nothing may have arrived
watch          unknown         the state                the state                   the state
=============  ==============  =======================  ==========================  ==============================

Whoever claimed it settles it with the commands of everybody: commit, release, doubt, with the token of the attempt.
What nobody was seen to settle is never sent again to a destination that does not recognise it, and no time deletes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from idemactor.core.commands import AckEvent, Cancel, Claim, Dispatch, Lapse, NackEvent, Postpone, Watch
from idemactor.core.decision import Decision, Fresh
from idemactor.core.delivery import RELAY, Delivery, Ending, OperationState
from idemactor.core.fingerprint import contradict
from idemactor.core.ids import uuid7
from idemactor.core.lifetimes import (
    committed,
    doubted,
    entry_with,
    freed,
    is_meant,
    known,
    may_take_over,
    sticking,
    with_earlier,
)
from idemactor.core.limits import OUTBOX_ENTRIES_MAX
from idemactor.core.policy import Policy
from idemactor.core.record import Entry, Record, State, Tombstone
from idemactor.core.replies import (
    Cancelled,
    Claimed,
    Dispatched,
    Lapsed,
    Mismatch,
    NotDue,
    OutboxFull,
    Postponed,
    QuotaExceeded,
    Reply,
    Stale,
    Uncancellable,
    Unknown,
    Watched,
)
from idemactor.core.told import already_committed, completed, in_doubt, in_flight

CANNOT_RESEND: Final = "it may have been sent, and the destination does not recognise what it had before"


def decide(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Dispatch | Claim | Lapse | Postpone | Cancel | Watch | AckEvent | NackEvent,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    """Decide one of these commands; ``record`` and ``tombstone`` are as time has them at ``now``."""
    match command:
        case Dispatch():
            return dispatch(entry, record, tombstone, command, policy, now, fresh)
        case Claim():
            return claim(entry, record, tombstone, command, policy, now, fresh)
        case Lapse():
            return lapse(entry, record, tombstone, command, policy, now)
        case Postpone():
            return postpone(entry, record, tombstone, command, policy, now)
        case Cancel():
            return cancel(entry, record, tombstone, command, policy, now)
        case Watch():
            return Decision(watched(record, tombstone, command, policy, now))
        case AckEvent() | NackEvent():
            raise AssertionError("an event is no part of a record: the ledger answers for them")
        case _:
            assert_never(command)


def state_of(record: Record, delivery: Delivery, policy: Policy, now: int) -> OperationState:
    """How a dispatched operation stands; ``record`` as time has it at ``now``."""
    match record.state:
        case State.PENDING:
            return OperationState.QUEUED if record.lease_expires_at is None else OperationState.DELIVERING
        case State.LAPSED:
            # It is sent again as soon as somebody comes for it.
            again = policy.dispatch.recognised and now < delivery.deliver_until
            return OperationState.DELIVERING if again else OperationState.IN_DOUBT
        case State.DOUBTED:
            return OperationState.IN_DOUBT
        case State.COMMITTED:
            return (Ending.SUCCEEDED if delivery.ending is None else delivery.ending).state
        case _:
            assert_never(record.state)


def due_at(state: State, lease_expires_at: int | None, queued_until: int | None, policy: Policy) -> int | None:
    """When somebody may come for a dispatched operation that has not ended; None: only once something else happens.

    Args:
        state: The record's as it is stored.
        lease_expires_at: The record's.
        queued_until: The delivery's ``due_at``.
    """
    if state is State.PENDING and lease_expires_at is None:
        return queued_until
    return lease_expires_at if policy.dispatch.recognised and state is not State.DOUBTED else None


def dispatch(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Dispatch,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    """Keep the intent, or say what became of the one that is kept."""
    given, held = command.fingerprint, record.fingerprint if record else None
    if given is not None and held is not None and contradict(given, held):
        return Decision(Mismatch())
    rule_changed = given is not None and held is not None and given.rule != held.rule
    if record is None:
        if entry is None and not fresh.room:
            return Decision(QuotaExceeded(policy.records_max))
        return _queued(entry, None, tombstone, command, policy, now, fresh)
    if record.delivery is not None:
        state = state_of(record, record.delivery, policy, now)
        return Decision(Dispatched(record.operation_id, state, repeated=True), rule_changed=rule_changed)
    reply: Reply
    match record.state:
        case State.PENDING:
            reply = in_flight(record, now)
        case State.LAPSED | State.DOUBTED:
            # What an earlier holder may have done is the same operation: only who recognises it may get it again.
            if policy.dispatch.recognised and may_take_over(record, policy, now):
                decision = _queued(entry, record, tombstone, command, policy, now, fresh)
                return replace(decision, rule_changed=rule_changed)
            reply = in_doubt(record)
        case State.COMMITTED:
            reply = completed(record, command, policy)
        case _:
            assert_never(record.state)
    return Decision(reply, rule_changed=rule_changed)


def _queued(
    entry: Entry | None,
    previous: Record | None,
    tombstone: Tombstone | None,
    command: Dispatch,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    if not fresh.seq:
        return Decision(OutboxFull(OUTBOX_ENTRIES_MAX))
    due = now if command.not_before is None else max(now, command.not_before)
    until = due + policy.dispatch.horizon_ms
    if command.expires_in_ms is not None:
        until = min(until, now + command.expires_in_ms)
    record = Record(
        State.PENDING,
        attempt=previous.attempt if previous else 0,
        token=fresh.token,
        operation_id=previous.operation_id if previous else uuid7(now, fresh.entropy),
        first_seen_at=previous.first_seen_at if previous else now,
        reserved_at=now,
        fingerprint=sticking(previous.fingerprint if previous else None, command.fingerprint),
        ttl_ms=command.ttl_ms,
        contested=previous.contested if previous else False,
        earlier=with_earlier(previous) if previous else (),
        delivery=Delivery(fresh.seq, command.order_key, due, until, perhaps_sent=previous is not None),
    )
    changed = entry_with(entry.id if entry else fresh.token, command.identity, record, tombstone)
    reply = Dispatched(record.operation_id, OperationState.QUEUED, repeated=False)
    return Decision(reply, changed, changed=True, granted=True)


def claim(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Claim,
    policy: Policy,
    now: int,
    fresh: Fresh,
) -> Decision:
    """Let this taker deliver it, as the next attempt."""
    if entry is None or record is None or record.delivery is None:
        return Decision(NotDue())
    delivery = record.delivery
    due = due_at(record.state, record.lease_expires_at, delivery.due_at, policy)
    if record.state is State.COMMITTED or due is None or now < due or now >= delivery.deliver_until:
        return Decision(NotDue())
    perhaps_sent = delivery.perhaps_sent or record.state is State.LAPSED
    if perhaps_sent and not policy.dispatch.recognised:
        # Whoever queued it again was told that the destination recognises it; today's configuration says it does not.
        kept = entry_with(entry.id, entry.identity, doubted(record, CANNOT_RESEND), tombstone)
        return Decision(NotDue(), kept, changed=True)
    lease_end = now + min(command.lease_ms, policy.lease_total_max_ms)
    kept_record = replace(
        record,
        state=State.PENDING,
        attempt=record.attempt + 1,
        token=fresh.token,
        reserved_at=now,
        lease_expires_at=lease_end,
        holder=command.holder,
        earlier=with_earlier(record) if record.attempt else record.earlier,
        delivery=replace(delivery, due_at=None, perhaps_sent=perhaps_sent),
    )
    kept = entry_with(entry.id, entry.identity, kept_record, tombstone)
    return Decision(Claimed(fresh.token, kept_record.attempt, lease_end), kept, changed=True, granted=True)


def lapse(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Lapse,
    policy: Policy,
    now: int,
) -> Decision:
    """The relay that was at it is not the one of today: its lease need not be waited for.

    What it sent may still be on its way, as long as the lease lasts: where that matters, for what is not sent again,
    the end of the lease stays.
    """
    if entry is None or record is None or record.delivery is None or record.lease_expires_at is None:
        return Decision(NotDue())
    if record.state is not State.PENDING or not is_orphan(record.holder, command.holder):
        return Decision(NotDue())
    lease_end = now if policy.dispatch.recognised else record.lease_expires_at
    kept = replace(record, state=State.LAPSED, lease_expires_at=lease_end)
    return Decision(Lapsed(), entry_with(entry.id, entry.identity, kept, tombstone), changed=True)


def is_orphan(holder: str | None, relay: str) -> bool:
    """Whether the holder was a relay, and another one than ``relay``."""
    return holder is not None and holder.startswith(RELAY) and holder != relay


def postpone(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Postpone,
    policy: Policy,
    now: int,
) -> Decision:
    """The attempt is over, and the operation waits for the next one."""
    if entry is None or record is None:
        return Decision(Unknown())
    if not is_meant(record, command.operation_id):
        return Decision(Stale(record.attempt))
    if record.state is State.COMMITTED:
        return Decision(already_committed(record))
    delivery = record.delivery
    if delivery is None or record.token != command.token:
        return Decision(Stale(record.attempt))
    if record.lease_expires_at is None:
        return Decision(Postponed(known(delivery.due_at)))
    # A time that is past is a place in line: what was not sent through no fault of its own comes before later ones.
    due = command.due_at
    # Whoever was at it knows about this attempt alone, also where an earlier one has it in doubt by now.
    perhaps_sent = command.perhaps_sent or (delivery.perhaps_sent and not command.absent)
    kept = replace(
        record,
        state=State.PENDING,
        lease_expires_at=None,
        reason=command.reason,
        delivery=replace(delivery, due_at=due, perhaps_sent=perhaps_sent),
    )
    if now >= delivery.deliver_until and not perhaps_sent:
        # It ends now, and not when its time was over: until now nobody could be told how, and its outcome is kept as
        # long as any other.
        kept = committed(kept, None, None, policy, now, ending=Ending.EXPIRED)
    return Decision(Postponed(due), entry_with(entry.id, entry.identity, kept, tombstone), changed=True)


def cancel(
    entry: Entry | None,
    record: Record | None,
    tombstone: Tombstone | None,
    command: Cancel,
    policy: Policy,
    now: int,
) -> Decision:
    """Take the intent back, where nothing of it may have arrived."""
    if entry is None or record is None or record.delivery is None or record.operation_id != command.operation_id:
        found = watched(record, tombstone, command, policy, now)
        if isinstance(found, Unknown):
            return Decision(found)
        if found.state is OperationState.CANCELLED:
            return Decision(Cancelled(repeated=True))
        return Decision(Uncancellable(found.state))
    state = state_of(record, record.delivery, policy, now)
    if state is not OperationState.QUEUED or record.delivery.perhaps_sent:
        return Decision(Uncancellable(state))
    return Decision(Cancelled(repeated=False), freed(entry, record, policy, now, Ending.CANCELLED), changed=True)


def watched(
    record: Record | None, tombstone: Tombstone | None, command: Watch | Cancel, policy: Policy, now: int
) -> Watched | Unknown:
    """How a dispatched operation stands: by its record, or by what is left of it."""
    key, operation_id = command.identity.key, command.operation_id
    if record is not None and record.delivery is not None and record.operation_id == operation_id:
        return _watched(key, record, record.delivery, policy, now)
    if tombstone is not None and tombstone.ending is not None and tombstone.operation_id == operation_id:
        return Watched(key, operation_id, tombstone.ending.state, expires_at=tombstone.expires_at)
    return Unknown()


def _watched(key: str, record: Record, delivery: Delivery, policy: Policy, now: int) -> Watched:
    return Watched(
        key=key,
        operation_id=record.operation_id,
        state=state_of(record, delivery, policy, now),
        attempt=record.attempt,
        accepted_at=delivery.seq // 1_000,
        next_at=delivery.due_at,
        lease_expires_at=record.lease_expires_at if record.state is State.PENDING else None,
        deliver_until=delivery.deliver_until,
        ended_at=record.committed_at,
        expires_at=record.expires_at,
        order_key=delivery.order_key,
        reason=record.reason,
        outcome=record.outcome,
    )
