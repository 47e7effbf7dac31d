"""The MessagePack-RPC door: connections by an accept loop, each served by an ``RpcConnection``, drained together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import trio

from idemactor.server.context import ServerContext
from idemactor.server.lane import Lane
from idemactor.server.listeners import AcceptLimits, AcceptObserver, Listener, serve_listeners
from idemactor.server.rpc_connection import RpcConnection, RpcLimits

__all__ = ["RpcDoor", "RpcLimits"]


class RpcDoor:
    """Serves MessagePack-RPC.

    Use ``serve`` for a door of its own; or ``lane`` around, and ``handle`` for each connection, where another loop
    accepts.
    """

    def __init__(self, context: ServerContext, limits: RpcLimits | None = None) -> None:
        self._context = context
        self._lane = context.lane or Lane(context.router.route, context.router.company)
        self._limits = limits or RpcLimits()
        self._connections: set[RpcConnection] = set()
        self._listeners: Sequence[Listener] = ()
        self._draining = False

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        limits: AcceptLimits | None = None,
        observer: AcceptObserver | None = None,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves ``listeners`` until drained, or until cancelled.

        Args:
            listeners: Taken over, and closed in the end.
            limits: The bounds of accepting; None for the defaults.
            observer: Who is told of connections; None for nobody.
            task_status: Started with the bound addresses, in order.
        """
        self._listeners = listeners
        if self._draining:
            self.drain()
        async with self.lane():
            await serve_listeners(listeners, self.handle, limits=limits, observer=observer, task_status=task_status)

    @contextlib.asynccontextmanager
    async def lane(self) -> AsyncIterator[None]:
        """Runs the task that reads for the door's plain connections; ``handle`` needs it."""
        if self._lane is self._context.lane:
            yield
            return
        async with trio.open_nursery() as nursery:
            await nursery.start(self._lane.run)
            yield
            nursery.cancel_scope.cancel()

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serves one connection to its end.

        Raises:
            Exception: A bug; only this connection is beyond use. See ``listeners.guard_connection``.
        """
        if self._draining:
            return
        connection = RpcConnection(self._context, self._limits, stream, self._lane)
        with self._registered(connection):
            await connection.run()

    def drain(self) -> None:
        """Stops accepting and reading; what was read is answered, then its connection closed."""
        self._draining = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self._connections):
            connection.drain()

    @contextlib.contextmanager
    def _registered(self, connection: RpcConnection) -> Iterator[None]:
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)
