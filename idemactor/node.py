"""The composition root: one process that owns a data directory, its shards and its doors.

Everything else receives plain values; only this module and ``cli/`` read the configuration.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import random
import resource
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from prometheus_client.metrics_core import Metric

from idemactor.config import DoorSection, ServerConfig, TokenEntry
from idemactor.config.model import WORKERS_MAX, LogLevel
from idemactor.config.reload import TokenReloader
from idemactor.core.census import Census
from idemactor.core.clock import Clock, ClockNotSet, ClockTooFarBehind, Sequencer, start_time
from idemactor.dispatch.judging import Result
from idemactor.dispatch.office import DispatchOffice, destinations_of
from idemactor.dispatch.relay import Surroundings
from idemactor.dispatch.shards import RoutedShards
from idemactor.errors import StartError, StorageError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.door import ProxyDoor, ProxySettings, warn
from idemactor.gateway.refs import parse_ref
from idemactor.gateway.request_log import RequestLog
from idemactor.gateway.resolve import resolver_of
from idemactor.observability import logs
from idemactor.observability.audit import Audit
from idemactor.observability.disk import DiskMetrics
from idemactor.observability.log_observer import LogObserver
from idemactor.observability.metrics import Expected, Metrics
from idemactor.observability.observer import Observer, Observers
from idemactor.server.auth import TENANT_DEFAULT, Authenticator
from idemactor.server.binding import remove_worker_files
from idemactor.server.context import ServerContext
from idemactor.server.door_observer import DoorObserver
from idemactor.server.heartbeat import Heartbeat
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
from idemactor.server.operations import inspect_shards
from idemactor.server.rpc_door import RpcDoor
from idemactor.server.service_manager import NO_SOCKETS, NOBODY, Inherited, ServiceManager
from idemactor.server.shard_map import ShardMap
from idemactor.server.stop import Told, told_to_stop
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.bell import Bell
from idemactor.shard.broom import Broom
from idemactor.shard.company import Company
from idemactor.shard.entropy import system_entropy
from idemactor.shard.router import Router
from idemactor.shard.start import Engines, FoundShards, lost_namespaces, open_shards, settle_journals, with_remains
from idemactor.shard.tracing import TurnTracer
from idemactor.storage.base import Opened
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_wal import Durability
from idemactor.storage.unfinished import NO_USE, unfinished
from idemactor.wire.requests import Watch

if TYPE_CHECKING:
    from idemactor.server.telemetry import Telemetry

SETTLE_SHARE: Final = 0.9
"""How much of the time to drain what is on its way to upstreams may take: the rest is for answering everybody else."""

CUT_SHARE: Final = 0.8
"""After how much of the time to drain upstreams and destinations that hang are given up: a shard has to be told, while
it serves yet, and a client then."""

DESCRIPTORS_KEPT: Final = 64
"""Descriptors for everything that is neither a connection nor a shard: logs, locks, the loop, name look-ups."""

DESCRIPTORS_PER_SHARD: Final = 5
"""A shard's database, WAL and shared memory, its lock, and one for the moment of a recovery."""

GC_THRESHOLDS: Final = (2_000, 100, 2_500)
"""When Python looks for cycles: new objects, and how many rounds of each generation make one of the next. Each look
is a pause for everybody, as long as there is to look at: a millisecond for the first (``lane.YOUNG_COMMANDS_MAX`` sees
to it where as many objects go as come), some for the second, and the third, at all there is, hardly ever comes."""

SWITCH_S: Final = 0.0005
"""How long the loop may keep Python to itself while a thread waits for it, seconds. What runs in threads waits for the
disk and needs Python for microseconds in between, each time with a shard waiting behind it; the default is 5 ms."""

SHARED_COMMANDS_MAX: Final = 64
"""The most commands of a turn of all shards together, where several tenants are heard and the disk takes no time."""
SHARED_BATCH_MIN: Final = 8
"""Of each shard at least, however many there are."""

_SALT_BYTES: Final = 32
_SALT: Final = os.urandom(_SALT_BYTES)
"""One for this process and those that it forks: a key has the same digest in every line of the log."""

BY_SIGNAL: Final = "signal"
"""Who did it, for the audit log, where a process of the machine did and no token."""

"""Of the digests that stand for keys in the log."""

_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Life:
    """How a process begins and ends to serve.

    Attributes:
        told: Whether it is to stop, or to read its tokens anew.
        drain_ms: How long answering what was taken may last then; what is left is cut off.
        announce: Is given the ready line once every address answers.
        draining: Is called when nothing new is taken any more.
        beat: Is called every ``beat_ms`` for as long as the loop and all shards turn; None: nobody wants to know.
        beat_ms: How often, milliseconds.
        all_settled: Waits until every other process has brought to its end what its proxy and its relays have under
            way: the shards are needed for that.
    """

    told: Told
    drain_ms: int
    announce: Callable[[str], None]
    draining: Callable[[], None]
    beat: Callable[[], None] | None = None
    beat_ms: int = 1
    all_settled: Callable[[], Awaitable[None]] | None = None


async def run(
    config: ServerConfig,
    *,
    load: Callable[[], ServerConfig],
    announce: Callable[[str], None],
    sockets: Inherited = NO_SOCKETS,
    manager: ServiceManager = NOBODY,
) -> None:
    """Serve until SIGTERM, SIGINT, or SIGHUP from a terminal that closes; any other SIGHUP reads the tokens anew.

    Args:
        config: A valid configuration.
        load: Reads it again. Raises: ConfigError.
        announce: Is given the ready line once every address answers.
        sockets: Those that listen already.
        manager: Is told how it goes.

    Raises:
        StartError: The directory, an address or a file cannot be used; the message says the way out.
    """
    logs.configure(config.log.level)

    def ready(line: str) -> None:
        announce(line)
        manager.ready(line)

    beat_ms = manager.beat_ms
    with told_to_stop() as told, told.starting:
        beat = None if beat_ms is None else manager.alive
        life = Life(told, config.server.drain_ms, ready, manager.stopping, beat, beat_ms or 1)
        await _run(config, TokenReloader(config, load), sockets, life)
    if told.starting.cancelled_caught:
        logs.log_event(_log, logging.INFO, "stopped")


async def _run(config: ServerConfig, reloader: TokenReloader, sockets: Inherited, life: Life) -> None:
    async with telemetry_of(config) as telemetry:
        await _serve(config, reloader, sockets, life, telemetry)


async def _serve(
    config: ServerConfig, reloader: TokenReloader, sockets: Inherited, life: Life, telemetry: Telemetry | None
) -> None:
    with open_directory(config) as directory:
        metrics = make_metrics(config, range(directory.shards))
        observer = Observers(metrics, log_observer_of(config))
        durability: Durability = config.server.durability.value
        keys = keyring_of(config)
        await settle_journals(directory, durability, 1, keys)
        async with open_shards(directory, durability, keys) as found:
            clock = Clock(first_ms(config, found), boottime_s)
            await check_settings(config, found.whole, clock.now_ms())
            bell, company = Bell(), Company()
            metrics.registry.register(DiskMetrics(directory.path, directory.journal_path(0)))
            shards = make_shards(config, found, clock, observer, Census(), bell, company, telemetry)
            router = Router(shards, observer, company)
            bell.on_moved = router.lines_moved
            context = make_context(config, router, observer, metrics, clock, bell)
            context.tracing = telemetry
            remove_worker_files((*config.http.bind, *config.rpc.bind), range(WORKERS_MAX))
            async with (
                _bound(config.http, sockets, ALPN_PROTOCOLS) as http,
                _bound(config.rpc, sockets) as rpc,
                _bound(config.gateway.door, sockets, ALPN_PROTOCOLS) as gateway,
            ):
                addresses = [tuple(listener.address for listener in door) for door in (http, rpc)]
                context.shard_map = ShardMap(directory.shards, 0, (addresses[0],), (addresses[1],))
                proxy, office = make_proxy(config, context), make_office(config, context)
                most = connections_max(directory.shards, proxy is not None)
                life.told.reload_with(functools.partial(_reload, reloader, context))
                async with measured(telemetry, context):
                    await serve_doors(context, http, rpc, gateway, proxy, office, most, life)


@contextlib.asynccontextmanager
async def telemetry_of(config: ServerConfig, worker: int | None = None) -> AsyncIterator[Telemetry | None]:
    """What follows calls and sends metrics, where that is configured; what it has left is sent in the end.

    Raises:
        StartError: It is configured, and its packages are not installed.
    """
    section = config.telemetry
    if section.endpoint is None:
        yield None
        return
    try:
        from idemactor.server.telemetry import Telemetry, TelemetrySettings
    except ModuleNotFoundError as error:
        raise StartError(
            f"telemetry.endpoint is set, and {error.name} is not installed: pip install 'idemactor[otel]', or take the"
            " setting out"
        ) from error
    settings = TelemetrySettings(section.endpoint, section.service_name, section.sample_percent, section.interval_ms)
    telemetry = Telemetry(settings, worker)
    try:
        yield telemetry
    finally:
        with trio.CancelScope(shield=True):
            await telemetry.close()


@contextlib.asynccontextmanager
async def measured(telemetry: Telemetry | None, context: ServerContext) -> AsyncIterator[None]:
    """Send this process's metrics as long as the body runs, where that is configured."""
    own = {shard.number for shard in context.router.shards if isinstance(shard, Shard)}

    async def collect() -> Iterable[Metric]:
        standings = [standing for standing in await inspect_shards(context) if standing.number in own]
        return context.metrics.families(standings, context.now_ms())

    async with trio.open_nursery() as nursery:
        if telemetry is not None:
            nursery.start_soon(telemetry.run, collect)
        yield
        nursery.cancel_scope.cancel()


def make_metrics(config: ServerConfig, shards: Sequence[int]) -> Metrics:
    """What a process counts, which owns ``shards``."""
    doors = {"http": config.http, "rpc": config.rpc, "gateway": config.gateway.door}
    expected = Expected(
        shards=shards,
        doors=[name for name, door in doors.items() if door.bind],
        sources=[name for name, source in config.sources.items() if source.verify is not None],
        proxied=sorted({route.namespace for route in config.gateway.routes}),
        destinations=list(config.destinations),
        deliveries=[result.value for result in Result],
    )
    return Metrics(expected)


def make_context(
    config: ServerConfig, router: Router, observer: Observer, metrics: Metrics, clock: Clock, bell: Bell
) -> ServerContext:
    """What the doors of a process are given."""
    resolver = resolver_of(config.sources, clock.now_ms, observer.forged)
    authenticator = Authenticator(config.tokens, config.namespaces, resolver, _request_log(config))
    context = ServerContext(router, config.namespaces, authenticator, observer, metrics, clock.now_ms)
    context.sources = config.sources
    context.bell = bell
    context.audit = audit_of(config)
    context.audit.prove_writable()
    context.destinations = destination_names(config)
    return context


async def serve_doors(
    context: ServerContext,
    http: Sequence[SocketListener],
    rpc: Sequence[SocketListener],
    gateway: Sequence[SocketListener],
    proxy: ProxyDoor | None,
    office: DispatchOffice,
    connections_max: int,
    life: Life,
) -> None:
    """Run shards and doors until a signal says to stop, and then until everything is answered."""
    limits = HttpLimits(connections_max=connections_max)
    guarded = HttpDoor(
        build_app(context), limits=limits, observer=DoorObserver(context.observer, "http"), backlog=context.backlog
    )
    http_door = FastDoor(context, guarded)
    rpc_door = RpcDoor(context)
    async with _beating(context, life) as heartbeat, trio.open_nursery() as doors, trio.open_nursery() as shards:
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
        await doors.start(office.run)
        _spare_the_collector()
        sys.setswitchinterval(SWITCH_S)
        life.told.started()
        life.announce(ready_line(http, rpc, gateway))
        logs.log_event(_log, logging.INFO, "ready")
        await life.told.wait()
        logs.log_event(_log, logging.INFO, "draining")
        doors.cancel_scope.deadline = trio.current_time() + life.drain_ms / _MS_PER_S
        heartbeat.stopping()
        life.draining()
        context.draining = True
        await _drain(proxy, office, context.router, life)
        context.router.close()
        http_door.drain()
        rpc_door.drain()
    if doors.cancel_scope.cancelled_caught:
        # Nothing that was acknowledged is lost; somebody was cut off who was still owed an answer, or to read it.
        logs.log_event(_log, logging.WARNING, "drain_cut_off", drain_ms=life.drain_ms)
    logs.log_event(_log, logging.INFO, "stopped")


@contextlib.asynccontextmanager
async def _beating(context: ServerContext, life: Life) -> AsyncIterator[Heartbeat]:
    """A heart that beats as long as the body runs, for whoever listens to it."""
    own = [shard for shard in context.router.shards if isinstance(shard, Shard)]
    heartbeat = Heartbeat(own, life.beat_ms, life.beat or (lambda: None))
    async with trio.open_nursery() as nursery:
        if life.beat is not None:
            nursery.start_soon(heartbeat.run)
        yield heartbeat
        nursery.cancel_scope.cancel()


def _reload(reloader: TokenReloader, context: ServerContext) -> None:
    tokens = reloader.tokens()
    note_reload(context.audit, tokens)
    if tokens is not None:
        context.authenticator.replace(tokens)


def note_reload(audit: Audit, tokens: Sequence[TokenEntry] | None) -> None:
    """That somebody who may signal the server had its tokens read anew; None: they stayed as they were."""
    audit.happened(BY_SIGNAL, "reload_tokens", "kept" if tokens is None else "replaced")


async def _drain(proxy: ProxyDoor | None, office: DispatchOffice, router: Router, life: Life) -> None:
    """Let proxy and relays bring to their end what they have sent; nothing new is taken from anybody meanwhile."""
    office.drain(life.drain_ms * CUT_SHARE)
    if proxy is not None:
        proxy.drain(life.drain_ms * CUT_SHARE, life.drain_ms * SETTLE_SHARE)
    router.settle_only()
    with trio.move_on_after(life.drain_ms / _MS_PER_S * SETTLE_SHARE):
        await office.finished.wait()
        if proxy is not None:
            await proxy.finished.wait()
        if life.all_settled is not None:
            await life.all_settled()


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
    found: FoundShards,
    clock: Clock,
    observer: Observer,
    census: Census,
    bell: Bell,
    company: Company,
    tracer: TurnTracer | None = None,
    worker: int = 0,
) -> list[Shard]:
    """The shards of this process, which is that ``worker`` of the server; what is damaged begins in quarantine."""
    entropy, broom = system_entropy(), Broom()
    sequencer = Sequencer(clock.now_us, worker, config.server.workers)
    shared_max = max(SHARED_BATCH_MIN, SHARED_COMMANDS_MAX // len(found.engines))
    settings = ShardSettings(
        mailbox_max=config.server.mailbox_max,
        queue_ms=config.server.queue_ms,
        evict_after_ms=config.server.evict_after_ms,
        shared_batch_max=shared_max,
    )
    policies = with_remains(config.namespaces)
    stand: dict[int, Opened | StorageError] = {**found.damaged, **found.opened}
    return [
        Shard(
            number,
            engine,
            policies,
            census,
            clock,
            entropy,
            observer,
            settings,
            stand[number],
            broom,
            bell,
            sequencer,
            tracer,
            company,
        )
        for number, engine in found.engines.items()
    ]


def open_directory(config: ServerConfig, workers: int = 1) -> DataDirectory:
    """Take the data directory. Raises: StartError: See ``DataDirectory.open``."""
    server = config.server
    directory = DataDirectory.open(
        server.data_dir, server.shards, workers=workers, checksums=server.page_checksums, whole=False
    )
    for left in unfinished(directory.path, directory.meta.files):
        logs.log_event(_log, logging.WARNING, "unfinished_files", what=f"{left} {NO_USE}")
    return directory


def audit_of(config: ServerConfig) -> Audit:
    """Where it is written down what operators do."""
    return Audit(config.log.audit_file, redact_of(config))


def redact_of(config: ServerConfig) -> logs.Redact:
    """What the log may show of keys and payloads."""
    return logs.Redact(config.log.payloads, _SALT)


def log_observer_of(config: ServerConfig) -> LogObserver:
    """Who logs what happens."""
    return LogObserver(redact_of(config), destination_names(config))


def destination_names(config: ServerConfig) -> dict[str, str]:
    """Where the intents of each namespace are delivered to, for people; what is asked for there is left out."""
    origins = {name: destination.endpoint.origin for name, destination in config.destinations.items()}
    return {name: f"{origin.scheme}://{origin.authority}" for name, origin in origins.items()}


def keyring_of(config: ServerConfig) -> Keyring | None:
    """The keys that seal what callers store. Raises: StartError: the package for it is not there."""
    return Keyring(config.server.encryption_keys) if config.server.encryption_keys else None


def boottime_s() -> float:
    """Seconds of a clock that runs on while the machine sleeps: a lease must not grow by a suspended afternoon."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def first_ms(config: ServerConfig, found: FoundShards) -> int:
    """The time to start with, milliseconds since the epoch. Raises: StartError: the wall clock is far behind."""
    wall_ms = time.time_ns() // 1_000_000
    latest_ms = max(found.written_ms, *(shard.latest_ms for shard in found.opened.values()))
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
    return RequestLog(redact_of(config), config.sources)


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


def make_office(config: ServerConfig, context: ServerContext, worker: int = 0) -> DispatchOffice:
    """The relays and reconcilers of a process; there may be none."""
    shards = RoutedShards(context.router)
    around = Surroundings(shards, context.bell, context.observer, context.now_ms, random.random, context.tracing)
    return DispatchOffice(destinations_of(config.destinations, worker, config.server.workers), around)


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
async def _bound(
    door: DoorSection, sockets: Inherited, alpn: Sequence[str] = ()
) -> AsyncIterator[list[SocketListener]]:
    """A door's listeners; closed in the end, also where another address cannot be had."""
    listeners = bind_listeners(door.bind, tls_of(door, alpn), sockets.sockets)
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()
