"""The sockets of this process, which a forked child must let go of."""

from __future__ import annotations

import os
from typing import Final

from anyio.abc import ByteStream, SocketAttribute

NO_SOCKET: Final = -1
"""In the place of a file descriptor."""

_SOCKETS: Final[set[int]] = set()
"""The sockets of this process, by file descriptor."""


def share_with_no_child(stream: ByteStream) -> int:
    """Remember the socket of a connection, if it has one; its number, for ``forget``."""
    sock = stream.extra(SocketAttribute.raw_socket, None)
    if sock is None:
        return NO_SOCKET
    number: int = sock.fileno()
    _SOCKETS.add(number)
    return number


def forget(number: int) -> None:
    """That socket is closed."""
    _SOCKETS.discard(number)


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
