"""Seeded callers: they reserve, work, crash, repeat themselves, come late, and hang up while they wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

import trio

from idemactor.core.commands import (
    Accept,
    Command,
    Commit,
    Doubt,
    Extend,
    Forget,
    Get,
    Release,
    Reserve,
    Resolve,
    Verdict,
)
from idemactor.core.fingerprint import Fingerprint
from idemactor.core.keys import Identity
from idemactor.core.limits import TOKEN_MAX
from idemactor.core.policy import OnDuplicate
from idemactor.core.record import Outcome
from idemactor.core.replies import InDoubt, Overloaded, Reply, Reserved, Unavailable
from tests.sim.history import Op

LEASES: Final = (15, 15, 60, 60, 200, 200, 3_000)
TTLS: Final = (None, None, 80, 1_000)
WINDOWS: Final = (None, None, None, 60, 700)
FINGERPRINTS: Final = (None, None, *(Fingerprint(value, rule) for value in "aaab" for rule in ("text", "json")))


class Server(Protocol):
    """What callers know of the world."""

    keys: list[Identity]
    tokens: dict[Identity, list[int]]
    stopping: bool

    async def send(self, commands: list[Command]) -> list[Op]:
        """Send commands together, as soon as there is a node."""


class Caller:
    """One caller and its habits."""

    def __init__(self, name: str, server: Server, rng: Random) -> None:
        self.name, self.server, self.rng = name, server, rng
        self.count = 0

    async def run(self) -> None:
        """Call until the world says stop."""
        habits: list[tuple[int, Callable[[Identity], Awaitable[None]]]] = [
            (8, self.session),
            (2, self.accept),
            (2, self.look),
            (3, self.batch),
            (3, self.late),
            (2, self.twice),
            (1, self.hang_up),
            (1, self.forget),
        ]
        while not self.server.stopping:
            await trio.sleep(self.rng.random() * 0.04)
            ((_, habit),) = self.rng.choices(habits, [weight for weight, _ in habits])
            await habit(self.rng.choice(self.server.keys))

    # ------------------------------------------------------------------------------------------------------- habits

    async def session(self, identity: Identity) -> None:
        """Reserve, work, and end it somehow, or not at all."""
        first = self.reserve(identity)
        reply = await self.persist(first)
        if isinstance(reply, InDoubt) and self.rng.random() < 0.5:
            await self.resolve(identity)
        if not isinstance(reply, Reserved):
            return
        token = reply.token
        await self.work()
        if self.rng.random() < 0.25:
            await self.persist(Extend(identity, token, self.rng.choice(LEASES)))
            await self.work()
        roll = self.rng.random()
        if roll < 0.15:
            return
        ending: Command
        if roll < 0.6:
            ending = self.commit(identity, token)
        elif roll < 0.85:
            ending = Release(identity, token)
        else:
            ending = Doubt(identity, token, self.request_id())
        await self.persist(ending)
        if self.rng.random() < 0.3:
            await self.work()
            await self.one(self.rng.choice((ending, first)))
        if isinstance(ending, Doubt) and self.rng.random() < 0.6:
            await self.work()
            await self.resolve(identity)

    async def accept(self, identity: Identity) -> None:
        """Reserve and commit in one step."""
        await self.persist(
            Accept(
                identity,
                self.request_id(),
                fingerprint=self.rng.choice(FINGERPRINTS),
                ttl_ms=self.rng.choice(TTLS),
                window_ms=self.rng.choice(WINDOWS),
                holder=self.name,
                on_duplicate=self.rng.choice((None, *OnDuplicate)),
                outcome=self.outcome("accept"),
            )
        )

    async def look(self, identity: Identity) -> None:
        """Read a key."""
        await self.one(Get(identity))

    async def batch(self, identity: Identity) -> None:
        """Several commands at once, some of them for one key."""
        other = self.rng.choice(self.server.keys)
        choices: list[Command] = [
            self.reserve(identity, wait=False),
            self.reserve(identity, wait=False),
            Get(identity),
            self.commit(identity, self.known(identity)),
            Release(identity, self.known(identity)),
            self.reserve(other, wait=False),
            Release(other, self.known(other)),
        ]
        ops = await self.server.send(self.rng.sample(choices, self.rng.randint(2, 5)))
        for op in ops:
            await op.done.wait()
            self.learn(op)

    async def late(self, identity: Identity) -> None:
        """Somebody comes with a token of long ago."""
        token = self.known(identity)
        choices: list[Command] = [
            self.commit(identity, token),
            Release(identity, token),
            Extend(identity, token, self.rng.choice(LEASES)),
            Doubt(identity, token, self.request_id()),
            Resolve(identity, token, self.rng.choice(list(Verdict)), self.outcome("late")),
        ]
        await self.one(self.rng.choice(choices))

    async def twice(self, identity: Identity) -> None:
        """A network, or somebody between, brings one and the same request twice; the second may be under way long."""
        ops = []
        command = self.rng.choice(
            (
                self.reserve(identity),
                Accept(identity, self.request_id(), outcome=self.outcome("twice")),
                self.commit(identity, self.known(identity, latest=True)),
                Release(identity, self.known(identity, latest=True)),
            )
        )
        for _ in range(2):
            ops += await self.server.send([command])
            await trio.sleep(self.rng.choice((0, 0.002, 0.02, 0.1)))
        for op in ops:
            await op.done.wait()
            self.learn(op)

    async def hang_up(self, identity: Identity) -> None:
        """Wait for a key, and leave before the answer."""
        (op,) = await self.server.send([Reserve(identity, self.request_id(), lease_ms=200, wait_ms=300)])
        with trio.move_on_after(self.rng.random() * 0.1):
            await op.done.wait()
        op.closed = True

    async def forget(self, identity: Identity) -> None:
        """An operator wants nothing of a key to be left, mostly of one that is settled."""
        await self.one(Forget(identity, force=self.rng.random() < 0.3))

    # ------------------------------------------------------------------------------------------------ what they share

    async def resolve(self, identity: Identity) -> None:
        """An operator settles what is in doubt."""
        verdict = self.rng.choice(list(Verdict))
        await self.one(Resolve(identity, self.known(identity, latest=True), verdict, self.outcome("resolved")))

    async def persist(self, command: Command) -> Reply | None:
        """Ask until there is an answer, a few times at most; now and then the answer is lost and asked for again."""
        reply: Reply | None = None
        for _ in range(4):
            reply = await self.one(command)
            lost = self.rng.random() < 0.1
            if not lost and reply is not None and not isinstance(reply, Unavailable | Overloaded):
                return reply
            await trio.sleep(self.rng.random() * 0.06)
        return reply

    async def one(self, command: Command) -> Reply | None:
        """Ask once; None where the connection broke."""
        (op,) = await self.server.send([command])
        await op.done.wait()
        self.learn(op)
        return op.reply

    def learn(self, op: Op) -> None:
        """Whatever token anybody was given may be used by anybody later: that is what tokens are there against."""
        if isinstance(op.reply, Reserved):
            self.server.tokens.setdefault(op.command.identity, []).append(op.reply.token)

    def known(self, identity: Identity, *, latest: bool = False) -> int:
        """A token of this key, mostly one of the latest."""
        tokens = self.server.tokens.get(identity, [TOKEN_MAX])
        return tokens[-1] if latest or self.rng.random() < 0.4 else self.rng.choice(tokens[-4:])

    def reserve(self, identity: Identity, *, wait: bool = True) -> Reserve:
        """A reserve of one kind or another."""
        return Reserve(
            identity,
            self.request_id() if self.rng.random() < 0.7 else None,
            self.rng.choice(FINGERPRINTS),
            lease_ms=self.rng.choice(LEASES),
            ttl_ms=self.rng.choice(TTLS),
            window_ms=self.rng.choice(WINDOWS),
            holder=self.rng.choice((None, self.name)),
            on_duplicate=self.rng.choice((None, *OnDuplicate)),
            wait_ms=self.rng.choice((0, 0, 0, 20, 150, 400, 4_000)) if wait else 0,
        )

    def commit(self, identity: Identity, token: int) -> Commit:
        """A commit whose outcome is unlike every other."""
        return Commit(identity, token, self.outcome("commit"), self.rng.choice(TTLS))

    def outcome(self, kind: str) -> Outcome:
        """An outcome that nobody else gives."""
        self.count += 1
        return Outcome(200, (), f"{self.name}/{kind}/{self.count}".encode())

    def request_id(self) -> str:
        """A name that nobody else uses."""
        self.count += 1
        return f"{self.name}-{self.count}"

    async def work(self) -> None:
        """Take some time, now and then longer than any lease."""
        await trio.sleep(self.rng.choice((0, 0.005, 0.03, 0.1, 0.25)) * self.rng.random())
