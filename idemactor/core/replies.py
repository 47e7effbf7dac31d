"""The replies of the state table: past tense or adjective, frozen. A refusal is a reply too."""

from __future__ import annotations

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
    """Somebody else holds the key."""

    attempt: int
    holder: str | None
    reserved_at: int
    lease_expires_at: int
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
class QuotaExceeded:
    """The tenant has ``records_max`` keys in this namespace; a new one is refused."""

    records_max: int


@slotted
class Overloaded:
    """The command was not taken: the mailbox is full, or the server shuts down."""

    retry_after_ms: int


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
    | QuotaExceeded
    | Overloaded
    | Unavailable
)
