"""Large answers over HTTP: encoded one at a time, in steps between which others have their turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import trio

from idemactor.server.http_answers import JSON_TYPE, Told, encode

ENCODED_AT_ONCE_BYTES: Final = 262_144
"""An answer whose outcomes are no more, as they will be sent, is encoded where it is answered."""

STEP_BYTES: Final = 262_144
"""How much is encoded until others have their turn; the last outcome of a step may overshoot it."""

Pieces = tuple[Told, list[bytes]]
"""An answer whose body is not in it, but in pieces beside it, the first one first."""


async def whole(make: Callable[[], Told], encoding: trio.Lock) -> Pieces:
    """An answer with one outcome; ``encoding`` is the backlog's."""
    async with encoding:
        answer = make()
        return replace(answer, body=b""), [answer.body]


async def listed(name: str, items: Iterable[object], rest: Mapping[str, object], encoding: trio.Lock) -> Pieces:
    """An answer whose member ``name`` is a list and holds all that is large; ``rest`` are its other members."""
    pieces: list[bytes] = []
    async with encoding:
        step = 0
        for piece in _of_list(name, items, rest):
            pieces.append(piece)
            step += len(piece)
            if step >= STEP_BYTES:
                step = 0
                await trio.lowlevel.checkpoint()
    return Told(200, JSON_TYPE, b""), pieces


def _of_list(name: str, items: Iterable[object], rest: Mapping[str, object]) -> Iterator[bytes]:
    """The bytes that ``encode`` would give for all of it."""
    yield b"{%b:[" % encode(name)
    comma = b""
    for item in items:
        yield comma + encode(item)
        comma = b","
    yield b"".join([b"]", *(b",%b:%b" % (encode(key), encode(value)) for key, value in rest.items()), b"}"])
