"""What a server is told: frozen values, valid once built by :func:`idemactor.config.load`.

Only ``node.py`` and ``cli/`` read these; everything below receives plain values. Times are milliseconds.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from idemactor.core import limits
from idemactor.core.policy import Policy
from idemactor.dispatch.destination import Destination
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Route
from idemactor.gateway.source import Source
from idemactor.server.auth import Role

SHARDS_MAX: Final = 1_024
"""The most shards of a data directory: each holds three file descriptors."""
CLOCK_BACKSTEP_MS_MAX: Final = limits.DAY_MS
EVICT_AFTER_MS_DEFAULT: Final = 600_000
EVICT_AFTER_MS_MIN: Final = 1_000
EVICT_AFTER_MS_MAX: Final = 7 * limits.DAY_MS
MAILBOX_DEFAULT: Final = 2 * limits.MAILBOX_COMMANDS_MIN
MAILBOX_MAX: Final = 1_048_576
QUEUE_MS_MIN: Final = 100
QUEUE_MS_MAX: Final = 60_000
WORKERS_MAX: Final = 64
"""The most processes that serve one directory: each is connected with every other one."""

DRAIN_MS_DEFAULT: Final = 30_000
DRAIN_MS_MIN: Final = 100
DRAIN_MS_MAX: Final = 3_600_000
HANG_MS_DEFAULT: Final = 30_000
HANG_MS_MIN: Final = 3_000
HANG_MS_MAX: Final = 3_600_000

TELEMETRY_MS_DEFAULT: Final = 60_000
TELEMETRY_MS_MIN: Final = 100
TELEMETRY_MS_MAX: Final = 3_600_000

HTTP_BIND_DEFAULT: Final = ("127.0.0.1:8787",)
RPC_BIND_DEFAULT: Final = ("127.0.0.1:8788",)


class Durability(enum.StrEnum):
    """What a reply has survived by the time it leaves."""

    FULL = "full"
    """Power loss."""
    PROCESS = "process"
    """The death of the process, not that of the machine."""


class LogLevel(enum.StrEnum):
    """The least important events that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ServerSection:
    """``[server]``: the data directory and what its shards may take.

    Attributes:
        data_dir: Where the shards' files are; a relative path starts at the working directory.
        shards: How many; None: the directory's own number, or the default in a new one.
        durability: What a reply has survived by the time it leaves.
        clock_backstep_max_ms: How far the wall clock may be behind the latest time on disk at start.
        evict_after_ms: How long a shard may be idle before its memory is given back.
        mailbox_max: How many commands of one tenant may wait for one shard before more are refused.
        queue_ms: How long one may wait there behind others of its tenant before it is refused.
        workers: How many processes share the shards among them.
        page_checksums: Whether pages of files have checksums; None: as the directory has them, and a new one does.
        encryption_keys: What callers store is encrypted with the first and decrypted with any; none: kept as it is.
        drain_ms: How long a server that was told to stop may take to answer what it has taken; then it is cut off.
        hang_ms: How long a worker may be without a sign that it turns, before it is killed and started anew.
    """

    data_dir: Path = Path("data")
    shards: int | None = None
    durability: Durability = Durability.FULL
    clock_backstep_max_ms: int = limits.CLOCK_BACKSTEP_MS_DEFAULT
    evict_after_ms: int = EVICT_AFTER_MS_DEFAULT
    mailbox_max: int = MAILBOX_DEFAULT
    queue_ms: int = limits.QUEUE_MS_DEFAULT
    workers: int = 1
    page_checksums: bool | None = None
    encryption_keys: tuple[bytes, ...] = field(default=(), repr=False)
    drain_ms: int = DRAIN_MS_DEFAULT
    hang_ms: int = HANG_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class DoorSection:
    """``[http]`` or ``[rpc]``: where a door listens.

    Attributes:
        bind: ``host:port`` or ``unix:path`` each, in the order of the ready line; none: the door stays shut.
        tls_cert: The PEM file of the certificate chain; given together with ``tls_key``.
        tls_key: The PEM file of the certificate's private key.
        client_ca: The PEM file of the authorities whose certificates callers must show.
        insecure: Said out loud: tokens may cross a network in clear text.
    """

    bind: tuple[str, ...]
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """``[auth.tokens.NAME]``: one bearer token, known by its digest alone.

    Attributes:
        name: What logs and errors call it.
        sha256: The SHA-256 of the token's UTF-8 bytes, 32 bytes.
        tenant: Whose keys the bearer works on.
        namespaces: Those the bearer may use; ``("*",)`` is all of them.
        role: What the bearer may do.
    """

    name: str
    sha256: bytes
    tenant: str
    namespaces: tuple[str, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class LogSection:
    """``[log]``: what the log on standard error says.

    Attributes:
        level: The least important events that are written.
        payloads: Keys and payloads are shown in clear.
        audit_file: Where what operators did is written, keys in clear; None: to the log.
    """

    level: LogLevel = LogLevel.INFO
    payloads: bool = False
    audit_file: Path | None = None


@dataclass(frozen=True, slots=True)
class TelemetrySection:
    """``[telemetry]``: traces and metrics by OpenTelemetry; needs the extra ``otel``.

    Attributes:
        endpoint: Of a collector that takes OTLP over HTTP, without ``/v1/...``; None: nothing is sent anywhere.
        service_name: What this server is called there.
        sample_percent: How many of the traces that begin here are kept; whoever began a trace elsewhere has decided.
        interval_ms: How often metrics are sent.
    """

    endpoint: str | None = None
    service_name: str = "idemactor"
    sample_percent: int = 100
    interval_ms: int = TELEMETRY_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class GatewaySection:
    """``[gateway]``: the idempotent reverse proxy.

    Attributes:
        door: Where it listens; without an address there is none.
        routes: ``[[gateway.routes]]``.
        trusted: The networks whose ``X-Forwarded-*`` are believed.
        limits: What requests and upstreams may take.
    """

    door: DoorSection = field(default_factory=lambda: DoorSection(()))
    routes: tuple[Route, ...] = ()
    trusted: tuple[str, ...] = ()
    limits: ProxyLimits = field(default_factory=ProxyLimits)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The whole configuration of one server.

    Attributes:
        destinations: ``[namespaces.NAME.dispatch]``, by name, of those that have a ``url``.
    """

    server: ServerSection = field(default_factory=ServerSection)
    http: DoorSection = field(default_factory=lambda: DoorSection(HTTP_BIND_DEFAULT))
    rpc: DoorSection = field(default_factory=lambda: DoorSection(RPC_BIND_DEFAULT))
    tokens: tuple[TokenEntry, ...] = ()
    namespaces: dict[str, Policy] = field(default_factory=lambda: {"default": Policy()})
    log: LogSection = field(default_factory=LogSection)
    telemetry: TelemetrySection = field(default_factory=TelemetrySection)
    gateway: GatewaySection = field(default_factory=GatewaySection)
    sources: dict[str, Source] = field(default_factory=lambda: dict(SHIPPED))
    destinations: dict[str, Destination] = field(default_factory=dict)
