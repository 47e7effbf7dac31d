"""The way to the shards: through the router, with an end to every wait, and nothing claimed for nobody."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import trio
from trio.testing import MockClock

from idemactor.core.commands import Command, Doubt, Postpone
from idemactor.core.delivery import Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.queries import Heads, Query, Take, Taken, TakenIntent
from idemactor.core.replies import Doubted, Unavailable
from idemactor.dispatch.limits import ASK_MS
from idemactor.dispatch.shards import RoutedShards
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Router

ME = Identity("default", "orders", "k")
TAKE = Take("orders", None, (Kind.INTENT,), 1, 5_000, "relay")
GRANT = TakenIntent(ME, "op", 7, 1, 123, 9_000, 10_000, False, None, 1, Intent("", b""))
TAKEN = Taken((GRANT,), (), (), None, more=False)


class FakeRouter:
    """Keeps what is sent; the test answers."""

    def __init__(self) -> None:
        self.shards = (None, None)
        self.asked: list[tuple[int, Envelope]] = []
        self.routed: list[Envelope] = []

    def ask(self, shard: int, envelope: Envelope) -> None:
        self.asked.append((shard, envelope))

    def route(self, envelopes: Sequence[Envelope]) -> None:
        self.routed.extend(envelopes)

    def answer(self, answer: Answer) -> None:
        envelope = (self.routed or [envelope for _, envelope in self.asked])[-1]
        envelope.sink.deliver([(envelope.tag, answer)])


def rig() -> tuple[FakeRouter, RoutedShards]:
    router = FakeRouter()
    return router, RoutedShards(cast("Router", router))


async def ask(shards: RoutedShards, what: Query | Command, into: list[Answer]) -> None:
    into.append(await (shards.ask(1, what) if isinstance(what, Query) else shards.tell(what)))


async def test_questions_and_commands_are_answered(autojump_clock: MockClock) -> None:
    router, shards = rig()
    answers: list[Answer] = []
    assert shards.count == 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shards, TAKE, answers)
        await trio.testing.wait_all_tasks_blocked()
        assert router.asked[0][0] == 1
        router.answer(TAKEN)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shards, Doubt(ME, 7), answers)
        await trio.testing.wait_all_tasks_blocked()
        router.answer(Doubted(repeated=False))
    assert answers == [TAKEN, Doubted(repeated=False)]
    assert len(router.routed) == 1


async def test_what_is_claimed_too_late_is_given_back(autojump_clock: MockClock) -> None:
    router, shards = rig()
    began = trio.current_time()
    assert isinstance(await shards.ask(0, TAKE), Unavailable)
    assert trio.current_time() - began == ASK_MS / 1000
    router.answer(TAKEN)
    [back] = [envelope.command for envelope in router.routed]
    assert isinstance(back, Postpone)
    assert (back.identity, back.token, back.due_at, back.perhaps_sent) == (ME, 7, 123, False)


async def test_what_is_claimed_for_somebody_who_was_cut_off_is_given_back(autojump_clock: MockClock) -> None:
    router, shards = rig()
    answers: list[Answer] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shards, TAKE, answers)
        await trio.testing.wait_all_tasks_blocked()
        # Answered, and cut off in the same moment.
        router.answer(TAKEN)
        nursery.cancel_scope.cancel()
    given = [envelope.command for envelope in router.routed]
    assert answers == [TAKEN] or [type(one) for one in given] == [Postpone]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, shards, TAKE, answers)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    router.routed.clear()
    router.answer(TAKEN)
    assert [type(envelope.command) for envelope in router.routed] == [Postpone]


async def test_what_claims_nothing_needs_nothing_given_back(autojump_clock: MockClock) -> None:
    router, shards = rig()
    assert isinstance(await shards.ask(0, Heads("orders", ())), Unavailable)
    router.answer(Unavailable(1))
    assert router.routed == []
