"""An HTTP server for loads: one loop on plain sockets, which finds whole requests and has somebody say the answers."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Final, TypeAlias

Answers: TypeAlias = Callable[[list[bytes]], bytes]
"""Given the heads of the requests that a read completed, in lower case; returns the bytes that answer them all."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"


def listen(port: int, answers: Answers) -> None:
    """Answer for ever."""
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, tuple[socket.socket, bytearray]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()] = connection, bytearray()
                poll.register(connection.fileno(), select.EPOLLIN)
                continue
            connection, buffer = connections[descriptor]
            data = b""
            with contextlib.suppress(ConnectionError):
                data = connection.recv(65_536)
                buffer += data
                connection.sendall(answers(_taken(buffer)))
            if not data:
                del connections[descriptor]
                connection.close()


def value(head: bytes, field: bytes) -> bytes:
    """The value of a field of a head, whose name is given as ``\\r\\nname:``; empty where it is not there."""
    return head.partition(field)[2].partition(b"\r\n")[0].strip()


def _taken(buffer: bytearray) -> list[bytes]:
    """The heads of the whole requests at the start of ``buffer``, which they are taken from."""
    heads = []
    while (end := buffer.find(_END)) >= 0:
        head = bytes(buffer[:end]).lower()
        whole = end + len(_END) + int(value(head, _LENGTH) or 0)
        if len(buffer) < whole:
            break
        del buffer[:whole]
        heads.append(head)
    return heads
