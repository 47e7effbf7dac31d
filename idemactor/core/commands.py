"""The commands of the state table: imperative, frozen, valid once built (the doors check fields, see ``wire``)."""

from __future__ import annotations

import enum

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
    """The effect happened; ``token`` proves whose attempt it was."""

    identity: Identity
    token: int
    outcome: Outcome | None = None
    ttl_ms: int | None = None


@slotted
class Release:
    """The effect did not happen: free the key."""

    identity: Identity
    token: int
    reason: str | None = None


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


Command = Reserve | Accept | Commit | Release | Extend | Doubt | Resolve | Get | Forget
