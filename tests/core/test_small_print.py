"""What section 12 of the contract ("small print") and the text under the state table say of the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.ids import uuid7
from idemactor.core.policy import OnDoubt, OnLeaseExpiry
from idemactor.core.record import Outcome, State
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Doubted,
    Extended,
    InDoubt,
    InFlight,
    Released,
    Reserved,
    Stale,
    Unknown,
    Withdrawn,
)
from tests.core.situations import DONE, KEY, LEASE_MS, START, TTL_MS, UNRESOLVED_MS, Play, settings

# ------------------------------------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize("swept", [False, True])
def test_a_lease_ends_at_its_deadline_exactly(swept: bool) -> None:
    """Section 3: at ``now >= deadline`` a record behaves as expired whether or not the alarm has removed it."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS - 1)
    assert play.reserve("b") == InFlight(1, None, START, START + LEASE_MS, 1)
    play.after(1)
    if swept:
        play.swept()
    assert isinstance(play.reserve("b"), Reserved)


@pytest.mark.parametrize("swept", [False, True])
def test_a_committed_record_ends_at_its_deadline_exactly(swept: bool) -> None:
    """Section 2: ttl counts from the commit."""
    play = Play()
    play.reserve("a")
    play.after(50).commit(1)
    play.after(TTL_MS - 1)
    assert play.record.expires_at == START + 50 + TTL_MS
    play.after(1)
    if swept:
        play.swept()
    assert play.get() == Unknown()
    assert play.commit(1) == Unknown()


@pytest.mark.parametrize(
    ("of_commit", "of_reserve", "blocks_for"), [(7, 70, 7), (None, 70, 70), (None, None, TTL_MS), (7, None, 7)]
)
def test_the_commits_ttl_overrides_the_reserves_and_that_the_namespaces(
    of_commit: int | None, of_reserve: int | None, blocks_for: int
) -> None:
    """Section 3: commit's ttl_ms overrides reserve's, reserve's the namespace's."""
    play = Play()
    play.reserve("a", ttl_ms=of_reserve)
    assert play.after(3).commit(1, None, of_commit) == Committed(play.now + blocks_for, repeated=False)


def test_a_window_counts_from_first_sighting() -> None:
    """Section 12: window_ms counts from first_seen_at; after its end a commit keeps the record for ttl_ms."""
    play = Play()
    play.reserve("a", window_ms=60)
    assert play.after(20).commit(1) == Committed(START + 60, repeated=False)
    late = Play()
    late.reserve("a", window_ms=60)
    assert late.after(60).commit(1) == Committed(START + 60 + TTL_MS, repeated=False)
    own = Play()
    own.reserve("a", window_ms=60)
    assert own.commit(1, None, 5) == Committed(START + 5, repeated=False)
    assert Play().accept("a", window_ms=60) == Accepted(uuid7(START, 0), 1, START + 60, repeated=False)


def test_a_takeovers_window_counts_from_the_operations_first_sighting() -> None:
    """Section 12: a takeover brings its own ttl; the operation, with its first sighting, is the operation's."""
    play = Play()
    play.reserve("a", window_ms=10)
    play.after(LEASE_MS)
    play.reserve("b", window_ms=500)
    assert play.commit(2) == Committed(START + 500, repeated=False)


@pytest.mark.parametrize(
    ("given", "lives_for"), [({}, TTL_MS), ({"ttl_ms": 30}, 30), ({"window_ms": 60}, 40), ({"window_ms": 20}, TTL_MS)]
)
def test_a_tombstone_lives_for_the_ttl_that_a_commit_would_have_had(given: dict[str, int], lives_for: int) -> None:
    """Section 12; the release comes 20 ms after the reserve."""
    play = Play()
    play.reserve("a", **given)
    play.after(20).release(1)
    play.after(lives_for - 1)
    assert play.reserve("a") == Withdrawn()
    play.after(1)
    assert isinstance(play.reserve("a"), Reserved)


# ----------------------------------------------------------------------------------------------------------- extend


def test_an_extended_lease_ends_at_now_plus_lease_ms_whatever_was_left() -> None:
    """Section 3: sooner or later than before; the alarm moves along."""
    play = Play()
    play.reserve("a")
    play.after(10)
    assert play.extend(1, 5) == Extended(START + 15)
    assert play.extend(1, 500) == Extended(START + 510)
    assert play.entry is not None
    assert play.entry.alarm_at == START + 510
    assert isinstance(play.after(499).reserve("b"), InFlight)


def test_no_attempt_is_carried_beyond_its_maximum() -> None:
    """Section 12: an extension beyond lease_total_max_ms is cut, and the answer says where it ends."""
    play = Play(settings(lease_total_max_ms=150))
    play.reserve("a")
    assert play.after(90).extend(1, 100) == Extended(START + 150)
    assert play.after(30).extend(1, 30) == Extended(START + 150)
    assert play.after(30).extend(1, 30) == Extended(START + 150)
    assert play.record.state is State.LAPSED
    taken = play.reserve("b")
    assert isinstance(taken, Reserved)
    assert taken.lease_expires_at == play.now + LEASE_MS
    assert play.extend(2, 1_000) == Extended(play.now + 150)


def test_no_reserve_begins_beyond_the_maximum() -> None:
    """Section 3: no attempt is carried beyond lease_total_max_ms from its reserve, whoever asks for it."""
    granted = Play(settings(lease_total_max_ms=150)).reserve("a", lease_ms=1_000)
    assert isinstance(granted, Reserved)
    assert granted.lease_expires_at == START + 150


def test_a_lapsed_attempt_that_is_extended_is_pending_again() -> None:
    """Section 3: extended, pending again; and it may lapse again, with a full unresolved_ttl_ms."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS + UNRESOLVED_MS - 1).swept()
    assert play.extend(1, LEASE_MS) == Extended(play.now + LEASE_MS)
    assert isinstance(play.reserve("b"), InFlight)
    assert play.after(LEASE_MS + UNRESOLVED_MS - 1).swept().record.state is State.LAPSED


def test_extending_a_doubted_attempt_says_what_is_known() -> None:
    """Section 3: match and doubted: in_doubt."""
    play = Play()
    granted = play.reserve("a", holder="h")
    assert isinstance(granted, Reserved)
    play.doubt(1, "lost the line")
    expected = InDoubt(1, granted.operation_id, "h", START, START + LEASE_MS, "lost the line")
    assert play.extend(1, 10) == play.reserve("b") == expected


# --------------------------------------------------------------------------------------------------------- takeover


def test_a_takeover_brings_its_own_holder_request_id_lease_and_ttl() -> None:
    """Section 12: fingerprint and operation are the operation's; reserved_at is the attempt's."""
    one = Fingerprint("one", CALLER_RULE)
    play = Play()
    first = play.reserve("a", holder="h1", lease_ms=40, ttl_ms=70, fingerprint=one)
    assert isinstance(first, Reserved)
    play.doubt(1, "why")
    play.policy = settings(on_doubt=OnDoubt.RETRY)
    second = play.after(40).reserve("b", holder="h2", lease_ms=33)
    assert second == Reserved(
        key=KEY.key,
        token=2,
        attempt=2,
        operation_id=first.operation_id,
        reserved_at=START + 40,
        lease_expires_at=START + 73,
        repeated=False,
    )
    record = play.record
    assert (record.holder, record.request_id, record.fingerprint) == ("h2", "b", one)
    assert (record.first_seen_at, record.reserved_at, record.reason) == (START, START + 40, None)
    assert play.reserve("b") == replace(second, repeated=True)
    assert isinstance(play.reserve("a"), InFlight)
    assert play.commit(2) == Committed(play.now + TTL_MS, repeated=False)


def test_a_doubted_lease_has_to_be_over_before_another_goes_on() -> None:
    """Section 3: doubted and on_doubt = "retry" and its lease over."""
    play = Play(settings(on_doubt=OnDoubt.RETRY))
    play.reserve("a")
    play.doubt(1)
    play.after(LEASE_MS - 1)
    assert isinstance(play.reserve("b"), InDoubt)
    assert isinstance(play.after(1).reserve("b"), Reserved)


def test_on_lease_expiry_and_on_doubt_are_those_of_today() -> None:
    """Section 12: of today's configuration, whatever it was at the reserve."""
    play = Play(settings(on_lease_expiry=OnLeaseExpiry.HOLD))
    play.reserve("a")
    play.after(LEASE_MS)
    assert isinstance(play.reserve("b"), InDoubt)
    play.policy = settings(on_lease_expiry=OnLeaseExpiry.RETRY)
    assert isinstance(play.reserve("b"), Reserved)
    play.after(LEASE_MS).doubt(2)
    assert isinstance(play.reserve("c"), InDoubt)
    play.policy = settings(on_doubt=OnDoubt.RETRY)
    assert isinstance(play.reserve("c"), Reserved)


def test_one_operation_id_for_all_attempts_and_a_new_one_for_the_next_operation() -> None:
    """Section 1: one stable operation_id per operation, the same for every attempt."""
    play = Play()
    first = play.reserve("a")
    second = play.after(LEASE_MS).reserve("b")
    third = play.after(LEASE_MS).accept("c")
    assert isinstance(first, Reserved)
    assert isinstance(second, Reserved)
    assert isinstance(third, Accepted)
    assert first.operation_id == second.operation_id == third.operation_id == uuid7(START, 0)
    fourth = play.after(TTL_MS).reserve("d")
    assert isinstance(fourth, Reserved)
    assert fourth.operation_id != first.operation_id
    assert fourth.token > second.token


def test_late_but_nobody_took_over() -> None:
    """Section 3: commit on in doubt, match: committed; then nothing of the lease is left."""
    for said in (False, True):
        play = Play(settings(on_lease_expiry=OnLeaseExpiry.HOLD))
        play.reserve("a")
        if said:
            play.doubt(1)
        play.after(20 * LEASE_MS).swept()
        assert play.commit(1, DONE) == Committed(play.now + TTL_MS, repeated=False)
        record = play.record
        assert (record.state, record.token, record.lease_expires_at) == (State.COMMITTED, 1, None)
        assert record.committed_at == play.now


def test_doubting_what_has_lapsed_is_news() -> None:
    """Section 3: the first reason stays; a lapse has none, so the holder's word is the first."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS)
    assert play.doubt(1, "lost") == Doubted(repeated=False)
    assert isinstance(play.reserve("b"), InDoubt)
    assert play.doubt(1, "again") == Doubted(repeated=True)
    assert play.record.reason == "lost"


def test_resolve_speaks_of_what_it_found() -> None:
    """Section 3: verdict committed on a committed record is a repeat, any other verdict is too late."""
    play = Play()
    play.accept("a", outcome=DONE)
    assert play.resolve(1, "committed", Outcome(500)) == Committed(START + TTL_MS, repeated=True)
    assert play.resolve(1, "released") == AlreadyCommitted(START, START + TTL_MS)
    assert play.record.outcome == DONE


def test_a_released_key_is_free_at_once() -> None:
    """Section 3: pending -> absent; the next is a new operation, its tokens above the last."""
    play = Play()
    first = play.reserve("a")
    assert play.release(1) == Released(repeated=False)
    second = play.reserve("b")
    assert isinstance(first, Reserved)
    assert isinstance(second, Reserved)
    assert (second.attempt, second.token, second.takeover) == (1, 2, False)
    assert second.operation_id != first.operation_id
    assert play.extend(1, 5) == play.doubt(1) == Stale(1)


def test_what_is_left_of_the_lease_is_at_least_one() -> None:
    """Section 12: retry_after_ms is what is left of the lease, at least 1."""
    play = Play()
    play.reserve("a", holder="h")
    for left in (LEASE_MS, 2, 1):
        play.now = START + LEASE_MS - left
        assert play.reserve("b") == InFlight(1, "h", START, START + LEASE_MS, left)


# ------------------------------------------------------------------------------------------------------- the alarms


def test_the_alarm_is_set_to_the_next_deadline() -> None:
    """Section 7: one alarm, the earliest deadline, of the record or of the tombstone beside it."""
    play = Play()

    def alarm() -> int | None:
        return play.entry.alarm_at if play.entry else None

    play.reserve("a", ttl_ms=LEASE_MS + 50)
    assert alarm() == START + LEASE_MS
    play.release(1)
    assert alarm() == START + LEASE_MS + 50
    play.reserve("b")
    assert alarm() == START + LEASE_MS
    play.doubt(2)
    assert alarm() == START + LEASE_MS + 50
    play.after(LEASE_MS + 50).swept()
    assert alarm() is None
    play.commit(2, None, 10)
    assert alarm() == play.now + 10
    assert play.after(10).swept().entry is None


def test_a_lapse_is_noted_by_the_alarm_and_the_next_one_set() -> None:
    """Rule 5: the alarm of a lapsed record is the end of its time, or never where it is held."""
    for policy, next_alarm in (
        (settings(), START + LEASE_MS + UNRESOLVED_MS),
        (settings(on_lease_expiry=OnLeaseExpiry.HOLD), None),
    ):
        play = Play(policy)
        play.reserve("a")
        play.after(LEASE_MS).swept()
        assert play.entry is not None
        assert play.entry.record is not None
        assert play.entry.record.state is State.LAPSED
        assert play.entry.alarm_at == next_alarm
        before = play.entry
        assert play.swept().entry is before
