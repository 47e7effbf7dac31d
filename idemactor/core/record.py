"""What a shard remembers of a key.

An ``Entry`` is the shard's whole memory of one key: at most one record (the present operation) and at most one
tombstone (what the latest released attempt left). Both may stand side by side.
"""

from __future__ import annotations

import enum
from typing import Final

from idemactor.core.delivery import Delivery, Ending
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.values import slotted


class State(enum.IntEnum):
    """Where an operation stands. The numbers are stored on disk and never change their meaning."""

    PENDING = 0
    LAPSED = 1
    DOUBTED = 2
    COMMITTED = 3


HEADER_BYTES: Final = 160
"""About what a header takes in memory beside its text."""


@slotted
class Outcome:
    """What a committed operation answered.

    Attributes:
        status: 100 to 599.
        headers: Name and value pairs, in order.
        body: The bytes, exactly as given.
        omitted: True where the outcome was over the namespace's size and only its status was kept.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    omitted: bool = False

    def size(self) -> int:
        """The bytes that count against ``outcome_max_bytes``: body and header text."""
        return len(self.body) + sum(len(n.encode()) + len(v.encode()) for n, v in self.headers)

    def cost(self) -> int:
        """What it takes in memory, bytes, by an estimate, and no less than in an answer over RPC."""
        return self.size() + HEADER_BYTES * len(self.headers)

    def within(self, max_bytes: int) -> Outcome:
        """This outcome, or only its status where it is over ``max_bytes``: a commit never fails for its size."""
        if self.size() <= max_bytes:
            return self
        return Outcome(self.status, omitted=True)


@slotted
class EarlierToken:
    """The token of an attempt that was given up for dead; ``reported`` once it left an incident."""

    token: int
    reported: bool = False


@slotted
class Record:
    """One operation and its latest attempt. Times are milliseconds since the epoch, UTC.

    Attributes:
        state: PENDING may already have lapsed: time decides, see ``decide.at``.
        attempt: From 1; a takeover adds 1. 0: dispatched, and nobody has tried yet.
        token: The fencing token of the latest attempt.
        request_id: The caller's name for the acquisition of the latest attempt. Never revealed.
        operation_id: UUIDv7, the same for every attempt.
        lease_expires_at: The end of the latest attempt's lease; it is kept while in doubt, None once committed, and
            while a dispatched operation waits for its turn.
        ttl_ms: What reserve asked for; None: the namespace's.
        window_ms: What reserve asked for; counts from ``first_seen_at``.
        unresolved_expires_at: When a lapsed record may be given up; None: never.
        accepted: Committed by ``accept``, which then repeats its own answer.
        earlier: Tokens of earlier attempts, the latest last.
        delivery: The order to deliver its intent; None: its callers do the work themselves.
    """

    state: State
    attempt: int
    token: int
    operation_id: str
    first_seen_at: int
    reserved_at: int
    request_id: str | None = None
    lease_expires_at: int | None = None
    fingerprint: Fingerprint | None = None
    holder: str | None = None
    ttl_ms: int | None = None
    window_ms: int | None = None
    unresolved_expires_at: int | None = None
    committed_at: int | None = None
    expires_at: int | None = None
    accepted: bool = False
    contested: bool = False
    reason: str | None = None
    outcome: Outcome | None = None
    earlier: tuple[EarlierToken, ...] = ()
    delivery: Delivery | None = None

    @property
    def takeover(self) -> bool:
        """Whether an earlier attempt may already have had its effect."""
        return self.attempt > 1


@slotted
class Tombstone:
    """What the latest released attempt left: it recognises late repeats of that attempt's calls.

    Attributes:
        ending: How it ended, where it was dispatched.
    """

    token: int
    request_id: str | None
    operation_id: str
    expires_at: int
    reported: bool = False
    ending: Ending | None = None


@slotted
class Entry:
    """All that a shard holds of one key.

    Attributes:
        id: The token of the entry's first grant: unique in its shard, never issued again, and the order of listings.
        identity: Whose key this is.
        record: The present operation, if any.
        tombstone: What the latest release left, if any.
        alarm_at: When time next changes something here, milliseconds since the epoch; None: never.
    """

    id: int
    identity: Identity
    record: Record | None
    tombstone: Tombstone | None
    alarm_at: int | None


@slotted
class Incident:
    """A proof that something may have happened twice, kept until an operator acknowledges it.

    Attributes:
        token: The fencing token that came too late.
        present_token: The token of the attempt that held the key then, None where nobody did.
        at: When the late commit came, milliseconds since the epoch.
        outcome: What the late commit said had happened.
    """

    identity: Identity
    operation_id: str
    token: int
    present_token: int | None
    at: int
    outcome: Outcome | None

    def emptied(self) -> Incident:
        """The proof without what it says of the effect, of which only the status stays."""
        outcome = None if self.outcome is None else Outcome(self.outcome.status, omitted=True)
        return Incident(self.identity, self.operation_id, self.token, self.present_token, self.at, outcome)
