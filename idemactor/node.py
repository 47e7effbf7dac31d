"""The composition root: one process that owns a data directory, its shards and its doors.

Everything else receives plain values; only this module and ``cli/`` read the configuration.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import trio

from idemactor.config import DoorSection, ServerConfig
from idemactor.config.model import LogLevel
from idemactor.core.census import Census
from idemactor.core.clock import Clock, ClockTooFarBehind, start_time
from idemactor.errors import StartError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.refs import parse_ref
from idemactor.gateway.request_log import RequestLog
from idemactor.gateway.resolve import resolver_of
from idemactor.observability import logs
from idemactor.observability.log_observer import LogObserver
from idemactor.observability.metrics import Metrics
from idemactor.observability.observer import Observer, Observers
from idemactor.server.auth import TENANT_DEFAULT, Authenticator
from idemactor.server.context import ServerContext
from idemactor.server.door_observer import DoorObserver
from idemactor.server.http_app import build_app
from idemactor.server.http_fast import FastDoor
from idemactor.server.http_guard import ALPN_PROTOCOLS, HttpDoor, HttpLimits
from idemactor.server.listeners import (
    CONNECTIONS_MAX_DEFAULT,
    AcceptLimits,
    SocketListener,
    bind_listeners,
    server_ssl_context,
)
from idemactor.server.rpc_door import RpcDoor
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.broom import Broom
from idemactor.shard.entropy import system_entropy
from idemactor.shard.router import Router
from idemactor.shard.start import Engines, lost_namespaces, open_engines, with_remains
from idemactor.storage.base import Opened
from idemactor.storage.directory import DataDirectory
from idemactor.wire.requests import Watch

DRAIN_SECONDS_MAX: Final = 30.0
"""How long a server that was told to stop may take to answer what it has taken; then it is cut off."""

DESCRIPTORS_KEPT: Final = 64
"""Descriptors for everything that is neither a connection nor a shard: logs, locks, the loop, name look-ups."""

DESCRIPTORS_PER_SHARD: Final = 5
"""A shard's database, WAL and shared memory, its lock, and one for the moment of a recovery."""

GC_THRESHOLDS: Final = (100_000, 50, 100)
"""When Python looks for cycles: new objects, and how many rounds of each generation make one of the next."""

_SALT_BYTES: Final = 32
"""Of the digests that stand for keys in the log."""

_log = logging.getLogger(__name__)


async def run(config: ServerConfig, *, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP (a terminal that closes).

    Args:
        config: A valid configuration.
        announce: Is given the ready line once every address answers.

    Raises:
        StartError: The directory, an address or a file cannot be used; the message says the way out.
    """
    logs.configure(config.log.level)
    metrics = Metrics()
    observer = Observers(metrics, LogObserver())
    with DataDirectory.open(config.server.data_dir, config.server.shards) as directory:
        async with open_engines(directory, config.server.durability.value) as engines:
            clock = _clock(config, [opened for _, opened in engines])
            await _check_namespaces(config, engines, clock.now_ms())
            _warn_of_sources(config)
            router = Router(_shards(config, engines, clock, observer), observer)
            resolver = resolver_of(config.sources, clock.now_ms, observer.forged)
            authenticator = Authenticator(config.tokens, config.namespaces, resolver, _request_log(config))
            context = ServerContext(router, config.namespaces, authenticator, observer, metrics, clock.now_ms)
            context.sources = config.sources
            async with _bound(config.http, ALPN_PROTOCOLS) as http, _bound(config.rpc) as rpc:
                await _serve(context, http, rpc, _connections_max(directory.shards), announce)


async def _serve(
    context: ServerContext,
    http: Sequence[SocketListener],
    rpc: Sequence[SocketListener],
    connections_max: int,
    announce: Callable[[str], None],
) -> None:
    limits = HttpLimits(connections_max=connections_max)
    guarded = HttpDoor(build_app(context), limits=limits, observer=DoorObserver(context.observer, "http"))
    http_door = FastDoor(context, guarded)
    rpc_door = RpcDoor(context)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as doors, trio.open_nursery() as shards:
            # Shards are not at home in a door's nursery: what ends a door must not end them before they have answered.
            await shards.start(context.router.run)
            if http:
                await doors.start(functools.partial(http_door.serve, http))
            if rpc:
                observer = DoorObserver(context.observer, "rpc")
                accept = AcceptLimits(connections_max=connections_max)
                await doors.start(functools.partial(rpc_door.serve, rpc, limits=accept, observer=observer))
            _spare_the_collector()
            announce(_ready_line(http, rpc))
            logs.log_event(_log, logging.INFO, "ready")
            await anext(aiter(signals))
            logs.log_event(_log, logging.INFO, "draining")
            doors.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS_MAX
            context.draining = True
            context.router.close()
            http_door.drain()
            rpc_door.drain()
    logs.log_event(_log, logging.INFO, "stopped")


def _spare_the_collector() -> None:
    """Look for garbage in cycles seldom: commands and answers have none, and records live long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _ready_line(http: Sequence[SocketListener], rpc: Sequence[SocketListener]) -> str:
    doors = (("http", http), ("rpc", rpc))
    words = [f"{name}={','.join(listener.address for listener in found)}" for name, found in doors if found]
    return " ".join(["idemactor ready", *words])


# ------------------------------------------------------------------------------------------------------------- storage


def _shards(config: ServerConfig, engines: Engines, clock: Clock, observer: Observer) -> list[Shard]:
    census = Census()
    entropy, broom = system_entropy(), Broom()
    settings = ShardSettings(config.server.mailbox_max, config.server.evict_after_ms)
    policies = with_remains(config.namespaces)
    return [
        Shard(number, engine, policies, census, clock, entropy, observer, settings, opened, broom)
        for number, (engine, opened) in enumerate(engines)
    ]


def _clock(config: ServerConfig, opened: Sequence[Opened]) -> Clock:
    wall_ms = time.time_ns() // 1_000_000
    latest_ms = max(shard.latest_ms for shard in opened)
    try:
        start_ms = start_time(wall_ms, latest_ms, config.server.clock_backstep_max_ms)
    except ClockTooFarBehind as error:
        raise StartError(
            f"the wall clock is {error.behind_ms} ms behind the latest time in {config.server.data_dir}, which is more"
            " than clock_backstep_max_ms: set the clock right (NTP), or raise server.clock_backstep_max_ms if the"
            " directory's time is the wrong one"
        ) from error
    # CLOCK_BOOTTIME runs on while the machine sleeps: a lease must not grow by a suspended afternoon.
    return Clock(start_ms, functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME))


async def _check_namespaces(config: ServerConfig, engines: Engines, now_ms: int) -> None:
    """A namespace that left the configuration while it has live records would leave them without a policy."""
    lost = await lost_namespaces(engines, config.namespaces, now_ms)
    if lost:
        tables = ", ".join(f"[namespaces.{namespace}]" for namespace in lost)
        raise StartError(
            f"the configuration has no namespace {', '.join(lost)}, and {config.server.data_dir} has live records in"
            f" it: put {tables} back, and take it out again once its records have ended or were forgotten"
        )
    _warn_of_what_is_out_of_reach(config, engines)


def _request_log(config: ServerConfig) -> Watch | None:
    """Who looks at every call; nobody, unless the log is at its most talkative."""
    if config.log.level is not LogLevel.DEBUG:
        return None
    return RequestLog(logs.Redact(config.log.payloads, os.urandom(_SALT_BYTES)), config.sources)


def _warn_of_sources(config: ServerConfig) -> None:
    """What cannot be known about a source that somebody configured; the shipped ones nobody may be using."""
    for name, source in config.sources.items():
        if source is not SHIPPED.get(name):
            for detail in source.doubts:
                logs.log_event(_log, logging.WARNING, "source_memory_unsure", source=name, detail=detail)
        # What a shipped source goes by is said in its documentation.
        known = {ref.spelling for ref in SHIPPED[name].plan.keyed} if name in SHIPPED else set()
        for text in source.unsigned:
            if parse_ref(text).spelling not in known:
                detail = f"its sender does not sign {text}: a request that was signed can be sent again with another"
                logs.log_event(_log, logging.WARNING, "source_replayable", source=name, detail=detail)


def _warn_of_what_is_out_of_reach(config: ServerConfig, engines: Engines) -> None:
    held = {key for _, opened in engines for key, tally in opened.tallies.items() if tally.records > 0}
    orphaned = any(tenant == TENANT_DEFAULT for tenant, _ in held)
    if config.tokens and orphaned and all(token.tenant != TENANT_DEFAULT for token in config.tokens):
        detail = "there are keys of tenant 'default', and no token reaches them: they stay until they end"
        logs.log_event(_log, logging.WARNING, "keys_out_of_reach", detail=detail)
    reported = {key for _, opened in engines for key, tally in opened.tallies.items() if tally.incidents > 0}
    for namespace in sorted({namespace for _, namespace in reported} - config.namespaces.keys()):
        detail = "it has incidents that nobody acknowledged, and is not in the configuration: put it back to see them"
        logs.log_event(_log, logging.WARNING, "incidents_out_of_reach", namespace=namespace, detail=detail)


# --------------------------------------------------------------------------------------------------------------- doors


def _connections_max(shards: int) -> int:
    """How many connections a door may have open: the shards' files must never go without a descriptor for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    left = (soft - DESCRIPTORS_KEPT - shards * DESCRIPTORS_PER_SHARD) // 2
    return max(1, min(CONNECTIONS_MAX_DEFAULT, left)) if soft != resource.RLIM_INFINITY else CONNECTIONS_MAX_DEFAULT


@contextlib.asynccontextmanager
async def _bound(door: DoorSection, alpn: Sequence[str] = ()) -> AsyncIterator[list[SocketListener]]:
    """A door's listeners; closed in the end, also where another address cannot be had."""
    tls = None
    if door.tls_cert is not None and door.tls_key is not None:
        tls = server_ssl_context(door.tls_cert, door.tls_key, door.client_ca, alpn=alpn)
    listeners = bind_listeners(door.bind, tls)
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()
