"""The reverse proxy as a door: it accepts, finds a request's route, says who may use it, and hands it to an attempt."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from idemactor.errors import Code, RequestError
from idemactor.gateway.proxy import answers
from idemactor.gateway.proxy.attempt import Attempt, Office, pass_on
from idemactor.gateway.proxy.client_side import rendered
from idemactor.gateway.proxy.connecting import Connect
from idemactor.gateway.proxy.connection import Conversation, ProxyConnection
from idemactor.gateway.proxy.cut import Cut
from idemactor.gateway.proxy.desk import Desk, LeaseKeeper
from idemactor.gateway.proxy.forward import Forwarder
from idemactor.gateway.proxy.headers import Peer, TrustedPeers, without
from idemactor.gateway.proxy.http1 import RequestHead
from idemactor.gateway.proxy.limits import RETRY_MS_MAX, ProxyLimits
from idemactor.gateway.proxy.methods import check_method
from idemactor.gateway.proxy.routes import AmbiguousPath, Origin, Route, RouteAuth, Routes
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import NoKey, Resolved, resolve
from idemactor.gateway.source import Source
from idemactor.observability.logs import log_event
from idemactor.server.auth import unauthenticated
from idemactor.server.context import ServerContext
from idemactor.server.door_observer import DoorObserver
from idemactor.server.listeners import AcceptLimits, Listener, serve_listeners
from idemactor.server.tracing import TRACE_FIELDS, path_of
from idemactor.wire.requests import Scope

DOOR: Final = "gateway"
"""What metrics and the ready line call it."""

_NO_ANSWER: Final = 502
_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


_FULL: Final = answers.of_error(
    RequestError(Code.OVERLOADED, "Too many connections are open.", retry_after_ms=RETRY_MS_MAX)
)


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What the proxy is told.

    Attributes:
        routes: At least one.
        limits: The bounds.
        trusted: The networks whose ``X-Forwarded-*`` are believed; ``unix`` for whoever comes over a Unix socket.
    """

    routes: Sequence[Route]
    limits: ProxyLimits = field(default_factory=ProxyLimits)
    trusted: Sequence[str] = ()


class ProxyDoor:
    """Serves the routes of one process.

    Args:
        context: The server.
        settings: What it is told.
        entropy: Random bits for operation ids where no shard gives one.
        connect: Opens connections to upstreams; None: as their addresses say.

    Attributes:
        finished: Set once ``serve`` has answered everything, after ``drain``.
    """

    def __init__(
        self,
        context: ServerContext,
        settings: ProxySettings,
        entropy: Callable[[], int],
        connect: Connect | None = None,
    ) -> None:
        self.finished = trio.Event()
        self._context = context
        self._limits = settings.limits
        self._routes = Routes(settings.routes)
        self._sources: Mapping[str, Source] = {route.source: context.sources[route.source] for route in settings.routes}
        self._trusted = TrustedPeers(settings.trusted)
        self._entropy = entropy
        self._upstreams: dict[Origin, Upstream] = {
            route.upstream: Upstream(route.upstream, settings.limits, connect) for route in settings.routes
        }
        self._keeper = LeaseKeeper(context.router)
        self._cut = Cut()
        self._tell_until = math.inf
        self._offices: dict[str, Office] = {}
        self._connections: set[ProxyConnection] = set()
        self._listeners: Sequence[Listener] = ()
        self._draining = False

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        limits: AcceptLimits | None = None,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve ``listeners`` until drained or cancelled.

        Args:
            listeners: Taken over, and closed in the end.
            limits: The bounds of accepting.
            task_status: Started with the bound addresses.
        """
        self._listeners = listeners
        if self._draining:
            self.drain()
        observer = DoorObserver(self._context.observer, DOOR)
        try:
            async with trio.open_nursery() as background:
                # What is still to be told has what is left of the drain's time: whoever cancels this decides.
                async with trio.open_nursery() as telling:
                    self._open(background, telling)
                    await serve_listeners(
                        listeners,
                        self.handle,
                        limits=limits,
                        observer=observer,
                        refusal=rendered(_FULL),
                        task_status=task_status,
                    )
                for upstream in self._upstreams.values():
                    await upstream.aclose()
                background.cancel_scope.cancel()
        finally:
            self.finished.set()

    def _open(self, background: trio.Nursery, telling: trio.Nursery) -> None:
        background.start_soon(self._keeper.run)
        for upstream in self._upstreams.values():
            background.start_soon(upstream.tidy)
        desk = Desk(self._context.router, telling)
        if self._draining:
            desk.close(self._tell_until)
        for route in self._routes:
            forwarder = Forwarder(self._upstreams[route.upstream], route, background, self._cut)
            told_as = self._sources[route.source].answers
            context = self._context
            self._offices[route.prefix] = Office(
                route,
                told_as,
                desk,
                self._keeper,
                forwarder,
                context.observer,
                self._entropy,
                context.now_ms,
                context.backlog,
            )

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end."""
        connection = ProxyConnection(
            stream, self._peer(stream), self._limits, self._context.arrivals, self._answer, self._refused
        )
        self._connections.add(connection)
        if self._draining:
            connection.drain()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def drain(self, cut_ms: float = math.inf, tell_ms: float = math.inf) -> None:
        """Take no new request; what is under way is carried to its end.

        Args:
            cut_ms: When upstreams that have not answered are given up, milliseconds: their requests end as any whose
                upstream was lost. Shards and clients are told afterwards.
            tell_ms: When no shard takes the end of an attempt any more: clients wait no longer for one that does not.
        """
        self._draining = True
        self._cut.after(cut_ms)
        self._tell_until = min(self._tell_until, trio.current_time() + tell_ms / _MS_PER_S)
        for office in self._offices.values():
            office.desk.close(self._tell_until)
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.drain()

    # ---------------------------------------------------------------------------------------------------- one request

    async def _answer(self, conversation: Conversation) -> None:
        tracing = self._context.tracing
        if tracing is None:
            await self._answer_untraced(conversation)
            return
        head, client = conversation.head, conversation.client
        parent = {name: values[0] for name in TRACE_FIELDS if len(values := head.values(name)) == 1}
        client.traced = tracing.http(head.method, self._prefix(head), path_of(head.target), parent, tracing.now_ns())
        try:
            await self._answer_untraced(conversation)
        finally:
            # Whom no answer reached was told nothing: the status is that of a gateway that gave up.
            client.traced.ended(client.status or _NO_ANSWER)

    def _prefix(self, head: RequestHead) -> str | None:
        with contextlib.suppress(AmbiguousPath):
            route = self._routes.find(head.target)
            return None if route is None else route.prefix
        return None

    async def _answer_untraced(self, conversation: Conversation) -> None:
        head, client = conversation.head, conversation.client
        try:
            route = self._routes.find(head.target)
        except AmbiguousPath as error:
            self._refused(Code.INVALID_REQUEST)
            await client.whole(answers.of_status(400, Code.INVALID_REQUEST, f"{error}."))
            return
        if route is None:
            self._refused(Code.NOT_FOUND)
            await client.whole(answers.of_status(404, Code.NOT_FOUND, "No route leads there."))
            return
        try:
            await self._take(conversation, route)
        except RequestError as error:
            self._refused(error.code)
            await client.whole(answers.of_error(error))

    async def _take(self, conversation: Conversation, route: Route) -> None:
        """Raises: RequestError, where the request is not even asked about."""
        head, office = conversation.head, self._offices[route.prefix]
        headers = head.headers
        if head.method not in route.methods and self._sources[route.source].verify is not None:
            # Nobody has looked at the signature of such a request: it would reach the upstream from anybody.
            self._refused(Code.METHOD_NOT_ALLOWED)
            await conversation.client.whole(answers.not_allowed(route.methods))
            return
        if route.auth is RouteAuth.BEARER:
            scope = self._authenticated(head.values(route.auth_header), route)
            headers = without(headers, route.auth_header)
        else:
            policy, watch = self._context.policies[route.namespace], self._context.authenticator.watch
            scope = Scope(route.tenant, route.namespace, policy, operator=False, watch=watch)
        # A token of ours is nobody else's business, wherever it was put and whatever the route asks for.
        headers = tuple(pair for pair in headers if not self._context.authenticator.is_ours(pair[1]))
        check_method(head.method, headers, route.methods)
        body = await conversation.read_body(known=route.auth is RouteAuth.BEARER)
        request = RawRequest(head.method, head.target, headers, body)
        peer, client = conversation.peer, conversation.client
        # The sender's signature may be in the very field that is taken out.
        resolved = self._resolved(route, RawRequest(head.method, head.target, head.headers, body))
        if resolved is None:
            await pass_on(office, request, peer, client)
        else:
            await Attempt(office, request, resolved, scope, peer, client, conversation.meanwhile).run()

    def _resolved(self, route: Route, request: RawRequest) -> Resolved | None:
        """The key of a request; None: it passes unprotected."""
        if request.method not in route.methods:
            return None
        try:
            context = self._context
            source, now_ms = self._sources[route.source], context.now_ms()
            return resolve(source, request, now_ms=now_ms, forged=context.observer.forged)
        except NoKey:
            if route.require_key:
                raise
            return None

    def _authenticated(self, values: Sequence[str], route: Route) -> Scope:
        authenticator = self._context.authenticator
        if authenticator.anonymous is not None:
            # Where there are no tokens everybody has one; a route that asks for one lets nobody in instead.
            raise unauthenticated()
        return authenticator.scope(authenticator.from_header(values), route.namespace, "reserve")

    def _refused(self, code: str) -> None:
        self._context.observer.refused(DOOR, code)

    def _peer(self, stream: trio.abc.Stream) -> Peer:
        secure = isinstance(stream, trio.SSLStream)
        transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        host = ""
        if isinstance(transport, trio.SocketStream) and transport.socket.family != trio.socket.AF_UNIX:
            # A client that is gone already has no name any more, and gets no answer either.
            with contextlib.suppress(OSError):
                host = transport.socket.getpeername()[0]
        return Peer(host, "https" if secure else "http", host in self._trusted)


def warn(routes: Sequence[Route], context: ServerContext) -> None:
    """Say at start what a route's namespace makes possible."""
    for route in routes:
        policy = context.policies[route.namespace]
        if policy.on_lease_expiry.value == "retry":
            detail = (
                "a request that a crash interrupted is sent to the upstream once more, marked as a takeover, when its"
                ' lease has run out; on_lease_expiry = "hold" leaves it in doubt'
            )
            log_event(_log, logging.WARNING, "gateway_route_retries", prefix=route.prefix, detail=detail)
