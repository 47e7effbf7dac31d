"""The contract's state table once more, written from the contract alone and in another way than ``core/decide.py``.

Nothing here has a state. A key is the list of all the attempts that were ever made at it, each with what its holder
(or an operator) said at last, and every answer is read off that history and the time. Nothing is ever swept.
Answers are plain dictionaries; operations and tokens are numbered in the order in which they came up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
)
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.core.record import Outcome

Answer = dict[str, Any]

REMEMBERED = 16
"""How many earlier attempts of an operation are remembered."""


@dataclass
class Intent:
    """One operation: what all its attempts share."""

    number: int
    first_seen: int
    fingerprint: Fingerprint | None = None
    contested: bool = False


@dataclass
class Attempt:
    """One holder's try, and the last word on it: None, doubt, committed, released or forgotten."""

    intent: Intent
    number: int
    token: int
    asked: Reserve | Accept
    reserved_at: int
    lease_end: int
    give_up_at: int | None
    word: str | None = None
    reason: str | None = None
    by_accept: bool = False
    committed_at: int | None = None
    until: int = 0
    outcome: Outcome | None = None
    reported: bool = False


@dataclass
class Waiting:
    """Somebody who waits, in order of arrival."""

    ticket: object
    command: Reserve
    deadline: int
    arrival: int


@dataclass
class Model:
    """Every key's history."""

    policies: dict[str, Policy]
    histories: dict[Identity, list[Attempt]] = field(default_factory=dict)
    waiting: dict[Identity, list[Waiting]] = field(default_factory=dict)
    incidents: list[Answer] = field(default_factory=list)
    closed: set[object] = field(default_factory=set)
    tokens: int = 0
    intents: int = 0
    arrivals: int = 0

    # ------------------------------------------------------------------------------------------ reading a history

    def phase(self, identity: Identity, now: int) -> str:
        """What time and the last word make of the latest attempt."""
        history = self.histories.get(identity)
        if not history:
            return "absent"
        last = history[-1]
        if last.word in ("released", "forgotten", "given up"):
            return "absent"
        if last.word == "committed":
            return "committed" if now < last.until else "absent"
        if last.word == "doubt":
            return "doubted"
        if now < last.lease_end:
            return "pending"
        forgets = self.policies[identity.namespace].on_lease_expiry == "retry"
        return "absent" if forgets and last.give_up_at is not None and now >= last.give_up_at else "lapsed"

    def grave(self, identity: Identity, now: int) -> Attempt | None:
        """The latest released attempt, while what it left still lives."""
        for attempt in reversed(self.histories.get(identity, [])):
            if attempt.word == "forgotten":
                return None
            if attempt.word == "released":
                return attempt if now < attempt.until else None
        return None

    def before(self, identity: Identity) -> list[Attempt]:
        """The remembered earlier attempts of the operation of the latest one."""
        history = self.histories[identity]
        return [a for a in history[:-1] if a.intent is history[-1].intent][-REMEMBERED:]

    def next_change(self, identity: Identity, now: int) -> int | None:
        """When time next ends something about a key."""
        times = []
        phase, history = self.phase(identity, now), self.histories.get(identity)
        if history:
            last = history[-1]
            ends = {"pending": last.lease_end, "lapsed": last.give_up_at, "committed": last.until}
            times.append(ends.get(phase))
        grave = self.grave(identity, now)
        times.append(grave.until if grave else None)
        return min((t for t in times if t is not None and t > now), default=None)

    def blocks_until(self, attempt: Attempt, ttl: int | None, policy: Policy, now: int) -> int:
        """How long a commit made now would block."""
        asked = attempt.asked
        if ttl is None and asked.window_ms is not None:
            end = attempt.intent.first_seen + asked.window_ms
            if end > now:
                return end
        return now + next(t for t in (ttl, asked.ttl_ms, policy.ttl_ms) if t is not None)

    # ----------------------------------------------------------------------------------------------- being asked

    def ask(self, ticket: object, command: Command, now: int) -> list[tuple[object, Answer]]:
        """The answers that a command brings: its own, and those of the waiters whom it concerns."""
        identity = command.identity
        answers = self.wake(identity, now)
        before = self.glance(identity, now)
        answer = self.answer(command, now)
        if answer["result"] == "in_flight" and isinstance(command, Reserve) and command.wait_ms:
            self.arrivals += 1
            place = Waiting(ticket, command, now + command.wait_ms, self.arrivals)
            self.waiting.setdefault(identity, []).append(place)
            return answers
        answers.append((ticket, answer))
        if self.glance(identity, now) != before:
            answers += self.wake(identity, now)
        return answers

    def glance(self, identity: Identity, now: int) -> object:
        """Enough of a key to see whether anything about it changed."""
        history = self.histories.get(identity)
        return (self.phase(identity, now), history[-1].token if history else None)

    def wake(self, identity: Identity, now: int) -> list[tuple[object, Answer]]:
        """Decide the waiters of a key anew, in order of arrival."""
        answers = []
        for place in list(self.waiting.get(identity, [])):
            if place.ticket in self.closed:
                self.waiting[identity].remove(place)
                continue
            answer = self.answer(place.command, now)
            if answer["result"] != "in_flight":
                self.waiting[identity].remove(place)
                answers.append((place.ticket, answer))
        return answers

    def end_of_wait(self, now: int) -> list[tuple[object, Answer]]:
        """Answer those who have waited long enough."""
        answers: list[tuple[object, Answer]] = []
        over = [place for places in self.waiting.values() for place in places if place.deadline <= now]
        for place in sorted(over, key=lambda p: (p.deadline, p.arrival)):
            identity = place.command.identity
            answers += self.wake(identity, now)
            if place in self.waiting[identity]:
                self.waiting[identity].remove(place)
                answers.append((place.ticket, self.answer(place.command, now)))
        return answers

    def era_ends(self, now: int) -> None:
        """The settings are about to change: what time has ended under the old ones stays ended, or stays kept."""
        for identity, history in self.histories.items():
            if not history or history[-1].word is not None:
                continue
            last = history[-1]
            if last.give_up_at is not None and now >= last.give_up_at:
                if self.policies[identity.namespace].on_lease_expiry == "retry":
                    last.word = "given up"
                last.give_up_at = None

    def answer(self, command: Command, now: int) -> Answer:
        """The answer of the table."""
        policy = self.policies[command.identity.namespace]
        phase = self.phase(command.identity, now)
        if isinstance(command, Reserve | Accept):
            return self.acquire(command, phase, policy, now)
        if isinstance(command, Get):
            return self.record(command.identity, phase)
        if isinstance(command, Forget):
            return self.forget(command, phase, now)
        if isinstance(command, Commit | Release | Extend | Doubt | Resolve):
            return self.word(command, phase, policy, now)
        raise NotImplementedError("what is dispatched has a table of its own")

    # ---------------------------------------------------------------------------------------- reserve and accept

    def acquire(self, command: Reserve | Accept, phase: str, policy: Policy, now: int) -> Answer:
        """Reserve and accept."""
        last = self.histories[command.identity][-1] if phase != "absent" else None
        given = command.fingerprint
        if last and given and last.intent.fingerprint:
            held = last.intent.fingerprint
            senders = [rule.split(":")[1] for rule in (held.rule, given.rule) if rule.startswith("source:")]
            if len(set(senders)) == 2 or (held.rule == given.rule and held.value != given.value):
                return {"result": "mismatch"}
        grave = self.grave(command.identity, now)
        if grave and command.request_id and grave.asked.request_id == command.request_id:
            return {"result": "released late"}
        if last is None:
            return self.grant(command, None, policy, now)
        same = command.request_id is not None and command.request_id == last.asked.request_id
        if phase == "pending":
            if same and isinstance(command, Reserve):
                return self.reserved(last, repeated=True)
            return self.in_flight(last, now)
        if phase == "committed":
            if same and isinstance(command, Accept) and last.by_accept:
                return self.accepted(last, repeated=True)
            return {
                "result": "completed",
                "operation": last.intent.number,
                "committed_at": last.committed_at,
                "expires_at": last.until,
                "outcome": last.outcome,
                "rejected": str(command.on_duplicate or policy.on_duplicate) == "reject",
            }
        lapsed_lets = phase == "lapsed" and policy.on_lease_expiry == "retry"
        doubted_lets = phase == "doubted" and policy.on_doubt == "retry" and now >= last.lease_end
        if lapsed_lets or doubted_lets:
            return self.grant(command, last, policy, now)
        return self.in_doubt(last)

    def grant(self, command: Reserve | Accept, last: Attempt | None, policy: Policy, now: int) -> Answer:
        """A new attempt, of a new operation or of that of ``last``."""
        if last is None:
            self.intents += 1
            intent = Intent(self.intents, now)
        else:
            intent = last.intent
        held, given = intent.fingerprint, command.fingerprint
        if held is None or (given is not None and given.rule != held.rule):
            intent.fingerprint = given
        lease = command.lease_ms if isinstance(command, Reserve) and command.lease_ms else policy.lease_ms
        lease_end = now + min(lease, policy.lease_total_max_ms)
        self.tokens += 1
        number = last.number + 1 if last else 1
        attempt = Attempt(intent, number, self.tokens, command, now, lease_end, self.give_up(lease_end, policy))
        self.histories.setdefault(command.identity, []).append(attempt)
        if isinstance(command, Accept):
            self.commit(attempt, command.outcome, None, policy, now)
            attempt.by_accept = True
            return self.accepted(attempt, repeated=False)
        return self.reserved(attempt, repeated=False)

    def give_up(self, lease_end: int, policy: Policy) -> int | None:
        """Until when a lapsed attempt is kept."""
        return lease_end + policy.unresolved_ttl_ms if policy.on_lease_expiry == "retry" else None

    # ------------------------------------------------------------------------------------- the holder's last words

    def word(
        self, command: Commit | Release | Extend | Doubt | Resolve, phase: str, policy: Policy, now: int
    ) -> Answer:
        """Commit, release, extend, doubt and resolve."""
        identity = command.identity
        grave = self.grave(identity, now)
        if grave and grave.token == command.token:
            if isinstance(command, Commit):
                return self.too_late(command, grave, phase, policy, now)
            if isinstance(command, Release) or (isinstance(command, Resolve) and command.verdict == "released"):
                return {"result": "released", "repeated": True}
        if phase == "absent":
            return {"result": "unknown"}
        last = self.histories[identity][-1]
        if isinstance(command, Commit):
            return self.hear_commit(command, last, phase, policy, now)
        refusal = self.refusal(command, last, phase, now)
        return refusal or self.last_word(command, last, phase, policy, now)

    def refusal(
        self, command: Release | Extend | Doubt | Resolve, last: Attempt, phase: str, now: int
    ) -> Answer | None:
        """Why a command that is no commit has no say, if it has none."""
        if isinstance(command, Resolve) and phase == "pending":
            return self.in_flight(last, now)
        if phase == "committed":
            if isinstance(command, Resolve) and command.verdict == "committed":
                return {"result": "committed", "expires_at": last.until, "repeated": True}
            return {"result": "already_committed", "committed_at": last.committed_at, "expires_at": last.until}
        return {"result": "stale", "attempt": last.number} if command.token != last.token else None

    def last_word(
        self, command: Release | Extend | Doubt | Resolve, last: Attempt, phase: str, policy: Policy, now: int
    ) -> Answer:
        """What the latest attempt's holder, or who found out, has to say."""
        if isinstance(command, Extend):
            return self.extend(command, last, phase, policy, now)
        if isinstance(command, Doubt):
            if phase != "doubted":
                last.word, last.reason, last.give_up_at = "doubt", command.reason, None
            return {"result": "in_doubt said", "repeated": phase == "doubted"}
        if isinstance(command, Resolve) and command.verdict == "committed":
            self.commit(last, command.outcome, None, policy, now)
            return {"result": "committed", "expires_at": last.until, "repeated": False}
        last.until = self.blocks_until(last, None, policy, now)
        last.word = "released"
        return {"result": "released", "repeated": False}

    def hear_commit(self, command: Commit, last: Attempt, phase: str, policy: Policy, now: int) -> Answer:
        """A commit where there is a record."""
        if command.token != last.token:
            for attempt in self.before(command.identity):
                if attempt.token == command.token:
                    return self.too_late(command, attempt, phase, policy, now)
            return {"result": "stale", "attempt": last.number}
        if phase != "committed":
            self.commit(last, command.outcome, command.ttl_ms, policy, now)
        return {"result": "committed", "expires_at": last.until, "repeated": phase == "committed"}

    def too_late(self, command: Commit, attempt: Attempt, phase: str, policy: Policy, now: int) -> Answer:
        """Evidence that an attempt that was given up for dead did succeed."""
        last = self.histories[command.identity][-1] if phase != "absent" else None
        if not attempt.reported:
            attempt.reported = True
            self.incidents.append(
                {
                    "key": command.identity,
                    "operation": attempt.intent.number,
                    "token": command.token,
                    "present": last.token if last else None,
                    "at": now,
                    "outcome": self.cut(command.outcome, policy),
                }
            )
        if last:
            # One incident for each token, but the mark is that of every record which such a commit meets.
            last.intent.contested = True
        return {"result": "stale", "attempt": last.number if last else None}

    def extend(self, command: Extend, last: Attempt, phase: str, policy: Policy, now: int) -> Answer:
        """A longer lease, cut at what one attempt may have in all (or was given when more was allowed)."""
        if phase == "doubted":
            return self.in_doubt(last)
        furthest = max(last.reserved_at + policy.lease_total_max_ms, last.lease_end)
        last.lease_end = min(now + command.lease_ms, furthest)
        if last.lease_end > now or policy.on_lease_expiry == "hold":
            last.give_up_at = self.give_up(last.lease_end, policy)
        return {"result": "extended", "lease_expires_at": last.lease_end}

    def commit(self, attempt: Attempt, outcome: Outcome | None, ttl: int | None, policy: Policy, now: int) -> None:
        """The last word is that it happened."""
        attempt.until = self.blocks_until(attempt, ttl, policy, now)
        attempt.word, attempt.committed_at = "committed", now
        attempt.outcome = self.cut(outcome, policy)

    def cut(self, outcome: Outcome | None, policy: Policy) -> Outcome | None:
        """An outcome that is too large keeps its status alone."""
        if outcome is None:
            return None
        text = sum(len((name + value).encode()) for name, value in outcome.headers)
        too_large = text + len(outcome.body) > policy.outcome_max_bytes
        return Outcome(outcome.status, (), b"", True) if too_large else outcome

    def forget(self, command: Forget, phase: str, now: int) -> Answer:
        """Drop the key with everything about it."""
        if phase == "absent" and self.grave(command.identity, now) is None:
            return {"result": "unknown"}
        if phase in ("pending", "lapsed", "doubted") and not command.force:
            return {"result": "unsettled"}
        self.histories[command.identity][-1].word = "forgotten"
        return {"result": "forgotten"}

    # ---------------------------------------------------------------------------------------------------- answers

    def reserved(self, attempt: Attempt, *, repeated: bool) -> Answer:
        """Go on."""
        return {
            "result": "reserved",
            "key": attempt.asked.identity.key,
            "token": attempt.token,
            "attempt": attempt.number,
            "operation": attempt.intent.number,
            "reserved_at": attempt.reserved_at,
            "lease_expires_at": attempt.lease_end,
            "takeover": attempt.number > 1,
            "repeated": repeated,
        }

    def accepted(self, attempt: Attempt, *, repeated: bool) -> Answer:
        """Go on, and it is committed."""
        return {
            "result": "accepted",
            "operation": attempt.intent.number,
            "attempt": attempt.number,
            "takeover": attempt.number > 1,
            "expires_at": attempt.until,
            "repeated": repeated,
        }

    def in_flight(self, attempt: Attempt, now: int) -> Answer:
        """Somebody is at it."""
        return {
            "result": "in_flight",
            "attempt": attempt.number,
            "holder": attempt.asked.holder,
            "reserved_at": attempt.reserved_at,
            "lease_expires_at": attempt.lease_end,
            "retry_after_ms": attempt.lease_end - now,
        }

    def in_doubt(self, attempt: Attempt) -> Answer:
        """Nobody knows."""
        return {
            "result": "in_doubt",
            "attempt": attempt.number,
            "operation": attempt.intent.number,
            "holder": attempt.asked.holder,
            "reserved_at": attempt.reserved_at,
            "lease_expires_at": attempt.lease_end,
            "reason": attempt.reason,
        }

    def record(self, identity: Identity, phase: str) -> Answer:
        """What ``get`` shows."""
        if phase == "absent":
            return {"result": "unknown"}
        last = self.histories[identity][-1]
        done = phase == "committed"
        return {
            "result": "found",
            "key": identity.key,
            "state": phase,
            "attempt": last.number,
            "token": last.token,
            "operation": last.intent.number,
            "fingerprint": last.intent.fingerprint,
            "holder": last.asked.holder,
            "first_seen_at": last.intent.first_seen,
            "reserved_at": last.reserved_at,
            "lease_expires_at": None if done else last.lease_end,
            "committed_at": last.committed_at,
            "expires_at": last.until if done else None,
            "contested": last.intent.contested,
            "reason": last.reason,
            "outcome": last.outcome,
        }
