"""The guarded HTTP door: any ASGI app behind sockets that no client can bring down.

``HttpDoor`` accepts, keeps the connections, and drains them; ``http_connection`` is one connection with its
deadlines, ``http_protocol`` what is spoken on it.

A client that disconnects is told to the app as ``http.disconnect``, which cancels a Quart handler: what must not be
lost runs outside of that handler.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.typing import ASGIFramework

from idemactor.errors import Code
from idemactor.server.backlog import Backlog
from idemactor.server.http_connection import HttpConnection
from idemactor.server.http_protocol import Refusal, render
from idemactor.server.http_shared import HttpLimits, HttpObserver, Shared
from idemactor.server.listeners import AcceptLimits, Handler, Listener, guard_connection, serve_listeners

__all__ = ["ALPN_PROTOCOLS", "HttpDoor", "HttpLimits", "HttpObserver", "hypercorn_config"]

ALPN_PROTOCOLS: Final = ("http/1.1",)
"""What the door speaks under TLS; why HTTP/2 is not among it stands at the head of ``http_protocol``."""
RETRY_AFTER_S: Final = 1
"""What a connection over the limit is told."""

_MS_PER_S: Final = 1_000
_HANDED_OVER: Final = "the HTTP door"

_log = logging.getLogger(__name__)


def hypercorn_config(limits: HttpLimits) -> Config:
    """hypercorn's settings, in code: nothing of it is read from a file, an environment or a command line."""
    config = Config()
    config.accesslog = None
    config.errorlog = _log
    config.include_server_header = False
    config.shutdown_timeout = limits.drain_ms / _MS_PER_S
    config.h11_max_incomplete_size = limits.header_bytes_max
    config.keep_alive_max_requests = limits.requests_max
    return config


class HttpDoor:
    """Serves one ASGI app on guarded connections.

    Use ``serve`` for a door of its own; or ``lifespan`` around, and ``handle`` for each connection, where another
    loop accepts and has perhaps read from the connection already.
    """

    def __init__(
        self,
        app: ASGIFramework,
        *,
        limits: HttpLimits | None = None,
        observer: HttpObserver | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        self._shared = Shared(
            ASGIWrapper(app), hypercorn_config(limits), limits, observer or HttpObserver(), backlog or Backlog()
        )
        self._connections: set[HttpConnection] = set()
        self._listeners: Sequence[Listener] = ()

    @property
    def draining(self) -> bool:
        """Has ``drain`` been called?"""
        return self._shared.draining

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        handle: Handler | None = None,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves ``listeners`` until drained, at most ``drain_ms`` after ``drain``, or until cancelled.

        Args:
            listeners: Taken over, and closed in the end.
            handle: Who gets new connections first; None for this door. It may pass them on to ``self.handle``.
            task_status: Started with the bound addresses once the app's lifespan has begun.

        Raises:
            Exception: The app's lifespan refused to start.
        """
        self._listeners = listeners
        if self.draining:
            self.drain()
        overloaded = Refusal(
            503, "Too many connections are open.", Code.OVERLOADED, ((b"retry-after", b"%d" % RETRY_AFTER_S),)
        )
        async with self.lifespan():
            await serve_listeners(
                listeners,
                handle or self.handle,
                limits=AcceptLimits(connections_max=self._shared.limits.connections_max),
                observer=self._shared.observer,
                refusal=render(overloaded, []),
                task_status=task_status,
            )

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Runs the app's ASGI lifespan around the body; an app that has none is served all the same."""
        lifespan = Lifespan(self._shared.app, self._shared.config, self._shared.state)
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            yield
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()

    async def handle(self, stream: trio.abc.Stream, preread: bytearray | None = None) -> None:
        """Serves one connection to its end; returns when it is closed, and raises nothing but cancellation.

        Args:
            stream: A ``trio.SocketStream``, a ``trio.SSLStream`` over one, or any other two-way stream.
            preread: What was read from it already; taken out of there once it is looked at, since it may be large.
        """

        async def run(guarded: trio.abc.Stream) -> None:
            connection = HttpConnection(self._shared, guarded)
            with self._registered(connection):
                await connection.run(preread or bytearray())

        await guard_connection(stream, run, _HANDED_OVER, self._shared.observer)

    def drain(self) -> None:
        """Stops accepting, closes idle connections, and lets requests in flight end within ``drain_ms``."""
        for listener in self._listeners:
            listener.close()
        if self.draining:
            return
        self._shared.begin_drain()
        for connection in list(self._connections):
            connection.drain()

    @contextlib.contextmanager
    def _registered(self, connection: HttpConnection) -> Iterator[None]:
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)
