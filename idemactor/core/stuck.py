"""What is stuck: operations that an operator may have to see to, and since when. Pure."""

from __future__ import annotations

import enum
from typing import assert_never

from idemactor.core.record import Record, State


class Why(enum.StrEnum):
    """Why something is in the list of what is stuck."""

    PENDING = "pending"
    """Somebody holds the key, for long."""
    IN_DOUBT = "in_doubt"
    """An attempt ended, and nobody knows whether it happened."""
    UNDELIVERED = "undelivered"
    """An intent waits to be delivered, or is being delivered, for long."""
    INCIDENT = "incident"
    """It may have happened twice, and nobody has acknowledged it."""


def why_stuck(record: Record, now: int, older_than_ms: int) -> tuple[Why, int] | None:
    """Why a record is stuck and since when, milliseconds since the epoch; None: it is not.

    What pends and what is to be delivered is so once it has been at it for more than ``older_than_ms``; what is in
    doubt is so at once.

    Args:
        record: As time has it at ``now``.
        now: Milliseconds since the epoch.
        older_than_ms: See above.
    """
    match record.state:
        case State.PENDING:
            why, since = Why.PENDING, record.reserved_at
            if record.delivery is not None:
                why, since = Why.UNDELIVERED, record.first_seen_at
                if record.attempt == 0:
                    # What is to be sent later waits since then.
                    since = max(since, record.delivery.due_at or 0)
            return (why, since) if now - since > older_than_ms else None
        case State.LAPSED | State.DOUBTED:
            return Why.IN_DOUBT, record.reserved_at
        case State.COMMITTED:
            return None
        case _:
            assert_never(record.state)
