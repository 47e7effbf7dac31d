"""The apps behind the door: a small quart-trio app, and a bare ASGI app with bad manners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import trio
from quart import Response, request
from quart_trio import QuartTrio

BIG_BYTES: Final = 5 * 1024 * 1024


def make_quart_app() -> QuartTrio:
    """Answers ``/``, ``/echo``, ``/big``, ``/slow`` and a ``/stream`` that goes on for a while."""
    app = QuartTrio(__name__)

    @app.get("/")
    async def root() -> str:
        return "ok"

    @app.post("/echo")
    async def echo() -> Response:
        return Response(await request.get_data())

    @app.get("/big")
    async def big() -> Response:
        return Response(b"x" * BIG_BYTES)

    @app.get("/slow")
    async def slow() -> str:
        await trio.sleep(0.3)
        return "slow"

    @app.post("/stream")
    async def stream() -> Response:
        return Response(_trickle())

    @app.get("/boom")
    async def boom() -> str:
        raise RuntimeError("on purpose")

    return app


async def _trickle() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"0123456789"
        await trio.sleep(0.01)


async def rude_app(scope: Any, _receive: Any, send: Any) -> None:
    """Never reads a body, has no lifespan, and on ``/stuck`` and ``/boom`` does worse."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    if scope["path"] == "/stuck":
        await trio.sleep_forever()
    if scope["path"] == "/boom":
        raise BaseExceptionGroup("mixed", [asyncio.CancelledError(), ExceptionGroup("inner", [ValueError("too")])])
    if scope["path"] == "/late":
        # Long enough for the client to fill the queue of the body.
        await trio.sleep(0.2)
    status = 413 if scope["method"] == "POST" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
