"""The mailbox: a bound, an order, and a reader that is never left asleep on mail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from idemactor.core.commands import Command, Doubt, Extend, Get, Release
from idemactor.core.keys import Identity
from idemactor.core.queries import Inspect, ListStuck
from idemactor.shard.mailbox import BOUND_MIN, Envelope, Mailbox
from tests.shard.harness import Call, commit, identity, on_mock_time


def letters(count: int) -> list[Envelope]:
    command = Get(identity("k"))
    return [Envelope(command, Call(command), number) for number in range(count)]


def still(size_max: int) -> Mailbox:
    """A mailbox for which no time passes."""
    return Mailbox(size_max, now=lambda: 0.0)


def test_it_takes_what_there_is_room_for_and_says_how_many() -> None:
    box = still(3)
    sent = letters(5)
    assert box.put(sent[:2]) == []
    assert box.put(sent[2:]) == sent[3:]
    assert box.put(sent[3:]) == sent[3:]
    assert len(box) == 3
    assert box.take(10) == sent[:3]
    assert len(box) == 0
    assert box.put(sent[3:]) == []


def test_taking_goes_in_order_and_in_steps() -> None:
    box = still(10)
    sent = letters(5)
    box.put(sent)
    assert [box.take(2), box.take(2), box.take(2), box.take(2)] == [sent[:2], sent[2:4], sent[4:], []]


@asynccontextmanager
async def timed(size_max: int) -> AsyncIterator[Mailbox]:
    """A mailbox that time rings, too."""
    box = Mailbox(size_max)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(box.run_timer)
        yield box
        nursery.cancel_scope.cancel()


@on_mock_time
async def test_mail_that_came_before_the_reader_slept_does_not_let_it_sleep() -> None:
    async with timed(10) as box:
        box.put(letters(1))
        await box.wait(100)
        assert trio.current_time() == 0


@on_mock_time
async def test_mail_that_the_reader_has_not_taken_keeps_it_awake() -> None:
    async with timed(10) as box:
        box.put(letters(3))
        await box.wait(100)
        box.take(1)
        await box.wait(100)
        assert trio.current_time() == 0


@pytest.mark.parametrize("wake", [lambda box: box.ring(), lambda box: box.put(letters(1))], ids=["ring", "put"])
@on_mock_time
async def test_a_sleeping_reader_is_woken(wake: Callable[[Mailbox], object]) -> None:
    async with timed(10) as box:
        woken: list[float] = []

        async def read() -> None:
            await box.wait(100)
            woken.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.sleep(1)
            wake(box)
            wake(box)
        assert woken == [1]
        assert trio.current_time() == 1


@on_mock_time
async def test_a_ring_while_nobody_sleeps_counts_once() -> None:
    async with timed(10) as box:
        box.ring()
        await box.wait(7)
        assert trio.current_time() == 0
        await box.wait(7)
        assert trio.current_time() == 7


@on_mock_time
async def test_a_reader_that_timed_out_is_woken_the_next_time() -> None:
    async with timed(10) as box:
        await box.wait(5)
        box.put(letters(1))
        await box.wait(5)
        assert trio.current_time() == 5


@on_mock_time
async def test_a_cancelled_reader_leaves_the_box_as_it_was() -> None:
    async with timed(10) as box:
        with trio.move_on_after(1) as scope:
            await box.wait(100)
        assert scope.cancelled_caught
        sent = letters(2)
        assert box.put(sent) == []
        await box.wait(100)
        assert trio.current_time() == 1
        assert box.take(10) == sent


# ---------------------------------------------------------------------------------------------------------- tenants


def of(tenant: str, count: int) -> list[Envelope]:
    command = Get(Identity(tenant, "default", "k"))
    return [Envelope(command, Call(command), (tenant, number)) for number in range(count)]


def tags(envelopes: list[Envelope]) -> list[object]:
    return [envelope.tag for envelope in envelopes]


def test_where_more_waits_than_a_turn_takes_tenants_take_turns() -> None:
    box = still(1_000)
    box.put(of("loud", 500))
    box.put(of("quiet", 3))
    first = box.take(10)
    expected = [*(("loud", number) for number in range(7)), *(("quiet", number) for number in range(3))]
    assert sorted(tags(first), key=str) == expected
    box.put(of("late", 1))
    assert ("late", 0) in tags(box.take(2))
    rest = box.take(1_000)
    assert len(box) == 0
    # In the order in which they came, whoever came between.
    assert tags(rest) == [("loud", number) for number in range(500 - len(rest), 500)]
    # And it is a plain queue again.
    box.put(of("quiet", 1) + of("loud", 1))
    assert tags(box.take(5)) == [("quiet", 0), ("loud", 0)]


def test_who_asks_for_little_beside_who_asks_for_much_presses_until_it_is_taken() -> None:
    box = still(1_000)
    box.put(of("loud", 500))
    assert not box.pressing
    box.take(10)
    box.put(of("loud", 5))
    # The server's own questions are nobody's.
    box.put([Envelope(Inspect(), Call(Inspect()), None)])
    assert not box.pressing
    box.put(of("quiet", 1))
    assert box.pressing
    assert ("quiet", 0) in tags(box.take(10))
    assert not box.pressing


def listings(tenant: str, count: int) -> list[Envelope]:
    query = ListStuck(tenant, ("default",), 0, 10)
    return [Envelope(query, Call(query), (tenant, "listing", number)) for number in range(count)]


def test_a_turn_takes_one_listing_of_each_tenant_and_what_is_before_the_next() -> None:
    box = still(1_000)
    for envelope in listings("one", 3):
        box.put([envelope])
    box.put(of("one", 2))
    box.put(of("two", 2))
    for envelope in listings("two", 2):
        box.put([envelope])
    expected = [
        {("one", "listing", 0), ("two", 0), ("two", 1), ("two", "listing", 0)},
        {("one", "listing", 1), ("two", "listing", 1)},
        {("one", "listing", 2), ("one", 0), ("one", 1)},
    ]
    assert [set(tags(box.take(100))) for _ in expected] == expected
    assert len(box) == 0
    # And it is a plain queue again, with a listing for each turn.
    box.put(listings("one", 1))
    box.put(of("one", 1))
    assert len(box.take(100)) == 2
    assert not box._lines


def test_listings_of_who_asks_for_too_much_are_refused_once_they_are_late() -> None:
    now = [0.0]
    box = Mailbox(3, 1_000, now=lambda: now[0])
    kept = listings("one", 5)
    assert [len(box.put([envelope])) for envelope in kept] == [0, 0, 0, 1, 1]
    now[0] = 2.0
    assert box.take_late() == kept[:3]
    assert len(box) == 0
    assert box.take(10) == []


def test_nobody_presses_where_a_turn_takes_all_that_waits() -> None:
    box = still(1_000)
    box.put(of("loud", 5))
    box.put(of("quiet", 1))
    assert not box.pressing
    assert len(box.take(10)) == 6


def test_more_tenants_than_a_turn_takes_all_have_their_turn() -> None:
    box = still(100)
    names = [f"t{number}" for number in range(7)]
    box.put([envelope for name in names for envelope in of(name, 2)])
    taken = [tag for _ in range(5) for tag in tags(box.take(3))]
    assert len(taken) == 14
    assert {tag[0] for tag in taken[:7]} == set(names)  # type: ignore[index]


def test_a_tenant_that_fills_its_line_leaves_the_others_theirs() -> None:
    box = still(4)
    assert tags(box.put(of("loud", 6))) == [("loud", 4), ("loud", 5)]
    assert box.put(of("quiet", 2)) == []
    assert tags(box.put(of("loud", 1) + of("quiet", 3))) == [("loud", 0), ("quiet", 2)]
    assert len(box) == 8
    # Neither does it keep out what the server itself asks.
    inspect = Inspect()
    assert box.put([Envelope(inspect, Call(inspect), None)]) == []


# --------------------------------------------------------------------------------------------------------------- time

QUEUE_MS = 1_000


class Watched:
    """A mailbox, and its time."""

    def __init__(self, size_max: int) -> None:
        self.now = 100.0
        self.box = Mailbox(size_max, QUEUE_MS, lambda: self.now)


def ends(*commands: Command) -> list[Envelope]:
    return [Envelope(command, Call(command), type(command).__name__) for command in commands]


def test_what_fits_waits_for_as_long_as_it_takes() -> None:
    watched = Watched(100)
    assert watched.box.put(of("loud", 100)) == []
    watched.box.take(10)
    watched.now += 60
    assert watched.box.take_late() == []
    assert len(watched.box.take(100)) == 90


def test_what_waits_too_long_of_somebody_who_asks_for_too_much_is_refused_then() -> None:
    watched = Watched(60)
    box = watched.box
    assert len(box.put(of("loud", 61) + of("quiet", 1))) == 1
    watched.now += QUEUE_MS / 1_000 - 0.001
    assert len(box.put(of("loud", 1))) == 1
    box.take(20)
    assert box.put(of("loud", 2)) == []
    assert box.take_late() == []
    watched.now += 0.002
    late = box.take_late()
    assert {tag[0] for tag in tags(late)} == {"loud"}  # type: ignore[index]
    assert len(late) == 41
    # What came later is not late yet.
    assert tags(box.take(10)) == [("loud", 0), ("loud", 1)]
    assert len(box) == 0


def test_what_ends_an_attempt_is_never_late_and_first_of_what_is_left() -> None:
    watched = Watched(4)
    box = watched.box
    endings = ends(
        commit("a", 1), Extend(identity("b"), 2, 1_000), Release(identity("c"), 3), Doubt(identity("d"), 4, "x")
    )
    box.put([*letters(2), *endings[:2]])
    assert box.put(letters(1)) != []
    # There is room for them where there is none for anything else.
    assert box.put(endings[2:]) == []
    assert box.put(letters(1)) != []
    assert [len(box.put(ends(commit("e", 5)))) for _ in range(3)] == [0, 0, 1]
    watched.now += 2
    assert [type(envelope.command) for envelope in box.take_late()] == [Get, Get]
    assert tags(box.take(3)) == ["Commit", "Extend", "Release"]
    assert tags(box.take(9)) == ["Doubt", "Commit", "Commit"]
    assert len(box) == 0


def test_of_an_overloaded_tenant_only_as_many_wait_as_are_taken_in_half_of_the_time() -> None:
    watched = Watched(10_000)
    box = watched.box
    box.put(of("loud", 10_001))
    for _ in range(30):
        watched.now += 0.1
        box.take_late()
        box.take(100)
        box.put(of("loud", 1_000))
    # A thousand a second.
    assert len(box) == 500
    waited: list[float] = []
    for _ in range(10):
        came = watched.now
        box.put([*of("loud", 600)])
        while box.take(100):
            watched.now += 0.1
            assert box.take_late() == []
        waited.append(watched.now - came)
    assert max(waited) < 1
    # It was empty: that was no overload any more, and the bound is the first one again.
    assert box.put(of("loud", 9_000)) == []


def test_a_slow_shard_still_takes_a_few() -> None:
    watched = Watched(10_000)
    watched.box.put(of("loud", 10_001))
    watched.now += 0.9
    watched.box.take(1)
    watched.now += 0.9
    watched.box.take_late()
    assert len(watched.box.put(of("loud", 1_000))) == 1_000 - BOUND_MIN


# --------------------------------------------------------------------------------------------------- what is put back


def test_what_is_put_back_is_first_again_before_all_that_came_later() -> None:
    box = still(100)
    sent = of("loud", 6)
    box.put(sent[:4])
    taken = box.take(10)
    box.put(sent[4:])
    box.put_back(taken[1:])
    assert len(box) == 5
    assert list(box) == sent[1:]
    assert [box.take(2), box.take(10)] == [sent[1:3], sent[3:]]
    assert len(box) == 0
    # And it is a plain queue again.
    assert box.put(of("quiet", 1)) == []
    assert tags(box.take(5)) == [("quiet", 0)]


def test_what_is_put_back_twice_keeps_its_order() -> None:
    box = still(100)
    sent = of("loud", 6)
    box.put(sent)
    box.put_back(box.take(4)[1:])
    box.put_back(box.take(2)[1:])
    assert box.take(10) == sent[2:]


def test_who_had_the_turn_that_was_cut_is_last_in_the_next() -> None:
    box = still(100)
    box.put(of("loud", 60) + of("quiet", 1) + of("other", 60))
    taken = box.take(30)
    assert taken[0].tag == ("loud", 0)
    assert not box.pressing
    box.put(of("late", 1))
    box.put_back(taken[2:])
    # Of the other something waits beside what was put back.
    assert box.pressing
    again = tags(box.take(30))
    assert again[0] == ("quiet", 0)
    assert again[1] == ("other", 0)
    assert again.index(("other", 0)) < again.index(("late", 0)) < again.index(("loud", 2))
    assert not box.pressing


def test_who_had_the_turn_that_was_cut_does_not_press() -> None:
    box = still(100)
    box.put(of("loud", 6))
    box.put_back(box.take(10)[2:])
    assert not box.pressing


def test_a_listing_that_is_put_back_counts_again() -> None:
    box = still(100)
    box.put([*of("acme", 1), *listings("acme", 1)])
    taken = box.take(10)
    assert len(taken) == 2
    box.put_back(taken)
    box.put(listings("acme", 1))
    assert [len(box.take(10)), len(box.take(10)), len(box.take(10))] == [2, 1, 0]


def test_what_is_put_back_is_never_late_and_does_not_count_as_taken() -> None:
    time = [0.0]
    box = Mailbox(8, queue_ms=1_000, now=lambda: time[0])
    sent = of("loud", 9)
    assert box.put(sent) == sent[8:]
    taken = box.take(4)
    time[0] = 0.1
    box.put_back(taken[1:])
    assert box._overloads["loud"].taken == 1
    time[0] = 2.0
    assert box.take_late() == sent[4:8]
    assert box.take(10) == sent[1:4]
