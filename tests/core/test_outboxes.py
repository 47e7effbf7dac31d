"""A shard's outbox as its ledger keeps it: who is offered what, who waits, and what a batch comes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from idemactor.core.commands import (
    AckEvent,
    Cancel,
    Claim,
    Command,
    Commit,
    Dispatch,
    Doubt,
    NackEvent,
    Postpone,
    Release,
    Watch,
)
from idemactor.core.delivery import Event, Intent, Kind, NewEvent, OperationState
from idemactor.core.keys import Identity
from idemactor.core.limits import OUTBOX_ENTRIES_MAX
from idemactor.core.outbox import ASIDE_MS, HEADS_MAX, Outbox
from idemactor.core.outboxes import Outboxes
from idemactor.core.policy import DispatchPolicy
from idemactor.core.queries import OutboxCount, Take, Turn
from idemactor.core.record import State
from idemactor.core.replies import (
    Acked,
    Cancelled,
    Committed,
    Dispatched,
    Doubted,
    InFlight,
    Nacked,
    OutboxFull,
    Postponed,
    Released,
    Reply,
    Reserved,
    Stale,
    Unknown,
    Watched,
)
from tests.core.situations import DONE, KEY, LEASE_MS, START, TTL_MS, settings
from tests.core.test_ledger import OTHER, THIRD, Caller, Desk, named, wait

INTENT = Intent("text/plain", b"buy")
EVENT = NewEvent("text/plain", b"bought")
BOTH = (Kind.INTENT, Kind.EVENT)


def shop(*, recognised: bool = True, **given: Any) -> Desk:
    """A ledger whose namespace dispatches."""
    desk = Desk(settings(dispatch=DispatchPolicy(recognised=recognised, horizon_ms=10**6)), **given)
    desk.ledger.outbox.recalled = True
    return desk


def dispatch(identity: Identity = KEY, order_key: str | None = None, **given: Any) -> Dispatch:
    """A dispatch of one kind or another."""
    return Dispatch(identity, INTENT, order_key=order_key, **given)


def take(most: int = 100, **given: Any) -> Take:
    """Somebody comes for everything."""
    return replace(Take("trade", None, BOTH, most, LEASE_MS, "relay"), **given)


def offered(desk: Desk, query: Take) -> tuple[list[int], list[Turn]]:
    """Ids of what is offered, and the heads that are named; nothing is claimed."""
    offer = desk.ledger.outbox.offer(query, desk.now)
    desk.ledger.outbox.close(offer)
    return [item.id for item in offer.items], offer.heads


def claim(desk: Desk, query: Take) -> list[tuple[str, int]]:
    """Claim what is offered; (key, token) of each."""
    desk.begin([])
    offer = desk.ledger.outbox.offer(query, desk.now)
    for item in offer.items:
        item.identity = item.identity or desk.disk[item.id].identity
    identities = [item.identity for item in offer.items if item.identity is not None]
    missing = desk.ledger.missing(identities)
    desk.ledger.absorb({e.identity: e for e in desk.disk.values() if e.identity in missing})
    claimed = []
    for item in offer.items:
        entry = desk.ledger.claim(item, query.lease_ms, query.holder)
        if entry is not None and entry.record is not None:
            claimed.append((entry.identity.key, entry.record.token))
    desk.ledger.outbox.close(offer)
    desk.finish()
    return claimed


def operation(desk: Desk, identity: Identity = KEY) -> str:
    """The id of the operation of a key."""
    (entry,) = (entry for entry in desk.disk.values() if entry.identity == identity)
    assert entry.record is not None
    return entry.record.operation_id


def events(count: int, **given: Any) -> tuple[NewEvent, ...]:
    """As many events."""
    return tuple(replace(EVENT, body=str(number).encode(), **given) for number in range(count))


def committed(desk: Desk, *announced: NewEvent, identity: Identity = KEY) -> None:
    """A key that was reserved, and committed with these events."""
    reserved = desk.one(wait(wait_ms=0) if identity == KEY else replace(wait(wait_ms=0), identity=identity))
    assert isinstance(reserved, Reserved)
    assert isinstance(desk.one(Commit(identity, reserved.token, DONE, events=announced)), Committed)


# ------------------------------------------------------------------------------------------------ what a batch comes to


def test_a_dispatch_brings_its_intent_and_a_repeat_brings_none() -> None:
    desk = shop()
    answers = desk.ask(("a", dispatch()), ("b", replace(dispatch(), intent=Intent("text/plain", b"sell"))))
    assert [reply.repeated for _, reply in answers if isinstance(reply, Dispatched)] == [False, True]
    assert desk.work.intents == {1: INTENT}
    assert isinstance(desk.one(dispatch()), Dispatched)
    assert desk.work.intents == {}


def test_what_came_and_was_cancelled_in_one_batch_leaves_no_intent() -> None:
    desk = shop()
    desk.begin([KEY])
    desk.ledger.apply(Caller("a"), dispatch())
    (name,) = [reply.operation_id for _, reply in desk.ledger._work.replies if isinstance(reply, Dispatched)]
    desk.ledger.apply(Caller("a"), Cancel(KEY, name))
    assert named(desk.finish()) == [("a", "Dispatched"), ("a", "Cancelled")]
    assert desk.work.intents == {}
    assert offered(desk, take()) == ([], [])


def test_a_cancelled_key_that_is_dispatched_anew_in_one_batch_has_the_new_intent() -> None:
    desk = shop()
    desk.one(dispatch())
    new = replace(dispatch(), intent=Intent("text/plain", b"sell"))
    answers = desk.ask(("a", Cancel(KEY, operation(desk))), ("a", new))
    assert [type(reply) for _, reply in answers] == [Cancelled, Dispatched]
    assert desk.work.undelivered == [1]
    assert desk.work.intents == {1: new.intent}
    assert claim(desk, take()) == [(KEY.key, 3)]


def test_what_time_ended_and_is_dispatched_anew_has_a_new_place_in_line() -> None:
    """Nobody came by in between, not even the alarm: the entry goes from one operation to the next."""
    desk = shop()
    desk.one(dispatch(order_key="a", expires_in_ms=10))
    first = operation(desk)
    desk.one(dispatch(OTHER, "a"))
    desk.now += TTL_MS + 10
    reply = desk.one(dispatch(order_key="a"))
    assert isinstance(reply, Dispatched)
    assert not reply.repeated
    assert operation(desk) != first
    assert desk.work.undelivered == [1]
    assert desk.work.intents == {1: INTENT}
    assert offered(desk, take())[1] == [Turn("acme", Kind.INTENT, "a", 2)], "it kept the place of the earlier one"


def test_what_is_dispatched_anew_behind_what_was_read_so_far_leaves_nothing_in_line() -> None:
    """The outbox is read in pieces: the new operation comes with one that is still to be read."""
    desk = shop()
    desk.one(dispatch(order_key="a", expires_in_ms=10))
    desk.one(dispatch(OTHER, "a"))
    desk.ledger.outbox.recalled, desk.ledger.outbox.complete_to = False, 2
    desk.now += TTL_MS + 10
    desk.one(dispatch(order_key="a"))
    assert offered(desk, take())[1] == [Turn("acme", Kind.INTENT, "a", 2)]
    assert len(desk.ledger.outbox) == 1


def test_places_in_line_are_covered_by_the_time_on_disk() -> None:
    desk = shop()
    assert desk.work.covers_ms == 0
    desk.ledger._sequence = lambda: START * 1_000 + 1_999
    desk.one(dispatch())
    assert desk.work.covers_ms == START + 2
    desk.ledger._sequence = lambda: START * 1_000 + 2_000
    committed(desk, EVENT, identity=OTHER)
    assert desk.work.covers_ms == START + 3


def test_a_full_outbox_takes_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = shop()
    monkeypatch.setattr("idemactor.core.outboxes.OUTBOX_ENTRIES_MAX", 1)
    assert isinstance(desk.one(dispatch()), Dispatched)
    assert desk.one(dispatch(OTHER)) == OutboxFull(OUTBOX_ENTRIES_MAX)
    assert isinstance(desk.one(dispatch()), Dispatched)
    desk.one(Cancel(KEY, operation(desk)))
    assert isinstance(desk.one(dispatch(OTHER)), Dispatched)


# -------------------------------------------------------------------------------------------------------- who waits


def test_who_watches_waits_for_the_end_and_for_nothing_before_it() -> None:
    desk = shop()
    desk.one(dispatch())
    watch = Watch(KEY, operation(desk), wait_ms=500)
    assert desk.ask(("w", watch)) == []
    ((_, token),) = claim(desk, take())
    assert desk.work.replies == []
    assert named(desk.ask(("r", Postpone(KEY, token, desk.now, perhaps_sent=False)))) == [("r", "Postponed")]
    ((_, token),) = claim(desk, take())
    (answer, seen) = desk.ask(("r", Commit(KEY, token, DONE)))
    assert isinstance(answer[1], Committed)
    assert isinstance(seen[1], Watched)
    assert (seen[1].state, seen[1].outcome) == (OperationState.SUCCEEDED, DONE)
    assert desk.ledger.waiting == 0
    assert named(desk.ask(("w", watch))) == [("w", "Watched")]


def test_who_watches_is_told_what_is_true_when_the_time_is_over() -> None:
    desk = shop()
    desk.one(dispatch())
    desk.ask(("w", Watch(KEY, operation(desk), wait_ms=50)), ("x", Watch(KEY, "other", wait_ms=50)))
    assert named([(c.name, r) for c, r in desk.work.replies]) == [("x", "Unknown")]
    desk.now += 50
    ((name, reply),) = desk.time_out()
    assert name == "w"
    assert isinstance(reply, Watched)
    assert reply.state is OperationState.QUEUED


def test_time_ends_what_is_watched() -> None:
    desk = shop()
    desk.one(dispatch(expires_in_ms=40))
    desk.ask(("w", Watch(KEY, operation(desk), wait_ms=500)))
    desk.now += 40
    ((_, reply),) = desk.sweep(KEY)
    assert isinstance(reply, Watched)
    assert reply.state is OperationState.EXPIRED
    assert len(desk.ledger.outbox) == 0


def test_who_waits_to_hold_a_dispatched_key_gets_it_when_it_is_free() -> None:
    desk = shop()
    desk.one(dispatch())
    name = operation(desk)
    assert desk.ask(("w", wait("me", 500)), ("x", Watch(KEY, name, 500))) == []
    assert named(desk.ask(("c", Cancel(KEY, name)))) == [("c", "Cancelled"), ("w", "Reserved"), ("x", "Watched")]
    assert isinstance(desk.one(dispatch()), InFlight)


# -------------------------------------------------------------------------------------------------- who may take what


def test_what_was_claimed_is_offered_to_nobody_until_its_lease_is_over() -> None:
    desk = shop()
    desk.ask(("a", dispatch()), ("a", dispatch(OTHER)))
    assert claim(desk, take(1)) == [(KEY.key, 3)]
    assert claim(desk, take()) == [(OTHER.key, 4)]
    assert claim(desk, take()) == []
    assert desk.ledger.outbox.next_at(take()) == START + LEASE_MS
    desk.now += LEASE_MS
    assert claim(desk, take()) == [(KEY.key, 5), (OTHER.key, 6)]


def test_what_nobody_recognises_is_not_offered_after_its_lease() -> None:
    desk = shop(recognised=False)
    desk.ask(("a", dispatch()), ("a", dispatch(OTHER, "a")))
    claim(desk, take(turns=(Turn("acme", Kind.INTENT, "a", 2),)))
    assert desk.ledger.outbox.next_at(take()) is None
    desk.now += LEASE_MS
    desk.sweep(KEY, OTHER)
    assert claim(desk, take()) == []
    # The one blocks its line; of the other nothing is left to wait for.
    assert len(desk.ledger.outbox) == 1


@pytest.mark.parametrize("word", ["doubt", "postpone", "deliver", "lapse"])
def test_the_head_of_a_line_blocks_it_whatever_it_waits_for(word: str) -> None:
    desk = shop(recognised=word != "lapse")
    desk.ask(("a", dispatch(order_key="a")), ("a", dispatch(OTHER, "a")), ("a", dispatch(THIRD, "b")))
    heads = [Turn("acme", Kind.INTENT, "a", 1), Turn("acme", Kind.INTENT, "b", 3)]
    assert offered(desk, take()) == ([], heads)
    ((_, token),) = claim(desk, take(turns=tuple(heads[:1])))
    if word == "doubt":
        desk.one(Commit(KEY, 10**6))
        assert isinstance(desk.one(doubt(token)), Doubted)
    if word == "postpone":
        assert isinstance(desk.one(Postpone(KEY, token, START + 50, perhaps_sent=False)), Postponed)
    if word == "lapse":
        desk.now += LEASE_MS
        desk.sweep(KEY)
    assert offered(desk, take()) == ([], heads[1:])
    desk.one(Commit(KEY, token, DONE))
    assert offered(desk, take()) == ([], [Turn("acme", Kind.INTENT, "a", 2), heads[1]])
    assert ("acme", "trade", Kind.INTENT, "a") in desk.ledger.outbox.take_moves().lines


def doubt(token: int) -> Command:
    """The holder does not know."""

    return Doubt(KEY, token, "timeout")


def test_believed_absence_brings_back_what_was_in_doubt() -> None:
    desk = shop(recognised=False)
    desk.one(dispatch())
    ((_, token),) = claim(desk, take())
    desk.one(doubt(token))
    assert len(desk.ledger.outbox) == 0
    desk.ledger.outbox.take_moves()
    desk.one(Postpone(KEY, token, desk.now, perhaps_sent=False))
    assert desk.ledger.outbox.take_moves().namespaces == {"trade"}
    assert claim(desk, take()) == [(KEY.key, token + 1)]


def test_a_turn_is_taken_only_where_it_is_still_the_head() -> None:
    desk = shop()
    desk.ask(("a", dispatch(order_key="a")), ("a", dispatch(OTHER, "a")))
    assert claim(desk, take(turns=(Turn("acme", Kind.INTENT, "a", 2),))) == []
    assert claim(desk, take(turns=(Turn("zeta", Kind.INTENT, "a", 1),))) == []
    assert claim(desk, take(turns=(Turn("acme", Kind.INTENT, "a", 1),))) == [(KEY.key, 3)]
    assert claim(desk, take(turns=(Turn("acme", Kind.INTENT, "a", 1), Turn("acme", Kind.INTENT, "a", 2)))) == []


def test_what_stands_behind_another_shards_is_set_aside_until_that_moves_or_for_a_while() -> None:
    desk = shop()
    desk.one(dispatch(order_key="a"))
    turn = Turn("acme", Kind.INTENT, "a", 1)
    assert desk.ledger.outbox.behind("trade", [turn, replace(turn, seq=2)]) == (replace(turn, seq=2),)
    assert offered(desk, take(behind=(turn,))) == ([], [])
    assert offered(desk, take(turns=(turn,))) == ([], [])
    assert desk.ledger.outbox.next_at(take()) == START + ASIDE_MS
    desk.ledger.outbox.take_moves()
    desk.ledger.outbox.moved("trade", [replace(turn, order_key="b")])
    assert desk.ledger.outbox.take_moves().namespaces == set()
    desk.ledger.outbox.moved("trade", [replace(turn, seq=0)])
    assert desk.ledger.outbox.take_moves().namespaces == {"trade"}
    assert offered(desk, take()) == ([], [turn])
    offered(desk, take(behind=(turn,)))
    desk.now += ASIDE_MS
    assert offered(desk, take()) == ([], [turn])


def test_what_moved_since_it_was_shown_is_not_set_aside_for_what_was_true_before() -> None:
    """Another shard said that it holds something before, and that ended before this one heard of it."""
    desk = shop()
    desk.one(dispatch(order_key="a"))
    turn = Turn("acme", Kind.INTENT, "a", 1)
    assert offered(desk, take()) == ([], [turn])
    desk.ledger.outbox.moved("trade", [replace(turn, seq=0)])
    assert offered(desk, take(behind=(turn,))) == ([], [turn])
    assert offered(desk, take(behind=(turn,))) == ([], [])


def fill(outbox: Outboxes, tenant: str, ids: Iterable[int], order: str | None = None) -> None:
    """Entries of a tenant, due now."""
    for number in ids:
        key = f"{order}{number}" if order else None
        outbox.recall(Kind.INTENT, number, tenant, "trade", number, key, State.PENDING, None, START)


def test_no_tenant_waits_for_another_ones_flood() -> None:
    outbox = Outboxes({"trade": settings()})
    fill(outbox, "acme", range(1, 1_000))
    fill(outbox, "zeta", range(1_000, 1_003))
    fill(outbox, "beta", range(2_000, 2_100))
    for _ in range(6):
        offer = outbox.offer(take(9), START)
        outbox.close(offer)
        tenants = [item.queue.key[0] for item in offer.items]
        assert len(offer.items) == 9
        assert {tenants.count(name) for name in ("acme", "zeta", "beta")} == {3}


def test_one_at_a_time_goes_round() -> None:
    outbox = Outboxes({"trade": settings()})
    for number, tenant in enumerate(["acme", "beta", "zeta"]):
        fill(outbox, tenant, range(100 * number, 100 * number + 50))
    seen = []
    for _ in range(6):
        offer = outbox.offer(take(1, kinds=(Kind.INTENT,)), START)
        outbox.close(offer)
        seen += [item.queue.key[0] for item in offer.items]
    assert sorted(seen) == ["acme", "acme", "beta", "beta", "zeta", "zeta"]


def test_a_named_tenant_sees_nothing_of_the_others() -> None:
    outbox = Outboxes({"trade": settings()})
    fill(outbox, "acme", [1])
    fill(outbox, "zeta", [2], "a")
    query = take(tenant="acme")
    offer = outbox.offer(query, START)
    assert ([item.id for item in offer.items], offer.heads) == ([1], [])
    outbox.close(offer)
    assert outbox.next_at(take(tenant="nobody")) is None


def test_no_more_heads_are_shown_than_may_be_and_the_rest_follows_once_those_are_aside() -> None:
    outbox = Outboxes({"trade": settings()})
    fill(outbox, "acme", range(1, HEADS_MAX + 11), "line")
    fill(outbox, "acme", [10_000])
    offer = outbox.offer(take(), START)
    outbox.close(offer)
    assert len(offer.heads) == HEADS_MAX
    offer = outbox.offer(take(behind=tuple(offer.heads)), START)
    outbox.close(offer)
    assert (len(offer.heads), [item.id for item in offer.items]) == (10, [10_000])


def test_recall_knows_what_waits_and_what_does_not() -> None:
    outbox = Outboxes({"trade": settings(dispatch=DispatchPolicy(recognised=False))})
    recalled = [
        (1, None, State.PENDING, None, START),
        (2, None, State.PENDING, START + 5, None),
        (3, None, State.LAPSED, START - 5, None),
        (4, "a", State.DOUBTED, START - 5, None),
        (5, "a", State.PENDING, None, START),
    ]
    for number, order_key, state, lease_end, due in recalled:
        outbox.recall(Kind.INTENT, number, "acme", "trade", number, order_key, state, lease_end, due)
    assert outbox.moves.namespaces == {"trade"}
    assert len(outbox) == 4
    assert outbox.counts(START) == (OutboxCount("acme", "trade", Kind.INTENT, 4, 0),)
    offer = outbox.offer(take(), START)
    assert ([item.id for item in offer.items], offer.heads) == ([1], [])


def test_what_waited_and_what_comes_back_from_disk_is_the_same() -> None:
    """In memory all along, or brought back by a restart: the index holds the same."""
    desk = shop(recognised=False)
    for number in range(4):
        desk.one(dispatch(KEY._replace(key=f"k{number}")))
    claimed = dict(claim(desk, take(3)))
    desk.one(Commit(KEY._replace(key="k0"), claimed["k0"], DONE))
    desk.now += LEASE_MS
    desk.sweep(KEY._replace(key="k1"))
    fresh = Outboxes({"trade": desk.policy})
    for entry in desk.disk.values():
        record = entry.record
        assert record is not None
        assert record.delivery is not None
        if record.delivery.ending is None:
            fresh.recall(
                Kind.INTENT,
                entry.id,
                "acme",
                "trade",
                record.delivery.seq,
                None,
                record.state,
                record.lease_expires_at,
                record.delivery.due_at,
            )
    # Places in line are no times here.
    (there,), (here,) = fresh.counts(desk.now), desk.ledger.outbox.counts(desk.now)
    assert replace(there, oldest_at=None) == replace(here, oldest_at=None)


def test_a_claim_rings_for_nobody() -> None:
    desk = shop()
    desk.one(dispatch())
    assert desk.ledger.outbox.take_moves().namespaces == {"trade"}
    ((_, token),) = claim(desk, take())
    assert desk.ledger.outbox.take_moves().namespaces == set()
    desk.one(Postpone(KEY, token, desk.now + 9, perhaps_sent=False))
    assert desk.ledger.outbox.take_moves().namespaces == {"trade"}


def test_what_was_claimed_and_has_changed_meanwhile_is_passed_over() -> None:
    desk = shop()
    desk.one(dispatch(expires_in_ms=20))
    desk.now += 20
    assert claim(desk, take()) == []
    assert desk.ledger.outbox.next_at(take()) is None
    desk.sweep(KEY)
    assert len(desk.ledger.outbox) == 0
    assert desk.one(Claim(KEY, LEASE_MS, "relay")) is not None
    assert isinstance(desk.one(Watch(KEY, "other")), Unknown)


# ------------------------------------------------------------------------------------------------------------ events


def test_a_commit_announces_its_events_once_and_in_order() -> None:
    desk = shop()
    committed(desk, *events(3))
    name = operation(desk)
    announced = desk.work.events
    assert [event.id for event in announced] == [f"{name}.{number}" for number in (1, 2, 3)]
    assert [event.content.body for event in announced] == [b"0", b"1", b"2"]
    assert [event.seq for event in announced] == sorted({event.seq for event in announced})
    assert {(event.identity, event.operation_id, event.committed_at) for event in announced} == {(KEY, name, START)}
    assert isinstance(desk.one(Commit(KEY, 1, DONE, events=events(3))), Committed)
    assert desk.work.events == []
    desk.one(Commit(KEY, 99, DONE, events=events(3)))
    assert desk.work.events == []
    assert offered(desk, take()) == ([event.seq for event in announced], [])
    assert offered(desk, take(kinds=(Kind.INTENT,))) == ([], [])


def said(desk: Desk, command: AckEvent | NackEvent, *kept: Event) -> Reply:
    """What is told of an event, where the disk has those that are kept."""
    desk.ledger.begin(desk.now)
    desk.ledger.fetched = {event.seq: event for event in kept}
    desk.ledger.apply(Caller("c"), command)
    desk.work = desk.ledger.finish()
    [(_, reply)] = desk.work.replies
    return reply


def test_an_event_is_shown_to_one_and_again_after_a_while_until_it_is_acknowledged() -> None:
    desk = shop()
    committed(desk, EVENT)
    (event,) = desk.work.events
    offer = desk.ledger.outbox.offer(take(), START)
    for item in offer.items:
        desk.ledger.outbox.show(item, START + 40)
    desk.ledger.outbox.close(offer)
    assert offered(desk, take()) == ([], [])
    desk.now += 40
    assert offered(desk, take()) == ([event.seq], [])
    assert said(desk, NackEvent(KEY, event.seq, event.id, desk.now + 7), event) == Nacked(desk.now + 7)
    assert offered(desk, take()) == ([], [])
    assert said(desk, NackEvent(KEY, event.seq, event.id, 0), event) == Nacked(desk.now)
    assert offered(desk, take()) == ([event.seq], [])
    assert said(desk, AckEvent(KEY._replace(tenant="zeta"), event.seq, event.id), event) == Acked(repeated=True)
    assert said(desk, AckEvent(KEY._replace(key="other"), event.seq, event.id), event) == Stale(None)
    assert said(desk, NackEvent(KEY, event.seq, "other.1", 0), event) == Stale(None)
    assert said(desk, AckEvent(KEY, event.seq, event.id), event) == Acked(repeated=False)
    assert desk.work.acked == [event.seq]
    assert said(desk, AckEvent(KEY, event.seq, event.id)) == Acked(repeated=True)
    assert said(desk, NackEvent(KEY, event.seq, event.id, 0)) == Acked(repeated=True)
    assert desk.work.acked == []


def test_events_of_one_order_key_come_one_after_the_other() -> None:
    desk = shop()
    committed(desk, *events(2, order_key="a"), EVENT)
    announced = tuple(desk.work.events)
    first, second, free = (event.seq for event in announced)
    assert offered(desk, take()) == ([free], [Turn("acme", Kind.EVENT, "a", first)])
    assert offered(desk, take(turns=(Turn("acme", Kind.EVENT, "a", first),))) == ([first, free], [])
    said(desk, AckEvent(KEY, first, announced[0].id), announced[0])
    assert desk.ledger.outbox.take_moves().lines == [("acme", "trade", Kind.EVENT, "a")]
    assert offered(desk, take()) == ([free], [Turn("acme", Kind.EVENT, "a", second)])


def test_what_is_released_frees_the_key_and_its_place() -> None:

    desk = shop()
    desk.one(dispatch(order_key="a"))
    ((_, token),) = claim(desk, take(turns=(Turn("acme", Kind.INTENT, "a", 1),)))
    assert desk.one(Release(KEY, token)) == Released(repeated=False)
    assert desk.work.undelivered == [1]
    assert len(desk.ledger.outbox) == 0
    assert list(Outbox().counts(START)) == []
