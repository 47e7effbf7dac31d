"""An upstream for the reverse proxy, on real sockets. The last segment of a request's path says how it behaves."""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

BINARY: Final = bytes(range(256)) * 4
MIB: Final = b"\x00\xff" * (512 * 1024 - 64)
"""The largest body, nearly, that can be stored: the text of the headers counts too."""
PACKED: Final = gzip.compress(b'{"success": true, "packed": 1}', mtime=0)
OK: Final = b'{"success": true}'

HANGS: Final = frozenset({"hang", "hang-body", "hang-stream"})
CUTS: Final = frozenset({"cut", "reset", "cut-head", "cut-body"})
_RST: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds: closing resets the connection."""


@dataclass(slots=True)
class Request:
    """A request as it came."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def behaviour(self) -> str:
        return self.line.split()[1].partition("?")[0].rpartition("/")[2]

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name.lower()]


@dataclass(slots=True)
class Upstream:
    """Listens on a free port; ``requests`` are those that it read whole, in order."""

    requests: list[Request] = field(default_factory=list)
    port: int = 0
    slow_s: float = 0.3
    _listener: socket.socket | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Upstream:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        """How many requests there were, by path."""
        with self._lock:
            return Counter(request.line.split()[1] for request in self.requests)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            buffer = bytearray()
            while (request := _read(connection, buffer)) is not None:
                with self._lock:
                    self.requests.append(request)
                if not self._behave(connection, request):
                    return

    def _behave(self, connection: socket.socket, request: Request) -> bool:
        """Answer; whether the connection goes on."""
        name = request.behaviour
        if name == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        if name == "slow":
            time.sleep(self.slow_s)
        for piece in _BEFORE.get(name, ()):
            connection.sendall(piece)
            time.sleep(0.2 if name == "stream" else 0)
        if name in HANGS:
            self._ended.wait(30)
        if name in HANGS | CUTS:
            return False
        connection.sendall(b"0\r\n\r\n" if name == "stream" else _answer(name, is_head=request.line[:4] == "HEAD"))
        return True


_BEGUN: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"
_BEFORE: Final = {
    "hang-body": (_BEGUN,),
    "hang-stream": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntick\r\n",),
    "cut-body": (_BEGUN,),
    "cut-head": (b"HTTP/1.1 200 OK\r\nContent-",),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",),
    "stream": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"4\r\ntick\r\n"] * 3),
}
"""What is sent before the answer, or instead of it."""


def _answer(name: str, *, is_head: bool) -> bytes:
    status, body, more = 200, OK, b"Content-Type: application/json\r\n"
    if name.isdecimal():
        status, body = int(name), b"" if name in ("204", "304") else b"hm"
    elif name == "html":
        body, more = b"<html>", b"Content-Type: text/html\r\n"
    elif name == "soft":
        body = b'{"success": false}'
    elif name == "gzip":
        body, more = PACKED, more + b"Content-Encoding: gzip\r\n"
    elif name == "binary":
        body, more = BINARY, b"Content-Type: application/octet-stream\r\n"
    elif name == "mib":
        body, more = MIB, b"Content-Type: application/octet-stream\r\n"
    elif name == "large":
        body, more = 3 * MIB, b"Content-Type: application/octet-stream\r\n"
    length = b"" if status in (204, 304) else b"Content-Length: %d\r\n" % len(body)
    head = b"HTTP/1.1 %d Status\r\n%bSet-Cookie: a=1\r\n%b\r\n" % (status, more, length)
    return head if is_head else head + body


def _read(connection: socket.socket, buffer: bytearray) -> Request | None:
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        data = connection.recv(65_536)
        if not data:
            return None
        buffer += data
    line, *fields = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
    request = Request(line, headers, b"")
    if request.behaviour == "early":
        # Refused before it was read.
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.5)
        return None
    del buffer[: end + 4]
    length = int(next(iter(request.header("content-length")), "0"))
    while len(buffer) < length:
        data = connection.recv(65_536)
        if not data:
            return None
        buffer += data
    request.body = bytes(buffer[:length])
    del buffer[:length]
    return request
