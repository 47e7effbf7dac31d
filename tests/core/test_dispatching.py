"""The rows of the table for what is dispatched, every cell of them, and what time, settings and late words do to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from idemactor.core.commands import Cancel, Claim, Commit, Dispatch, Lapse, Postpone, Release, Reserve, Watch
from idemactor.core.decide import decide
from idemactor.core.decision import Fresh
from idemactor.core.delivery import Ending, Intent, OperationState
from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.limits import OUTBOX_ENTRIES_MAX
from idemactor.core.policy import DispatchPolicy, OnLeaseExpiry
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
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
    NotDue,
    NothingToForget,
    OutboxFull,
    Postponed,
    QuotaExceeded,
    Released,
    Reply,
    Reserved,
    Stale,
    Uncancellable,
    Unknown,
    Unsettled,
    Watched,
)
from tests.core.situations import DONE, KEY, LEASE_MS, START, TTL_MS, Play, settings

INTENT = Intent("application/json", b'{"side":"buy"}', (("x-desk", "7"),))
ONE, TWO = Fingerprint("one", CALLER_RULE), Fingerprint("two", CALLER_RULE)
HORIZON_MS = 50_000
DELAY_MS = 30
NEVER_ISSUED = 2**53 - 1


@dataclass
class Desk(Play):
    """One key that is dispatched."""

    operation_id: str = "none"

    def dispatch(self, fingerprint: Fingerprint | None = ONE, **given: object) -> Reply:
        """Dispatch."""
        reply = self.do(replace(Dispatch(KEY, INTENT, fingerprint), **given))  # type: ignore[arg-type]
        if isinstance(reply, Dispatched):
            self.operation_id = reply.operation_id
        return reply

    def claim(self, lease_ms: int = LEASE_MS) -> Reply:
        """The relay comes for it."""
        return self.do(Claim(KEY, lease_ms, "relay"))

    def postpone(self, token: int, *, perhaps_sent: bool, delay_ms: int = DELAY_MS, absent: bool = False) -> Reply:
        """It is to be tried again."""
        return self.do(Postpone(KEY, token, self.now + delay_ms, perhaps_sent, "503", absent=absent))

    def watch(self, operation_id: str | None = None) -> Reply:
        """Look at the operation."""
        return self.do(Watch(KEY, operation_id or self.operation_id))

    def cancel(self, operation_id: str | None = None) -> Reply:
        """Take it back."""
        return self.do(Cancel(KEY, operation_id or self.operation_id))

    @property
    def state(self) -> OperationState:
        """How it stands."""
        watched = self.watch()
        assert isinstance(watched, Watched), watched
        return watched.state

    @property
    def token(self) -> int:
        """Of the latest attempt, dead or alive."""
        if self.entry is None:
            return NEVER_ISSUED
        record, tombstone = self.entry.record, self.entry.tombstone
        return record.token if record else tombstone.token if tombstone else NEVER_ISSUED


def desk(*, recognised: bool = True) -> Desk:
    """A key whose destination recognises what it had before, or not."""
    return Desk(settings(dispatch=DispatchPolicy(pushed=True, recognised=recognised, horizon_ms=HORIZON_MS)))


COLUMNS = (
    "absent", "queued", "refused", "risky", "trying", "lapsed", "lost", "doubted",
    "succeeded", "failed", "expired", "cancelled", "released", "denied",
)  # fmt: skip
"""refused: tried, and not executed; risky: the same, and perhaps it was; lapsed: the lease ran out, and the destination
recognises it; lost: it does not; released and denied: the key was freed, in the second case because it was refused."""

TABLE = """
row                absent queued refus. risky  trying lapsed lost   doubt. succ.  failed expir. cancel releas denied
dispatch           new    again  again  again  again  again  again  again  again  again  again  new    new    new
dispatch-other     new    clash  clash  clash  clash  clash  clash  clash  clash  clash  clash  new    new    new
dispatch-none      new    again  again  again  again  again  again  again  again  again  again  new    new    new
claim              later  claim  later  later  later  claim  later  later  later  later  later  later  later  later
lapse              later  later  later  later  lapse  later  later  later  later  later  later  later  later  later
lapse-own          later  later  later  later  later  later  later  later  later  later  later  later  later  later
postpone-match     none   stale  same   same   back   back   back   back   already already already none none none
postpone-stale     none   stale  stale  stale  stale  stale  stale  stale  already already already none none none
cancel             none   cancel cancel locked locked locked locked locked locked locked locked again  locked locked
cancel-other       none   none   none   none   none   none   none   none   none   none   none   none   none   none
watch              none   state  state  state  state  state  state  state  state  state  state  state  state  state
watch-other        none   none   none   none   none   none   none   none   none   none   none   none   none   none
reserve            grant  busy   busy   busy   busy   doubt  doubt  doubt  done   done   done   grant  grant  grant
accept             accept busy   busy   busy   busy   doubt  doubt  doubt  done   done   done   accept accept accept
commit-match       none   stale  commit commit commit commit commit commit again  again  again  proof  proof  proof
commit-failed      none   stale  commit commit commit commit commit commit again  again  again  proof  proof  proof
commit-stale       none   stale  stale  stale  stale  stale  stale  stale  stale  stale  stale  none   none   none
release-match      none   stale  free   free   free   free   free   free   already already already again again again
release-failed     none   stale  free   free   free   free   free   free   already already already again again again
extend-match       none   stale  stale  stale  extend extend extend doubt  already already already none none none
extend-stale       none   stale  stale  stale  stale  stale  stale  stale  already already already none none none
doubt-match        none   stale  said   said   said   said   said   again  already already already none none none
settle-match       none   busy   busy   busy   busy   commit commit commit again  again  again  none   none   none
settle-stale       none   busy   busy   busy   busy   stale  stale  stale  again  again  again  none   none   none
free-match         none   busy   busy   busy   busy   free   free   free   already already already again again again
get                none   found  found  found  found  found  found  found  found  found  found  none   none   none
forget             void   keep   keep   keep   keep   keep   keep   keep   gone   gone   gone   gone   gone   gone
forget-force       void   gone   gone   gone   gone   gone   gone   gone   gone   gone   gone   gone   gone   gone
"""

ENDED: dict[str, OperationState] = {
    "queued": OperationState.QUEUED,
    "refused": OperationState.QUEUED,
    "risky": OperationState.QUEUED,
    "trying": OperationState.DELIVERING,
    "lapsed": OperationState.DELIVERING,
    "lost": OperationState.IN_DOUBT,
    "doubted": OperationState.IN_DOUBT,
    "succeeded": OperationState.SUCCEEDED,
    "failed": OperationState.FAILED,
    "expired": OperationState.EXPIRED,
    "cancelled": OperationState.CANCELLED,
    "released": OperationState.RELEASED,
    "denied": OperationState.FAILED,
}

WORDS: dict[str, type[Reply]] = {
    "busy": InFlight,
    "doubt": InDoubt,
    "done": Completed,
    "clash": Mismatch,
    "none": Unknown,
    "void": NothingToForget,
    "stale": Stale,
    "already": AlreadyCommitted,
    "keep": Unsettled,
    "found": Found,
    "later": NotDue,
    "same": Postponed,
    "locked": Uncancellable,
    "state": Watched,
}


def cells() -> list[tuple[str, str, str]]:
    """(row, column, answer) of every cell."""
    found = []
    for line in TABLE.strip().splitlines()[1:]:
        row, *answers = line.split()
        found += [(row, column, answer) for column, answer in zip(COLUMNS, answers, strict=True)]
    return found


def situation(column: str) -> Desk:
    """A key in the situation of ``column``."""
    play = desk(recognised=column not in ("lost", "doubted"))
    if column == "absent":
        return play
    play.dispatch(expires_in_ms=LEASE_MS if column == "expired" else None)
    if column == "expired":
        play.after(LEASE_MS)
    if column == "cancelled":
        play.cancel()
    if column in ("queued", "expired", "cancelled"):
        return play
    assert isinstance(play.claim(), Claimed)
    match column:
        case "refused" | "risky":
            play.postpone(play.token, perhaps_sent=column == "risky")
        case "lapsed" | "lost":
            play.after(LEASE_MS)
        case "doubted":
            play.doubt(play.token, "timeout")
        case "succeeded" | "failed":
            play.do(Commit(KEY, play.token, DONE, failed=column == "failed"))
        case "released" | "denied":
            play.do(Release(KEY, play.token, failed=column == "denied"))
    return play


def send(play: Desk, row: str) -> Reply:
    """The command of ``row``."""
    verb, _, what = row.partition("-")
    token = NEVER_ISSUED if what == "stale" else play.token
    match verb:
        case "dispatch":
            return play.dispatch({"other": TWO, "none": None}.get(what, ONE))
        case "claim":
            return play.claim()
        case "lapse":
            return play.do(Lapse(KEY, "relay" if what == "own" else "relay-2"))
        case "postpone":
            return play.postpone(token, perhaps_sent=False)
        case "cancel" | "watch":
            operation = "other" if what == "other" else play.operation_id
            return play.cancel(operation) if verb == "cancel" else play.watch(operation)
        case "get":
            return play.get()
        case "forget":
            return play.forget(force=what == "force")
        case _:
            return send_as_everybody(play, verb, what, token)


def send_as_everybody(play: Desk, verb: str, what: str, token: int) -> Reply:
    """A command of those who reserve and hold keys."""
    match verb:
        case "reserve":
            return play.reserve("me")
        case "accept":
            return play.accept("me")
        case "commit":
            return play.do(Commit(KEY, token, Outcome(299), failed=what == "failed"))
        case "release":
            return play.do(Release(KEY, token, failed=what == "failed"))
        case "extend":
            return play.extend(token, 3 * LEASE_MS)
        case "doubt":
            return play.doubt(token, "second")
        case _:
            return play.resolve(token, "committed" if verb == "settle" else "released", Outcome(299))


@pytest.mark.parametrize("swept", [False, True], ids=["", "swept"])
@pytest.mark.parametrize(("row", "column", "answer"), cells())
def test_every_cell_of_the_table(row: str, column: str, answer: str, swept: bool) -> None:
    play = situation(column)
    if swept:
        play.swept()
    before, tokens = play.entry, play.tokens
    reply = send(play, row)
    if answer in WORDS:
        assert type(reply) is WORDS[answer]
    if answer in WORDS or answer == "again":
        assert (play.entry, play.tokens) == (before, tokens), "an answer that changes nothing changed something"
    if answer == "again":
        assert isinstance(reply, Dispatched | Cancelled | Committed | Released | Doubted)
        assert reply.repeated
    if isinstance(reply, Dispatched | Watched | Uncancellable) and answer != "new":
        assert reply.state is ENDED[column]
    if answer not in WORDS and answer != "again":
        check_done(play, row, answer, reply)
    assert bool(play.incidents) is (answer == "proof")


def check_done(play: Desk, row: str, answer: str, reply: Reply) -> None:
    """The command was carried out, and this is what it left."""
    match answer:
        case "new":
            assert reply == Dispatched(play.operation_id, OperationState.QUEUED, repeated=False)
            check_queued(play.record, attempt=0, due_at=play.now, token=play.tokens)
        case "claim":
            record = play.record
            assert reply == Claimed(play.tokens, record.attempt, play.now + LEASE_MS)
            assert (record.state, record.holder, record.reserved_at) == (State.PENDING, "relay", play.now)
            assert record.delivery is not None
            assert record.delivery.due_at is None
        case "lapse":
            assert reply == Lapsed()
            assert (play.record.state, play.record.lease_expires_at) == (State.LAPSED, play.now)
            assert isinstance(play.claim(), Claimed), "it waited for the lease of a relay that is gone"
        case "back":
            assert reply == Postponed(play.now + DELAY_MS)
            check_queued(play.record, attempt=1, due_at=play.now + DELAY_MS, token=play.tokens)
        case "cancel":
            assert reply == Cancelled(repeated=False)
            assert play.get() == Unknown()
            assert play.state is OperationState.CANCELLED
        case "grant" | "accept":
            assert isinstance(reply, Reserved if answer == "grant" else Accepted)
            assert play.record.delivery is None
        case _:
            check_settled(play, row, answer, reply)


def check_settled(play: Desk, row: str, answer: str, reply: Reply) -> None:
    """As ``check_done``, for the words of whoever holds a token."""
    match answer:
        case "commit":
            assert reply == Committed(play.now + TTL_MS, repeated=False)
            assert play.record.outcome == Outcome(299)
            assert play.state is (OperationState.FAILED if row == "commit-failed" else OperationState.SUCCEEDED)
        case "free":
            assert reply == Released(repeated=False)
            assert play.state is (OperationState.FAILED if row == "release-failed" else OperationState.RELEASED)
        case "extend":
            assert reply == Extended(play.now + 3 * LEASE_MS)
            assert play.state is OperationState.DELIVERING
        case "said":
            assert reply == Doubted(repeated=False)
            assert play.state is OperationState.IN_DOUBT
        case "proof":
            assert reply == Stale(None)
        case _:
            assert answer == "gone"
            assert reply == Forgotten()
            assert play.entry is None


def check_queued(record: Record, *, attempt: int, due_at: int, token: int) -> None:
    """It waits for its turn."""
    assert (record.state, record.attempt, record.token) == (State.PENDING, attempt, token)
    assert record.lease_expires_at is None
    assert record.delivery is not None
    assert (record.delivery.due_at, record.delivery.ending) == (due_at, None)


# -------------------------------------------------------------------------------------------------- accepting


def test_the_record_knows_what_it_was_dispatched_with() -> None:
    play = desk()
    play.dispatch(order_key="acct-1", not_before=START + 40, ttl_ms=77)
    record = play.record
    assert (record.ttl_ms, record.fingerprint, record.first_seen_at) == (77, ONE, START)
    assert record.delivery is not None
    assert (record.delivery.order_key, record.delivery.seq) == ("acct-1", START * 1_000)
    assert (record.delivery.due_at, record.delivery.deliver_until) == (START + 40, START + 40 + HORIZON_MS)
    assert play.entry is not None
    assert play.entry.alarm_at == START + 40 + HORIZON_MS


def test_not_before_in_the_past_means_now_and_expiry_counts_from_acceptance() -> None:
    play = desk()
    play.dispatch(not_before=1, expires_in_ms=60)
    assert play.record.delivery is not None
    assert (play.record.delivery.due_at, play.record.delivery.deliver_until) == (START, START + 60)


def test_what_may_not_be_sent_before_its_time_is_over_expires_unsent() -> None:
    play = desk()
    play.dispatch(not_before=START + 100, expires_in_ms=50)
    assert play.claim() == NotDue()
    assert play.after(50).state is OperationState.EXPIRED


def test_a_full_tenant_and_a_full_outbox_refuse_what_is_new_and_repeat_what_is_there() -> None:
    play = desk()
    play.room = False
    assert play.dispatch() == QuotaExceeded(play.policy.records_max)
    full = Fresh(1, 0, room=True, seq=0)
    refused = decide(None, Dispatch(KEY, INTENT), play.policy, START, full)
    assert (refused.reply, refused.changed) == (OutboxFull(OUTBOX_ENTRIES_MAX), False)
    play.room = True
    play.dispatch()
    again = decide(play.entry, Dispatch(KEY, INTENT, ONE), play.policy, START, full)
    assert isinstance(again.reply, Dispatched)
    assert again.reply.repeated


def test_a_fingerprint_under_another_rule_is_no_mismatch() -> None:
    play = desk()
    play.dispatch()
    made = play.decision(Dispatch(KEY, INTENT, Fingerprint("two", "v1:0123456789abcdef")))
    assert isinstance(made.reply, Dispatched)
    assert made.rule_changed


@pytest.mark.parametrize(("recognised", "expiry"), [(True, "retry"), (True, "hold"), (False, "retry")])
def test_what_an_earlier_holder_left_is_dispatched_only_where_the_destination_recognises_it(
    recognised: bool, expiry: str
) -> None:
    play = desk(recognised=recognised)
    play.policy = replace(play.policy, on_lease_expiry=OnLeaseExpiry(expiry))
    play.reserve("me", fingerprint=ONE)
    assert isinstance(play.dispatch(), InFlight)
    held = play.record
    reply = play.after(LEASE_MS).dispatch()
    if not recognised or expiry == "hold":
        assert isinstance(reply, InDoubt)
        return
    assert reply == Dispatched(held.operation_id, OperationState.QUEUED, repeated=False)
    assert play.record.delivery is not None
    assert play.record.delivery.perhaps_sent
    assert isinstance(play.cancel(), Uncancellable)
    assert isinstance(play.commit(held.token, DONE), Stale)
    assert [incident.token for incident in play.incidents] == [held.token]
    assert play.claim() == Claimed(play.tokens, held.attempt + 1, play.now + LEASE_MS)


def test_what_others_committed_is_told_as_it_is() -> None:
    play = desk()
    play.accept("me", outcome=DONE)
    reply = play.dispatch(fingerprint=None)
    assert isinstance(reply, Completed)
    assert reply.outcome == DONE
    assert isinstance(play.watch(play.record.operation_id), Unknown)


# ---------------------------------------------------------------------------------------------------- delivering


def test_every_attempt_has_its_own_token_and_the_operation_keeps_its_id() -> None:
    play = desk()
    play.dispatch()
    name, tokens = play.operation_id, [play.token]
    for attempt in (1, 2, 3):
        claimed = play.claim()
        assert isinstance(claimed, Claimed)
        assert claimed.attempt == attempt
        tokens.append(claimed.token)
        assert play.record.operation_id == name
        play.postpone(claimed.token, perhaps_sent=False)
        play.after(DELAY_MS)
    assert sorted(set(tokens)) == tokens
    # The token of acceptance was told to nobody: it is no evidence of anything.
    assert [earlier.token for earlier in play.record.earlier] == tokens[1:-1]


def test_it_is_due_not_a_millisecond_before_its_time() -> None:
    play = desk()
    play.dispatch(not_before=START + 40)
    assert play.after(39).claim() == NotDue()
    assert isinstance(play.after(1).claim(), Claimed)


def test_a_lease_is_no_longer_than_the_settings_allow() -> None:
    play = desk()
    play.policy = replace(play.policy, lease_total_max_ms=70)
    play.dispatch()
    assert play.claim(lease_ms=1_000) == Claimed(2, 1, START + 70)


def test_a_late_commit_of_an_earlier_attempt_is_evidence() -> None:
    play = desk()
    play.dispatch()
    play.claim()
    first = play.token
    play.after(LEASE_MS).claim()
    assert play.commit(first, DONE) == Stale(2)
    assert play.commit(first, DONE) == Stale(2)
    assert [incident.token for incident in play.incidents] == [first]
    assert play.record.contested
    assert isinstance(play.do(Postpone(KEY, first, play.now, perhaps_sent=False)), Stale)
    assert play.state is OperationState.DELIVERING


def test_a_destination_that_does_not_recognise_it_never_gets_it_again_unasked() -> None:
    play = desk(recognised=False)
    play.dispatch()
    play.claim()
    for _ in range(3):
        assert play.after(LEASE_MS).swept().claim() == NotDue()
    assert play.after(100 * HORIZON_MS).swept().state is OperationState.IN_DOUBT


def test_what_a_relay_that_is_gone_sent_may_arrive_for_as_long_as_its_lease_would_have_lasted() -> None:
    play = desk(recognised=False)
    play.dispatch()
    play.claim()
    end = play.record.lease_expires_at
    assert play.do(Lapse(KEY, "relay-2")) == Lapsed()
    assert (play.record.state, play.record.lease_expires_at) == (State.LAPSED, end)


def test_what_was_perhaps_sent_is_in_doubt_once_the_settings_say_that_nobody_recognises_it() -> None:
    play = situation("risky")
    play.policy = desk(recognised=False).policy
    assert play.after(DELAY_MS).claim() == NotDue()
    assert (play.state, play.record.state) == (OperationState.IN_DOUBT, State.DOUBTED)
    assert "recognise" in (play.record.reason or "")
    play.policy = desk(recognised=True).policy
    assert play.claim() == NotDue()


def test_a_lapse_counts_by_the_settings_of_today() -> None:
    play = situation("lost").swept()
    assert play.claim() == NotDue()
    play.policy = desk(recognised=True).policy
    assert isinstance(play.claim(), Claimed)
    assert play.record.delivery is not None
    assert play.record.delivery.perhaps_sent


def test_a_service_that_polls_is_no_relay_and_keeps_its_lease() -> None:
    play = desk()
    play.dispatch()
    play.do(Claim(KEY, LEASE_MS, "worker-7"))
    assert play.do(Lapse(KEY, "relay-2")) == NotDue()


def test_a_time_that_is_past_keeps_its_place() -> None:
    play = situation("trying").after(LEASE_MS // 2)
    assert play.postpone(play.token, perhaps_sent=False, delay_ms=-LEASE_MS) == Postponed(play.now - LEASE_MS)
    assert isinstance(play.claim(), Claimed)


# ---------------------------------------------------------------------------------------------- what may have arrived


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
def test_what_is_known_of_one_attempt_says_nothing_of_the_earlier_ones(late: bool) -> None:
    """Attempt 1 may have arrived; attempt 2 was refused before anything was done: it may still have arrived."""
    play = situation("risky").after(DELAY_MS)
    play.claim()
    play.after(LEASE_MS if late else 1)
    play.postpone(play.token, perhaps_sent=False)
    assert isinstance(play.cancel(), Uncancellable)
    assert play.after(HORIZON_MS).state is OperationState.IN_DOUBT


def test_an_attempt_that_lapsed_counts_as_perhaps_sent() -> None:
    play = situation("lapsed")
    play.claim()
    play.postpone(play.token, perhaps_sent=False)
    assert isinstance(play.cancel(), Uncancellable)


def test_whoever_comes_late_knows_about_its_own_attempt_alone() -> None:
    """An earlier attempt may have arrived: that the latest did not, told twice or late, is no proof of absence."""
    play = desk()
    play.dispatch()
    play.claim()
    play.postpone(play.token, perhaps_sent=True, delay_ms=0)
    play.claim()
    play.postpone(play.token, perhaps_sent=False)
    states = [play.after(HORIZON_MS).state]
    for absent in (False, True):
        play.postpone(play.token, perhaps_sent=False, absent=absent)
        states.append(play.state)
    assert states == [OperationState.IN_DOUBT, OperationState.IN_DOUBT, OperationState.EXPIRED]


def test_absence_that_is_believed_takes_back_every_attempt() -> None:
    play = situation("risky").after(DELAY_MS)
    play.claim()
    play.doubt(play.token, "timeout")
    assert play.postpone(play.token, perhaps_sent=False, delay_ms=0, absent=True) == Postponed(play.now)
    assert play.state is OperationState.QUEUED
    play.policy = desk(recognised=False).policy
    assert isinstance(play.claim(), Claimed)


# ---------------------------------------------------------------------------------------------------------- its end


@pytest.mark.parametrize("column", ["queued", "refused"])
def test_what_was_never_sent_expires_and_is_kept_as_long_as_any_outcome(column: str) -> None:
    play = situation(column)
    assert play.record.delivery is not None
    end = play.record.delivery.deliver_until
    play.now = end - 1
    assert play.state is OperationState.QUEUED
    play.now = end
    assert play.claim() == NotDue()
    watched = play.watch()
    assert isinstance(watched, Watched)
    assert (watched.state, watched.ended_at, watched.expires_at) == (OperationState.EXPIRED, end, end + TTL_MS)
    assert watched.outcome is None
    play.swept()
    assert play.entry is not None
    assert play.entry.alarm_at == end + TTL_MS
    assert play.after(TTL_MS).swept().entry is None


def test_what_was_perhaps_sent_does_not_expire() -> None:
    play = situation("risky").after(HORIZON_MS)
    assert play.state is OperationState.IN_DOUBT
    play.swept()
    assert play.record.state is State.DOUBTED
    assert play.after(1_000 * HORIZON_MS).swept().state is OperationState.IN_DOUBT
    assert isinstance(play.reserve("me"), InDoubt)
    assert isinstance(play.resolve(play.token, "committed", DONE), Committed)


def test_a_recognised_lapse_is_in_doubt_once_its_time_is_over() -> None:
    play = desk()
    play.dispatch(expires_in_ms=LEASE_MS)
    play.claim(lease_ms=2 * LEASE_MS)
    assert play.after(LEASE_MS).state is OperationState.DELIVERING
    assert play.after(LEASE_MS).claim() == NotDue()
    assert play.state is OperationState.IN_DOUBT


@pytest.mark.parametrize("way", ["in time", "lapsed", "doubted"])
def test_what_is_put_back_after_its_time_expires_then_and_not_before(way: str) -> None:
    play = desk(recognised=False)
    play.dispatch(expires_in_ms=50)
    play.claim()
    if way == "doubted":
        play.doubt(play.token, "timeout")
    play.after(10 * TTL_MS if way != "in time" else 60)
    assert play.postpone(play.token, perhaps_sent=False) == Postponed(play.now + DELAY_MS)
    watched = play.watch()
    assert isinstance(watched, Watched)
    assert (watched.state, watched.ended_at) == (OperationState.EXPIRED, play.now)
    assert watched.expires_at == play.now + TTL_MS


def test_a_late_doubtful_return_after_its_time_is_in_doubt() -> None:
    play = desk()
    play.dispatch(expires_in_ms=50)
    play.claim()
    play.after(60).postpone(play.token, perhaps_sent=True)
    assert play.state is OperationState.IN_DOUBT
    assert play.swept().record.state is State.DOUBTED


def test_the_end_outlives_nothing() -> None:
    """Committed, expired and gone: the key takes another operation, which is another one."""
    play = situation("succeeded")
    first = play.operation_id
    play.after(TTL_MS)
    assert play.watch() == Unknown()
    reply = play.dispatch()
    assert isinstance(reply, Dispatched)
    assert not reply.repeated
    assert reply.operation_id != first


def test_a_tombstone_says_how_it_ended_beside_the_next_operation() -> None:
    play = situation("denied")
    first = play.operation_id
    play.dispatch(TWO)
    assert isinstance(play.watch(first), Watched)
    assert play.watch(first) == Watched(KEY.key, first, OperationState.FAILED, expires_at=START + TTL_MS)
    assert play.cancel(first) == Uncancellable(OperationState.FAILED)
    assert play.state is OperationState.QUEUED
    assert play.after(TTL_MS).watch(first) == Unknown()


def test_everybody_elses_tombstone_is_no_operation() -> None:
    play = desk()
    play.reserve("me")
    operation_id = play.record.operation_id
    play.release(1)
    assert play.watch(operation_id) == Unknown()
    assert play.cancel(operation_id) == Unknown()


@pytest.mark.parametrize("column", ["queued", "refused", "trying", "doubted", "succeeded", "failed"])
def test_watching_says_all_that_is_known(column: str) -> None:
    play = situation(column)
    watched, record = play.watch(), play.record
    assert isinstance(watched, Watched)
    assert record.delivery is not None
    assert watched.accepted_at == START
    assert (watched.attempt, watched.reason, watched.outcome) == (record.attempt, record.reason, record.outcome)
    assert watched.next_at == record.delivery.due_at
    assert (watched.lease_expires_at is not None) is (column == "trying")
    assert watched.state.ended is (record.state is State.COMMITTED)
    assert (watched.ended_at, watched.expires_at) == (record.committed_at, record.expires_at)
    assert watched.deliver_until == START + HORIZON_MS


def test_endings_are_stored_by_number() -> None:
    assert [(ending.name, int(ending)) for ending in Ending] == [
        ("SUCCEEDED", 0),
        ("FAILED", 1),
        ("EXPIRED", 2),
        ("CANCELLED", 3),
        ("RELEASED", 4),
    ]


def test_whoever_fetched_it_names_the_operation_and_nothing_else_is_meant() -> None:
    play = situation("trying")
    for word in (
        Commit(KEY, play.token, operation_id="other"),
        Release(KEY, play.token, operation_id="other"),
        Postpone(KEY, play.token, play.now, perhaps_sent=False, operation_id="other"),
    ):
        assert play.do(word) == Stale(1)
    assert play.state is OperationState.DELIVERING
    assert isinstance(play.do(Commit(KEY, play.token, operation_id=play.operation_id)), Committed)


def test_a_key_that_was_only_reserved_was_fetched_by_nobody() -> None:
    play = desk()
    reserved = play.do(Reserve(KEY))
    assert isinstance(reserved, Reserved)
    assert play.do(Commit(KEY, reserved.token, operation_id=reserved.operation_id)) == Stale(1)
    assert play.do(Release(KEY, reserved.token, failed=True, operation_id=reserved.operation_id)) == Stale(1)
    assert isinstance(play.do(Commit(KEY, reserved.token)), Committed)
