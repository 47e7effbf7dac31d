"""An upstream that answers every request at once, where there is no nginx: ``python -m bench.load.upstream PORT``."""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.nginx import ANSWER
from bench.processes import accepts, free_port, running, wait_until

_HEAD: Final = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
_WHOLE: Final = (_HEAD + ANSWER).encode()
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where it answers, and which process it is."""

    address: str
    pid: int


@contextlib.contextmanager
def answering(directory: Path) -> Iterator[Upstream]:
    """One in a process of its own. Raises: BenchError."""
    directory.mkdir()
    port, log = free_port(), directory / "log"
    with running([sys.executable, "-m", "bench.load.upstream", str(port)], log=log) as process:
        wait_until(lambda: accepts(port), process, log)
        yield Upstream(f"127.0.0.1:{port}", process.pid)


def serve(port: int) -> None:
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
                connection.sendall(_WHOLE * _taken(buffer))
            if not data:
                del connections[descriptor]
                connection.close()


def _taken(buffer: bytearray) -> int:
    """How many whole requests there were at the start of ``buffer``, which they are taken from."""
    count = 0
    while (end := buffer.find(_END)) >= 0:
        head = bytes(buffer[:end]).lower()
        _, _, length = head.partition(_LENGTH)
        whole = end + len(_END) + int(length.partition(b"\r\n")[0] or 0)
        if len(buffer) < whole:
            break
        del buffer[:whole]
        count += 1
    return count


if __name__ == "__main__":
    serve(int(sys.argv[1]))
