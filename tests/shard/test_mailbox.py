"""The mailbox: a bound, an order, and a reader that is never left asleep on mail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from idemactor.core.commands import Get
from idemactor.core.keys import Identity
from idemactor.core.queries import Inspect
from idemactor.shard.mailbox import Envelope, Mailbox
from tests.shard.harness import Call, identity, on_mock_time


def letters(count: int) -> list[Envelope]:
    command = Get(identity("k"))
    return [Envelope(command, Call(command), number) for number in range(count)]


def test_it_takes_what_there_is_room_for_and_says_how_many() -> None:
    box = Mailbox(3)
    sent = letters(5)
    assert box.put(sent[:2]) == []
    assert box.put(sent[2:]) == sent[3:]
    assert box.put(sent[3:]) == sent[3:]
    assert len(box) == 3
    assert box.take(10) == sent[:3]
    assert len(box) == 0
    assert box.put(sent[3:]) == []


def test_taking_goes_in_order_and_in_steps() -> None:
    box = Mailbox(10)
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
    box = Mailbox(1_000)
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


def test_more_tenants_than_a_turn_takes_all_have_their_turn() -> None:
    box = Mailbox(100)
    names = [f"t{number}" for number in range(7)]
    box.put([envelope for name in names for envelope in of(name, 2)])
    taken = [tag for _ in range(5) for tag in tags(box.take(3))]
    assert len(taken) == 14
    assert {tag[0] for tag in taken[:7]} == set(names)  # type: ignore[index]


def test_a_tenant_that_fills_its_line_leaves_the_others_theirs() -> None:
    box = Mailbox(4)
    assert tags(box.put(of("loud", 6))) == [("loud", 4), ("loud", 5)]
    assert box.put(of("quiet", 2)) == []
    assert tags(box.put(of("loud", 1) + of("quiet", 3))) == [("loud", 0), ("quiet", 2)]
    assert len(box) == 8
    # Neither does it keep out what the server itself asks.
    inspect = Inspect()
    assert box.put([Envelope(inspect, Call(inspect), None)]) == []
