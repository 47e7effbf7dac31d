"""How a connection is closed from here so that the client still sees its answers."""

from __future__ import annotations

from typing import Final

import trio

LINGER_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much is read and thrown away meanwhile."""

_READ_BYTES: Final = 65_536
_MS_PER_S: Final = 1_000


async def part(stream: trio.abc.Stream, linger_ms: int, *, broken: bool) -> None:
    """Close ``stream``, reading on for a while: with bytes of the client's unread, closing resets the connection.

    Args:
        linger_ms: How long to read on, milliseconds.
        broken: Whether there is nothing to wait for: the client is gone, or did not take what it was sent.
    """
    with trio.move_on_after(linger_ms / _MS_PER_S):
        if isinstance(stream, trio.abc.HalfCloseableStream) and not broken:
            await stream.send_eof()
            left = LINGER_BYTES_MAX
            while left > 0 and (data := await stream.receive_some(_READ_BYTES)):
                left -= len(data)
        await stream.aclose()
