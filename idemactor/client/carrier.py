"""What carries the bytes of one connection: from the pipeline to the server and back, until the connection breaks."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import ByteStream

from idemactor.client.errors import ProtocolViolation
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
    found: list[BaseException] = []

    async def until_broken(part: Callable[[], Awaitable[None]]) -> None:
        """The first part that breaks ends the others."""
        try:
            await part()
        except BROKEN as error:
            found.append(error)
        finally:
            tasks.cancel_scope.cancel()

    async def read() -> None:
        while True:
            pipeline.hear(await stream.receive(READ_BYTES))

    async def write() -> None:
        while True:
            await pipeline.demand()
            if frames := pipeline.frames():
                await stream.send(frames)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(until_broken, read)
        tasks.start_soon(until_broken, write)
        tasks.start_soon(until_broken, functools.partial(_watch, pipeline, silence_s))
    return found[-1]


async def _watch(pipeline: Pipeline, silence_s: float) -> None:
    while True:
        await anyio.sleep(silence_s / _WATCHES)
        pipeline.check_silence(silence_s)
