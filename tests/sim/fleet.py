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
from idemactor.observability.observer import NOBODY
from idemactor.shard.actor import ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Place, Router
from idemactor.workers.census import SharedCensus
from idemactor.workers.mesh import Mesh
from idemactor.workers.remote import RemoteShard
from tests.sim.history import History, Op
from tests.sim.node import SimDisk, SimEngine, SimShard
from tests.sim.relays import Question
from tests.sim.wires import End, SimPeer, wire

AWAY_S: Final = 0.15
"""The longest until a worker that died is back."""


@dataclass(eq=False)
class Worker:
    """One life of one of them."""

    number: int
    shards: list[SimShard]
    peers: dict[int, SimPeer]
    router: Router
    mesh: Mesh
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    nursery: trio.Nursery | None = None


class Fleet:
    """All workers: what callers take for the router of a server."""

    def __init__(
        self,
        disks: Sequence[SimDisk],
        policies: Mapping[str, Policy],
        clock: Clock,
        settings: ShardSettings,
        rng: Random,
        histories: Sequence[History],
        questions: set[Question],
        shard_type: type[SimShard],
        peer_type: type[SimPeer],
    ) -> None:
        self.count = rng.randint(2, 3)
        self.workers: dict[int, Worker] = {}
        self.wires: list[End] = []
        self._disks, self._policies, self._clock, self._settings = disks, policies, clock, settings
        self._rng, self._shard_type, self._peer_type = rng, shard_type, peer_type
        self._history, self._histories, self._questions = histories[0], histories, questions
        self._sequencer = Sequencer(clock.now_us)
        self._came = trio.Event()
        self._closing = trio.Event()

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

    def close(self) -> None:
        """Stop, in good order."""
        self._closing.set()

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
        while True:
            worker = await self._start(number)
            with worker.scope:
                async with trio.open_nursery() as worker.nursery:
                    await worker.nursery.start(worker.router.run)
                    worker.nursery.start_soon(worker.mesh._tick)
                    self.workers[number] = worker
                    came, self._came = self._came, trio.Event()
                    came.set()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
            await trio.sleep(self._rng.random() * AWAY_S)

    async def _start(self, number: int) -> Worker:
        mine = [n for n in range(len(self._disks)) if worker_of(n, self.count) == number]
        census, bell, rng = SharedCensus(), Bell(), self._rng
        peers = {
            other: self._peer_type(number, other, census, lambda: "", bell)
            for other in range(self.count)
            if other != number
        }
        shards, places = [], list[Place]()
        for shard in range(len(self._disks)):
            if shard not in mine:
                places.append(RemoteShard(shard, peers[worker_of(shard, self.count)]))
                continue
            engine = SimEngine(self._disks[shard])
            engine.after_commit_s = lambda: rng.choice([0, 0, 0, 0.001, 0.02])
            engine.disk.failing_opens = 0
            opened = await engine.open()
            made = self._shard_type(
                shard, engine, self._policies, census, self._clock, lambda: rng.getrandbits(ENTROPY_BITS), NOBODY,
                self._settings, opened, None, bell, self._sequencer,
            )  # fmt: skip
            made.history = self._history
            shards.append(made)
            places.append(made)
        router = Router(places, NOBODY)
        nothing: Any = None
        mesh = Mesh(number, peers, nothing, Path(), router, nothing, census)
        bell.on_moved, bell.on_ring = router.lines_moved, mesh.ring
        return Worker(number, shards, peers, router, mesh)

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
    def shards(self) -> list[SimShard]:
        """Those of all living workers."""
        return self.router.shards
