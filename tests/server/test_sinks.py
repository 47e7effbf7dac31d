"""Where the answers of one request go."""

from __future__ import annotations

import gc

import trio
import trio.testing

from idemactor.core.replies import Mismatch, Unknown
from idemactor.server.sinks import Replies


async def test_answers_come_in_the_order_of_the_commands() -> None:
    calls: list[bool] = []
    replies = Replies(3, lambda: calls.append(True))
    replies.deliver([(2, Unknown())])
    replies.deliver([(0, Mismatch())])
    assert not replies.complete
    assert not calls
    replies.deliver([(1, Unknown())])
    assert replies.complete
    assert calls == [True]
    assert await replies.wait() == [Mismatch(), Unknown(), Unknown()]


async def test_the_first_answer_counts() -> None:
    replies = Replies(1)
    replies.deliver([(0, Unknown())])
    replies.deliver([(0, Mismatch())])
    assert await replies.wait() == [Unknown()]


async def test_a_request_of_nothing_is_complete() -> None:
    assert await Replies(0).wait() == []


async def test_the_waiting_task_is_woken() -> None:
    replies = Replies(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.wait)
        await trio.testing.wait_all_tasks_blocked()
        replies.deliver([(0, Unknown())])
    assert not replies.closed


async def test_whoever_is_cancelled_has_left() -> None:
    replies = Replies(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert replies.closed
    replies.deliver([(0, Unknown())])
    assert replies.answers == [Unknown()]


def test_complete_replies_are_no_cycle_with_whoever_asked() -> None:
    def ask() -> None:
        replies = Replies(1, lambda: seen.append(len(replies.answers)))
        replies.deliver([(0, Unknown())])

    def alive() -> int:
        return sum(type(found) is Replies for found in gc.get_objects())

    seen: list[int] = []
    gc.collect()
    gc.disable()
    try:
        before = alive()
        ask()
        assert (seen, alive()) == ([1], before)
    finally:
        gc.enable()
