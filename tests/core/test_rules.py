"""The eleven rules that the state table cannot show (contract, section 3), where the core is who keeps them.

Waiting (rule 6) and the counting side of the quota (rule 10) are in ``test_ledger.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from idemactor.core import limits
from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry
from idemactor.core.record import EarlierToken, Incident, Outcome, State
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Completed,
    Doubted,
    Extended,
    Forgotten,
    InDoubt,
    InFlight,
    Mismatch,
    NothingToForget,
    QuotaExceeded,
    Released,
    Reserved,
    Stale,
    Unknown,
    Unsettled,
    Withdrawn,
)
from tests.core.situations import DONE, KEY, LEASE_MS, START, TTL_MS, UNRESOLVED_MS, Play, settings

ONE = Fingerprint("one", CALLER_RULE)
TWO = Fingerprint("two", CALLER_RULE)
OTHER_RULE = Fingerprint("two", "v1:0123456789abcdef")


# ------------------------------------------------------------------------------------------------ 1: fingerprints


def test_rule_1_mismatch_wins_over_in_flight_and_over_a_repeat() -> None:
    """Rule 1: a different fingerprint answers mismatch before anything else in the row."""
    play = Play()
    play.reserve("r", fingerprint=ONE)
    assert play.reserve("r", fingerprint=TWO) == Mismatch()
    assert play.accept("r", fingerprint=TWO) == Mismatch()


def test_rule_1_mismatch_comes_before_the_tombstone() -> None:
    """Rule 3 of section 12: only a mismatch comes before what a tombstone knows."""
    play = Play()
    play.reserve("dead")
    play.release(1)
    play.reserve("new", fingerprint=ONE)
    assert play.reserve("dead", fingerprint=TWO) == Mismatch()
    assert play.reserve("dead", fingerprint=ONE) == Withdrawn()


def test_rule_1_a_side_that_gives_none_matches_any() -> None:
    """Rule 1: a side that gives none matches any."""
    play = Play()
    play.reserve("r", fingerprint=ONE)
    assert isinstance(play.reserve("other"), InFlight)
    play = Play()
    play.reserve("r")
    assert isinstance(play.reserve("other", fingerprint=ONE), InFlight)


def test_rule_1_only_a_granted_call_gives_a_fingerprint() -> None:
    """Section 12: only a call that was granted gives a fingerprint."""
    play = Play()
    play.reserve("r")
    play.reserve("other", fingerprint=ONE)
    assert play.record.fingerprint is None
    assert isinstance(play.reserve("third", fingerprint=TWO), InFlight)


def test_rule_1_the_first_one_sticks_through_takeover_and_commit() -> None:
    """Rule 1: the first one given sticks, through commit and takeover."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS)
    play.reserve("b", fingerprint=ONE)
    assert play.record.fingerprint == ONE
    play.after(LEASE_MS)
    play.reserve("c")
    assert play.record.fingerprint == ONE
    play.commit(3, DONE)
    assert play.record.fingerprint == ONE
    assert play.reserve("d", fingerprint=TWO) == Mismatch()


def test_rule_1_a_new_operation_has_its_own_fingerprint() -> None:
    """Rule 1 speaks of a live record: one that time has ended holds nobody to its fingerprint."""
    play = Play()
    play.accept("a", fingerprint=ONE)
    play.after(TTL_MS)
    assert isinstance(play.reserve("b", fingerprint=TWO), Reserved)
    assert play.record.fingerprint == TWO


def test_section_9_two_sources_never_mean_one_operation() -> None:
    """Section 9: what two senders send under one key is a mismatch, whatever else stands in the row."""
    stripe, github = Fingerprint("one", "source:stripe:aa"), Fingerprint("one", "source:github:bb")
    play = Play()
    play.reserve("a", fingerprint=stripe)
    assert not play.decision_of_reserve("b", github).rule_changed
    assert isinstance(play.reserve("b", fingerprint=github), Mismatch)
    play.after(LEASE_MS)
    assert isinstance(play.reserve("b", fingerprint=github), Mismatch)
    changed = play.decision_of_reserve("b", Fingerprint("two", "source:stripe:cc"))
    assert isinstance(changed.reply, Reserved)
    assert changed.rule_changed


def test_section_9_one_made_under_another_rule_is_absent_and_counted() -> None:
    """Section 9: one made under another rule is treated as absent and counted, never as a mismatch."""
    play = Play()
    play.reserve("a", fingerprint=ONE)
    made = play.decision_of_reserve("b", OTHER_RULE)
    assert isinstance(made.reply, InFlight)
    assert made.rule_changed
    assert not play.decision_of_reserve("b", TWO).rule_changed
    assert not play.decision_of_reserve("b", None).rule_changed
    play.after(LEASE_MS)
    made = play.decision_of_reserve("b", OTHER_RULE)
    assert isinstance(made.reply, Reserved)
    assert made.rule_changed
    assert play.record.fingerprint == OTHER_RULE


# ------------------------------------------------------------------------------------------------ 2: lost answers


def test_rule_2_reserve_is_repeatable_with_its_request_id() -> None:
    """Rule 2: the same reserved again, whatever else the call carries (section 12)."""
    play = Play()
    first = play.reserve("r", holder="h")
    assert isinstance(first, Reserved)
    play.after(LEASE_MS - 1)
    again = play.reserve("r", holder="other", lease_ms=5, ttl_ms=9, on_duplicate=OnDuplicate.REJECT)
    assert again == replace(first, repeated=True)
    assert play.tokens == 1


def test_rule_2_without_a_request_id_nobody_is_the_same_caller() -> None:
    """Rule 2: no request_id names no acquisition, so that none is repeated."""
    play = Play()
    play.reserve(None)
    assert isinstance(play.reserve(None), InFlight)
    play = Play()
    play.accept(None, outcome=DONE)
    assert isinstance(play.accept(None, outcome=DONE), Completed)


def test_rule_2_after_the_lease_it_is_a_caller_like_any_other() -> None:
    """Section 12: after the lease, the same request_id is a caller like any other."""
    play = Play()
    play.reserve("r")
    play.after(LEASE_MS)
    taken = play.reserve("r")
    assert isinstance(taken, Reserved)
    assert (taken.attempt, taken.repeated, taken.takeover) == (2, False, True)
    held = Play(settings(on_lease_expiry=OnLeaseExpiry.HOLD))
    held.reserve("r")
    assert isinstance(held.after(LEASE_MS).reserve("r"), InDoubt)


def test_rule_2_accept_is_repeatable_with_its_request_id() -> None:
    """Rule 2, and section 12: accept repeats only what it answered itself."""
    play = Play()
    first = play.accept("r", outcome=DONE)
    assert isinstance(first, Accepted)
    assert play.after(5).accept("r", outcome=Outcome(500)) == replace(first, repeated=True)
    assert play.record.outcome == DONE
    assert isinstance(play.reserve("r"), Completed)
    play = Play()
    play.reserve("r")
    assert isinstance(play.accept("r"), InFlight)
    play.commit(1, DONE)
    assert isinstance(play.accept("r"), Completed)


def test_rule_2_the_others_are_repeatable_as_they_stand() -> None:
    """Rule 2: commit, release, doubt and resolve say the same again, and the first outcome and reason stay."""
    play = Play()
    play.reserve("r")
    assert play.doubt(1, "first") == Doubted(repeated=False)
    assert play.after(1).doubt(1, "second") == Doubted(repeated=True)
    assert play.record.reason == "first"
    done = play.commit(1, DONE)
    assert done == Committed(play.now + TTL_MS, repeated=False)
    assert play.after(1).commit(1, Outcome(500), 5) == replace(done, repeated=True)
    assert play.record.outcome == DONE
    assert play.resolve(1, "committed", Outcome(500)) == replace(done, repeated=True)


# -------------------------------------------------------------------------------------------------- 3: tombstones


def test_rule_3_a_repeated_release_gets_its_first_answer_while_the_tombstone_lives() -> None:
    """Rule 3, and section 12: tombstones live for the ttl that a commit would have had."""
    play = Play()
    play.reserve("r", ttl_ms=50)
    assert play.release(1) == Released(repeated=False)
    play.after(49)
    assert play.release(1) == Released(repeated=True)
    play.after(1)
    assert play.release(1) == Unknown()


def test_rule_3_also_beside_a_newer_attempt() -> None:
    """Rule 3: while it lives, also beside a newer attempt, which it does not touch."""
    play = Play()
    play.reserve("dead")
    play.release(1)
    play.reserve("new")
    before = play.entry
    assert play.release(1) == Released(repeated=True)
    assert play.resolve(1, "released") == Released(repeated=True)
    assert play.reserve("dead") == Withdrawn()
    assert play.accept("dead") == Withdrawn()
    assert play.entry == before
    play.after(TTL_MS)
    play.policy = settings(on_lease_expiry=OnLeaseExpiry.HOLD)
    assert isinstance(play.reserve("dead"), InDoubt)
    assert play.release(1) == Stale(1)


def test_rule_3_release_and_resolve_to_released_repeat_each_other() -> None:
    """Section 12: a release after a resolve to released, or the reverse, is a repeat of the other."""
    play = Play()
    play.reserve("r")
    play.doubt(1)
    assert play.resolve(1, "released") == Released(repeated=False)
    assert play.release(1) == Released(repeated=True)
    assert play.resolve(1, "released") == Released(repeated=True)
    assert play.reserve("r") == Withdrawn()


def test_rule_3_the_latest_release_is_the_one_remembered() -> None:
    """Section 2: a tombstone is what the latest released attempt leaves."""
    play = Play()
    play.reserve("a")
    play.release(1)
    play.reserve("b")
    play.release(2)
    assert play.release(1) == Unknown()
    assert play.release(2) == Released(repeated=True)
    assert play.commit(1) == Unknown()
    assert play.reserve("b") == Withdrawn()
    assert isinstance(play.reserve("a"), Reserved)


def test_rule_3_a_release_without_request_id_stops_nobody() -> None:
    """Rule 3: a tombstone without a request_id recognises no reserve."""
    play = Play()
    play.reserve(None)
    play.release(1)
    granted = play.reserve(None)
    assert isinstance(granted, Reserved)
    assert (granted.attempt, granted.takeover) == (1, False)


def test_rule_3_a_commit_with_its_token_is_stale_and_an_incident() -> None:
    """Rule 3, and section 12: stale with attempt null where nothing else is there."""
    play = Play()
    granted = play.reserve("r")
    assert isinstance(granted, Reserved)
    play.release(1)
    play.after(7)
    assert play.commit(1, DONE) == Stale(None)
    assert play.incidents == [Incident(KEY, granted.operation_id, 1, None, START + 7, DONE)]
    assert play.get() == Unknown()


# --------------------------------------------------------------------------------------------------- 4: incidents


def test_rule_4_a_late_commit_of_an_earlier_attempt_is_evidence() -> None:
    """Rule 4: changes nothing for the present holder, answers stale, marks contested, and is stored."""
    play = Play()
    first = play.reserve("a")
    assert isinstance(first, Reserved)
    play.after(LEASE_MS)
    second = play.reserve("b")
    assert isinstance(second, Reserved)
    assert play.commit(first.token, DONE) == Stale(2)
    assert play.incidents == [Incident(KEY, first.operation_id, first.token, second.token, play.now, DONE)]
    assert play.record.contested
    assert play.reserve("b") == replace(second, repeated=True)
    assert play.commit(second.token) == Committed(play.now + TTL_MS, repeated=False)
    assert play.record.contested
    assert play.record.outcome is None


def test_rule_4_one_incident_for_each_operation_and_token() -> None:
    """Section 12: incidents, one for each operation and token; an acknowledged one does not come back."""
    play = Play()
    for name in ("a", "b", "c"):
        play.reserve(name)
        play.after(LEASE_MS)
    for token in (1, 1, 2, 1, 2):
        assert play.commit(token) == Stale(3)
    assert [incident.token for incident in play.incidents] == [1, 2]
    play.reserve("d")
    assert play.commit(1) == Stale(4)
    assert len(play.incidents) == 2
    play.release(4)
    assert play.commit(4) == play.commit(4) == Stale(None)
    assert [incident.token for incident in play.incidents] == [1, 2, 4]


def test_rule_4_a_buried_token_contests_the_newer_operation() -> None:
    """Rule 4: or to the tombstone: the record beside it is marked contested, the incident names the dead operation."""
    play = Play()
    dead = play.reserve("a")
    assert isinstance(dead, Reserved)
    play.release(1)
    alive = play.reserve("b")
    assert isinstance(alive, Reserved)
    assert play.commit(1, DONE) == Stale(1)
    assert play.record.contested
    assert alive.operation_id != dead.operation_id
    assert play.incidents == [Incident(KEY, dead.operation_id, 1, 2, START, DONE)]


def test_rule_4_a_buried_token_contests_also_what_came_after_its_incident() -> None:
    """Rule 4 and section 12: one incident for each token, but the mark is the record's that stands beside it."""
    play = Play()
    play.reserve("a")
    play.release(1)
    assert play.commit(1, DONE) == Stale(None)
    play.reserve("b")
    assert not play.record.contested
    assert play.commit(1, DONE) == Stale(1)
    assert play.record.contested
    assert [incident.token for incident in play.incidents] == [1]


def test_rule_4_the_latest_sixteen_are_remembered() -> None:
    """Rule 4: the latest 16 are remembered; an older token is merely stale."""
    play = Play()
    for _ in range(limits.EARLIER_TOKENS_MAX + 2):
        play.reserve()
        play.after(LEASE_MS)
    assert play.record.earlier == tuple(EarlierToken(token) for token in range(2, 18))
    assert play.commit(1) == Stale(18)
    assert play.incidents == []
    assert play.commit(2) == Stale(18)
    assert [incident.token for incident in play.incidents] == [2]


def test_rule_4_a_token_of_another_operation_or_of_nobody_is_no_evidence() -> None:
    """Rule 4: of an earlier attempt of the same operation, or of the tombstone; nothing else."""
    play = Play()
    play.accept("a")
    play.after(TTL_MS)
    play.reserve("b")
    for token in (1, 3, limits.TOKEN_MAX):
        assert play.commit(token) == Stale(1)
    assert play.incidents == []
    assert not play.record.contested


def test_rule_4_evidence_also_against_a_committed_record() -> None:
    """Rule 4: both attempts did succeed: this is the duplicate that the incident is for."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS)
    play.accept("b", outcome=DONE)
    assert play.commit(1, Outcome(202)) == Stale(2)
    assert play.record.contested
    assert play.record.outcome == DONE
    assert [incident.outcome for incident in play.incidents] == [Outcome(202)]


def test_rule_4_contested_stays_through_a_takeover() -> None:
    """Rule 4: the mark is the operation's, not the attempt's."""
    play = Play()
    play.reserve("a")
    play.after(LEASE_MS)
    play.reserve("b")
    play.commit(1)
    play.after(LEASE_MS)
    play.reserve("c")
    assert play.record.contested


def test_rule_4_the_late_outcome_is_bounded_too() -> None:
    """Rules 4 and 7: a late outcome over the size is kept as its status."""
    play = Play(settings(outcome_max_bytes=3))
    play.reserve("a")
    play.release(1)
    play.commit(1, Outcome(200, (), b"long"))
    assert [incident.outcome for incident in play.incidents] == [Outcome(200, omitted=True)]


# ----------------------------------------------------------------------------------------------- 5: never settled


@pytest.mark.parametrize("swept", [False, True])
def test_rule_5_a_lapsed_record_stays_for_unresolved_ttl_ms_after_its_lease(swept: bool) -> None:
    """Rule 5: under retry it stays, evidence intact, at most unresolved_ttl_ms after its lease."""
    play = Play()
    first = play.reserve("a")
    assert isinstance(first, Reserved)
    play.after(LEASE_MS + UNRESOLVED_MS - 1)
    if swept:
        play.swept()
    assert play.record.state is State.LAPSED
    play.after(1)
    if swept:
        play.swept()
        assert play.entry is None
    again = play.reserve("b")
    assert isinstance(again, Reserved)
    assert (again.attempt, again.takeover) == (1, False)
    assert again.operation_id != first.operation_id


@pytest.mark.parametrize("swept", [False, True])
def test_rule_5_held_or_doubted_stays_until_someone_resolves_it(swept: bool) -> None:
    """Rule 5: no alarm ever deletes an unresolved record otherwise."""
    held = Play(settings(on_lease_expiry=OnLeaseExpiry.HOLD))
    held.reserve("a")
    doubted = Play(settings(on_doubt=OnDoubt.RETRY))
    doubted.reserve("a")
    doubted.doubt(1)
    lapsed_then_doubted = Play()
    lapsed_then_doubted.reserve("a")
    lapsed_then_doubted.after(LEASE_MS).swept().doubt(1)
    for play in (held, doubted, lapsed_then_doubted):
        play.after(400 * limits.DAY_MS)
        if swept:
            play.swept()
        assert play.record.attempt == 1
        assert play.entry is not None
        assert play.resolve(1, "released") == Released(repeated=False)


def test_rule_5_asking_for_more_time_gives_nothing_up() -> None:
    """Rule 5: an extension that gains nothing does not bring the end of an unresolved record nearer."""
    policy = settings(on_lease_expiry=OnLeaseExpiry.HOLD, lease_total_max_ms=LEASE_MS)
    play = Play(policy)
    play.reserve("a")
    play.after(LEASE_MS + UNRESOLVED_MS)
    play.policy = replace(policy, on_lease_expiry=OnLeaseExpiry.RETRY)
    assert play.extend(1, LEASE_MS) == Extended(START + LEASE_MS)
    assert play.record.state is State.LAPSED
    taken = play.reserve("b")
    assert isinstance(taken, Reserved)
    assert taken.takeover


# ------------------------------------------------------------------------------------------ 7 and 8: what it answers


def test_rule_7_an_outcome_over_the_size_is_omitted_and_still_blocks() -> None:
    """Rule 7: the commit never fails because of its outcome; section 8: body and header text in bytes."""
    play = Play(settings(outcome_max_bytes=6))
    play.reserve("a")
    assert play.commit(1, Outcome(200, (("é", "b"),), b"1234")) == Committed(START + TTL_MS, repeated=False)
    assert play.record.outcome == Outcome(200, (), b"", omitted=True)
    assert isinstance(play.reserve("b"), Completed)
    play = Play(settings(outcome_max_bytes=7))
    fits = Outcome(200, (("é", "b"),), b"1234")
    play.accept("a", outcome=fits)
    assert play.record.outcome == fits


@pytest.mark.parametrize("setting", OnDuplicate)
@pytest.mark.parametrize("own", [None, *OnDuplicate])
def test_rule_8_duplicates_are_replayed_or_rejected(setting: OnDuplicate, own: OnDuplicate | None) -> None:
    """Rule 8: namespace setting, today's (section 12), overridable per call."""
    play = Play()
    play.accept("a", outcome=DONE)
    play.policy = settings(on_duplicate=setting)
    rejected = (own or setting) is OnDuplicate.REJECT
    record = play.record
    expected = Completed(record.operation_id, START, START + TTL_MS, DONE, rejected)
    assert play.reserve("b", on_duplicate=own) == play.accept("b", on_duplicate=own) == expected


# ------------------------------------------------------------------------------- 9, 10 and 11: settings, quota, forget


def test_rule_9_settings_never_free_a_live_key() -> None:
    """Rule 9: deadlines are stored with the record (section 12)."""
    tiny = settings(lease_ms=1, ttl_ms=1, unresolved_ttl_ms=1, lease_total_max_ms=1, records_max=1)
    pending, lapsed, committed, released = Play(), Play(), Play(), Play()
    for play in (pending, lapsed, committed, released):
        play.reserve("a")
    committed.commit(1)
    released.release(1)
    for play in (pending, lapsed, committed, released):
        play.policy = tiny
    assert isinstance(pending.after(LEASE_MS - 1).swept().reserve("b"), InFlight)
    assert lapsed.after(LEASE_MS + UNRESOLVED_MS - 1).swept().record.state is State.LAPSED
    assert isinstance(committed.after(TTL_MS - 1).swept().reserve("b"), Completed)
    assert released.after(TTL_MS - 1).swept().reserve("a") == Withdrawn()


def test_rule_9_a_lower_maximum_takes_no_lease_back() -> None:
    """Rule 9: an extension under a lower ``lease_total_max_ms`` gains nothing, and takes nothing that was granted."""
    play = Play()
    play.reserve("a")
    play.after(60)
    play.policy = settings(lease_total_max_ms=10)
    assert play.extend(1, 10 * LEASE_MS) == Extended(START + LEASE_MS)
    assert isinstance(play.after(39).reserve("b"), InFlight)


def test_rule_9_under_hold_the_deadline_of_retry_is_dropped_once_it_passed() -> None:
    """Rules 5 and 9: a record that was held beyond its deadline is not freed by changing the setting back."""
    play = Play()
    play.reserve("a")
    play.policy = settings(on_lease_expiry=OnLeaseExpiry.HOLD)
    play.after(LEASE_MS + UNRESOLVED_MS).swept()
    assert isinstance(play.reserve("b"), InDoubt)
    play.policy = settings()
    taken = play.after(1).reserve("b")
    assert isinstance(taken, Reserved)
    assert taken.takeover


def test_rule_10_the_quota_refuses_new_keys_only() -> None:
    """Rule 10: refuses the **new** key; nothing that is there is touched by it, tombstones included."""
    full = Play(settings(records_max=5), room=False)
    assert full.reserve("a") == full.accept("a") == QuotaExceeded(5)
    play = Play()
    play.reserve("a")
    play.room = False
    assert isinstance(play.reserve("b"), InFlight)
    assert isinstance(play.after(LEASE_MS).reserve("b"), Reserved)
    play.release(2)
    assert isinstance(play.reserve("c"), Reserved)
    assert play.reserve("b") == Withdrawn()
    assert isinstance(play.commit(3), Committed)


def test_rule_11_forget_wants_force_for_what_is_not_settled() -> None:
    """Rule 11, and section 12: forget of nothing is unknown, and takes the tombstone along."""
    play = Play()
    assert play.forget() == play.forget(force=True) == NothingToForget()
    play.reserve("a")
    assert play.forget() == Unsettled()
    play.after(LEASE_MS)
    assert play.forget() == Unsettled()
    play.doubt(1)
    assert play.forget() == Unsettled()
    assert play.forget(force=True) == Forgotten()
    assert play.entry is None
    play.reserve("a")
    play.release(2)
    play.reserve("b")
    play.commit(3)
    assert play.forget() == Forgotten()
    assert play.release(2) == Unknown()
    assert play.commit(3) == Unknown()


def test_rule_11_an_operator_breaks_a_lease_by_doubt_then_resolve() -> None:
    """Rule 11: while the lease runs resolve is refused; after the operator's doubt it is not."""
    play = Play()
    play.reserve("a", holder="h")
    assert play.resolve(1, "released") == InFlight(1, "h", START, START + LEASE_MS, LEASE_MS)
    assert play.doubt(1, "operator") == Doubted(repeated=False)
    assert play.resolve(1, "committed", DONE) == Committed(START + TTL_MS, repeated=False)
    assert play.commit(1, Outcome(500)) == Committed(START + TTL_MS, repeated=True)
    assert play.release(1) == AlreadyCommitted(START, START + TTL_MS)
    assert play.record.outcome == DONE
