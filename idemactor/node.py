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
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from idemactor.config import DoorSection, ServerConfig
from idemactor.config.model import WORKERS_MAX, LogLevel
from idemactor.core.census import Census
from idemactor.core.clock import Clock, ClockNotSet, ClockTooFarBehind, Sequencer, start_time
from idemactor.errors import StartError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.door import ProxyDoor, ProxySettings, warn
from idemactor.gateway.refs import parse_ref
from idemactor.gateway.request_log import RequestLog
from idemactor.gateway.resolve import resolver_of
from idemactor.observability import logs
from idemactor.observability.audit import Audit
from idemactor.observability.log_observer import LogObserver
from idemactor.observability.metrics import Metrics
from idemactor.observability.observer import Observer, Observers
from idemactor.server.auth import TENANT_DEFAULT, Authenticator
from idemactor.server.binding import remove_worker_files
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
from idemactor.server.shard_map import ShardMap
from idemactor.server.stop import told_to_stop
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.entropy import system_entropy
from idemactor.shard.router import Router
from idemactor.shard.start import Engines, lost_namespaces, open_engines, settle_journals, with_remains
from idemactor.storage.base import Engine, Opened
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_wal import Durability
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
        durability: Durability = config.server.durability.value
        keys = keyring_of(config)
        await settle_journals(directory, durability, 1, keys)
        async with open_engines(directory, durability, keys=keys) as engines:
            clock = Clock(first_ms(config, [opened for _, opened in engines]), boottime_s)
            await check_settings(config, engines, clock.now_ms())
            bell = Bell()
            router = Router(make_shards(config, dict(enumerate(engines)), clock, observer, Census(), bell), observer)
            bell.on_moved = router.lines_moved
            context = make_context(config, router, observer, metrics, clock, bell)
            remove_worker_files((*config.http.bind, *config.rpc.bind), range(WORKERS_MAX))
            async with (
                _bound(config.http, ALPN_PROTOCOLS) as http,
                _bound(config.rpc) as rpc,
                _bound(config.gateway.door, ALPN_PROTOCOLS) as gateway,
            ):
                addresses = [tuple(listener.address for listener in door) for door in (http, rpc)]
                context.shard_map = ShardMap(directory.shards, 0, (addresses[0],), (addresses[1],))
                proxy = make_proxy(config, context)
                most = connections_max(directory.shards, proxy is not None)
                await serve_doors(context, http, rpc, gateway, proxy, most, announce)


def make_context(
    config: ServerConfig, router: Router, observer: Observer, metrics: Metrics, clock: Clock, bell: Bell
) -> ServerContext:
    """What the doors of a process are given."""
    resolver = resolver_of(config.sources, clock.now_ms, observer.forged)
    authenticator = Authenticator(config.tokens, config.namespaces, resolver, _request_log(config))
    context = ServerContext(router, config.namespaces, authenticator, observer, metrics, clock.now_ms)
    context.sources = config.sources
    context.bell = bell
    context.audit = Audit(config.log.audit_file, logs.Redact(config.log.payloads, os.urandom(_SALT_BYTES)))
    context.audit.prove_writable()
    return context


async def serve_doors(
    context: ServerContext,
    http: Sequence[SocketListener],
    rpc: Sequence[SocketListener],
    gateway: Sequence[SocketListener],
    proxy: ProxyDoor | None,
    connections_max: int,
    announce: Callable[[str], None],
    all_settled: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run shards and doors until a signal says to stop, and then until everything is answered.

    ``all_settled`` waits until every other process has brought to its end what its proxy has under way: the shards are
    needed for that.
    """
    limits = HttpLimits(connections_max=connections_max)
    guarded = HttpDoor(build_app(context), limits=limits, observer=DoorObserver(context.observer, "http"))
    http_door = FastDoor(context, guarded)
    rpc_door = RpcDoor(context)
    with told_to_stop() as told:
        async with trio.open_nursery() as doors, trio.open_nursery() as shards:
            # Shards are not at home in a door's nursery: what ends a door must not end them before they have answered.
            await shards.start(context.router.run)
            if http:
                await doors.start(functools.partial(http_door.serve, http))
            if rpc:
                observer = DoorObserver(context.observer, "rpc")
                accept = AcceptLimits(connections_max=connections_max)
                await doors.start(functools.partial(rpc_door.serve, rpc, limits=accept, observer=observer))
            if proxy is not None:
                accept = AcceptLimits(connections_max=connections_max)
                await doors.start(functools.partial(proxy.serve, gateway, limits=accept))
            _spare_the_collector()
            announce(ready_line(http, rpc, gateway))
            logs.log_event(_log, logging.INFO, "ready")
            await told.wait()
            logs.log_event(_log, logging.INFO, "draining")
            doors.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS_MAX
            context.draining = True
            if proxy is not None:
                await _drain(proxy, context.router)
                if all_settled is not None:
                    await all_settled()
            context.router.close()
            http_door.drain()
            rpc_door.drain()
    logs.log_event(_log, logging.INFO, "stopped")


async def _drain(proxy: ProxyDoor, router: Router) -> None:
    """Let the proxy bring to its end what it has sent to upstreams; nothing new is taken from anybody meanwhile."""
    proxy.drain()
    router.settle_only()
    with trio.move_on_after(DRAIN_SECONDS_MAX):
        await proxy.finished.wait()


def _spare_the_collector() -> None:
    """Look for garbage in cycles seldom: commands and answers have none, and records live long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def ready_line(http: Sequence[SocketListener], rpc: Sequence[SocketListener], gateway: Sequence[SocketListener]) -> str:
    """What is said once every address answers."""
    doors = (("http", http), ("rpc", rpc), ("gateway", gateway))
    words = [f"{name}={','.join(listener.address for listener in found)}" for name, found in doors if found]
    return " ".join(["idemactor ready", *words])


# ------------------------------------------------------------------------------------------------------------- storage


def make_shards(
    config: ServerConfig,
    engines: Mapping[int, tuple[Engine, Opened]],
    clock: Clock,
    observer: Observer,
    census: Census,
    bell: Bell,
) -> list[Shard]:
    """The shards of this process; ``engines`` by their numbers."""
    entropy, broom, sequencer = system_entropy(), Broom(), Sequencer(clock.now_us)
    settings = ShardSettings(config.server.mailbox_max, config.server.evict_after_ms)
    policies = with_remains(config.namespaces)
    return [
        Shard(number, engine, policies, census, clock, entropy, observer, settings, opened, broom, bell, sequencer)
        for number, (engine, opened) in engines.items()
    ]


def keyring_of(config: ServerConfig) -> Keyring | None:
    """The keys that seal what callers store. Raises: StartError: the package for it is not there."""
    return Keyring(config.server.encryption_keys) if config.server.encryption_keys else None


def boottime_s() -> float:
    """Seconds of a clock that runs on while the machine sleeps: a lease must not grow by a suspended afternoon."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def first_ms(config: ServerConfig, opened: Sequence[Opened]) -> int:
    """The time to start with, milliseconds since the epoch. Raises: StartError: the wall clock is far behind."""
    wall_ms = time.time_ns() // 1_000_000
    latest_ms = max(shard.latest_ms for shard in opened)
    try:
        return start_time(wall_ms, latest_ms, config.server.clock_backstep_max_ms)
    except ClockNotSet as error:
        raise StartError(
            "the wall clock was not set since this machine started: it shows a time before 2025; set it (NTP), or let"
            " the service start after it is set (After=time-sync.target), and start again"
        ) from error
    except ClockTooFarBehind as error:
        raise StartError(
            f"the wall clock is {error.behind_ms} ms behind the latest time in {config.server.data_dir}, which is more"
            " than clock_backstep_max_ms: set the clock right (NTP), or raise server.clock_backstep_max_ms if the"
            " directory's time is the wrong one"
        ) from error


async def check_settings(config: ServerConfig, engines: Engines, now_ms: int) -> None:
    """A namespace that left the configuration while it has live records would leave them without a policy.

    Raises:
        StartError: There is one.
    """
    lost = await lost_namespaces(engines, config.namespaces, now_ms)
    if lost:
        tables = ", ".join(f"[namespaces.{namespace}]" for namespace in lost)
        raise StartError(
            f"the configuration has no namespace {', '.join(lost)}, and {config.server.data_dir} has live records in"
            f" it: put {tables} back, and take it out again once its records have ended or were forgotten"
        )
    _warn_of_sources(config)
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


def make_proxy(config: ServerConfig, context: ServerContext) -> ProxyDoor | None:
    """The reverse proxy of a process; None where none is configured."""
    section = config.gateway
    if not section.door.bind:
        return None
    warn(section.routes, context)
    settings = ProxySettings(section.routes, section.limits, section.trusted)
    return ProxyDoor(context, settings, system_entropy())


def connections_max(shards: int, has_proxy: bool) -> int:
    """How many connections a door may have open: the shards' files must never go without a descriptor for them.

    The proxy counts twice: a request of a client's may need a connection to its upstream.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    left = (soft - DESCRIPTORS_KEPT - shards * DESCRIPTORS_PER_SHARD) // (4 if has_proxy else 2)
    return max(1, min(CONNECTIONS_MAX_DEFAULT, left)) if soft != resource.RLIM_INFINITY else CONNECTIONS_MAX_DEFAULT


def tls_of(door: DoorSection, alpn: Sequence[str] = ()) -> ssl.SSLContext | None:
    """What a door's connections speak; None: no TLS. Raises: StartError: a file cannot be used."""
    if door.tls_cert is None or door.tls_key is None:
        return None
    return server_ssl_context(door.tls_cert, door.tls_key, door.client_ca, alpn=alpn)


@contextlib.asynccontextmanager
async def _bound(door: DoorSection, alpn: Sequence[str] = ()) -> AsyncIterator[list[SocketListener]]:
    """A door's listeners; closed in the end, also where another address cannot be had."""
    listeners = bind_listeners(door.bind, tls_of(door, alpn))
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()
