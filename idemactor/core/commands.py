"""The commands of the state table: imperative, frozen, valid once built (the doors check fields, see ``wire``)."""

from __future__ import annotations

import enum

from idemactor.core.delivery import Intent, NewEvent
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.policy import OnDuplicate
from idemactor.core.record import Outcome
from idemactor.core.values import slotted


class Verdict(enum.StrEnum):
    """What an operator or the reconciler found out about an operation in doubt."""

    COMMITTED = "committed"
    RELEASED = "released"


@slotted
class Reserve:
    """Ask to be the one holder of a key. Times in milliseconds; None means the namespace's setting."""

    identity: Identity
    request_id: str | None = None
    fingerprint: Fingerprint | None = None
    lease_ms: int | None = None
    ttl_ms: int | None = None
    window_ms: int | None = None
    wait_ms: int = 0
    holder: str | None = None
    on_duplicate: OnDuplicate | None = None


@slotted
class Accept:
    """Reserve and commit in one step."""

    identity: Identity
    request_id: str | None = None
    fingerprint: Fingerprint | None = None
    ttl_ms: int | None = None
    window_ms: int | None = None
    holder: str | None = None
    on_duplicate: OnDuplicate | None = None
    outcome: Outcome | None = None


@slotted
class Commit:
    """The effect happened; ``token`` proves whose attempt it was.

    Attributes:
        events: What enters the outbox together with the outcome.
        failed: Of a dispatched operation: it is settled, and definitely did not happen.
        operation_id: Whoever fetched this operation says so; of nothing else.
    """

    identity: Identity
    token: int
    outcome: Outcome | None = None
    ttl_ms: int | None = None
    events: tuple[NewEvent, ...] = ()
    failed: bool = False
    operation_id: str | None = None


@slotted
class Release:
    """The effect did not happen: free the key.

    Attributes:
        failed: Of a dispatched operation: its destination refused it.
        operation_id: See ``Commit``.
    """

    identity: Identity
    token: int
    reason: str | None = None
    failed: bool = False
    operation_id: str | None = None


@slotted
class Extend:
    """The holder is still at work: its lease ends ``lease_ms`` from now."""

    identity: Identity
    token: int
    lease_ms: int


@slotted
class Doubt:
    """The attempt ended and nobody knows whether the effect happened."""

    identity: Identity
    token: int
    reason: str | None = None


@slotted
class Resolve:
    """Somebody found out what became of an operation in doubt."""

    identity: Identity
    token: int
    verdict: Verdict
    outcome: Outcome | None = None


@slotted
class Get:
    """Look at a key and change nothing."""

    identity: Identity


@slotted
class Forget:
    """Drop everything about a key; ``force`` also where it is pending or in doubt."""

    identity: Identity
    force: bool = False


@slotted
class Dispatch:
    """Keep an intent and see to it that it is delivered. Times in milliseconds; None means the namespace's setting.

    Attributes:
        order_key: Intents of one are delivered strictly one after the other.
        not_before: When it may first be sent, milliseconds since the epoch.
        expires_in_ms: How long from now it is worth sending.
    """

    identity: Identity
    intent: Intent
    fingerprint: Fingerprint | None = None
    order_key: str | None = None
    not_before: int | None = None
    expires_in_ms: int | None = None
    ttl_ms: int | None = None


@slotted
class Claim:
    """Take a dispatched operation that is due, to deliver it: its next attempt. A shard gives itself this one."""

    identity: Identity
    lease_ms: int
    holder: str


@slotted
class Lapse:
    """Whoever was delivering this is gone: the relay of today is ``holder``. A shard gives itself this one."""

    identity: Identity
    holder: str


@slotted
class Postpone:
    """The attempt ended, and the operation is to be tried again.

    Attributes:
        due_at: When, milliseconds since the epoch.
        perhaps_sent: Whether this attempt may have had its effect.
        operation_id: See ``Commit``.
        absent: Somebody found out that no attempt ever arrived; whoever only knows about this one cannot say so.
    """

    identity: Identity
    token: int
    due_at: int
    perhaps_sent: bool
    reason: str | None = None
    operation_id: str | None = None
    absent: bool = False


@slotted
class Cancel:
    """Take back an intent of which nothing was sent."""

    identity: Identity
    operation_id: str


@slotted
class Watch:
    """Look at a dispatched operation, and wait for its end at most ``wait_ms``."""

    identity: Identity
    operation_id: str
    wait_ms: int = 0


@slotted
class AckEvent:
    """Whoever fetched the event ``seq`` of this key, of this id, has dealt with it."""

    identity: Identity
    seq: int
    event_id: str


@slotted
class NackEvent:
    """Whoever fetched the event ``seq`` of this key could not deal with it: it is shown again from ``due_at`` on."""

    identity: Identity
    seq: int
    event_id: str
    due_at: int


Command = (
    Reserve
    | Accept
    | Commit
    | Release
    | Extend
    | Doubt
    | Resolve
    | Get
    | Forget
    | Dispatch
    | Claim
    | Lapse
    | Postpone
    | Cancel
    | Watch
    | AckEvent
    | NackEvent
)
