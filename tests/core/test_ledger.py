"""The ledger: waiters, the cache, counts, quota, incidents and what a batch comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from idemactor.core import ledger as ledger_module
from idemactor.core.census import Census
from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Forget, Get, Release, Reserve
from idemactor.core.delivery import OMITTED, NewEvent
from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.ledger import CACHE_BYTES_MAX, Ledger, Work, visible
from idemactor.core.policy import OnDoubt, OnLeaseExpiry, Policy
from idemactor.core.record import Entry, Outcome, State
from idemactor.core.replies import (
    Forgotten,
    InFlight,
    NothingToForget,
    QuotaExceeded,
    Reply,
    Reserved,
    Stale,
    Unsettled,
)
from idemactor.core.tally import Tally, TallyKey
from tests.core.situations import DONE, KEY, LEASE_MS, START, TTL_MS, UNRESOLVED_MS, settings

OTHER = Identity("acme", "trade", "order-18")
THIRD = Identity("acme", "trade", "order-19")
FOREIGN = Identity("zeta", "trade", "order-17")
OWNER: TallyKey = ("acme", "trade")
WAIT_MS = 60


@dataclass(eq=False)
class Caller:
    """Who asks; ``closed`` once it hung up."""

    name: str
    closed: bool = False

    def __repr__(self) -> str:
        return self.name


Answers = list[tuple[str, Reply]]


@dataclass
class Desk:
    """A ledger with the disk behind it: every batch is written, and what memory lacks is read from there."""

    policy: Policy = field(default_factory=settings)
    now: int = START
    cache_bytes_max: int = CACHE_BYTES_MAX
    disk: dict[int, Entry] = field(default_factory=dict)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    census: Census = field(default_factory=Census)
    last_token: int = 0
    work: Work[Caller] = field(default_factory=Work)
    shard: int = 0

    def __post_init__(self) -> None:
        self.load()

    def load(self) -> None:
        """Start over with what is on disk."""
        stored = {key: replace(tally) for key, tally in self.tallies.items()}
        self.ledger: Ledger[Caller] = Ledger(
            self.shard,
            {"trade": self.policy},
            self.census,
            lambda: 0,
            self.last_token,
            stored,
            cache_bytes_max=self.cache_bytes_max,
        )

    def begin(self, identities: Iterable[Identity]) -> None:
        self.ledger.begin(self.now)
        missing = self.ledger.missing(identities)
        self.ledger.absorb({e.identity: e for e in self.disk.values() if e.identity in missing})

    def finish(self) -> Answers:
        """Write the batch; its answers, by the name of who gets them."""
        self.work = work = self.ledger.finish()
        for entry_id in work.deletes:
            self.disk.pop(entry_id, None)
        self.disk.update(work.puts)
        self.tallies.update({key: replace(tally) for key, tally in work.tallies.items()})
        self.last_token = self.ledger.last_token
        return [(caller.name, reply) for caller, reply in work.replies]

    def ask(self, *asked: tuple[str | Caller, Command]) -> Answers:
        """A batch of commands."""
        self.begin(command.identity for _, command in asked)
        for caller, command in asked:
            self.ledger.apply(Caller(caller) if isinstance(caller, str) else caller, command)
        return self.finish()

    def one(self, command: Command) -> Reply:
        """The reply to a single command, which concerns nobody else."""
        [(_, reply)] = self.ask(("me", command))
        return reply

    def sweep(self, *identities: Identity) -> Answers:
        self.begin(identities)
        for identity in identities:
            self.ledger.sweep(identity)
        return self.finish()

    def time_out(self, *, everyone: bool = False) -> Answers:
        self.begin(self.ledger.timing_out(self.now))
        self.ledger.time_out(everyone=everyone)
        return self.finish()


def wait(request_id: str | None = None, wait_ms: int = WAIT_MS, **given: Any) -> Reserve:
    return Reserve(KEY, request_id, wait_ms=wait_ms, **given)


def crowd(desk: Desk, *names: str) -> list[Caller]:
    """A holder with token 1, and those who wait, in this order."""
    assert isinstance(desk.one(Reserve(KEY, "holder")), Reserved)
    callers = [Caller(name) for name in names]
    assert desk.ask(*((caller, wait(caller.name)) for caller in callers)) == []
    assert desk.ledger.waiting == len(names)
    return callers


def named(answers: Answers) -> list[tuple[str, str]]:
    return [(name, type(reply).__name__) for name, reply in answers]


# ---------------------------------------------------------------------------------------------------------- waiting


def test_a_release_hands_over_in_the_same_decision_to_the_first() -> None:
    """Section 12: a release hands the key to the first waiter in the same decision; the others wait on."""
    desk = Desk()
    crowd(desk, "w1", "w2", "w3")
    assert named(desk.ask(("h", Release(KEY, 1)))) == [("h", "Released"), ("w1", "Reserved")]
    assert desk.ledger.waiting == 2
    assert desk.ledger.last_token == 2
    assert len(desk.work.puts) == 1
    assert named(desk.ask(("w1", Release(KEY, 2)))) == [("w1", "Released"), ("w2", "Reserved")]


def test_a_newcomer_in_the_same_batch_comes_after_those_who_wait() -> None:
    """Rule 6: in order of arrival, also where the newcomer's command is already there."""
    desk = Desk()
    crowd(desk, "w1")
    answers = desk.ask(("h", Release(KEY, 1)), ("new", Reserve(KEY, "new")))
    assert named(answers) == [("h", "Released"), ("w1", "Reserved"), ("new", "InFlight")]


def test_a_commit_answers_everybody() -> None:
    """Rule 6: anything but in_flight answers them."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    answers = desk.ask(("h", Commit(KEY, 1, DONE)))
    assert named(answers) == [("h", "Committed"), ("w1", "Completed"), ("w2", "Completed")]
    assert desk.ledger.waiting == 0
    assert desk.ledger.next_timeout is None


def test_a_doubt_answers_everybody() -> None:
    """Rule 6: nobody knows how long it would take."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    assert named(desk.ask(("h", Doubt(KEY, 1)))) == [("h", "Doubted"), ("w1", "InDoubt"), ("w2", "InDoubt")]


def test_a_forced_forget_hands_over() -> None:
    """Rule 6: at each change of the record, whoever made it."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    assert named(desk.ask(("op", Forget(KEY, force=True)))) == [("op", "Forgotten"), ("w1", "Reserved")]
    assert [entry.record.token for entry in desk.disk.values() if entry.record] == [2]
    assert list(desk.work.deletes) == [1]


def test_an_extension_lets_everybody_wait_on() -> None:
    """Rule 6: in_flight answers nobody before the end of the wait."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    assert named(desk.ask(("h", Extend(KEY, 1, 500)))) == [("h", "Extended")]
    assert desk.ledger.waiting == 2


def test_waiters_are_told_of_a_mismatch_that_came_up_meanwhile() -> None:
    """Rules 1 and 6: decided anew, with the fingerprint that the first of them gave."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder"))
    one, two = Fingerprint("one", CALLER_RULE), Fingerprint("two", CALLER_RULE)
    desk.ask(("w1", wait("a", fingerprint=one)), ("w2", wait("b", fingerprint=two)), ("w3", wait("c")))
    assert named(desk.ask(("h", Release(KEY, 1)))) == [("h", "Released"), ("w1", "Reserved"), ("w2", "Mismatch")]
    assert desk.ledger.waiting == 1


def test_two_who_wait_with_one_request_id_are_one_caller() -> None:
    """Rules 2 and 6: both ask for the same acquisition, both get it, once."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder"))
    desk.ask(("w1", wait("same")), ("w2", wait("same")))
    (_, first), (_, second) = desk.ask(("h", Release(KEY, 1)))[1:]
    assert isinstance(first, Reserved)
    assert second == replace(first, repeated=True)
    assert desk.ledger.last_token == 2


def test_the_holder_who_asks_again_does_not_wait() -> None:
    """Rules 2 and 6: the same request_id gets its first answer at once."""
    desk = Desk()
    first = desk.one(Reserve(KEY, "r"))
    assert isinstance(first, Reserved)
    assert desk.one(wait("r")) == replace(first, repeated=True)


def test_the_alarm_of_a_lease_hands_over() -> None:
    """Rule 6: time changes the record too."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    desk.now += LEASE_MS - 1
    assert desk.sweep(KEY) == []
    desk.now += 1
    [(name, reply)] = desk.sweep(KEY)
    assert name == "w1"
    assert isinstance(reply, Reserved)
    assert (reply.attempt, reply.takeover) == (2, True)


def test_the_alarm_of_a_held_lease_answers_everybody() -> None:
    """Rules 5 and 6: in doubt until resolved."""
    desk = Desk(settings(on_lease_expiry=OnLeaseExpiry.HOLD))
    crowd(desk, "w1", "w2")
    desk.now += LEASE_MS
    assert named(desk.sweep(KEY)) == [("w1", "InDoubt"), ("w2", "InDoubt")]


def test_a_newcomer_never_overtakes_those_who_wait_because_the_alarm_is_late() -> None:
    """Rule 6 and section 3: in order of arrival; time decides, not the sweeper."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    desk.now += LEASE_MS
    assert named(desk.ask(("new", Reserve(KEY, "new")))) == [("w1", "Reserved"), ("new", "InFlight")]
    assert desk.ledger.waiting == 1


def test_who_came_first_goes_first_though_another_waits_less_long() -> None:
    """Rule 6: the end of somebody else's wait is no place in the queue."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder"))
    desk.ask(("first", wait("a", LEASE_MS + 50)), ("second", wait("b", LEASE_MS)))
    desk.now += LEASE_MS
    assert named(desk.time_out()) == [("first", "Reserved"), ("second", "InFlight")]
    assert desk.ledger.waiting == 0


def test_the_end_of_the_wait_is_in_flight() -> None:
    """Rule 6: at the end of the wait the answer is in_flight, as it stands then."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder", holder="h"))
    desk.ask(("w1", wait("a", 20)), ("w2", wait("b", 10)), ("w3", wait("c", 30)))
    assert desk.ledger.next_timeout == START + 10
    desk.now += 9
    assert desk.time_out() == []
    desk.now += 11
    assert desk.ledger.timing_out(desk.now) == [KEY, KEY]
    left = InFlight(1, "h", START, START + LEASE_MS, LEASE_MS - 20)
    assert desk.time_out() == [("w2", left), ("w1", left)]
    assert desk.ledger.next_timeout == START + 30


def test_a_wait_that_ends_as_the_lease_does_is_granted() -> None:
    """Rule 6 and section 3: at ``now >= deadline`` the lease is over, for the waiter too."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder"))
    desk.ask(("w1", wait("a", LEASE_MS)))
    desk.now += LEASE_MS
    assert named(desk.time_out()) == [("w1", "Reserved")]


def test_who_hung_up_is_never_granted() -> None:
    """Rule 6: a waiter whose connection was seen to close is never granted, nor answered."""
    desk = Desk()
    w1, _, w3 = crowd(desk, "w1", "w2", "w3")
    w1.closed = w3.closed = True
    assert named(desk.ask(("h", Release(KEY, 1)))) == [("h", "Released"), ("w2", "Reserved")]
    desk.now += LEASE_MS
    assert desk.time_out() == []
    assert desk.ledger.waiting == 0


def test_who_hung_up_does_not_hold_the_key_when_its_wait_ends() -> None:
    """Rule 6: also where its wait ends with the lease."""
    desk = Desk()
    desk.one(Reserve(KEY, "holder"))
    gone = Caller("gone", closed=True)
    desk.ask((gone, wait("a", LEASE_MS)))
    desk.now += LEASE_MS
    assert desk.time_out() == []
    assert desk.ledger.last_token == 1


def test_only_waiting_ends_with_the_caller() -> None:
    """Section 12: a command that was read whole is carried out though the caller hangs up."""
    desk = Desk()
    assert named(desk.ask((Caller("gone", closed=True), Reserve(KEY, "r")))) == [("gone", "Reserved")]


def test_when_all_are_sent_home_they_get_in_flight_at_once() -> None:
    """Section 12: on SIGTERM waiters are answered in_flight at once."""
    desk = Desk()
    crowd(desk, "w1", "w2")
    desk.one(Reserve(OTHER, "holder"))
    desk.ask(("w3", Reserve(OTHER, "x", wait_ms=5)))
    assert sorted(desk.ledger.timing_out(2**53)) == [KEY, KEY, OTHER]
    assert sorted(named(desk.time_out(everyone=True))) == [(n, "InFlight") for n in ("w1", "w2", "w3")]
    assert desk.ledger.waiting == 0


def test_abandoned_waiters_are_named_in_order_of_arrival() -> None:
    """Section 4: every waiting caller of a shard that cannot answer is told so by the shell."""
    desk = Desk()
    crowd(desk, "w1", "w2", "w3")
    desk.ask(("w4", wait("w4", 5)))
    desk.ask(("h", Release(KEY, 1)))
    assert [caller.name for caller in desk.ledger.abandon()] == ["w2", "w3", "w4"]
    assert (desk.ledger.waiting, desk.ledger.next_timeout) == (0, None)
    assert desk.ledger.abandon() == []
    assert named(desk.ask(("w1", Release(KEY, 2)))) == [("w1", "Released")]


def test_a_full_waiting_room_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``WAITERS_MAX``: one more is told in_flight at once; who hung up makes room."""
    monkeypatch.setattr(ledger_module, "WAITERS_MAX", 2)
    desk = Desk()
    w1, _ = crowd(desk, "w1", "w2")
    assert named(desk.ask(("w3", wait("w3")))) == [("w3", "InFlight")]
    w1.closed = True
    assert desk.ask(("w4", wait("w4"))) == []
    assert desk.ledger.waiting == 2
    assert named(desk.ask(("h", Release(KEY, 1)))) == [("h", "Released"), ("w2", "Reserved")]


def test_answered_waiters_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long waits that are answered early do not grow with traffic."""
    monkeypatch.setattr(ledger_module, "WAITERS_MAX", 5)
    desk = Desk()
    for token in range(1, 200, 2):
        desk.one(Reserve(KEY, None))
        desk.ask(("w", wait(None, 60_000)))
        desk.ask(("h", Release(KEY, token)))
        desk.one(Release(KEY, token + 1))
    assert len(desk.ledger._wait_heap) <= 12
    assert desk.ledger.waiting == 0


def test_waiters_of_one_key_know_nothing_of_another() -> None:
    desk = Desk()
    crowd(desk, "w1")
    desk.one(Reserve(OTHER, "holder"))
    assert named(desk.ask(("h", Commit(OTHER, 2)))) == [("h", "Committed")]
    assert desk.ledger.waiting == 1


# ---------------------------------------------------------------------------------------------- memory and the disk


def test_what_left_memory_comes_back_from_the_disk_unchanged() -> None:
    """Section 7: evicted and come back with nothing lost: a cache of nothing answers as a large one does."""
    small, large = Desk(cache_bytes_max=0), Desk()
    story: list[Command] = [
        Reserve(KEY, "a", holder="h"),
        Reserve(OTHER, "b"),
        Reserve(KEY, "c"),
        Commit(OTHER, 2, DONE),
        Reserve(OTHER, "d"),
        Release(KEY, 1),
        Reserve(KEY, "a"),
        Reserve(KEY, "e"),
        Commit(KEY, 1, DONE),
        Get(KEY),
        Get(OTHER),
        Forget(KEY, force=True),
        Get(KEY),
    ]
    for command in story:
        assert small.one(command) == large.one(command)
        assert small.ledger.missing([KEY, OTHER]) == {KEY, OTHER}
        assert small.disk == large.disk
        assert small.tallies == large.tallies


def test_the_cache_lets_go_of_what_was_used_longest_ago() -> None:
    desk = Desk(cache_bytes_max=2 * ledger_module.ENTRY_BYTES)
    desk.one(Reserve(KEY, "a"))
    desk.one(Reserve(OTHER, "b"))
    desk.one(Get(KEY))
    desk.one(Reserve(THIRD, "c"))
    assert desk.ledger.missing([KEY, OTHER, THIRD]) == {OTHER}


def test_outcomes_count_in_the_cache() -> None:
    desk = Desk(cache_bytes_max=2 * ledger_module.ENTRY_BYTES)
    desk.one(Accept(KEY, outcome=Outcome(200, (), b"x" * (ledger_module.ENTRY_BYTES + 1))))
    assert desk.ledger.missing([KEY]) == {KEY}
    desk.one(Accept(OTHER, outcome=Outcome(200)))
    assert desk.ledger.missing([OTHER]) == set()


def test_keys_that_came_and_went_leave_room() -> None:
    desk = Desk(cache_bytes_max=2 * ledger_module.ENTRY_BYTES)
    desk.one(Reserve(OTHER, "stays"))
    for _ in range(10):
        desk.one(Reserve(KEY, "a"))
        desk.one(Forget(KEY, force=True))
    assert desk.ledger.missing([OTHER]) == set()


def test_a_restart_goes_on_from_the_last_token() -> None:
    """Section 2: greater than every earlier token, never issued twice, also where the record is long gone."""
    desk = Desk()
    for _ in range(3):
        desk.one(Reserve(KEY, None))
        desk.one(Forget(KEY, force=True))
    assert desk.disk == {}
    desk.load()
    granted = desk.one(Reserve(OTHER, None))
    assert isinstance(granted, Reserved)
    assert granted.token == 4


# --------------------------------------------------------------------------------------------- what a batch comes to


def test_later_commands_of_a_batch_see_what_earlier_ones_did() -> None:
    desk = Desk()
    answers = desk.ask(
        ("a", Reserve(KEY, "a")), ("b", Reserve(KEY, "b")), ("a", Commit(KEY, 1)), ("b", Reserve(KEY, "b"))
    )
    assert named(answers) == [("a", "Reserved"), ("b", "InFlight"), ("a", "Committed"), ("b", "Completed")]
    assert list(desk.work.puts) == [1]
    assert desk.work.tallies == {OWNER: Tally(records=1, committed=1)}


def test_a_batch_that_only_looks_writes_nothing() -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a"))
    desk.ask(("b", Reserve(KEY, "b")), ("b", Get(KEY)), ("b", Commit(OTHER, 9)), ("b", Release(KEY, 9)))
    work = desk.work
    assert (work.puts, work.deletes, work.incidents, work.tallies) == ({}, {}, [], {})


def test_forgotten_and_taken_again_in_one_batch_is_a_new_row() -> None:
    """An entry's id is the token of its first grant: the old row goes, another comes."""
    desk = Desk()
    desk.one(Reserve(KEY, "a"))
    desk.ask(("op", Forget(KEY, force=True)), ("b", Reserve(KEY, "b")))
    assert list(desk.work.deletes) == [1]
    assert list(desk.work.puts) == [2]
    assert [entry.id for entry in desk.disk.values()] == [2]


def test_come_and_gone_in_one_batch_leaves_no_row() -> None:
    desk = Desk()
    desk.ask(("a", Reserve(KEY, "a")), ("op", Forget(KEY, force=True)))
    assert desk.work.puts == {}
    assert desk.disk == {}
    assert desk.tallies == {OWNER: Tally()}
    assert desk.census.total(OWNER) == 0


def test_a_sweep_and_a_reserve_in_one_batch() -> None:
    """The alarm ends the old record; the key that comes back is a new row."""
    desk = Desk()
    desk.one(Accept(KEY, "a"))
    desk.now += TTL_MS
    desk.begin([KEY])
    desk.ledger.sweep(KEY)
    desk.ledger.apply(Caller("b"), Reserve(KEY, "b"))
    assert named(desk.finish()) == [("b", "Reserved")]
    assert [entry.id for entry in desk.disk.values()] == [2]
    assert desk.tallies == {OWNER: Tally(records=1, pending=1)}


def test_a_sweep_before_its_time_or_of_nothing_does_nothing() -> None:
    desk = Desk()
    desk.one(Reserve(KEY, "a"))
    desk.now += LEASE_MS - 1
    assert desk.sweep(KEY, OTHER) == []
    assert (desk.work.puts, desk.work.deletes) == ({}, {})


def test_counts_follow_every_step() -> None:
    desk = Desk(settings(on_doubt=OnDoubt.RETRY))
    seen = []
    for command in (Reserve(KEY, "a"), Doubt(KEY, 1), Commit(KEY, 1), Reserve(OTHER, "b"), Release(OTHER, 2)):
        desk.one(command)
        seen.append(desk.tallies[OWNER])
    assert seen == [
        Tally(records=1, pending=1),
        Tally(records=1, in_doubt=1),
        Tally(records=1, committed=1),
        Tally(records=2, committed=1, pending=1),
        Tally(records=2, committed=1),
    ]
    desk.now += TTL_MS
    desk.sweep(KEY, OTHER)
    assert desk.tallies[OWNER] == Tally()


def test_a_fingerprint_of_another_rule_is_counted() -> None:
    """Section 9: treated as absent and counted."""
    desk = Desk()
    desk.one(Reserve(KEY, "a", Fingerprint("one", CALLER_RULE)))
    assert desk.work.rule_changes == 0
    desk.one(Reserve(KEY, "b", Fingerprint("two", "v1")))
    assert desk.work.rule_changes == 1


# ------------------------------------------------------------------------------------------------------ quota


def test_the_quota_refuses_the_new_key_and_no_other() -> None:
    """Rule 10: live records are never evicted; a released key's tombstone counts, together with its record once."""
    desk = Desk(settings(records_max=2))
    desk.one(Reserve(KEY, "a"))
    desk.one(Reserve(OTHER, "b"))
    assert desk.one(Reserve(THIRD, "c")) == desk.one(Accept(THIRD, "c")) == QuotaExceeded(2)
    assert isinstance(desk.one(Reserve(FOREIGN, "c")), Reserved)
    desk.one(Release(KEY, 1))
    assert desk.one(Reserve(THIRD, "c")) == QuotaExceeded(2)
    assert isinstance(desk.one(Reserve(KEY, "d")), Reserved)
    assert desk.census.total(OWNER) == 2
    desk.now += TTL_MS
    desk.sweep(KEY)
    assert desk.census.total(OWNER) == 2
    assert isinstance(desk.one(Forget(OTHER, force=True)), object)
    assert isinstance(desk.one(Reserve(THIRD, "c")), Reserved)


def test_the_quota_counts_within_a_batch_and_over_all_shards() -> None:
    """Rule 10: per tenant and namespace, whichever shards its keys are in."""
    census = Census()
    policy = settings(records_max=3)
    desk, neighbour = Desk(policy, census=census), Desk(policy, census=census, shard=1)
    neighbour.one(Reserve(KEY, "a"))
    answers = desk.ask(*((f"c{i}", Reserve(Identity("acme", "trade", f"k{i}"), None)) for i in range(4)))
    assert named(answers) == [("c0", "Reserved"), ("c1", "Reserved"), ("c2", "QuotaExceeded"), ("c3", "QuotaExceeded")]
    neighbour.one(Forget(KEY, force=True))
    assert isinstance(desk.one(Reserve(THIRD, None)), Reserved)


def test_a_tombstone_alone_leaves_the_quota_when_it_ends() -> None:
    """Section 2: a tombstone counts as a record, for its ttl."""
    desk = Desk(settings(records_max=1))
    desk.one(Reserve(KEY, "a"))
    desk.one(Release(KEY, 1))
    assert desk.one(Reserve(OTHER, "b")) == QuotaExceeded(1)
    desk.now += TTL_MS
    desk.sweep(KEY)
    assert isinstance(desk.one(Reserve(OTHER, "b")), Reserved)


# ------------------------------------------------------------------------------------------------------- incidents


def test_incidents_are_counted_once_and_counted_out() -> None:
    """Rule 4 and section 12: one for each operation and token, kept until an operator acknowledges it."""
    desk = Desk()
    desk.one(Reserve(KEY, "a"))
    desk.now += LEASE_MS
    desk.one(Reserve(KEY, "b"))
    assert desk.one(Commit(KEY, 1, DONE)) == Stale(2)
    assert [(i.token, i.present_token, i.outcome) for i in desk.work.incidents] == [(1, 2, DONE)]
    assert desk.tallies[OWNER] == Tally(records=1, pending=1, contested=1, incidents=1)
    desk.load()
    assert desk.one(Commit(KEY, 1, DONE)) == Stale(2)
    assert desk.work.incidents == []
    desk.begin([])
    desk.ledger.acknowledge(OWNER)
    desk.finish()
    assert desk.tallies[OWNER].incidents == 0
    assert desk.one(Commit(KEY, 1, DONE)) == Stale(2)
    assert desk.tallies[OWNER].incidents == 0
    desk.one(Release(KEY, 2))
    assert desk.tallies[OWNER] == Tally(records=1)
    assert desk.ask(("late", Commit(KEY, 2)), ("late", Commit(KEY, 2))) == [("late", Stale(None))] * 2
    assert len(desk.work.incidents) == 1
    assert desk.tallies[OWNER] == Tally(records=1, incidents=1)


# --------------------------------------------------------------------------------------------------------- forgetting


def test_a_forgotten_key_leaves_its_proofs_and_announcements_empty() -> None:
    desk = Desk()
    desk.ledger.outbox.recalled = True
    desk.one(Reserve(KEY, "a"))
    desk.now += LEASE_MS
    desk.one(Reserve(KEY, "b"))
    event = NewEvent("text/plain", b"secret")
    late, done, forget = Commit(KEY, 1, DONE), Commit(KEY, 2, DONE, events=(event,)), Forget(KEY)
    # All of it in one batch: what is new is emptied before it is written.
    desk.ask(("late", late), ("done", done), ("operator", forget))
    assert desk.work.emptied == [KEY]
    assert [each.outcome for each in desk.work.incidents] == [Outcome(DONE.status, omitted=True)]
    assert [(each.content.body, each.content.headers) for each in desk.work.events] == [(b"", (OMITTED,))]
    # Nor does it take a record: an incident outlives that.
    assert desk.one(forget) == NothingToForget()
    assert desk.work.emptied == [KEY]


def test_what_is_refused_or_has_left_nothing_empties_nothing() -> None:
    desk = Desk()
    desk.ledger.outbox.recalled = True
    desk.one(Reserve(KEY, "a"))
    desk.one(Commit(KEY, 1, DONE))
    assert desk.one(Forget(KEY)) == Forgotten()
    assert desk.work.emptied == []
    desk.one(Reserve(KEY, "b"))
    desk.ledger.tallies[OWNER].incidents = 1
    assert desk.one(Forget(KEY)) == Unsettled()
    assert desk.work.emptied == []


# --------------------------------------------------------------------------------------------------------- listings


def test_a_listing_shows_what_time_has_made_of_a_record() -> None:
    """Section 12: ``state=in_doubt`` finds the lapsed too, swept or not."""
    desk = Desk()
    desk.one(Reserve(KEY, "a"))
    [entry] = desk.disk.values()
    shown = visible(entry, desk.policy, START + LEASE_MS)
    assert shown is not None
    assert shown.record is not None
    assert shown.record.state is State.LAPSED
    assert visible(entry, desk.policy, START + LEASE_MS + UNRESOLVED_MS) is None
    desk.one(Release(KEY, 1))
    [entry] = desk.disk.values()
    assert visible(entry, desk.policy, START) is None
