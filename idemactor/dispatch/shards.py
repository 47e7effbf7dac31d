"""What the relay and the reconciler need of the shards, and how they are reached through the router."""

from __future__ import annotations

from typing import Protocol

import trio

from idemactor.core.commands import Command, Postpone
from idemactor.core.queries import Query, Taken, TakenIntent
from idemactor.core.replies import Unavailable
from idemactor.dispatch.limits import ASK_MS, SETTLE_REST_MS_MAX
from idemactor.server.sinks import Replies
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Router

_MS_PER_S = 1_000


class Shards(Protocol):
    """The shards of a server, wherever they are."""

    @property
    def count(self) -> int:
        """How many there are."""

    async def ask(self, shard: int, query: Query) -> Answer:
        """What a shard says; ``Unavailable`` or ``Overloaded`` where it does not within ``ASK_MS``.

        What it claims for nobody who waits any more is given back.
        """

    async def tell(self, command: Command) -> Answer:
        """What the shard of its key says to a command; ``Unavailable`` where that is not known."""


class Bell(Protocol):
    """Rings when something may have become due in a namespace."""

    async def wait(self, namespace: str, timeout_s: float) -> None:
        """Until it rang since the last wait, or ``timeout_s`` is over."""


class RoutedShards:
    """The shards behind a router.

    Args:
        router: Where commands go.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    @property
    def count(self) -> int:
        return len(self._router.shards)

    async def ask(self, shard: int, query: Query) -> Answer:
        abandoned = False

        def came() -> None:
            if abandoned:
                self._give_back(replies.answers[0])

        replies = Replies(1, came)
        self._router.ask(shard, Envelope(query, replies, 0))
        try:
            with trio.move_on_after(ASK_MS / _MS_PER_S):
                return (await replies.wait())[0]
        finally:
            # What was answered in the moment in which nobody waited any more was claimed for nobody, too.
            abandoned = True
            if replies.complete and replies.closed:
                came()
        return Unavailable(SETTLE_REST_MS_MAX)

    async def tell(self, command: Command) -> Answer:
        replies = Replies(1)
        self._router.route([Envelope(command, replies, 0)])
        with trio.move_on_after(ASK_MS / _MS_PER_S):
            return (await replies.wait())[0]
        return Unavailable(SETTLE_REST_MS_MAX)

    def _give_back(self, answer: Answer) -> None:
        if isinstance(answer, Taken):
            envelopes = [
                Envelope(given_back(taken, "the relay no longer waited for it"), Replies(1), 0)
                for taken in answer.intents
            ]
            self._router.route(envelopes)


def given_back(taken: TakenIntent, reason: str) -> Postpone:
    """The end of an attempt of which nothing was sent: it keeps its place in line, which is when it was accepted."""
    return Postpone(taken.identity, taken.token, taken.accepted_at, perhaps_sent=False, reason=reason)
