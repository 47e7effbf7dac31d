"""Relays and reconcilers of the simulator: they take, deliver and settle, are slow, and die at any step of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

import trio

from idemactor.core.commands import (
    AckEvent,
    Command,
    Commit,
    Doubt,
    Extend,
    NackEvent,
    Postpone,
    Release,
    Resolve,
    Verdict,
)
from idemactor.core.delivery import RELAY, Kind, NewEvent
from idemactor.core.keys import Identity
from idemactor.core.queries import (
    Behind,
    Heads,
    ListRecords,
    Query,
    RecordsPage,
    Take,
    Taken,
    TakenEvent,
    TakenIntent,
    Turn,
)
from idemactor.core.record import Outcome, Record
from idemactor.shard.mailbox import Answer
from tests.sim.callers import Caller, Server
from tests.sim.destination import BLIND, SAFE, Destination, Said

STATUS_AFTER_MS: Final = 2_000
"""How long after the end of an attempt's lease nothing of it can arrive any more: the longest flight, and what the
server's clock may have been put forward meanwhile."""
LEASES: Final = (30, 80, 250)


@dataclass(eq=False)
class Question:
    """Something asked of a shard beside the state table, and the sink of its answer."""

    query: Query
    answer: Answer | None = None
    closed: bool = False
    via: object = None
    done: trio.Event = field(default_factory=trio.Event)

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Note the answer, unless the connection broke before."""
        if not self.done.is_set():
            ((_, self.answer),) = answers
            self.done.set()

    def break_off(self) -> None:
        """The node died."""
        self.done.set()


class Hub(Server, Protocol):
    """What relays know of the world."""

    destination: Destination
    incarnation: int
    shown: list[tuple[str, TakenEvent]]

    @property
    def shard_count(self) -> int:
        """How many shards there are."""

    @property
    def drained(self) -> bool:
        """Whether the callers have stopped and nothing is left to be done."""

    def now_ms(self) -> int:
        """The server's time."""

    async def present(self) -> None:
        """Wait for a node."""

    async def ask(self, shard: int, query: Query) -> Answer | None:
        """Ask a shard; None where the node died first."""


class Relay(Caller):
    """One relay of one namespace, which lives and dies with the node, or a service that polls beside it."""

    def __init__(
        self, name: str, hub: Hub, rng: Random, namespace: str, nursery: trio.Nursery, *, inside: bool
    ) -> None:
        super().__init__(name, hub, rng)
        self.hub, self.namespace, self.nursery, self.inside = hub, namespace, nursery, inside
        self.settled: list[Command] = []

    async def run(self) -> None:
        """Scan until all is done."""
        while not self.hub.drained:
            for shard in range(self.hub.shard_count):
                await self.take(shard)
            await trio.sleep(self.rng.random() * (0.5 if self.server.stopping else 0.04))
            if self.settled and not self.server.stopping and self.rng.random() < 0.4:
                # What was said long ago comes once more: an answer was lost, or a packet went astray.
                await self.one(self.rng.choice(self.settled[-12:]))

    # ---------------------------------------------------------------------------------------------------- the taker

    async def take(self, shard: int) -> None:
        """Take what one shard has: what keeps no order at once, the rest once nothing stands before it anywhere."""
        taken = await self._take(shard, (), ())
        if taken is None or not taken.heads:
            return
        behind = await self._behind(shard, taken.heads)
        await self._take(shard, tuple(t for t in taken.heads if t not in behind), tuple(behind))

    async def _behind(self, shard: int, heads: tuple[Turn, ...]) -> set[Turn]:
        """Those with something before them in another shard, or where one cannot say."""
        behind: set[Turn] = set()
        for other in range(self.hub.shard_count):
            if other != shard:
                answer = await self.hub.ask(other, Heads(self.namespace, heads))
                behind |= set(answer.turns if isinstance(answer, Behind) else heads)
        return behind

    async def _take(self, shard: int, turns: tuple[Turn, ...], behind: tuple[Turn, ...]) -> Taken | None:
        lease_ms = self.rng.choice(LEASES)
        most = self.rng.choice((1, 3, 50))
        await self.hub.present()
        life = self.hub.incarnation
        holder = f"{RELAY}-{life}" if self.inside else self.name
        query = Take(
            self.namespace, None, (Kind.INTENT, Kind.EVENT), most, lease_ms, holder, turns=turns, behind=behind
        )
        until = trio.current_time() + lease_ms / 1_000
        answer = await self.hub.ask(shard, query)
        if not isinstance(answer, Taken) or self._dies(life):
            return None
        for intent in answer.intents:
            self.nursery.start_soon(self.deliver, intent, until, life)
        for event in answer.events:
            self.nursery.start_soon(self.consume, event)
        return answer

    def _dies(self, life: int) -> bool:
        if self.inside and self.hub.incarnation != life:
            return True
        return not self.server.stopping and self.rng.random() < 0.06

    # ------------------------------------------------------------------------------------------------- what it does

    async def deliver(self, taken: TakenIntent, until: float, life: int) -> None:
        """Deliver one, and say what became of it, unless it dies over it."""
        if not self.server.stopping:
            await trio.sleep(self.rng.choice((0, 0, 0.002, 0.04, 0.2)))
        if trio.current_time() >= until or self._dies(life):
            return
        said = await self.hub.destination.receive(taken.identity, taken.operation_id, taken.order_key)
        if self._dies(life):
            return
        command = self.settling(taken, said)
        if isinstance(command, Postpone) or self.rng.random() < 0.3:
            self.settled.append(command)
        await self.persist(command)

    def settling(self, taken: TakenIntent, said: Said | None) -> Command:
        """The verdict rule."""
        identity, token, rng = taken.identity, taken.token, self.rng
        match said:
            case Said.DONE:
                events = tuple(NewEvent("text/plain", b"", order_key=rng.choice((None, "e"))) for _ in range(2))
                outcome = Outcome(200, (), taken.operation_id.encode())
                return Commit(identity, token, outcome, events=events if rng.random() < 0.3 else ())
            case Said.FAILED:
                ends = rng.random() < 0.5
                return Commit(identity, token, failed=True) if ends else Release(identity, token, failed=True)
            case Said.REFUSED:
                return Postpone(identity, token, self.hub.now_ms() + rng.choice((0, 10, 60)), perhaps_sent=False)
            case None if self.namespace == BLIND:
                return Doubt(identity, token, "timeout")
            case None if rng.random() < 0.2:
                return Extend(identity, token, 30)
            case None:
                return Postpone(identity, token, self.hub.now_ms() + rng.choice((0, 10, 60)), perhaps_sent=True)

    async def consume(self, taken: TakenEvent) -> None:
        """A service deals with an event, or it does not."""
        self.hub.shown.append(("shown", taken))
        event = taken.event
        roll = 1.0 if self.server.stopping else self.rng.random()
        if roll < 0.2:
            return
        if roll < 0.35:
            await self.persist(NackEvent(event.identity, event.seq, event.id, self.hub.now_ms() + 20))
            return
        self.hub.shown.append(("acked", taken))
        await self.persist(AckEvent(event.identity, event.seq, event.id))


class Reconciler(Caller):
    """Asks the destinations what became of what is in doubt; one that does not know of it is believed after a while."""

    def __init__(self, name: str, hub: Hub, rng: Random) -> None:
        super().__init__(name, hub, rng)
        self.hub = hub

    async def run(self) -> None:
        """Look around until all is done."""
        while not self.hub.drained:
            for shard in range(self.hub.shard_count):
                for tenant in ("acme", "zeta"):
                    for namespace in (SAFE, BLIND):
                        await self.look_at(shard, tenant, namespace)
            await trio.sleep(self.rng.random() * (1.5 if self.server.stopping else 0.3))

    async def look_at(self, shard: int, tenant: str, namespace: str) -> None:
        """What of a tenant's is in doubt in a shard."""
        page = await self.hub.ask(shard, ListRecords(tenant, namespace, "in_doubt", None, None, 0, 1_000))
        rows: Sequence[Any] = page.rows if isinstance(page, RecordsPage) else ()
        for _, key, record in rows:
            command = self.settling(Identity(tenant, namespace, key), record)
            if command is not None:
                await self.persist(command)

    def settling(self, identity: Identity, record: Record) -> Command | None:
        """What is known by now."""
        said = self.hub.destination.status(record.operation_id)
        if said is Said.DONE:
            outcome = Outcome(200, (), record.operation_id.encode())
            return Resolve(identity, record.token, Verdict.COMMITTED, outcome)
        if said is Said.FAILED:
            return Commit(identity, record.token, failed=True)
        assert record.lease_expires_at is not None
        if self.hub.now_ms() < record.lease_expires_at + STATUS_AFTER_MS:
            return None
        if self.rng.random() < 0.2:
            return Resolve(identity, record.token, Verdict.RELEASED)
        return Postpone(identity, record.token, self.hub.now_ms(), perhaps_sent=False, absent=True)
