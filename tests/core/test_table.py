"""Every cell of the state table (contract, section 3), its eleven rules, and what section 12 says of the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from idemactor.core.fingerprint import CALLER_RULE, Fingerprint
from idemactor.core.policy import OnDoubt, OnDuplicate, OnLeaseExpiry
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    AlreadyCommitted,
    Committed,
    Completed,
    Doubted,
    Extended,
    Forgotten,
    Found,
    InDoubt,
    InFlight,
    Mismatch,
    NothingToForget,
    Released,
    Reply,
    Reserved,
    Stale,
    Unknown,
    Unsettled,
    Withdrawn,
)
from tests.core.situations import DONE, LEASE_MS, TTL_MS, UNRESOLVED_MS, Play, settings

HOLD, RETRY = OnLeaseExpiry.HOLD, OnLeaseExpiry.RETRY
ONE = Fingerprint("one", CALLER_RULE)
TWO = Fingerprint("two", CALLER_RULE)
OTHER_RULE = Fingerprint("two", "v1:0123456789abcdef")

NEVER_ISSUED = 2**53 - 1

# ------------------------------------------------------------------------------------------------------- the table

# Columns: the situation that the command meets. "over" and "running" speak of the lease of a doubted attempt.
COLUMNS = (
    "absent",
    "expired",
    "given_up",
    "pending",
    "lapsed_retry",
    "lapsed_hold",
    "doubted_hold_running",
    "doubted_hold_over",
    "doubted_retry_running",
    "doubted_retry_over",
    "committed",
    "accepted",
)

# Rows: the command and what it carries. "match" is the latest attempt's token, "stale" one that was never issued,
# "earlier" the token of an attempt that this one took over from, "buried" that of the tombstone beside it.
TABLE = """
row                 absent  expired givenup pending lapsd:r lapsd:h dbt:h:r dbt:h:o dbt:r:r dbt:r:o commit  accept
reserve-new         new     new     new     busy    take    doubt   doubt   doubt   doubt   take    done    done
reserve-none        new     new     new     busy    take    doubt   doubt   doubt   doubt   take    done    done
reserve-same        new     new     new     again   take    doubt   doubt   doubt   doubt   take    done    done
reserve-other-print new     new     new     clash   clash   clash   clash   clash   clash   clash   clash   clash
reserve-same-other  new     new     new     clash   clash   clash   clash   clash   clash   clash   clash   clash
reserve-other-rule  new     new     new     busy    take    doubt   doubt   doubt   doubt   take    done    done
reserve-reject      new     new     new     busy    take    doubt   doubt   doubt   doubt   take    reject  reject
accept-new          accept  accept  accept  busy    accept2 doubt   doubt   doubt   doubt   accept2 done    done
accept-none         accept  accept  accept  busy    accept2 doubt   doubt   doubt   doubt   accept2 done    done
accept-same         accept  accept  accept  busy    accept2 doubt   doubt   doubt   doubt   accept2 done    again
accept-other-print  accept  accept  accept  clash   clash   clash   clash   clash   clash   clash   clash   clash
accept-reject       accept  accept  accept  busy    accept2 doubt   doubt   doubt   doubt   accept2 reject  reject
commit-match        none    none    none    commit  commit  commit  commit  commit  commit  commit  again   again
commit-stale        none    none    none    stale   stale   stale   stale   stale   stale   stale   stale   stale
release-match       none    none    none    free    free    free    free    free    free    free    already already
release-stale       none    none    none    stale   stale   stale   stale   stale   stale   stale   already already
extend-match        none    none    none    extend  extend  extend  doubt   doubt   doubt   doubt   already already
extend-stale        none    none    none    stale   stale   stale   stale   stale   stale   stale   already already
doubt-match         none    none    none    said    said    said    again   again   again   again   already already
doubt-stale         none    none    none    stale   stale   stale   stale   stale   stale   stale   already already
settle-match        none    none    none    busy    commit  commit  commit  commit  commit  commit  again   again
settle-stale        none    none    none    busy    stale   stale   stale   stale   stale   stale   again   again
free-match          none    none    none    busy    free    free    free    free    free    free    already already
free-stale          none    none    none    busy    stale   stale   stale   stale   stale   stale   already already
get                 none    none    none    found   found   found   found   found   found   found   found   found
forget              void    void    void    keep    keep    keep    keep    keep    keep    keep    gone    gone
forget-force        void    void    void    gone    gone    gone    gone    gone    gone    gone    gone    gone
"""

# What a token of an earlier attempt of the same operation does; the attempt in the column is the second.
EARLIER = """
row                 absent  expired givenup pending lapsd:r lapsd:h dbt:h:r dbt:h:o dbt:r:r dbt:r:o commit  accept
commit-earlier      -       none    none    proof   proof   proof   proof   proof   proof   proof   proof   proof
release-earlier     -       none    none    stale   stale   stale   stale   stale   stale   stale   already already
extend-earlier      -       none    none    stale   stale   stale   stale   stale   stale   stale   already already
doubt-earlier       -       none    none    stale   stale   stale   stale   stale   stale   stale   already already
settle-earlier      -       none    none    busy    stale   stale   stale   stale   stale   stale   again   again
free-earlier        -       none    none    busy    stale   stale   stale   stale   stale   stale   already already
reserve-earlier     -       new     new     busy    take    doubt   doubt   doubt   doubt   take    done    done
"""

# What the token and the request_id of a living tombstone do, alone or beside a newer operation.
BURIED = """
row                 absent  expired givenup pending lapsd:r lapsd:h dbt:h:r dbt:h:o dbt:r:r dbt:r:o commit  accept
reserve-buried      late    late    late    late    late    late    late    late    late    late    late    late
accept-buried       late    late    late    late    late    late    late    late    late    late    late    late
commit-buried       proof   proof   proof   proof   proof   proof   proof   proof   proof   proof   proof   proof
release-buried      again   again   again   again   again   again   again   again   again   again   again   again
free-buried         again   again   again   again   again   again   again   again   again   again   again   again
settle-buried       none    none    none    busy    stale   stale   stale   stale   stale   stale   again   again
extend-buried       none    none    none    stale   stale   stale   stale   stale   stale   stale   already already
doubt-buried        none    none    none    stale   stale   stale   stale   stale   stale   stale   already already
get                 none    none    none    found   found   found   found   found   found   found   found   found
forget              gone    gone    gone    keep    keep    keep    keep    keep    keep    keep    gone    gone
"""


REFUSALS: dict[str, type[Reply]] = {
    "busy": InFlight,
    "doubt": InDoubt,
    "done": Completed,
    "reject": Completed,
    "clash": Mismatch,
    "late": Withdrawn,
    "none": Unknown,
    "void": NothingToForget,
    "stale": Stale,
    "already": AlreadyCommitted,
    "keep": Unsettled,
    "found": Found,
}


def rows(*tables: str) -> list[tuple[str, str, str]]:
    """(row, column, answer) of every cell that is not a dash."""
    cells = []
    for table in tables:
        for line in table.strip().splitlines()[1:]:
            row, *answers = line.split()
            assert len(answers) == len(COLUMNS), row
            cells += [(row, column, answer) for column, answer in zip(COLUMNS, answers, strict=True) if answer != "-"]
    return cells


def situation(column: str, history: str) -> Play:
    """A key in the situation of ``column``, with an earlier attempt or a tombstone behind it if ``history`` says so."""
    play = Play(settings(on_lease_expiry=RETRY))
    if history == "released":
        play.reserve("buried", ttl_ms=10**9)
        play.release(1)
    if column == "absent":
        return play
    if history == "taken over":
        play.reserve("earlier", fingerprint=ONE)
        play.after(LEASE_MS)
    if column == "accepted":
        play.accept("same", fingerprint=ONE, outcome=DONE)
        return play
    play.reserve("same", fingerprint=ONE)
    bring_to(column, play)
    return play


def bring_to(column: str, play: Play) -> None:
    """From a running lease to the situation of ``column``."""
    if column in ("committed", "expired"):
        play.commit(play.tokens, DONE)
    if column.startswith("doubted"):
        play.doubt(play.tokens, "lost")
        play.policy = replace(play.policy, on_doubt=OnDoubt.RETRY if "retry" in column else OnDoubt.HOLD)
    if column == "lapsed_hold":
        play.policy = replace(play.policy, on_lease_expiry=HOLD)
    waits = {"lapsed_retry": LEASE_MS, "lapsed_hold": LEASE_MS, "expired": TTL_MS, "given_up": LEASE_MS + UNRESOLVED_MS}
    play.after(LEASE_MS if column.endswith("over") else waits.get(column, 0))


def send(play: Play, row: str) -> Reply:
    """The command of ``row``, on what ``play`` has."""
    verb, _, what = row.partition("-")
    token = {"match": max(play.tokens, 1), "stale": NEVER_ISSUED, "earlier": play.tokens - 1, "buried": 1}.get(what, 0)
    request = {"new": "new", "same": "same", "same-other": "same", "earlier": "earlier", "buried": "buried"}.get(what)
    prints = {"other-print": TWO, "same-other": TWO, "other-rule": OTHER_RULE, "same": ONE}
    reject = OnDuplicate.REJECT if what == "reject" else None
    if verb in ("reserve", "accept"):
        call = play.reserve if verb == "reserve" else play.accept
        return call(request, fingerprint=prints.get(what), on_duplicate=reject)
    if verb in ("settle", "free"):
        return play.resolve(token, "committed" if verb == "settle" else "released", Outcome(299))
    if verb == "extend":
        return play.extend(token, 3 * LEASE_MS)
    if verb == "commit":
        return play.commit(token, Outcome(299))
    if verb == "get":
        return play.get()
    if verb == "forget":
        return play.forget(force=what == "force")
    return play.release(token) if verb == "release" else play.doubt(token, "second")


def check(play: Play, row: str, answer: str) -> None:
    """Send the command of ``row`` and hold what comes back, and what it left, against the word of the table."""
    before, at_hand = play.entry, play.get()
    record = at_hand.record if isinstance(at_hand, Found) else None
    reply = send(play, row)
    if answer in ("new", "take"):
        check_reserved(play, reply, record)
        assert (record is not None) is (answer == "take")
    elif answer in ("accept", "accept2"):
        operation_id = record.operation_id if record else play.record.operation_id
        attempt = record.attempt + 1 if record else 1
        assert reply == Accepted(operation_id, attempt, play.now + TTL_MS, repeated=False)
        assert (attempt == 1) is (answer == "accept")
        assert (play.record.state, play.record.token) == (State.COMMITTED, play.tokens)
    elif answer == "proof":
        assert reply == Stale(record.attempt if record else None)
        assert [incident.token for incident in play.incidents] == [1]
        assert record is None or play.record == replace(record, contested=True, earlier=play.record.earlier)
    elif answer in SETTLED:
        check_settled(play, reply, answer)
    else:
        check_refused(reply, answer)
        assert play.entry == before, "an answer that changes nothing changed something"
    assert bool(play.incidents) is (answer == "proof")


def check_reserved(play: Play, reply: Reply, record: Record | None) -> None:
    """A fresh grant: a new operation's, or the next attempt of that of ``record``."""
    assert isinstance(reply, Reserved)
    assert (reply.token, reply.repeated) == (play.tokens, False)
    assert (reply.reserved_at, reply.lease_expires_at) == (play.now, play.now + LEASE_MS)
    assert (reply.attempt, reply.takeover) == ((record.attempt + 1, True) if record else (1, False))
    assert play.record.first_seen_at == (record.first_seen_at if record else play.now)
    if record is not None:
        assert reply.operation_id == record.operation_id
        assert reply.token > record.token


SETTLED = ("commit", "free", "extend", "said", "gone")


def check_settled(play: Play, reply: Reply, answer: str) -> None:
    """The command of who has a say in it was carried out."""
    match answer:
        case "commit":
            assert reply == Committed(play.now + TTL_MS, repeated=False)
            assert (play.record.committed_at, play.record.outcome) == (play.now, Outcome(299))
        case "free":
            assert reply == Released(repeated=False)
            assert play.get() == Unknown()
        case "extend":
            assert reply == Extended(play.now + 3 * LEASE_MS)
            assert play.record.state is State.PENDING
        case "said":
            assert reply == Doubted(repeated=False)
            assert (play.record.state, play.record.reason) == (State.DOUBTED, "second")
        case _:
            assert reply == Forgotten()
            assert play.entry is None


def check_refused(reply: Reply, answer: str) -> None:
    """A refusal, or the first answer once more."""
    if answer == "again":
        assert isinstance(reply, Reserved | Accepted | Committed | Released | Doubted)
        assert reply.repeated
        return
    assert type(reply) is REFUSALS[answer]
    if isinstance(reply, Completed):
        assert reply.rejected is (answer == "reject")
        assert reply.outcome == DONE


@pytest.mark.parametrize("swept", [False, True], ids=["", "swept"])
@pytest.mark.parametrize("history", ["", "taken over", "released"])
@pytest.mark.parametrize(("row", "column", "answer"), rows(TABLE))
def test_every_cell_of_the_table(row: str, column: str, answer: str, history: str, swept: bool) -> None:
    """With any history behind it, and whether or not the alarm has been there: time decides."""
    if history == "released" and row.startswith("forget") and answer == "void":
        answer = "gone"  # The tombstone counts as a record.
    if column == "absent" and history == "released" and row.endswith("match"):
        row = row.replace("match", "stale")  # The only token that there ever was is the tombstone's.
    play = situation(column, history)
    check(play.swept() if swept else play, row, answer)


@pytest.mark.parametrize("swept", [False, True], ids=["", "swept"])
@pytest.mark.parametrize(("row", "column", "answer"), rows(EARLIER))
def test_every_cell_for_an_earlier_attempt_of_the_same_operation(
    row: str, column: str, answer: str, swept: bool
) -> None:
    """Rule 4: only a commit is evidence; everything else with an earlier token is as any other stale one."""
    play = situation(column, "taken over")
    check(play.swept() if swept else play, row, answer)


@pytest.mark.parametrize("swept", [False, True], ids=["", "swept"])
@pytest.mark.parametrize(("row", "column", "answer"), rows(BURIED))
def test_every_cell_for_what_a_tombstone_knows(row: str, column: str, answer: str, swept: bool) -> None:
    """Rule 3, which "comes before the table in every column" (section 12)."""
    play = situation(column, "released")
    check(play.swept() if swept else play, row, answer)


@pytest.mark.parametrize(
    ("column", "state"),
    [
        ("pending", State.PENDING),
        ("lapsed_retry", State.LAPSED),
        ("lapsed_hold", State.LAPSED),
        ("doubted_hold_running", State.DOUBTED),
        ("doubted_retry_over", State.DOUBTED),
        ("committed", State.COMMITTED),
        ("accepted", State.COMMITTED),
    ],
)
def test_get_shows_the_state_that_time_gives(column: str, state: State) -> None:
    assert situation(column, "").record.state is state
