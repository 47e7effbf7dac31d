"""What time does to a record, and what a record becomes when it ends: shared by all decisions. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from idemactor.core import limits
from idemactor.core.delivery import Delivery, Ending
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.core.record import EarlierToken, Entry, Outcome, Record, State, Tombstone


def at(record: Record | None, policy: Policy, now: int) -> Record | None:
    """The record as time has it at ``now``: time decides, whether or not an alarm has been here."""
    if record is None:
        return None
    if record.delivery is not None and record.state is not State.COMMITTED:
        return _dispatched_at(record, record.delivery, policy, now)
    match record.state:
        case State.COMMITTED:
            return record if now < known(record.expires_at) else None
        case State.PENDING:
            if now < known(record.lease_expires_at):
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


def _dispatched_at(record: Record, delivery: Delivery, policy: Policy, now: int) -> Record | None:
    """Of a dispatched operation that has not ended: it waits for its turn, is being delivered, or is in doubt."""
    if record.state is not State.PENDING:
        return record
    lease_end = record.lease_expires_at
    if lease_end is not None:
        return record if now < lease_end else replace(record, state=State.LAPSED)
    end = delivery.deliver_until
    if now < end:
        return record
    if delivery.perhaps_sent:
        return replace(record, state=State.DOUBTED, lease_expires_at=end, delivery=replace(delivery, due_at=None))
    return at(committed(record, None, None, policy, end, ending=Ending.EXPIRED), policy, now)


def committed(
    record: Record,
    outcome: Outcome | None,
    ttl_ms: int | None,
    policy: Policy,
    now: int,
    *,
    accepted: bool = False,
    ending: Ending = Ending.SUCCEEDED,
) -> Record:
    """The record once it is settled at ``now``; ``ending`` is that of a dispatched operation."""
    delivery = record.delivery
    return replace(
        record,
        state=State.COMMITTED,
        lease_expires_at=None,
        unresolved_expires_at=None,
        committed_at=now,
        expires_at=blocks_until(record, ttl_ms, policy, now),
        accepted=accepted,
        outcome=outcome.within(policy.outcome_max_bytes) if outcome else None,
        delivery=replace(delivery, due_at=None, ending=ending) if delivery else None,
    )


def blocks_until(record: Record, ttl_ms: int | None, policy: Policy, now: int) -> int:
    """Until when a commit made now blocks: the commit's ttl, else the reserve's window or ttl, else the policy's."""
    if ttl_ms is not None:
        return now + ttl_ms
    if record.window_ms is not None:
        end = record.first_seen_at + record.window_ms
        return end if now < end else now + policy.ttl_ms
    return now + (record.ttl_ms if record.ttl_ms is not None else policy.ttl_ms)


def entry_with(entry_id: int, identity: Identity, record: Record | None, tombstone: Tombstone | None) -> Entry:
    """An entry, and when its alarm is due."""
    return Entry(entry_id, identity, record, tombstone, alarm_of(record, tombstone))


def alarm_of(record: Record | None, tombstone: Tombstone | None) -> int | None:
    """When time next changes something about a key."""
    due = _record_alarm(record) if record else None
    if tombstone is not None and (due is None or tombstone.expires_at < due):
        return tombstone.expires_at
    return due


def _record_alarm(record: Record) -> int | None:
    match record.state:
        case State.PENDING:
            if record.lease_expires_at is None and record.delivery is not None:
                return record.delivery.deliver_until
            return record.lease_expires_at
        case State.LAPSED:
            return record.unresolved_expires_at
        case State.DOUBTED:
            return None
        case State.COMMITTED:
            return record.expires_at
        case _:
            assert_never(record.state)


def freed(entry: Entry, record: Record, policy: Policy, now: int, ending: Ending = Ending.RELEASED) -> Entry:
    """The entry once its effect did not happen: only a tombstone is left, as long as a commit made now would block."""
    expires_at = blocks_until(record, None, policy, now)
    ended = ending if record.delivery else None
    tombstone = Tombstone(record.token, record.request_id, record.operation_id, expires_at, ending=ended)
    return entry_with(entry.id, entry.identity, None, tombstone)


def is_meant(record: Record, operation_id: str | None) -> bool:
    """Whether a word about an attempt is about this record: there was an attempt, and it was of that operation.

    Args:
        operation_id: Of whoever fetched a dispatched operation; None: of a holder, who needs none.
    """
    if record.delivery is None:
        return operation_id is None
    tried = record.attempt > 0 or record.state is State.COMMITTED
    return tried and operation_id in (None, record.operation_id)


def may_take_over(record: Record, policy: Policy, now: int) -> bool:
    """Whether another caller may go on with what is in doubt; what was dispatched is the relay's business."""
    if record.delivery is not None:
        return False
    if record.state is State.LAPSED:
        return policy.on_lease_expiry is OnLeaseExpiry.RETRY
    return policy.on_doubt is OnDoubt.RETRY and now >= known(record.lease_expires_at)


def sticking(held: Fingerprint | None, given: Fingerprint | None) -> Fingerprint | None:
    """The first fingerprint sticks; one made under another rule counts as absent once a new one is granted."""
    if held is None or (given is not None and given.rule != held.rule):
        return given
    return held


def doubted(record: Record, reason: str | None) -> Record:
    """The record once nobody knows what became of it."""
    delivery = replace(record.delivery, due_at=None) if record.delivery else None
    # What waits to be delivered has no lease; there has to be an end that everybody can be told of.
    lease_end = record.reserved_at if record.lease_expires_at is None else record.lease_expires_at
    return replace(
        record,
        state=State.DOUBTED,
        reason=reason,
        lease_expires_at=lease_end,
        unresolved_expires_at=None,
        delivery=delivery,
    )


def with_earlier(previous: Record) -> tuple[EarlierToken, ...]:
    """The earlier tokens of the attempt that follows ``previous``."""
    return (*previous.earlier, EarlierToken(previous.token))[-limits.EARLIER_TOKENS_MAX :]


def unresolved_end(lease_end: int, policy: Policy) -> int | None:
    """When an attempt that lapses at ``lease_end`` may be given up; None: never."""
    return lease_end + policy.unresolved_ttl_ms if policy.on_lease_expiry is OnLeaseExpiry.RETRY else None


def known(value: int | None) -> int:
    """A time that the record's state says is there."""
    assert value is not None
    return value
