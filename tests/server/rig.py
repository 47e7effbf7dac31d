"""A server without sockets: real shards on engines in memory, and what the doors need of them."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import h11
import trio
import trio.testing

from idemactor.core.census import Census
from idemactor.core.clock import Clock, Sequencer
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.limits import LEASE_MS_MAX
from idemactor.core.policy import OnDuplicate, Policy
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.resolve import resolver_of
from idemactor.gateway.source import Source
from idemactor.observability.metrics import Expected, Metrics
from idemactor.observability.observer import Observer, Observers
from idemactor.server.auth import Authenticator, TokenEntry
from idemactor.server.context import ServerContext
from idemactor.server.tracing import Tracing
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.router import Router
from idemactor.storage.memory import MemoryDisk, MemoryEngine
from idemactor.wire.requests import Watch

START_MS = 1_700_000_000_000

POLICIES: Mapping[str, Policy] = {
    "default": Policy(),
    "trade": Policy(lease_ms=5_000, on_duplicate=OnDuplicate.REJECT),
    "small": Policy(records_max=2, lease_total_max_ms=LEASE_MS_MAX),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A configured token."""

    sha256: bytes
    tenant: str
    namespaces: tuple[str, ...]
    role: str
    name: str = ""


def entry(token: str, tenant: str, role: str, *namespaces: str) -> Entry:
    """The entry of a token given in clear."""
    return Entry(sha256(token.encode()).digest(), tenant, namespaces or ("*",), role, f"{tenant}-{role}")


TOKENS: Sequence[TokenEntry] = (
    entry("caller-token", "acme", "caller"),
    entry("operator-token", "acme", "operator"),
    entry("metrics-token", "acme", "metrics"),
    entry("trade-token", "acme", "caller", "trade", "gone"),
    entry("other-token", "other", "operator"),
)


@dataclass(slots=True)
class Rig:
    """A context, and the disks under it."""

    context: ServerContext
    disks: list[MemoryDisk] = field(default_factory=list)


@contextlib.asynccontextmanager
async def running(
    clock: trio.abc.Clock,
    *,
    shards: int = 3,
    tokens: Sequence[TokenEntry] = (),
    mailbox_max: int = 4_096,
    run: bool = True,
    policies: Mapping[str, Policy] = POLICIES,
    sources: Mapping[str, Source] = SHIPPED,
    watch: Watch | None = None,
    observer: Observer | None = None,
    tracing: Tracing | None = None,
    proxied: Sequence[str] = (),
) -> AsyncIterator[Rig]:
    """A context whose shards run on ``clock``; ``run=False``: their tasks never start, so that none answers."""
    verifying = [name for name, source in sources.items() if source.verify is not None]
    expected = Expected(shards=range(shards), doors=("http", "rpc"), sources=verifying, proxied=proxied)
    metrics = Metrics(expected, process=False, seconds=clock.current_time)
    census, rng = Census(), random.Random(7)
    time = Clock(START_MS, clock.current_time)
    bell, sequencer = Bell(), Sequencer(time.now_us)
    disks = [MemoryDisk() for _ in range(shards)]
    actors = []
    for number, disk in enumerate(disks):
        engine = MemoryEngine(disk)
        opened = await engine.open()
        actors.append(
            Shard(
                number,
                engine,
                policies,
                census,
                time,
                lambda: rng.getrandbits(ENTROPY_BITS),
                metrics,
                ShardSettings(mailbox_max=mailbox_max),
                opened,
                tracer=tracing,
                bell=bell,
                sequencer=sequencer,
            )
        )
    router = Router(actors, metrics)
    bell.on_moved = router.lines_moved
    seen = metrics if observer is None else Observers(metrics, observer)
    authenticator = Authenticator(tokens, policies, resolver_of(sources, time.now_ms, seen.forged), watch)
    context = ServerContext(router, policies, authenticator, seen, metrics, time.now_ms, bell=bell)
    context.sources = sources
    context.tracing = tracing
    async with trio.open_nursery() as nursery:
        if run:
            await nursery.start(router.run)
        yield Rig(context, disks)
        nursery.cancel_scope.cancel()


async def leaves_nothing_behind(server: Any, client: Any, last: bytes) -> None:
    """The only connection of a door is freed once its client has sent ``last`` and left, though nobody collects."""
    [connection] = (weakref.ref(one) for one in server.door._connections)
    gc.collect()
    gc.disable()
    try:
        parsers = _alive(h11.Connection)
        await client.send(last)
        await client.stream.aclose()
        with trio.fail_after(30):
            while server.over == 0:
                await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert connection() is None
        # Of one that was handed over to the framework, too.
        assert _alive(h11.Connection) == parsers
    finally:
        gc.enable()


def _alive(kind: type) -> int:
    return sum(type(found) is kind for found in gc.get_objects())
