"""A simulated server of several workers: each owns some shards, any may be asked, single ones die, and wires break."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import trio

from idemactor.core.clock import Clock, Sequencer
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.keys import worker_of
from idemactor.core.policy import Policy
from idemactor.errors import StorageError
from idemactor.observability.observer import NOBODY
from idemactor.shard.actor import ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Place, Router
from idemactor.workers.census import SharedCensus
from idemactor.workers.mesh import Mesh
from idemactor.workers.remote import RemoteShard
from tests.sim.disks import Power, Storage
from tests.sim.history import History, Op
from tests.sim.node import SimShard
from tests.sim.relays import Question
from tests.sim.wires import End, SimPeer, wire

AWAY_S: Final = 0.15
"""The longest until a worker that died is back."""
STARTS_MAX: Final = 200
"""What cannot be started so often never will be."""
LAST_WORDS_S: Final = 0.2
"""How long the wires are still there once all workers have said what they had to."""


@dataclass(eq=False)
class Worker:
    """One life of one of them."""

    number: int
    shards: list[SimShard]
    peers: dict[int, SimPeer]
    router: Router
    mesh: Mesh
    power: Power
    ended: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    nursery: trio.Nursery | None = None


class Fleet:
    """All workers: what callers take for the router of a server."""

    def __init__(
        self,
        count: int,
        storage: Storage,
        policies: Mapping[str, Policy],
        clock: Clock,
        settings: ShardSettings,
        rng: Random,
        histories: Sequence[History],
        questions: set[Question],
        shard_type: type[SimShard],
        peer_type: type[SimPeer],
    ) -> None:
        self.count = count
        self.settling = False
        self.workers: dict[int, Worker] = {}
        self.wires: list[End] = []
        self._storage, self._policies, self._clock, self._settings = storage, policies, clock, settings
        self._rng, self._shard_type, self._peer_type = rng, shard_type, peer_type
        self._history, self._histories, self._questions = histories[0], histories, questions
        self._came = trio.Event()
        self._closing = trio.Event()
        self.ended = trio.Event()

    @property
    def shards(self) -> list[SimShard]:
        """Those of all living workers."""
        return sorted((s for w in self.workers.values() for s in w.shards), key=lambda shard: shard.number)

    def route(self, envelopes: Sequence[Envelope]) -> None:
        """Callers send them together, to any worker that is there."""
        worker = self._any_for(envelopes)
        if worker is not None:
            worker.router.route(envelopes)

    def ask(self, shard: int, envelope: Envelope) -> None:
        """Ask about a shard, of any worker that is there."""
        worker = self._any_for([envelope])
        if worker is not None:
            worker.router.ask(shard, envelope)

    def _any_for(self, envelopes: Sequence[Envelope]) -> Worker | None:
        """A worker that takes these from now on; None where there is none: nobody takes a connection."""
        worker = self._rng.choice(list(self.workers.values())) if self.workers else None
        for envelope in envelopes:
            sink = cast("Op | Question", envelope.sink)
            sink.via = worker
            if worker is None:
                sink.break_off()
        return worker

    def kill(self, number: int) -> None:
        """SIGKILL: its tasks end at once, and whoever was connected to it loses the connection."""
        worker = self.workers.pop(number, None)
        if worker is None:
            return
        for shard in worker.shards:
            self._history.violations += [f"forgotten without a word: {op}" for op in shard.forgotten()]
        worker.power.cut()
        worker.scope.cancel()
        asked: list[Op | Question] = [*itertools.chain(*(history.ops for history in self._histories))]
        for each in (*asked, *self._questions):
            if each.via is worker:
                each.break_off()
        for shard in worker.shards:
            self._history.deciding_ms.pop(shard.number, None)

    def apart(self) -> list[str]:
        """Workers that are away, or out of touch with another: after a long silence there should be none."""
        away = [f"worker {number} did not come back" for number in range(self.count) if number not in self.workers]
        peers = ((worker.number, peer) for worker in self.workers.values() for peer in worker.peers.values())
        return away + [f"worker {here} is out of touch with {p.number}" for here, p in peers if not p.up.is_set()]

    def settle_only(self) -> None:
        """All were told to stop: nothing is granted any more, nobody waits, and who dies is not started again."""
        self.settling = True
        for worker in self.workers.values():
            worker.router.settle_only()

    def close(self) -> None:
        """Stop, in good order."""
        self.settling = True
        self._closing.set()

    def cut(self) -> None:
        """All of them die at once."""
        for worker in self.workers.values():
            worker.power.cut()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until ``close``."""
        async with trio.open_nursery() as nursery:
            for number in range(self.count):
                await nursery.start(self._live, number)
            for one in range(self.count):
                for other in range(one):
                    nursery.start_soon(self._stay_linked, one, other)
            task_status.started()
            await self._closing.wait()
            for worker in list(self.workers.values()):
                worker.router.close()
            for worker in list(self.workers.values()):
                await worker.ended.wait()
            # What was answered last is on its way to whoever asked another worker.
            await trio.sleep(LAST_WORDS_S)
            self.ended.set()
            nursery.cancel_scope.cancel()

    async def trouble(self) -> None:
        """Workers die and wires break, one after the other."""
        while True:
            await trio.sleep(self._rng.random() * 0.4)
            if self.wires and self._rng.random() < 0.5:
                self._rng.choice(self.wires).cut()
            else:
                self.kill(self._rng.randrange(self.count))

    async def _live(self, number: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """One life after the other."""
        while not self.settling:
            worker = await self._start(number)
            if self.settling:
                return
            with worker.scope:
                async with trio.open_nursery() as worker.nursery:
                    worker.nursery.start_soon(self._serve, worker)
                    worker.nursery.start_soon(worker.mesh._tick)
                    self.workers[number] = worker
                    came, self._came = self._came, trio.Event()
                    came.set()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self._rng.random() * AWAY_S)

    @staticmethod
    async def _serve(worker: Worker) -> None:
        """Until it dies, or is closed; what it said last may still be on its way then."""
        try:
            await worker.router.run()
        finally:
            worker.ended.set()

    async def _start(self, number: int) -> Worker:
        """Start it, as often as it takes: who supervises it starts it again where it cannot open its files."""
        for _ in range(STARTS_MAX):
            power = Power()
            try:
                return await self._made(number, power)
            except StorageError:
                power.cut()
                await trio.sleep(self._rng.random() * AWAY_S)
        raise RuntimeError("a worker cannot be started")

    async def _made(self, number: int, power: Power) -> Worker:
        count = len(self._storage.disks)
        mine = [n for n in range(count) if worker_of(n, self.count) == number]
        census, bell, broom, rng = SharedCensus(), Bell(), Broom(), self._rng
        sequencer = Sequencer(self._clock.now_us, number, self.count)
        peers = {
            other: self._peer_type(number, other, census, lambda: "", bell)
            for other in range(self.count)
            if other != number
        }
        shards, places = [], list[Place]()
        engines = self._storage.engines(mine, number, power)
        for shard in range(count):
            if shard not in mine:
                places.append(RemoteShard(shard, peers[worker_of(shard, self.count)]))
                continue
            opened = await engines[shard].open()
            made = self._shard_type(
                shard, engines[shard], self._policies, census, self._clock, lambda: rng.getrandbits(ENTROPY_BITS),
                NOBODY, self._settings, opened, broom, bell, sequencer,
            )  # fmt: skip
            made.history, made.storage = self._history, self._storage
            shards.append(made)
            places.append(made)
        router = Router(places, NOBODY)
        nothing: Any = None
        mesh = Mesh(number, peers, nothing, Path(), router, nothing, census)
        bell.on_moved, bell.on_ring = router.lines_moved, mesh.ring
        return Worker(number, shards, peers, router, mesh, power)

    async def _stay_linked(self, one: int, other: int) -> None:
        while True:
            while one not in self.workers or other not in self.workers:
                await self._came.wait()
            ends = wire(self._rng)
            self.wires.append(ends[0])
            for here, there, end in ((one, other, ends[0]), (other, one, ends[1])):
                worker = self.workers[here]
                assert worker.nursery is not None
                nothing: Any = None
                worker.nursery.start_soon(worker.peers[there].converse, cast("Any", end), worker.router, nothing)
            for end in ends:
                await end.gone.wait()
            self.wires.remove(ends[0])
            await trio.sleep(self._rng.random() * 0.02)


@dataclass
class FleetNode:
    """One incarnation of them all, between a start and a crash."""

    policy: Policy
    router: Fleet
    clock: Clock

    @property
    def ended(self) -> trio.Event:
        """Set once all have ended."""
        return self.router.ended

    @property
    def power(self) -> Fleet:
        """What is cut where all die at once."""
        return self.router

    def settle_only(self) -> None:
        """All were told to stop."""
        self.router.settle_only()

    @property
    def shards(self) -> list[SimShard]:
        """Those of all living workers."""
        return self.router.shards
