"""A door on loopback with its limits turned down, a client that speaks raw bytes, and the check after every case."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from idemactor.server.http_guard import ALPN_PROTOCOLS, HttpDoor, HttpLimits, HttpObserver
from idemactor.server.http_protocol import Phase
from idemactor.server.listeners import bind_listeners, server_ssl_context

HERE: Final = Path(__file__).parent
CERT: Final = HERE / "test_only_cert.pem"
KEY: Final = HERE / "test_only_key.pem"

LIMITS: Final = HttpLimits(
    connections_max=512,
    handshake_ms=300,
    headers_ms=300,
    idle_ms=300,
    body_ms=300,
    write_ms=300,
    linger_ms=400,
    drain_ms=600,
)
SHUTDOWN_S: Final = 1.5
"""What a drain may take at most: ``drain_ms``, the linger, and room for a busy machine."""
ANSWER_S: Final = 5.0
"""How long a test waits for what must come; only a broken server lets it pass."""
HEALTHY: Final = b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"


@dataclass
class Recorder(HttpObserver):
    """Remembers what the observer was told."""

    refused: list[int] = field(default_factory=list)
    deadlines: list[Phase] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    app_failures: list[BaseException] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    turned_away: list[str] = field(default_factory=list)
    failed_at: list[str] = field(default_factory=list)
    let_go: trio.Event = field(default_factory=trio.Event)

    def connection_opened(self, listener: str) -> None:
        self.opened.append(listener)

    def connection_closed(self, listener: str) -> None:
        self.closed.append(listener)

    def connection_refused(self, listener: str) -> None:
        self.turned_away.append(listener)

    def connection_failed(self, listener: str, error: BaseException) -> None:
        self.failed_at.append(listener)
        self.failures.append(error)

    def request_refused(self, status: int) -> None:
        self.refused.append(status)

    def deadline_passed(self, phase: Phase) -> None:
        self.deadlines.append(phase)
        self.let_go.set()
        self.let_go = trio.Event()

    def app_failed(self, error: BaseException) -> None:
        self.app_failures.append(error)


@dataclass
class Running:
    """A door that serves, and how to reach it."""

    door: HttpDoor
    addresses: list[str]
    seen: Recorder
    tls: ssl.SSLContext | None
    done: trio.Event = field(default_factory=trio.Event)

    async def connect(self, *, receive_bytes: int | None = None) -> trio.SocketStream:
        """A plain connection to the first address, without TLS even where the door speaks it."""
        address = self.addresses[0]
        if address.startswith("unix:"):
            return await trio.open_unix_socket(address.removeprefix("unix:"))
        host, _, port = address.rpartition(":")
        sock = trio.socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET, socket.SOCK_STREAM)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await sock.connect((host.strip("[]"), int(port)))
        return trio.SocketStream(sock)

    async def open(self) -> trio.abc.Stream:
        """A connection as a healthy client opens it."""
        stream = await self.connect()
        if self.tls is None:
            return stream
        secure = trio.SSLStream(stream, self.tls, server_hostname="localhost", https_compatible=True)
        await secure.do_handshake()
        return secure

    async def exchange(self, request: bytes) -> bytes:
        """Sends and reads to the end of the stream; what a reset leaves unread is lost."""
        stream = await self.open()
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(request)
            return await read_all(stream)

    async def check_health(self) -> None:
        answer = await self.exchange(HEALTHY)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert answer.endswith(b"\r\n\r\nok"), answer

    async def shut_down(self) -> float:
        """Drains; returns how long that took, seconds. Fails the test where it takes too long."""
        started = trio.current_time()
        self.door.drain()
        with trio.move_on_after(SHUTDOWN_S) as waiting:
            await self.done.wait()
        assert not waiting.cancelled_caught, "the door did not shut down in time"
        return trio.current_time() - started


@contextlib.asynccontextmanager
async def running(
    app: Any,
    *,
    limits: HttpLimits = LIMITS,
    addresses: Sequence[str] = ("127.0.0.1:0",),
    tls: bool = False,
    client_ca: bool = False,
) -> AsyncIterator[Running]:
    """A door for the time of the block."""
    server_tls = server_ssl_context(CERT, KEY, CERT if client_ca else None, alpn=ALPN_PROTOCOLS) if tls else None
    seen = Recorder()
    door = HttpDoor(app, limits=limits, observer=seen)
    listeners = bind_listeners(addresses, server_tls)
    run = Running(door, [], seen, client_context() if tls else None)

    async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
        await door.serve(listeners, task_status=task_status)
        run.done.set()

    async with trio.open_nursery() as nursery:
        run.addresses = await nursery.start(serve)
        yield run
        nursery.cancel_scope.cancel()


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=CERT)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def attack(run: Running, case: Callable[[Running], Awaitable[None]], rounds: int = 4) -> None:
    """The case several times at once and one after the other, then a healthy request and a shutdown in time."""
    await case(run)
    async with trio.open_nursery() as nursery:
        for _ in range(rounds - 1):
            nursery.start_soon(case, run)
    await run.check_health()
    assert await run.shut_down() < SHUTDOWN_S
    assert len(run.seen.opened) == len(run.seen.closed), "a connection leaked"
    # The guard would catch these; that none arise says that the paths behind it are sound too.
    assert run.seen.failures == []


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Reads until the other side closes, or resets."""
    received = bytearray()
    with trio.fail_after(ANSWER_S), contextlib.suppress(trio.BrokenResourceError):
        while piece := await stream.receive_some(65_536):
            received += piece
    return bytes(received)


async def read_until(stream: trio.abc.ReceiveStream, end: bytes) -> bytes:
    """Reads until ``end`` was seen; fails if the stream ends before."""
    received = bytearray()
    with trio.fail_after(ANSWER_S):
        while end not in received:
            piece = await stream.receive_some(65_536)
            assert piece, bytes(received)
            received += piece
    return bytes(received)


async def reset(stream: trio.SocketStream) -> None:
    """Closes with a TCP reset instead of a goodbye."""
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()
