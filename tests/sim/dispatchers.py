"""Seeded callers that dispatch: they repeat themselves, look, take back what they asked for, and dispatch it anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol

import trio

from idemactor.core.commands import Cancel, Dispatch, Get, Watch
from idemactor.core.delivery import Intent
from idemactor.core.keys import Identity
from idemactor.core.replies import Cancelled, Dispatched
from tests.sim.callers import Caller, Server
from tests.sim.destination import BLIND, SAFE


class Dispatching(Server, Protocol):
    """What those who dispatch know of the world."""

    def now_ms(self) -> int:
        """The server's time."""


class Dispatcher(Caller):
    """One of them. Every key is used for one purpose only, so that nothing may be done twice under it."""

    def __init__(self, name: str, server: Dispatching, rng: Random) -> None:
        super().__init__(name, server, rng)
        self.world = server
        self.asked: list[Dispatch] = []
        self.accepted: list[tuple[Identity, str]] = []

    async def run(self) -> None:
        """Call until the world says stop."""
        habits: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self.dispatch),
            (2, self.repeat),
            (3, self.watch),
            (3, self.cancel),
        ]
        while not self.server.stopping:
            await trio.sleep(self.rng.random() * 0.04)
            ((_, habit),) = self.rng.choices(habits, [weight for weight, _ in habits])
            await habit()

    async def dispatch(self) -> None:
        """Something new."""
        rng = self.rng
        self.count += 1
        identity = Identity(rng.choice(("acme", "zeta")), rng.choice((SAFE, BLIND)), f"{self.name}-{self.count}")
        command = Dispatch(
            identity,
            Intent("text/plain", identity.key.encode()),
            order_key=rng.choice((None, "a", "b")),
            not_before=self.world.now_ms() + 60 if rng.random() < 0.15 else None,
            expires_in_ms=rng.choice((None, None, None, None, 25, 300)),
        )
        self.asked.append(command)
        await self.ask(command)

    async def repeat(self) -> None:
        """The same once more, perhaps much later."""
        if self.asked:
            await self.ask(self.rng.choice(self.asked[-8:]))

    async def ask(self, command: Dispatch) -> None:
        """Until there is an answer."""
        reply = await self.persist(command)
        if isinstance(reply, Dispatched):
            self.accepted.append((command.identity, reply.operation_id))

    async def watch(self) -> None:
        """How does it stand?"""
        if self.accepted:
            identity, operation_id = self.rng.choice(self.accepted[-8:])
            await self.one(Watch(identity, operation_id, self.rng.choice((0, 0, 40, 200))))
            await self.one(Get(identity))

    async def cancel(self) -> None:
        """Take it back, and now and then ask for it anew."""
        if not self.accepted:
            return
        identity, operation_id = self.rng.choice(self.accepted[-4:])
        reply = await self.persist(Cancel(identity, operation_id))
        if isinstance(reply, Cancelled) and self.rng.random() < 0.5:
            await self.ask(next(each for each in self.asked if each.identity == identity))
