"""What is told of a record to whoever cannot have it. Pure."""

from __future__ import annotations

from typing import Final

from idemactor.core.commands import Accept, Dispatch, Reserve
from idemactor.core.lifetimes import known
from idemactor.core.policy import OnDuplicate, Policy
from idemactor.core.record import Record
from idemactor.core.replies import AlreadyCommitted, Completed, InDoubt, InFlight

QUEUED_RETRY_MS: Final = 1_000
"""When to ask again about an operation that waits to be delivered, and of which nobody knows when it will be."""


def completed(record: Record, command: Reserve | Accept | Dispatch, policy: Policy) -> Completed:
    """What is told of a committed record."""
    on_duplicate = None if isinstance(command, Dispatch) else command.on_duplicate
    return Completed(
        operation_id=record.operation_id,
        committed_at=known(record.committed_at),
        expires_at=known(record.expires_at),
        outcome=record.outcome,
        rejected=(on_duplicate or policy.on_duplicate) is OnDuplicate.REJECT,
    )


def in_flight(record: Record, now: int) -> InFlight:
    """What is told of a pending record: its lease runs, or it is dispatched and waits to be delivered."""
    end = record.lease_expires_at
    left_ms = QUEUED_RETRY_MS if end is None else max(1, end - now)
    return InFlight(record.attempt, record.holder, record.reserved_at, end, left_ms)


def in_doubt(record: Record) -> InDoubt:
    """What is told of a record in doubt."""
    return InDoubt(
        attempt=record.attempt,
        operation_id=record.operation_id,
        holder=record.holder,
        reserved_at=record.reserved_at,
        lease_expires_at=known(record.lease_expires_at),
        reason=record.reason,
    )


def already_committed(record: Record) -> AlreadyCommitted:
    """What is told to whoever would undo what is committed."""
    return AlreadyCommitted(known(record.committed_at), known(record.expires_at))
