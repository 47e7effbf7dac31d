"""The sockets of this process, which a forked child must let go of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

from anyio.abc import ByteStream, SocketAttribute

_SOCKETS: Final[set[int]] = set()
"""The sockets of this process, by file descriptor."""


@contextlib.contextmanager
def unshared(number: int) -> Iterator[None]:
    """Share the socket ``number`` with no child for as long as this lasts."""
    _SOCKETS.add(number)
    try:
        yield
    finally:
        _SOCKETS.discard(number)


def unshared_stream(stream: ByteStream) -> contextlib.AbstractContextManager[None]:
    """The same for the socket of a connection, if it has one."""
    sock = stream.extra(SocketAttribute.raw_socket, None)
    return contextlib.nullcontext() if sock is None else unshared(sock.fileno())


def _drop_inherited() -> None:
    """In a forked child: let go of the parent's connections, so that the server sees them end when the parent ends.

    The descriptors are replaced and not closed: their owners, copied along with everything else, would close them a
    second time, when the numbers may long be somebody else's.
    """
    if not _SOCKETS:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in _SOCKETS:
        os.dup2(null, number, inheritable=False)
    os.close(null)
    _SOCKETS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
