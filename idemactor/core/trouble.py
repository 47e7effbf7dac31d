"""What somebody on call wants to be told of while it happens: an attempt that nobody finished, or an intent that does
not get through. Pure."""

from __future__ import annotations

import enum
from typing import Final

from idemactor.core.keys import Identity
from idemactor.core.record import Entry, Record, State
from idemactor.core.values import slotted

TRIES_STUCK: Final = 5
"""After how many attempts an intent that was put off again is worth a word: this many, twice as many, and so on."""

WAITED_LONG_MS: Final = 10_000
"""How long a caller has waited in vain before that is worth a word."""

TROUBLES_MAX: Final = 32
"""Of one batch; those beyond are counted. A thousand leases may end at one moment."""


class TroubleKind(enum.StrEnum):
    """The names of their events in the log."""

    LAPSED = "attempt_lapsed"
    """Its lease ran out, and it said nothing."""
    IN_DOUBT = "attempt_in_doubt"
    """Its holder, or an operator, does not know whether it happened."""
    TAKEN_OVER = "attempt_taken_over"
    """Another was let in after it lapsed, or was in doubt."""
    WAITED_LONG = "waited_long"
    """A caller waited for the key, and was sent away."""
    INTENT_STUCK = "intent_stuck"
    """It was tried again and again."""


@slotted
class Trouble:
    """What happened to an attempt. Times are milliseconds since the epoch.

    Attributes:
        attempt: The one that is in trouble.
        holder: Whose it is.
        since: When it began; of an intent, when it was accepted.
        at: When the trouble was seen.
        reason: What its holder said of it, or of an intent the destination's latest answer.
        new_holder: Who took it over.
        waited_ms: How long the caller waited that was sent away.
        due_at: When an intent is tried again.
    """

    kind: TroubleKind
    identity: Identity
    operation_id: str
    attempt: int
    holder: str | None
    since: int
    at: int
    reason: str | None = None
    new_holder: str | None = None
    waited_ms: int | None = None
    due_at: int | None = None


def trouble_between(old: Entry, new: Entry, now: int) -> Trouble | None:
    """What a change of an entry means for the attempt that was under way; None: nothing that is worth a word."""
    before, after = old.record, new.record
    if before is None or after is None or after.state is State.COMMITTED or before.state is State.COMMITTED:
        return None
    if after.operation_id != before.operation_id:
        return None
    if after.attempt > before.attempt:
        if before.lease_expires_at is None:
            return None  # An intent that waited its turn: it is delivered now.
        return _trouble(TroubleKind.TAKEN_OVER, old.identity, before, now, new_holder=after.holder)
    if after.state is State.LAPSED and before.state is State.PENDING:
        return _trouble(TroubleKind.LAPSED, old.identity, after, now)
    if after.state is State.DOUBTED and before.state is not State.DOUBTED:
        return _trouble(TroubleKind.IN_DOUBT, old.identity, after, now, reason=after.reason)
    return _stuck(old.identity, before, after, now)


def waited_long(identity: Identity, record: Record, now: int, waited_ms: int) -> Trouble:
    """A caller was told that somebody holds the key after all that time."""
    return _trouble(TroubleKind.WAITED_LONG, identity, record, now, waited_ms=waited_ms)


def _stuck(identity: Identity, before: Record, after: Record, now: int) -> Trouble | None:
    delivery = after.delivery
    if delivery is None or after.lease_expires_at is not None or before.lease_expires_at is None:
        return None
    times, rest = divmod(after.attempt, TRIES_STUCK)
    if rest or not times or times & (times - 1):
        return None
    since, due_at = after.first_seen_at, delivery.due_at
    return Trouble(
        TroubleKind.INTENT_STUCK,
        identity,
        after.operation_id,
        after.attempt,
        after.holder,
        since,
        now,
        reason=after.reason,
        due_at=due_at,
    )


def _trouble(
    kind: TroubleKind,
    identity: Identity,
    record: Record,
    now: int,
    *,
    reason: str | None = None,
    new_holder: str | None = None,
    waited_ms: int | None = None,
) -> Trouble:
    return Trouble(
        kind,
        identity,
        record.operation_id,
        record.attempt,
        record.holder,
        record.reserved_at,
        now,
        reason=reason,
        new_holder=new_holder,
        waited_ms=waited_ms,
    )
