"""What both doors are given: plain values, put together by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from idemactor.core.policy import Policy
from idemactor.gateway.source import Source
from idemactor.observability.audit import NO_AUDIT, Audit
from idemactor.observability.metrics import Metrics
from idemactor.observability.observer import Observer
from idemactor.server.arrivals import Arrivals
from idemactor.server.auth import Authenticator
from idemactor.server.backlog import Backlog
from idemactor.server.lane import Lane
from idemactor.server.shard_map import ALONE, ShardMap
from idemactor.server.tracing import Tracing
from idemactor.shard.bell import Bell
from idemactor.shard.router import Router


@dataclass(slots=True)
class ServerContext:
    """The server as its doors see it.

    Attributes:
        router: Where commands go.
        policies: The namespaces there are.
        authenticator: Who may call.
        observer: Sees what happens at the doors.
        metrics: What ``/metrics`` shows; it should be among those that ``observer`` tells.
        now_ms: The shards' clock, milliseconds since the epoch.
        shard_map: Which process owns which shard, and where it listens.
        reports: Asks every worker for the text of its metrics, None for one that does not answer; None: there is only
            this process.
        lane: Reads for all doors, run by whoever made it; None: each door has and runs its own.
        draining: Set on SIGTERM, before the router closes: ``/readyz`` says so, and new connections are not served.
        sources: The kinds of sender that are known, by name.
        tracing: Follows calls on their way; None: nobody does.
        bell: Rings when there may be something in an outbox.
        audit: Is told what operators did.
        backlog: What waits for clients of any door that do not read their answers; it tells ``observer`` of those
            that it did not keep.
        arrivals: What has come of request bodies that are not whole, at any door; it tells ``observer`` of those that
            it had no room for.
        destinations: Where the intents of a namespace are delivered to, for people.
    """

    router: Router
    policies: Mapping[str, Policy]
    authenticator: Authenticator
    observer: Observer
    metrics: Metrics
    now_ms: Callable[[], int]
    shard_map: ShardMap = ALONE
    reports: Callable[[], Awaitable[dict[int, str | None]]] | None = None
    lane: Lane | None = None
    draining: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)
    tracing: Tracing | None = None
    bell: Bell = field(default_factory=Bell)
    audit: Audit = NO_AUDIT
    backlog: Backlog = field(default_factory=Backlog)
    arrivals: Arrivals = field(default_factory=Arrivals)
    destinations: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backlog.on_refused = self.observer.overloaded
        self.arrivals.on_refused = self.observer.overloaded
