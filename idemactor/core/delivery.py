"""Durable dispatch: an intent that was accepted, the order to deliver it, and the events that a commit announced.

An operation that was dispatched is a record like any other, with a ``Delivery`` beside it. While it waits for its turn
it is pending without a lease; whoever delivers it (the relay, or a service that polls) claims it as one attempt, with a
fencing token and a lease; and what became of the attempt settles the record. So the state table decides here too, and
nothing can be delivered by two that both count.
"""

from __future__ import annotations

import enum
from typing import Final

from idemactor.core.keys import Identity
from idemactor.core.values import slotted

RELAY: Final = "relay"
"""What the names of relays begin with, among holders: there is one for each namespace and life of a process."""


OMITTED: Final = ("Idempotency-Omitted", "true")
"""The one header of an event whose content was forgotten. No caller can give it: the name is of those that are ours."""


class Kind(enum.IntEnum):
    """What stands in a queue. The numbers cross between workers."""

    INTENT = 0
    EVENT = 1


class Ending(enum.IntEnum):
    """How a dispatched operation ended. The numbers are stored on disk and never change their meaning."""

    SUCCEEDED = 0
    FAILED = 1
    """It definitely did not happen, and is not tried again."""
    EXPIRED = 2
    """Its time was over before anything was sent that could have had an effect."""
    CANCELLED = 3
    RELEASED = 4
    """Somebody found out that it did not happen, and freed the key."""

    @property
    def state(self) -> OperationState:
        """How an operation that ended so stands."""
        return OperationState[self.name]


class OperationState(enum.StrEnum):
    """How a dispatched operation stands, as callers see it."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    RELEASED = "released"

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done about it."""
        return self not in (OperationState.QUEUED, OperationState.DELIVERING, OperationState.IN_DOUBT)


def _text_bytes(headers: tuple[tuple[str, str], ...]) -> int:
    return sum(len(name.encode()) + len(value.encode()) for name, value in headers)


@slotted
class Intent:
    """What is to be done: the request that the destination gets.

    Attributes:
        content_type: Of the body; empty where there is none.
        body: The bytes, exactly as given.
        headers: Name and value pairs, in order.
    """

    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    def size(self) -> int:
        """The bytes that count against ``intent_max_bytes``: body and header text."""
        return len(self.body) + len(self.content_type) + _text_bytes(self.headers)


@slotted
class Delivery:
    """The order to deliver an operation's intent. Times are milliseconds since the epoch, UTC.

    Attributes:
        seq: Its place in line: microseconds of the server's clock, never given twice by a process.
        order_key: What it must not overtake others of; None: nothing.
        due_at: When it is next to be tried; None while somebody is trying, while it is in doubt, and once it has ended.
        deliver_until: From then on nothing is sent any more.
        perhaps_sent: Whether an attempt before the present one may have reached the destination.
        ending: How it ended; None: it has not.
    """

    seq: int
    order_key: str | None
    due_at: int | None
    deliver_until: int
    perhaps_sent: bool = False
    ending: Ending | None = None


@slotted
class NewEvent:
    """What a commit announces to services that fetch their work."""

    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    order_key: str | None = None

    def size(self) -> int:
        """Bytes of body and header text."""
        return len(self.body) + len(self.content_type) + _text_bytes(self.headers)


@slotted
class Event:
    """An announced event in the outbox of its shard: at least once to whoever polls, until it is acknowledged.

    Attributes:
        seq: Its place in line, and its number in the shard's file; see ``Delivery.seq``.
        identity: The key whose commit announced it.
        id: The same for every delivery: the operation's id, a dot, and its number within the commit, from 1.
        committed_at: When, milliseconds since the epoch.
    """

    seq: int
    identity: Identity
    id: str
    operation_id: str
    committed_at: int
    content: NewEvent

    def emptied(self) -> Event:
        """That something was announced, without what."""
        content = NewEvent("", b"", (OMITTED,), self.content.order_key)
        return Event(self.seq, self.identity, self.id, self.operation_id, self.committed_at, content)
