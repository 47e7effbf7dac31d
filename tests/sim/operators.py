"""Operators of the simulator: they list, settle what is in doubt, and acknowledge what proved too much."""

from __future__ import annotations

from random import Random
from typing import Protocol

import trio

from idemactor.core.commands import Doubt, Get, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.core.queries import (
    Acknowledge,
    IncidentsPage,
    Inspect,
    ListIncidents,
    ListRecords,
    Query,
    RecordsPage,
)
from idemactor.core.record import State
from idemactor.core.replies import Found
from idemactor.shard.mailbox import Answer
from tests.sim.callers import Caller, Server


class Desk(Server, Protocol):
    """What operators know of the world."""

    acknowledged: dict[Identity, set[int]]

    @property
    def shard_count(self) -> int:
        """How many shards there are."""

    async def ask(self, shard: int, query: Query) -> Answer | None:
        """Ask a shard; None where the node died first."""


class Operator(Caller):
    """One of them."""

    def __init__(self, name: str, desk: Desk, rng: Random) -> None:
        super().__init__(name, desk, rng)
        self.desk = desk

    async def run(self) -> None:
        """Look around until the world says stop."""
        while not self.server.stopping:
            await trio.sleep(self.rng.random() * 0.3)
            shard = self.rng.randrange(self.desk.shard_count)
            identity = self.rng.choice(self.server.keys)
            await self.rng.choice((self.incidents, self.records, self.metrics))(shard, identity)

    async def incidents(self, shard: int, identity: Identity) -> None:
        """Read what proved too much, and acknowledge some of it, now and then twice."""
        page = await self.desk.ask(shard, ListIncidents(*identity[:2], 0, self.rng.randint(1, 5)))
        for number, incident in page.rows if isinstance(page, IncidentsPage) else ():
            if self.rng.random() < 0.6:
                self.desk.acknowledged.setdefault(incident.identity, set()).add(incident.token)
                for _ in range(self.rng.randint(1, 2)):
                    await self.desk.ask(shard, Acknowledge(*identity[:2], number))

    async def records(self, shard: int, identity: Identity) -> None:
        """Read what is there, break a lease, and settle what is in doubt."""
        state = self.rng.choice((None, "pending", "in_doubt", "committed"))
        page = await self.desk.ask(shard, ListRecords(*identity[:2], state, None, None, 0, self.rng.randint(1, 5)))
        for _, key, _ in page.rows if isinstance(page, RecordsPage) else ():
            await self.settle(Identity(*identity[:2], key))

    async def settle(self, whose: Identity) -> None:
        """Break a lease, or settle what is in doubt, with the token that reading the key shows."""
        found = await self.one(Get(whose))
        record = found.record if isinstance(found, Found) else None
        if record is None or record.state is State.COMMITTED:
            return
        if self.rng.random() < 0.2:
            await self.one(Doubt(whose, record.token, self.request_id()))
        if self.rng.random() < 0.3:
            await self.one(Resolve(whose, record.token, self.rng.choice(list(Verdict)), self.outcome("operator")))

    async def metrics(self, shard: int, _identity: Identity) -> None:
        """Ask how a shard stands."""
        await self.desk.ask(shard, Inspect())
