"""What a namespace's configuration says: the settings that the state table asks for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from idemactor.core import limits
from idemactor.core.fingerprint import FingerprintRule


class OnLeaseExpiry(enum.StrEnum):
    """May another caller go on after a lease ran out?"""

    RETRY = "retry"
    HOLD = "hold"


class OnDoubt(enum.StrEnum):
    """May another caller go on after the holder said ``doubt`` and its lease is over?"""

    HOLD = "hold"
    RETRY = "retry"


class OnDuplicate(enum.StrEnum):
    """How a committed key answers: with its outcome, or with a refusal."""

    REPLAY = "replay"
    REJECT = "reject"


class OnUnavailable(enum.StrEnum):
    """What callers are told to do while deduplication is unavailable."""

    CLOSED = "closed"
    OPEN = "open"


class OnFailure(enum.StrEnum):
    """What a definite failure of a dispatched operation does to its key."""

    FAILED = "failed"
    """It is committed as failed, with its outcome: repeats are told so."""
    RELEASE = "release"
    """The key is free: the caller may dispatch it again."""


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """What the state table has to know of a namespace's destination.

    Attributes:
        pushed: Whether the relay delivers intents; else services fetch them.
        recognised: Whether the destination recognises an operation's id, so that sending it again is safe. Who fetches
            work must.
        horizon_ms: How long after it was accepted an intent is tried at most.
        intent_max_bytes: The largest intent.
        on_failure: What a definite failure does to the key, whoever delivers.
    """

    pushed: bool = False
    recognised: bool = True
    horizon_ms: int = limits.HORIZON_MS_DEFAULT
    intent_max_bytes: int = limits.INTENT_BYTES_DEFAULT
    on_failure: OnFailure = OnFailure.FAILED


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of one namespace; times in milliseconds, sizes in bytes."""

    lease_ms: int = limits.LEASE_MS_DEFAULT
    ttl_ms: int = limits.TTL_MS_DEFAULT
    on_lease_expiry: OnLeaseExpiry = OnLeaseExpiry.RETRY
    on_doubt: OnDoubt = OnDoubt.HOLD
    on_duplicate: OnDuplicate = OnDuplicate.REPLAY
    on_unavailable: OnUnavailable = OnUnavailable.CLOSED
    unresolved_ttl_ms: int = limits.UNRESOLVED_TTL_MS_DEFAULT
    outcome_max_bytes: int = limits.OUTCOME_BYTES_DEFAULT
    records_max: int = limits.RECORDS_DEFAULT
    lease_total_max_ms: int = limits.LEASE_MS_MAX
    unavailable_after_ms: int = limits.UNAVAILABLE_AFTER_MS_DEFAULT
    fingerprint: FingerprintRule = field(default_factory=FingerprintRule)
    dispatch: DispatchPolicy = field(default_factory=DispatchPolicy)
