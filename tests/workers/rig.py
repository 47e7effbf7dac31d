"""Workers of one server inside one event loop: shards on memory disks, and real sockets between them."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import trio

from idemactor.core.clock import Clock
from idemactor.core.commands import Command
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.keys import worker_of
from idemactor.core.policy import Policy
from idemactor.observability.observer import NOBODY
from idemactor.server.lane import Lane
from idemactor.server.tracing import Tracing
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Place, Router
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from idemactor.workers.census import SharedCensus
from idemactor.workers.peer import Peer
from idemactor.workers.remote import RemoteShard
from tests.shard.harness import NAMESPACE, START_MS, Call

SHARDS = 4


@dataclass
class Worker:
    """One of them."""

    number: int
    disks: dict[int, MemoryDisk]
    census: SharedCensus = field(default_factory=SharedCensus)
    peers: dict[int, Peer] = field(default_factory=dict)
    router: Router = field(init=False)
    lane: Lane = field(init=False)

    def send(self, *commands: Command) -> list[Call]:
        """Commands of callers of this worker."""
        calls = [Call(command) for command in commands]
        self.router.route([Envelope(call.command, call, None) for call in calls])
        return calls

    async def one(self, command: Command) -> Answer:
        [call] = self.send(command)
        return await call.wait()


class Workers(list[Worker]):
    """All of them, and the connections between them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self._nursery = nursery

    async def connect(self, one: int, other: int) -> None:
        """A new connection between two; returns once both know of each other."""
        sockets = socket.socketpair()
        for (here, there), sock in zip(((one, other), (other, one)), sockets, strict=True):
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            worker = self[here]
            self._nursery.start_soon(worker.peers[there].converse, stream, worker.router, worker.lane)
        with trio.fail_after(10):
            await self.linked(one, other)

    async def linked(self, one: int, other: int) -> None:
        """Wait until two know of each other."""
        await self[one].peers[other].up.wait()
        await self[other].peers[one].up.wait()


@contextlib.asynccontextmanager
async def running(count: int, policy: Policy | None = None, tracing: Tracing | None = None) -> AsyncIterator[Workers]:
    """``count`` workers, all connected; each runs its share of ``SHARDS`` shards."""
    policies = {NAMESPACE: policy or Policy()}
    clock, rng = Clock(START_MS, trio.current_time), random.Random(7)
    async with trio.open_nursery() as nursery:
        workers = Workers(nursery)
        for number in range(count):
            worker = Worker(number, {s: MemoryDisk() for s in range(SHARDS) if worker_of(s, count) == number})
            for other in set(range(count)) - {number}:
                worker.peers[other] = Peer(number, other, worker.census, lambda: "", Bell(), tracing)
            places: list[Place] = []
            for shard in range(SHARDS):
                if shard not in worker.disks:
                    places.append(RemoteShard(shard, worker.peers[worker_of(shard, count)]))
                    continue
                engine = MemoryEngine(worker.disks[shard])
                opened = await engine.open()
                draw = lambda: rng.getrandbits(ENTROPY_BITS)  # noqa: E731
                settings = ShardSettings()
                given = (engine, policies, worker.census, clock, draw, NOBODY, settings, opened)
                places.append(Shard(shard, *given, tracer=tracing))
            worker.router = Router(places, NOBODY)
            worker.lane = Lane(worker.router.route)
            workers.append(worker)
            await nursery.start(worker.router.run)
            await nursery.start(worker.lane.run)
        for one in range(count):
            for other in range(one):
                await workers.connect(one, other)
        yield workers
        nursery.cancel_scope.cancel()
