"""Brings a key into the situations that the tests of the core start from, by the commands that lead there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from idemactor.core.commands import (
    Accept,
    Command,
    Commit,
    Doubt,
    Extend,
    Forget,
    Get,
    Release,
    Reserve,
    Resolve,
    Verdict,
)
from idemactor.core.decide import decide, sweep
from idemactor.core.decision import Decision, Fresh
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.core.record import Entry, Incident, Outcome, Record
from idemactor.core.replies import Found, Reply

KEY = Identity("acme", "trade", "order-17")
LEASE_MS = 100
TTL_MS = 1_000
UNRESOLVED_MS = 10_000
START = 1_000_000
DONE = Outcome(201, (("x-order", "17"),), b"filled")


def settings(**changed: Any) -> Policy:
    """Short settings, so that no two deadlines fall together."""
    plain: dict[str, Any] = {"lease_ms": LEASE_MS, "ttl_ms": TTL_MS, "unresolved_ttl_ms": UNRESOLVED_MS}
    return Policy(**(plain | changed))


@dataclass
class Play:
    """One key, its clock and its settings; every command is decided on what the last one left."""

    policy: Policy = field(default_factory=settings)
    now: int = START
    entry: Entry | None = None
    tokens: int = 0
    room: bool = True
    incidents: list[Incident] = field(default_factory=list)

    def decision(self, command: Command) -> Decision:
        """Decide ``command`` and keep what it changed."""
        seq = self.now * 1_000 + self.tokens
        fresh = Fresh(self.tokens + 1, self.tokens, self.room, seq)
        made = decide(self.entry, command, self.policy, self.now, fresh)
        if made.granted:
            self.tokens += 1
        if made.changed:
            self.entry = made.entry
        if made.incident is not None:
            self.incidents.append(made.incident)
        return made

    def do(self, command: Command) -> Reply:
        """The reply to ``command``."""
        return self.decision(command).reply

    def after(self, ms: int) -> Self:
        """Time passes; no alarm does anything."""
        self.now += ms
        return self

    def swept(self) -> Self:
        """The alarm of the key does its work."""
        if self.entry is not None:
            self.entry = sweep(self.entry, self.policy, self.now)
        return self

    def reserve(self, request_id: str | None = None, **given: Any) -> Reply:
        """Reserve."""
        return self.do(Reserve(KEY, request_id, **given))

    def decision_of_reserve(self, request_id: str, fingerprint: Fingerprint | None) -> Decision:
        """All that a reserve did."""
        return self.decision(Reserve(KEY, request_id, fingerprint))

    def accept(self, request_id: str | None = None, **given: Any) -> Reply:
        """Accept."""
        return self.do(Accept(KEY, request_id, **given))

    def commit(self, token: int, outcome: Outcome | None = None, ttl_ms: int | None = None) -> Reply:
        """Commit."""
        return self.do(Commit(KEY, token, outcome, ttl_ms))

    def release(self, token: int) -> Reply:
        """Release."""
        return self.do(Release(KEY, token))

    def extend(self, token: int, lease_ms: int) -> Reply:
        """Extend."""
        return self.do(Extend(KEY, token, lease_ms))

    def doubt(self, token: int, reason: str | None = None) -> Reply:
        """Doubt."""
        return self.do(Doubt(KEY, token, reason))

    def resolve(self, token: int, verdict: str, outcome: Outcome | None = None) -> Reply:
        """Resolve."""
        return self.do(Resolve(KEY, token, Verdict(verdict), outcome))

    def forget(self, *, force: bool = False) -> Reply:
        """Forget."""
        return self.do(Forget(KEY, force))

    def get(self) -> Reply:
        """Get."""
        return self.do(Get(KEY))

    @property
    def record(self) -> Record:
        """The record as ``get`` shows it now."""
        found = self.get()
        assert isinstance(found, Found)
        return found.record
