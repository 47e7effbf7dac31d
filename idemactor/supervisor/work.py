"""What runs in the children: looking after the directory before there are workers, and being one."""

from __future__ import annotations

import functools
import json
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import trio

from idemactor.config import ServerConfig
from idemactor.core.clock import Clock
from idemactor.core.keys import worker_of
from idemactor.node import (
    Life,
    boottime_s,
    check_settings,
    connections_max,
    first_ms,
    keyring_of,
    log_observer_of,
    make_context,
    make_metrics,
    make_office,
    make_proxy,
    make_shards,
    measured,
    serve_doors,
    telemetry_of,
)
from idemactor.observability import logs
from idemactor.observability.disk import DiskMetrics
from idemactor.observability.metrics import Metrics
from idemactor.observability.observer import Observers
from idemactor.server.auth import Authenticator
from idemactor.server.lane import Lane
from idemactor.server.operations import INSPECT_MS_MAX
from idemactor.server.stop import Told, told_to_stop
from idemactor.shard.actor import AheadError, Shard
from idemactor.shard.bell import Bell
from idemactor.shard.company import Company
from idemactor.shard.router import Place, Router
from idemactor.shard.start import FoundShards, open_shards, settle_journals
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sqlite_wal import Durability
from idemactor.supervisor.bulletin import Bulletin
from idemactor.supervisor.doors import Doors
from idemactor.workers.census import SharedCensus
from idemactor.workers.mesh import Mesh
from idemactor.workers.peer import Peer
from idemactor.workers.remote import RemoteShard

READY: Final = b"r"
"""What a worker sends to the supervisor once it answers."""

BEAT: Final = b"b"
"""What it sends every ``BEAT_MS`` from then on, while its loop and all its shards turn."""

BEAT_MS: Final = 1_000

AHEAD_MS_MAX: Final = 1_000
"""How far a worker that died may have been ahead of the next one's clock: they round, and places in line are given."""

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class Epoch:
    """The one time of all workers, also of those that are started later: it was ``start_ms`` at ``boot_s``.

    Attributes:
        start_ms: Milliseconds since the epoch.
        boot_s: The clock of ``node.boottime_s`` then, seconds.
    """

    start_ms: int
    boot_s: float

    def clock(self, latest_ms: int) -> Clock:
        """A clock that shows that time, and nothing before ``latest_ms``, which is on disk."""
        passed_ms = math.ceil((boottime_s() - self.boot_s) * _MS_PER_S)
        return Clock(max(self.start_ms + passed_ms, latest_ms), boottime_s)

    def to_bytes(self) -> bytes:
        """For the way to the supervisor."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Epoch:
        """The reverse."""
        return cls(**json.loads(data))


def prepare(config: ServerConfig, directory: DataDirectory, tell: Callable[[bytes], None]) -> None:
    """Look after the whole directory, before anybody serves any of it; tells the ``Epoch``.

    Raises:
        StartError: It cannot be served as it is; the message says the way out.
    """
    directory.claim(range(directory.shards))
    tell(trio.run(_prepare, config, directory).to_bytes())


async def _prepare(config: ServerConfig, directory: DataDirectory) -> Epoch:
    durability: Durability = config.server.durability.value
    keys = keyring_of(config)
    await settle_journals(directory, durability, config.server.workers, keys)
    async with open_shards(directory, durability, keys) as found:
        epoch = Epoch(first_ms(config, found), boottime_s())
        await check_settings(config, found.whole, epoch.start_ms)
    return epoch


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What every worker is given.

    Attributes:
        config: The configuration.
        directory: The directory, owned; each worker claims its own shards in it.
        doors: Where callers come in.
        sockets: Where the other workers come in, by worker.
        epoch: The time.
        bulletin: The tokens there are now, where they are no longer the configuration's.
    """

    config: ServerConfig
    directory: DataDirectory
    doors: Doors
    sockets: Sequence[socket.socket]
    epoch: Epoch
    bulletin: Bulletin


def work(given: Inheritance, worker: int, tell: Callable[[bytes], None]) -> None:
    """Be a worker until SIGTERM. At SIGHUP it looks at the bulletin.

    Raises:
        StartError: A shard cannot be opened.
    """
    logs.configure(given.config.log.level, worker=worker)
    for number, sock in enumerate(given.sockets):
        if number != worker:
            sock.close()
    shards = range(given.directory.shards)
    mine = [shard for shard in shards if worker_of(shard, given.config.server.workers) == worker]
    given.directory.claim(mine)
    trio.run(_work, given, worker, mine, tell)


async def _work(given: Inheritance, worker: int, mine: Sequence[int], tell: Callable[[bytes], None]) -> None:
    with told_to_stop() as told, told.starting:
        await _work_until(told, given, worker, mine, tell)


async def _work_until(
    told: Told, given: Inheritance, worker: int, mine: Sequence[int], tell: Callable[[bytes], None]
) -> None:
    durability: Durability = given.config.server.durability.value
    keys = keyring_of(given.config)
    async with (
        telemetry_of(given.config, worker) as telemetry,
        open_shards(given.directory, durability, keys, mine) as found,
    ):
        metrics, census = make_metrics(given.config, mine), SharedCensus()
        metrics.registry.register(DiskMetrics(given.directory.path, given.directory.journal_path(mine[0])))
        observer = Observers(metrics, log_observer_of(given.config))
        clock = given.epoch.clock(await _latest_ms(found, given.epoch))
        bell, company = Bell(), Company()
        shards = make_shards(given.config, found, clock, observer, census, bell, company, telemetry, worker)
        peers = {
            number: Peer(worker, number, census, metrics.counted, bell, telemetry)
            for number in range(given.config.server.workers)
            if number != worker
        }
        router = Router(_places(given, shards, peers), observer, company)
        lane = Lane(router.route, company)
        mesh = Mesh(worker, peers, given.sockets[worker], given.directory.path, router, lane, census)
        bell.on_moved, bell.on_ring = router.lines_moved, mesh.ring
        context = make_context(given.config, router, observer, metrics, clock, bell)
        context.shard_map = given.doors.shard_map(given.directory.shards, worker)
        context.reports = functools.partial(_reports, worker, metrics, mesh)
        context.lane = lane
        context.tracing = telemetry
        async with mesh.running(), measured(telemetry, context):
            http, rpc, gateway = (door.of(worker) for door in given.doors.all())
            proxy, office = make_proxy(given.config, context), make_office(given.config, context, worker)
            most = connections_max(len(mine), proxy is not None)
            renew = functools.partial(_renew, given.bulletin, context.authenticator)
            renew()
            told.reload_with(renew)
            life = Life(
                told=told,
                drain_ms=given.config.server.drain_ms,
                announce=lambda _: tell(READY),
                draining=lambda: None,
                beat=lambda: tell(BEAT),
                beat_ms=BEAT_MS,
                all_settled=mesh.all_settled,
            )
            await serve_doors(context, http, rpc, gateway, proxy, office, most, life)


async def _latest_ms(found: FoundShards, epoch: Epoch) -> int:
    """The latest time of this worker's shards; those that are ahead of all workers' time are left for later.

    They could not be read when that was settled, and one worker's time must not run before the others'.
    """
    end_ms = epoch.clock(0).now_ms() + AHEAD_MS_MAX
    for shard, opened in list(found.opened.items()):
        if opened.latest_ms > end_ms:
            await found.set_aside(shard, AheadError(opened.latest_ms - end_ms))
    return max((opened.latest_ms for opened in found.opened.values()), default=0)


def _renew(bulletin: Bulletin, authenticator: Authenticator) -> None:
    tokens = bulletin.read()
    if tokens is not None:
        authenticator.replace(tokens)


def _places(given: Inheritance, shards: Sequence[Shard], peers: Mapping[int, Peer]) -> list[Place]:
    """All shards in order, this worker's own and the others'."""
    own = {shard.number: shard for shard in shards}
    return [
        own.get(number) or RemoteShard(number, peers[worker_of(number, given.config.server.workers)])
        for number in range(given.directory.shards)
    ]


async def _reports(worker: int, metrics: Metrics, mesh: Mesh) -> dict[int, str | None]:
    return {worker: metrics.counted(), **await mesh.reports(INSPECT_MS_MAX)}
