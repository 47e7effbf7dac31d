"""What callers of a server were told, and whether one linear history per key can explain it.

A grant is held from its answer on until its lease ends, unless its holder sent a release: that may take effect from
when it was sent, whether or not its answer arrived. A commit counts from when it was acknowledged.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Namespace and key."""


@dataclass(slots=True)
class Grant:
    """One attempt of one key, as its holder knows it; server times in ms, ``answered`` and ``freed`` on our own clock.

    Attributes:
        lease_end: When its lease ends by the last answer about it; None: not known, an extension was lost.
        answered: When its first answer arrived.
        freed: When a release, or a resolve to released, was first sent; None: never.
    """

    key: Key
    token: int
    request_id: str
    attempt: int
    operation_id: str
    reserved_at: int
    lease_end: int | None
    answered: float
    freed: float | None = None


@dataclass(slots=True)
class Ledger:
    """What is known of one key."""

    grants: dict[int, Grant] = field(default_factory=dict)
    committed: tuple[int | None, bytes] | None = None
    """Token (None: an accept's, which is not told) and outcome of an acknowledged commit."""
    released: set[int] = field(default_factory=set)
    """Tokens whose release was acknowledged."""
    freeing: set[int] = field(default_factory=set)
    """Tokens whose release was sent."""


class History:
    """Every key's ledger; any thread may write."""

    def __init__(self) -> None:
        self.ledgers: dict[Key, Ledger] = {}
        self._lock = threading.Lock()

    def _of(self, key: Key) -> Ledger:
        return self.ledgers.setdefault(key, Ledger())

    def granted(self, key: Key, request_id: str, told: dict[str, int | str | bool]) -> Grant:
        """A reserve was answered ``reserved``."""
        now = time.monotonic()
        token, lease_end = int(told["token"]), int(told["lease_expires_at"])
        with self._lock:
            ledger = self._of(key)
            known = ledger.grants.get(token)
            if known is not None:
                assert known.request_id == request_id, f"token {token} of {key} was issued to two callers"
                assert told["repeated"], f"token {token} of {key} was granted anew"
                return known
            grant = Grant(
                key, token, request_id, int(told["attempt"]), str(told["operation_id"]), int(told["reserved_at"]),
                lease_end, now,
            )  # fmt: skip
            ledger.grants[token] = grant
            return grant

    def freeing(self, grant: Grant) -> None:
        """A release is about to be sent."""
        with self._lock:
            grant.freed = grant.freed or time.monotonic()
            self._of(grant.key).freeing.add(grant.token)

    def released(self, grant: Grant) -> None:
        with self._lock:
            self._of(grant.key).released.add(grant.token)

    def committed(self, key: Key, token: int | None, outcome: bytes) -> None:
        with self._lock:
            ledger = self._of(key)
            assert ledger.committed is None, f"{key} was committed twice"
            ledger.committed = (token, outcome)

    def check(self) -> None:
        """Fails where no linear history explains what was told."""
        for key, ledger in self.ledgers.items():
            grants = [ledger.grants[token] for token in sorted(ledger.grants)]
            for earlier, later in itertools.pairwise(grants):
                _check_pair(key, earlier, later)
            if ledger.committed is not None and ledger.committed[0] is not None and grants:
                assert grants[-1].token <= ledger.committed[0], f"{key} was granted after its commit"


def _check_pair(key: Key, earlier: Grant, later: Grant) -> None:
    assert earlier.reserved_at <= later.reserved_at, f"tokens of {key} went back: {earlier} {later}"
    if earlier.lease_end is None or later.reserved_at >= earlier.lease_end:
        return
    assert earlier.freed is not None, f"{key} was granted while its lease ran: {earlier} {later}"
    assert earlier.freed <= later.answered, f"{key} was granted before its release was sent: {earlier} {later}"
