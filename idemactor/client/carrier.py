"""What carries the bytes of one connection: from the pipeline to the server and back, until the connection breaks.

On asyncio a socket is carried by the loop's own callbacks: what is read wakes callers at once, and what is asked within
one turn of the loop is written at the end of it. Everything else (trio, TLS) takes the way of streams and tasks.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream, UNIXSocketStream

from idemactor.client import forks
from idemactor.client.errors import ProtocolViolation
from idemactor.client.eventloop import running
from idemactor.client.pipeline import Pipeline

READ_BYTES: Final = 262_144

_WATCHES: Final = 4
"""How often a silence is looked for while it lasts."""

BROKEN: Final = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ProtocolViolation,
    TimeoutError,
)
"""How connections end."""


async def carry(stream: ByteStream, pipeline: Pipeline, silence_s: float) -> BaseException:
    """Carry calls and answers over ``stream`` until it breaks; returns how.

    Args:
        stream: The connection.
        pipeline: Whose calls.
        silence_s: How long a server that was asked may say nothing.
    """
    loop = running().asyncio
    if loop is not None and isinstance(stream, SocketStream | UNIXSocketStream) and os.name == "posix":
        parts = [functools.partial(_carry_directly, loop, stream, pipeline)]
    else:
        parts = [functools.partial(_read, stream, pipeline), functools.partial(_write, stream, pipeline)]
    parts.append(functools.partial(_watch, pipeline, silence_s))
    found: list[BaseException] = []

    async def until_broken(part: Callable[[], Awaitable[None]]) -> None:
        """The first part that breaks ends the others."""
        try:
            await part()
        except BROKEN as error:
            found.append(error)
        finally:
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for part in parts:
            tasks.start_soon(until_broken, part)
    return found[-1]


async def _watch(pipeline: Pipeline, silence_s: float) -> None:
    while True:
        await anyio.sleep(silence_s / _WATCHES)
        pipeline.check_silence(silence_s)


# --------------------------------------------------------------------------------------------------- streams and tasks


async def _read(stream: ByteStream, pipeline: Pipeline) -> None:
    while True:
        pipeline.hear(await stream.receive(READ_BYTES))


async def _write(stream: ByteStream, pipeline: Pipeline) -> None:
    while True:
        await pipeline.demand()
        if frames := pipeline.frames():
            await stream.send(frames)


# ------------------------------------------------------------------------------------------------- asyncio's callbacks


async def _carry_directly(loop: asyncio.AbstractEventLoop, stream: ByteStream, pipeline: Pipeline) -> None:
    """Carry over the socket of ``stream``; raises what broke it.

    The socket is the same, by a second descriptor: ``stream`` is not read meanwhile, and keeps the first.
    """
    sock = socket.socket(fileno=os.dup(stream.extra(SocketAttribute.raw_socket).fileno()))
    carrier = _Carrier(loop, pipeline)
    with forks.unshared(sock.fileno()):
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            await loop.create_unix_connection(lambda: carrier, sock=sock)
        else:
            await loop.create_connection(lambda: carrier, sock=sock)
        pipeline.on_demand, before = carrier.demand, pipeline.on_demand
        try:
            carrier.demand()
            raise await carrier.broken
        finally:
            pipeline.on_demand = before
            carrier.close()


class _Carrier(asyncio.Protocol):
    """One socket's end, for the loop to call.

    Attributes:
        broken: Done once the connection is over, with why.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pipeline: Pipeline) -> None:
        self.broken: asyncio.Future[BaseException] = loop.create_future()
        self._loop = loop
        self._pipeline = pipeline
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._due = False

    def demand(self) -> None:
        """There is something to be written: at the end of this turn, when everybody has asked."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._write)

    def close(self) -> None:
        """Let go of the socket at once."""
        self._break(anyio.ClosedResourceError())
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            if not self.broken.done():
                self._pipeline.hear(data)
                # Behind those whom that woke: what they ask next leaves in the same turn.
                self.demand()
        except ProtocolViolation as error:
            self._break(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or anyio.EndOfStream())

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.demand()

    def _write(self) -> None:
        self._due = False
        while self._transport is not None and not self._paused and not self.broken.done():
            if not (frames := self._pipeline.frames()):
                return
            self._transport.write(frames)

    def _break(self, error: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_result(error)
