"""The ledger against the model of ``model.py``: random commands, times, settings, waiters, sweeps and reloads.

A failure prints the steps and the blob that replays it (``@reproduce_failure``). ``HYPOTHESIS_EXAMPLES`` scales it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from idemactor.core import decide, replies
from idemactor.core.census import Census
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
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.ledger import Ledger, Work
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry, Policy
from idemactor.core.record import Entry, Incident, Outcome, State
from idemactor.core.replies import Reply
from idemactor.core.tally import Tally, TallyKey
from tests.core.model import Answer, Model

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "400"))
STEPS = 50

KEYS = (
    Identity("acme", "trade", "a"),
    Identity("acme", "trade", "b"),
    Identity("zeta", "payments", "a"),
)
PRINTS = (
    None,
    Fingerprint("x", "caller"),
    Fingerprint("y", "caller"),
    Fingerprint("x", "v1"),
    Fingerprint("x", "source:a:0"),
    Fingerprint("x", "source:b:0"),
)
OUTCOMES = (None, Outcome(200, (("a", "b"),), b"ok"), Outcome(500, (), b"far too large"))
STATES = {State.PENDING: "pending", State.LAPSED: "lapsed", State.DOUBTED: "doubted", State.COMMITTED: "committed"}
NEVER_SHOWN = {"delivery", "request_id", "ttl_ms", "window_ms", "unresolved_expires_at", "accepted", "earlier"}
RESULTS: dict[type[Reply], str] = {
    replies.Reserved: "reserved",
    replies.Accepted: "accepted",
    replies.Completed: "completed",
    replies.InFlight: "in_flight",
    replies.InDoubt: "in_doubt",
    replies.Mismatch: "mismatch",
    replies.Withdrawn: "released late",
    replies.Committed: "committed",
    replies.Released: "released",
    replies.Extended: "extended",
    replies.Doubted: "in_doubt said",
    replies.Stale: "stale",
    replies.AlreadyCommitted: "already_committed",
    replies.Unknown: "unknown",
    replies.Forgotten: "forgotten",
    replies.NothingToForget: "unknown",
    replies.Unsettled: "unsettled",
}

identities = st.sampled_from(KEYS)
requests = st.sampled_from((None, "r1", "r2", "r3"))
prints = st.sampled_from(PRINTS)
outcomes = st.sampled_from(OUTCOMES)
holders = st.sampled_from((None, "h1", "h2"))
duplicates = st.sampled_from((None, OnDuplicate.REPLAY, OnDuplicate.REJECT))
maybe_ms = st.sampled_from((None, None, 1, 3, 10, 25))
policies = st.builds(
    Policy,
    lease_ms=st.integers(1, 20),
    ttl_ms=st.integers(1, 30),
    on_lease_expiry=st.sampled_from(OnLeaseExpiry),
    on_doubt=st.sampled_from(OnDoubt),
    on_duplicate=st.sampled_from(OnDuplicate),
    unresolved_ttl_ms=st.integers(1, 40),
    outcome_max_bytes=st.just(8),
    lease_total_max_ms=st.integers(1, 40),
)


@dataclass(eq=False)
class Caller:
    """Somebody who asked, and whether it is still there."""

    command: Command
    closed: bool = False


@st.composite
def asks(draw: st.DrawFn) -> tuple[type[Command], dict[str, Any]]:
    """A command without its token: that is picked among those issued so far."""
    kind: type[Command] = draw(
        st.sampled_from(
            (Reserve, Reserve, Reserve, Accept, Commit, Commit, Release, Release, Extend, Doubt, Resolve, Get, Forget)
        )
    )
    given: dict[str, Any] = {"identity": draw(identities)}
    if kind in (Reserve, Accept):
        given.update(request_id=draw(requests), fingerprint=draw(prints), holder=draw(holders))
        given.update(on_duplicate=draw(duplicates))
        given.update(draw(st.sampled_from(({}, {"ttl_ms": draw(maybe_ms)}, {"window_ms": draw(maybe_ms)}))))
    if kind is Reserve:
        given.update(lease_ms=draw(maybe_ms), wait_ms=draw(st.sampled_from((0, 0, 1, 5, 20, 60))))
    if kind in (Accept, Commit, Resolve):
        given.update(outcome=draw(outcomes))
    if kind is Commit:
        given.update(ttl_ms=draw(maybe_ms))
    if kind is Extend:
        given.update(lease_ms=draw(st.integers(1, 30)))
    if kind is Doubt:
        given.update(reason=draw(st.sampled_from((None, "lost", "broken"))))
    if kind is Resolve:
        given.update(verdict=draw(st.sampled_from(Verdict)))
    if kind is Forget:
        given.update(force=draw(st.booleans()))
    if kind in (Commit, Release, Extend, Doubt, Resolve):
        # Mostly the key's latest tokens, for which most of the table is.
        given.update(back=draw(st.sampled_from((0, 0, 0, 0, 1, 1, 2, 3, 5, 17))))
    return kind, given


class LedgerAgainstModel(RuleBasedStateMachine):
    """One shard: the ledger, what is on its disk, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.disk: dict[int, Entry] = {}
        self.tallies: dict[TallyKey, Tally] = {}
        self.entropy = 0
        self.operations: dict[str, int] = {}
        self.incidents: list[Incident] = []
        self.issued: dict[Identity, list[int]] = {key: [] for key in KEYS}
        self.held: dict[Identity, tuple[int, int]] = {}
        self.blocked: dict[Identity, int] = {}

    @initialize(trade=policies, payments=policies, small=st.booleans())
    def start(self, trade: Policy, payments: Policy, small: bool) -> None:
        self.policies = {"trade": trade, "payments": payments}
        self.model = Model(dict(self.policies))
        # A cache of nothing has to read every entry anew for every batch.
        self.cache_bytes = 0 if small else 1 << 20
        self.load(last_token=0)

    def load(self, last_token: int) -> None:
        self.census = Census()
        stored = {key: replace(tally) for key, tally in self.tallies.items()}
        self.ledger: Ledger[Caller] = Ledger(
            0, self.policies, self.census, self.random, last_token, stored, cache_bytes_max=self.cache_bytes
        )

    def random(self) -> int:
        self.entropy += 1
        return self.entropy

    # ------------------------------------------------------------------------------------------------ what happens

    @rule(batch=st.lists(asks(), min_size=1, max_size=3))
    def ask(self, batch: list[tuple[type[Command], dict[str, Any]]]) -> None:
        self.ask_all([self.built(kind, dict(given)) for kind, given in batch])

    @rule(identity=identities, request_id=requests, accepts=st.booleans())
    def another_comes_as_the_lease_ends(self, identity: Identity, request_id: str | None, accepts: bool) -> None:
        # Takeovers, and what an earlier attempt may still say, are rare where everything is drawn at random.
        self.now = max(self.now, self.held.get(identity, (0, 0))[1])
        self.ask_all([Accept(identity, request_id) if accepts else Reserve(identity, request_id)])

    @rule(identity=identities, back=st.integers(1, 3), outcome=outcomes)
    def a_late_commit_comes(self, identity: Identity, back: int, outcome: Outcome | None) -> None:
        self.ask_all([self.built(Commit, {"identity": identity, "outcome": outcome, "back": back})])

    @rule(identity=identities, reason=st.sampled_from((None, "lost")))
    def the_holder_doubts(self, identity: Identity, reason: str | None) -> None:
        self.ask_all([self.built(Doubt, {"identity": identity, "reason": reason, "back": 0})])

    def ask_all(self, commands: list[Command]) -> None:
        """A batch of commands, to the ledger and to the model."""
        self.begin([command.identity for command in commands])
        expected: list[tuple[object, Answer]] = []
        for command in commands:
            caller = Caller(command)
            self.ledger.apply(caller, command)
            expected += self.model.ask(caller, command, self.now)
        self.finish(expected)

    @rule(step=st.sampled_from((0, 1, 2, 5, 12, 50)))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(which=st.integers(0, 20), offset=st.sampled_from((-1, 0, 0, 0, 1)))
    def a_deadline_comes(self, which: int, offset: int) -> None:
        times = [self.model.next_change(key, self.now) for key in KEYS]
        times += [place.deadline for places in self.model.waiting.values() for place in places]
        times += [end for _, end in self.held.values()]
        ahead = sorted(t + offset for t in times if t is not None and t + offset >= self.now)
        if ahead:
            self.now = ahead[which % len(ahead)]

    @rule(identity=identities)
    def the_alarm_comes(self, identity: Identity) -> None:
        self.begin([identity])
        self.ledger.sweep(identity)
        self.finish(self.model.wake(identity, self.now))

    @rule()
    def waits_end(self) -> None:
        self.begin(self.ledger.timing_out(self.now))
        self.ledger.time_out()
        self.finish(self.model.end_of_wait(self.now))
        next_timeout = self.ledger.next_timeout
        assert next_timeout is None or next_timeout > self.now

    @precondition(lambda self: any(self.model.waiting.values()))
    @rule(which=st.integers(0, 10))
    def a_waiter_hangs_up(self, which: int) -> None:
        places = [place for places in self.model.waiting.values() for place in places]
        caller = places[which % len(places)].ticket
        assert isinstance(caller, Caller)
        caller.closed = True
        self.model.closed.add(caller)

    @rule(namespace=st.sampled_from(("trade", "payments")), policy=policies, also_reload=st.booleans())
    def settings_change(self, namespace: str, policy: Policy, also_reload: bool) -> None:
        # What was due under the old settings was dealt with under them: a server sweeps before it stops. The record
        # itself does not say under which settings its deadline passed.
        self.begin(KEYS)
        expected: list[tuple[object, Answer]] = []
        for key in KEYS:
            self.ledger.sweep(key)
            expected += self.model.wake(key, self.now)
        self.finish(expected)
        self.model.era_ends(self.now)
        self.policies[namespace] = policy
        self.model.policies[namespace] = policy
        if also_reload:
            self.reload()

    @rule()
    def reload(self) -> None:
        gone = self.ledger.abandon()
        assert [caller for caller in gone if not caller.closed] == self.who_waits()
        assert self.ledger.waiting == 0
        self.model.waiting.clear()
        self.load(self.ledger.last_token)

    # ----------------------------------------------------------------------------------------------------- how it does

    def who_waits(self) -> list[object]:
        """Those who wait and are still there, in order of arrival."""
        places = sorted((p for places in self.model.waiting.values() for p in places), key=lambda p: p.arrival)
        return [place.ticket for place in places if place.ticket not in self.model.closed]

    def built(self, kind: type[Command], given: dict[str, Any]) -> Command:
        if "back" in given:
            # The tokens of this batch are not known yet when it is sent: older ones and invented ones are.
            back, issued = given.pop("back"), self.issued[given["identity"]]
            given["token"] = issued[-1 - back] if back < len(issued) else 1_000_000 + back
        return kind(**given)

    def begin(self, identities: Any) -> None:
        self.ledger.begin(self.now)
        missing = self.ledger.missing(identities)
        self.ledger.absorb({e.identity: e for e in self.disk.values() if e.identity in missing})

    def finish(self, expected: list[tuple[object, Answer]]) -> None:
        work = self.ledger.finish()
        self.write(work)
        for caller, reply in work.replies:
            self.operation_of(reply)
            self.note_grants(caller, reply)
        assert [(caller, self.plain(reply)) for caller, reply in work.replies] == expected

    def write(self, work: Work[Caller]) -> None:
        assert not set(work.puts) & set(work.deletes)
        for entry_id in work.deletes:
            self.disk.pop(entry_id, None)
        for entry_id, entry in work.puts.items():
            assert entry.id == entry_id
            self.disk[entry_id] = entry
        self.incidents += work.incidents
        self.tallies.update({key: replace(tally) for key, tally in work.tallies.items()})

    def note_grants(self, caller: Caller, reply: Reply) -> None:
        """One holder at a time, growing tokens, and what was accepted blocks: from what callers are told alone."""
        key = caller.command.identity
        if isinstance(reply, replies.Reserved | replies.Accepted) and not reply.repeated:
            assert not caller.closed, "a grant for somebody who left"
            assert self.now >= self.held.pop(key, (0, 0))[1], "two holders at a time"
            assert self.now >= self.blocked.pop(key, 0), "a record that lives was not asked"
        match reply:
            case replies.Reserved(token=token, lease_expires_at=end):
                if not reply.repeated:
                    assert token > max(tokens[-1] for tokens in ([0], *self.issued.values()) if tokens)
                    self.issued[key].append(token)
                assert token == self.issued[key][-1]
                self.held[key] = (token, end)
            case replies.Accepted(expires_at=end) | replies.Committed(expires_at=end):
                self.held.pop(key, None)
                self.blocked[key] = end
            case replies.Extended(lease_expires_at=end):
                self.held[key] = (self.held[key][0], end)
            case replies.Released() | replies.Forgotten() if not getattr(reply, "repeated", False):
                self.held.pop(key, None)
                self.blocked.pop(key, None)
            case _:
                pass

    def operation_of(self, reply: Reply) -> None:
        """Operations are numbered in the order in which they come up."""
        if isinstance(reply, replies.Reserved | replies.Accepted):
            self.operations.setdefault(reply.operation_id, len(self.operations) + 1)

    def plain(self, reply: Reply) -> Answer:
        """A reply as the model says it."""
        if isinstance(reply, replies.Found):
            shown = self.fields(reply.record, "found", key=reply.key)
            shown["state"] = STATES[reply.record.state]
            return {name: value for name, value in shown.items() if name not in NEVER_SHOWN}
        if isinstance(reply, replies.Reserved | replies.Accepted):
            return self.fields(reply, RESULTS[type(reply)], takeover=reply.takeover)
        return self.fields(reply, RESULTS[type(reply)])

    def fields(self, reply: Any, result: str, **more: Any) -> Answer:
        plain = {name: getattr(reply, name) for name in type(reply).__dataclass_fields__} | more
        if "operation_id" in plain:
            plain["operation"] = self.operations[plain.pop("operation_id")]
        return {"result": result, **plain}

    # ------------------------------------------------------------------------------------------ what holds at any time

    @invariant()
    def every_key_looks_alike(self) -> None:
        for key in KEYS:
            self.begin([key])
            caller = Caller(Get(key))
            expected: list[tuple[object, Answer]] = [(caller, self.model.record(key, self.model.phase(key, self.now)))]
            if not self.model.waiting.get(key):
                # A look at a key whose waiters are due would answer them: left to the rules.
                self.ledger.apply(caller, caller.command)
                self.finish(expected)

    @invariant()
    def the_disk_has_each_key_once(self) -> None:
        keys = [entry.identity for entry in self.disk.values()]
        assert len(keys) == len(set(keys))

    @invariant()
    def counts_are_those_of_a_recount(self) -> None:
        recount: dict[TallyKey, Tally] = {key[:2]: Tally() for key in KEYS}
        for entry in self.disk.values():
            tally, record = recount[entry.identity[:2]], entry.record
            tally.records += 1
            if record is not None:
                tally.pending += record.state is State.PENDING
                tally.in_doubt += record.state in (State.LAPSED, State.DOUBTED)
                tally.committed += record.state is State.COMMITTED
                tally.contested += record.contested
        for incident in self.incidents:
            recount[incident.identity[:2]].incidents += 1
        for key, tally in recount.items():
            assert self.tallies.get(key, Tally()) == tally
            assert self.ledger.tallies.get(key, Tally()) == tally
            assert self.census.total(key) == tally.records
        assert self.ledger.waiting >= len(self.who_waits())

    @invariant()
    def incidents_are_the_models_one_each(self) -> None:
        told = [
            {
                "key": incident.identity,
                "operation": self.operations[incident.operation_id],
                "token": incident.token,
                "present": incident.present_token,
                "at": incident.at,
                "outcome": incident.outcome,
            }
            for incident in self.incidents
        ]
        assert told == self.model.incidents
        assert len({(one["operation"], one["token"]) for one in told}) == len(told)

    @invariant()
    def the_alarm_is_the_next_change(self) -> None:
        for entry in self.disk.values():
            policy = self.policies[entry.identity.namespace]
            if entry.alarm_at is None or entry.alarm_at > self.now:
                assert entry.alarm_at == self.model.next_change(entry.identity, self.now)
                assert decide.sweep(entry, policy, self.now) is entry
            else:
                swept = decide.sweep(entry, policy, self.now)
                assert swept != entry
                assert swept is None or swept.alarm_at is None or swept.alarm_at > self.now


LedgerAgainstModel.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
test_the_ledger_is_the_contract = LedgerAgainstModel.TestCase
