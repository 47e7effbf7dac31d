"""Which answers are refusals, and what is said about them to people (contract, 5 and 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from idemactor.core.limits import RETRY_AFTER_S_MAX
from idemactor.core.queries import (
    Acknowledged,
    Behind,
    Finding,
    IncidentsPage,
    Inspected,
    NoSuchIncident,
    Noted,
    OperationAt,
    RecordsPage,
    StuckPage,
    Taken,
)
from idemactor.core.replies import (
    Accepted,
    Acked,
    AlreadyCommitted,
    Cancelled,
    Claimed,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    Found,
    InDoubt,
    InFlight,
    Lapsed,
    Mismatch,
    Nacked,
    NotDue,
    NothingToForget,
    OutboxFull,
    Overloaded,
    Postponed,
    QuotaExceeded,
    Released,
    Reply,
    Reserved,
    Stale,
    Unavailable,
    Uncancellable,
    Unknown,
    Unsettled,
    Untold,
    Watched,
    Withdrawn,
)
from idemactor.errors import Code
from idemactor.wire.problems import http_status_of_code, title_of_code

Answer: TypeAlias = Reply | Finding
"""What a shard answers."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """How an answer that is no success is told.

    Attributes:
        code: What callers branch on.
        title: The same for every answer of this code.
        status: The HTTP status.
        error: Whether it is an error over RPC, ``CODE: detail``, and no result.
    """

    code: Code
    title: str
    status: int
    error: bool


def _refusal(code: Code, *, error: bool = False) -> Refusal:
    return Refusal(code, title_of_code(code), http_status_of_code(code), error)


_IN_FLIGHT: Final = _refusal(Code.IN_FLIGHT)
_DUPLICATE: Final = _refusal(Code.DUPLICATE)
_IN_DOUBT: Final = _refusal(Code.IN_DOUBT)
_WITHDRAWN: Final = _refusal(Code.RELEASED)
_STALE: Final = _refusal(Code.STALE_TOKEN)
_ALREADY_COMMITTED: Final = _refusal(Code.ALREADY_COMMITTED)
_UNKNOWN: Final = _refusal(Code.UNKNOWN_KEY)
_MISMATCH: Final = _refusal(Code.MISMATCH)
_NOTHING_TO_FORGET: Final = _refusal(Code.UNKNOWN_KEY, error=True)
_UNSETTLED: Final = _refusal(Code.UNSETTLED, error=True)
_QUOTA_EXCEEDED: Final = _refusal(Code.QUOTA_EXCEEDED, error=True)
_OVERLOADED: Final = _refusal(Code.OVERLOADED, error=True)
_UNAVAILABLE: Final = _refusal(Code.UNAVAILABLE, error=True)
_UNCANCELLABLE: Final = _refusal(Code.UNCANCELLABLE)
_NO_SUCH_INCIDENT: Final = _refusal(Code.NOT_FOUND, error=True)


_TOO_MUCH: Final = {
    Untold.NOT_TAKEN: "The command was not taken: too many wait, or the server is shutting down.",
    Untold.NOT_KEPT: "The answer was not kept: too many wait to be read; ask again.",
    Untold.BATCH_FULL: "The outcome does not fit into the answer of this batch; ask again, for fewer keys at once.",
}


def refusal_of(answer: Answer) -> Refusal | None:  # noqa: C901 - One case for each answer.
    """How ``answer`` is refused; None where it is a success."""
    match answer:
        case Reserved() | Accepted() | Committed() | Released() | Extended() | Doubted() | Found() | Forgotten():
            return None
        case (
            Dispatched() | Claimed() | Lapsed() | NotDue() | Postponed() | Cancelled() | Watched() | Acked() | Nacked()
        ):
            return None
        case Completed():
            return _DUPLICATE if answer.rejected else None
        case InFlight():
            return _IN_FLIGHT
        case InDoubt():
            return _IN_DOUBT
        case Mismatch():
            return _MISMATCH
        case Withdrawn():
            return _WITHDRAWN
        case Stale():
            return _STALE
        case AlreadyCommitted():
            return _ALREADY_COMMITTED
        case Unknown():
            return _UNKNOWN
        case NothingToForget():
            return _NOTHING_TO_FORGET
        case Unsettled():
            return _UNSETTLED
        case QuotaExceeded() | OutboxFull():
            return _QUOTA_EXCEEDED
        case Uncancellable():
            return _UNCANCELLABLE
        case Overloaded():
            return _OVERLOADED
        case Unavailable():
            return _UNAVAILABLE
        case NoSuchIncident():
            return _NO_SUCH_INCIDENT
        case RecordsPage() | IncidentsPage() | StuckPage() | Acknowledged() | Inspected():
            return None
        case Taken() | Behind() | OperationAt() | Noted():
            return None
        case _:
            assert_never(answer)


def detail_of(answer: Answer) -> str:  # noqa: C901 - One case for each answer.
    """One sentence about an answer, for people. It never quotes a key or a payload."""
    match answer:
        case InFlight():
            if answer.lease_expires_at is None:
                return "The operation of this key is dispatched, and waits to be delivered."
            return "Another caller holds the key until its lease ends."
        case InDoubt():
            return "Nobody knows whether the effect of an earlier attempt happened; it has to be resolved first."
        case Completed():
            return "The operation of this key was done before."
        case Mismatch():
            return "The key was first used with another payload."
        case Withdrawn():
            return "This acquisition was released before; a new one needs a new request_id."
        case Stale():
            return "The token is not that of the latest attempt."
        case AlreadyCommitted():
            return "The operation is committed and stays so."
        case Unknown() | NothingToForget():
            return "There is no record of this key."
        case Unsettled():
            return "The key is pending or in doubt; only force forgets it."
        case QuotaExceeded():
            return f"The namespace holds its {answer.records_max} keys: a new one is refused."
        case OutboxFull():
            return f"The shard's outbox holds its {answer.entries_max} entries: a new one is refused."
        case Uncancellable():
            return f"The operation is {answer.state.value.replace('_', ' ')}: what may have been sent stays so."
        case Overloaded():
            return _TOO_MUCH[answer.why]
        case Unavailable():
            return "The shard of this key cannot answer; what became of the command is not known."
        case NoSuchIncident():
            return "There is no such incident, or it was acknowledged before."
        case (
            Reserved()
            | Accepted()
            | Committed()
            | Released()
            | Extended()
            | Doubted()
            | Found()
            | Forgotten()
            | Dispatched()
            | Claimed()
            | Lapsed()
            | NotDue()
            | Postponed()
            | Cancelled()
            | Watched()
            | Acked()
            | Nacked()
            | RecordsPage()
            | IncidentsPage()
            | Acknowledged()
            | Inspected()
            | StuckPage()
            | Taken()
            | Behind()
            | OperationAt()
            | Noted()
        ):
            return "It was done as asked."
        case _:
            assert_never(answer)


def retry_after_s(answer: Answer) -> int | None:
    """The ``Retry-After`` of an answer: whole seconds, rounded up, 1 to 5; None where waiting changes nothing."""
    match answer:
        case InFlight() | Overloaded() | Unavailable():
            return min(RETRY_AFTER_S_MAX, max(1, -(-answer.retry_after_ms // 1000)))
        case _:
            return None
