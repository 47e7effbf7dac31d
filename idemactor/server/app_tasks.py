"""Runs an ASGI app, one task for each request, so that neither app nor client can leave the other waiting for good.

It stands in for hypercorn's ``TaskGroup``, whose queue blocks for ever once an app has ended, or answers, without
reading the body that fills it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio
from hypercorn.config import Config
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, HTTPDisconnectEvent, Scope

from idemactor.server.listeners import FAILURES

APP_QUEUE_MESSAGES: Final = 2
"""How many pieces of a request body wait for an app that does not read; then the client waits. One is the end."""
DISCONNECT: Final[HTTPDisconnectEvent] = {"type": "http.disconnect"}

_log = logging.getLogger(__name__)

Put = Callable[[ASGIReceiveEvent], Awaitable[None]]


class AppTasks:
    """The app's tasks for the requests of one connection, in that connection's nursery.

    Attributes:
        on_asked: Called whenever an app asks for its request's body, or what is left of it.
    """

    def __init__(self, nursery: trio.Nursery, on_failure: Callable[[BaseException], None]) -> None:
        self.on_asked: Callable[[], Awaitable[None]] = _nobody
        self._nursery = nursery
        self._on_failure = on_failure

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,  # noqa: ARG002 (hypercorn's signature)
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Put:
        """Starts the app for one request; returns how the request's events reach it."""
        put, take = trio.open_memory_channel[ASGIReceiveEvent](APP_QUEUE_MESSAGES)
        self._nursery.start_soon(self._run, app, scope, take, send)
        return partial(_deliver, put)

    def forget(self) -> None:
        """The connection is over: without its name two that know each other are no cycle."""
        self.on_asked = _nobody

    async def _run(
        self,
        app: AppWrapper,
        scope: Scope,
        take: trio.MemoryReceiveChannel[ASGIReceiveEvent],
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        try:
            await app(scope, partial(self._receive, take), send, trio.to_thread.run_sync, trio.from_thread.run)
        except* FAILURES as errors:
            _log.error("the app failed on a request", exc_info=errors)
            self._on_failure(errors)
        # No answer yet: hypercorn makes it a 500. A broken one: the connection is closed.
        await send(None)

    async def _receive(self, take: trio.MemoryReceiveChannel[ASGIReceiveEvent]) -> ASGIReceiveEvent:
        try:
            await self.on_asked()
            return await take.receive()
        except trio.EndOfChannel:
            return DISCONNECT


async def _nobody() -> None:
    """Is told nothing."""


async def _deliver(put: trio.MemorySendChannel[ASGIReceiveEvent], event: ASGIReceiveEvent) -> None:
    if event["type"] == "http.disconnect":
        # Never waits for room: the one who tells may be the app itself, in the middle of its last send.
        put.close()
        return
    # Once the request is over, the rest of its body is for nobody.
    with contextlib.suppress(trio.ClosedResourceError):
        await put.send(event)
