"""The replies of the state table: past tense or adjective, frozen. A refusal is a reply too."""

from __future__ import annotations

import enum

from idemactor.core.delivery import OperationState
from idemactor.core.record import Outcome, Record
from idemactor.core.values import slotted


@slotted
class Reserved:
    """Go on: this caller holds the key until ``lease_expires_at``."""

    key: str
    token: int
    attempt: int
    operation_id: str
    reserved_at: int
    lease_expires_at: int
    repeated: bool

    @property
    def takeover(self) -> bool:
        """Whether an earlier attempt may already have had its effect."""
        return self.attempt > 1


@slotted
class Accepted:
    """Go on: the key is committed for this caller."""

    operation_id: str
    attempt: int
    expires_at: int
    repeated: bool

    @property
    def takeover(self) -> bool:
        """Whether an earlier attempt may already have had its effect."""
        return self.attempt > 1


@slotted
class Completed:
    """It was done before; ``rejected`` where the answer to a duplicate is a refusal."""

    operation_id: str
    committed_at: int
    expires_at: int
    outcome: Outcome | None
    rejected: bool


@slotted
class InFlight:
    """Somebody else holds the key; without an end of a lease it is dispatched, and waits to be delivered."""

    attempt: int
    holder: str | None
    reserved_at: int
    lease_expires_at: int | None
    retry_after_ms: int


@slotted
class InDoubt:
    """Nobody knows whether the effect happened; somebody has to resolve it."""

    attempt: int
    operation_id: str
    holder: str | None
    reserved_at: int
    lease_expires_at: int
    reason: str | None


@slotted
class Mismatch:
    """The key stands for another payload. Says nothing of the stored one."""


@slotted
class Withdrawn:
    """A late repeat of the reserve of a released attempt: its ``result`` is ``released``, and it grants nothing."""


@slotted
class Committed:
    """The outcome is kept and blocks until ``expires_at``."""

    expires_at: int
    repeated: bool


@slotted
class Released:
    """The key is free."""

    repeated: bool


@slotted
class Extended:
    """The lease ends at ``lease_expires_at``."""

    lease_expires_at: int


@slotted
class Doubted:
    """The key is in doubt, as the holder said; its ``result`` is ``in_doubt``."""

    repeated: bool


@slotted
class Stale:
    """The token is not the latest attempt's; ``attempt`` is the present one, None where there is none."""

    attempt: int | None


@slotted
class AlreadyCommitted:
    """Too late to undo: the record stays as it is."""

    committed_at: int
    expires_at: int


@slotted
class Unknown:
    """There is no record of the key."""


@slotted
class Found:
    """The record as time has it now."""

    key: str
    record: Record


@slotted
class Forgotten:
    """Everything about the key is gone."""


@slotted
class NothingToForget:
    """Neither a record nor a tombstone is there to be forgotten."""


@slotted
class Unsettled:
    """The key is pending or in doubt and is not forgotten without ``force``."""


@slotted
class Dispatched:
    """The intent is kept, and will be delivered; ``state`` is the present one."""

    operation_id: str
    state: OperationState
    repeated: bool


@slotted
class Claimed:
    """This attempt delivers the operation."""

    token: int
    attempt: int
    lease_expires_at: int


@slotted
class NotDue:
    """The operation is not to be delivered now: it was, somebody is at it, or it is in doubt."""


@slotted
class Lapsed:
    """The lease of the attempt is over: nobody knows what became of it."""


@slotted
class Postponed:
    """The operation is tried again at ``due_at``, unless its time is over before."""

    due_at: int


@slotted
class Cancelled:
    """Nothing was sent, and nothing will be; the key is free."""

    repeated: bool


@slotted
class Uncancellable:
    """Something was sent, or it has ended: ``state`` says how it stands."""

    state: OperationState


@slotted
class Watched:
    """How a dispatched operation stands.

    Attributes:
        attempt: The latest, 0 where nobody has tried yet.
        accepted_at: When its intent was accepted.
        next_at: When it is tried next; None: it is not, or somebody is at it.
        lease_expires_at: Until when the present attempt may take; None: nobody is at it.
        deliver_until: From then on nothing is sent any more.
        ended_at: When it ended; None: it has not, or the key was freed.
        expires_at: Until when its outcome is kept; None: it has not ended.
        reason: What the latest attempt came to, for people.
        outcome: What the destination answered, where it ended with an answer.
    """

    key: str
    operation_id: str
    state: OperationState
    attempt: int | None = None
    accepted_at: int | None = None
    next_at: int | None = None
    lease_expires_at: int | None = None
    deliver_until: int | None = None
    ended_at: int | None = None
    expires_at: int | None = None
    order_key: str | None = None
    reason: str | None = None
    outcome: Outcome | None = None


@slotted
class Acked:
    """The event is dealt with, and no longer kept."""

    repeated: bool


@slotted
class Nacked:
    """The event is shown again at ``due_at``."""

    due_at: int


@slotted
class QuotaExceeded:
    """The tenant has ``records_max`` keys in this namespace; a new one is refused."""

    records_max: int


@slotted
class OutboxFull:
    """The shard has ``entries_max`` entries that wait to be delivered; a new one is refused."""

    entries_max: int


class Untold(enum.StrEnum):
    """Why a caller is told no more than to ask again."""

    NOT_TAKEN = "not_taken"
    NOT_KEPT = "not_kept"
    BATCH_FULL = "batch_full"


@slotted
class Overloaded:
    """The command was not taken: the mailbox is full, or the server shuts down. Or it changed nothing, and its outcome
    is more than may wait for those who read, or than the answer of one batch may hold."""

    retry_after_ms: int
    why: Untold = Untold.NOT_TAKEN


@slotted
class Unavailable:
    """The shard cannot answer; nothing is known of what became of the command."""

    retry_after_ms: int


Reply = (
    Reserved
    | Accepted
    | Completed
    | InFlight
    | InDoubt
    | Mismatch
    | Withdrawn
    | Committed
    | Released
    | Extended
    | Doubted
    | Stale
    | AlreadyCommitted
    | Unknown
    | Found
    | Forgotten
    | NothingToForget
    | Unsettled
    | Dispatched
    | Claimed
    | NotDue
    | Lapsed
    | Postponed
    | Cancelled
    | Uncancellable
    | Watched
    | Acked
    | Nacked
    | QuotaExceeded
    | OutboxFull
    | Overloaded
    | Unavailable
)


def outcome_of(answer: object) -> Outcome | None:
    """The stored outcome that an answer carries, if it does. What is answered so has changed nothing."""
    if type(answer) is Completed or type(answer) is Watched:
        return answer.outcome
    return answer.record.outcome if type(answer) is Found else None
