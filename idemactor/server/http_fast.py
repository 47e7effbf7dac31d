"""The door for the hot calls over HTTP, without a framework, in front of the guarded one for everything else.

A connection begins here, see ``http_fast_connection``. As long as it asks for what ``wire/http_head.py`` knows, its
requests are answered from here; at the first that is anything else the connection, unread bytes included, goes to the
guarded hypercorn for good. Both give the same answers: they share everything but the bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import trio

from idemactor.server.context import ServerContext
from idemactor.server.http_fast_connection import FastConnection, FastLimits
from idemactor.server.http_guard import HttpDoor
from idemactor.server.lane import Lane
from idemactor.server.listeners import Listener
from idemactor.wire.http_head import Heads

__all__ = ["FastDoor", "FastLimits"]


class FastDoor:
    """Serves the hot calls in front of a guarded HTTP door, on the same addresses.

    Args:
        context: The server.
        guarded: Who gets every connection that asks for anything else.
        limits: The bounds; None for the defaults.
    """

    def __init__(self, context: ServerContext, guarded: HttpDoor, limits: FastLimits | None = None) -> None:
        self._context = context
        self._guarded = guarded
        self._limits = limits or FastLimits()
        self._lane = context.lane or Lane(context.router.route, context.router.company)
        self._heads = Heads()
        self._connections: set[FastConnection] = set()

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves ``listeners`` until drained, or until cancelled; see ``HttpDoor.serve``."""
        async with self.lane():
            await self._guarded.serve(listeners, handle=self.handle, task_status=task_status)

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
        """Serves one connection to its end."""
        preread = bytearray()
        if isinstance(stream, trio.SocketStream) and not self._guarded.draining:
            connection = FastConnection(self._context, self._limits, self._lane, self._heads, stream)
            with self._registered(connection):
                rest = await connection.run()
            if rest is None:
                return
            preread = rest
        await self._guarded.handle(stream, preread)

    def drain(self) -> None:
        """Stops accepting and closes idle connections; requests in flight are answered."""
        self._guarded.drain()
        for connection in list(self._connections):
            connection.drain()

    @contextlib.contextmanager
    def _registered(self, connection: FastConnection) -> Iterator[None]:
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)
