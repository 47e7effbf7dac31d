"""A small RPC server in memory: the real frames, the real state table, and faults on demand.

It lives in the test's own event loop and its connections are pairs of memory streams, so that nothing waits for real.
"""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream, TaskGroup, UNIXSocketStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from idemactor.client import Client
from idemactor.client.link import Link
from idemactor.core.census import Census
from idemactor.core.ledger import Ledger
from idemactor.core.policy import Policy
from idemactor.errors import RequestError
from idemactor.wire.answers import body_of
from idemactor.wire.fields import Dialect
from idemactor.wire.frames import FrameReader, Request, encode_error, encode_result
from idemactor.wire.policies import policy_body
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import COMMAND_OPS, Scope, command_from
from tests.client.loops import SOCKETS, run

NAMESPACE = "trade"


class Pipe(ByteStream):
    """One end of a connection in memory."""

    def __init__(self, send: MemoryObjectSendStream[bytes], receive: MemoryObjectReceiveStream[bytes]) -> None:
        self._send = send
        self._receive = receive

    async def send(self, item: bytes) -> None:
        await self._send.send(item)

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        data = await self._receive.receive()
        assert len(data) <= max(max_bytes, 2_200_000)
        return data

    async def send_eof(self) -> None:
        await self._send.aclose()

    async def aclose(self) -> None:
        self._send.close()
        self._receive.close()


def pipe() -> tuple[Pipe, Pipe]:
    """The two ends of a connection."""
    to_server, at_server = anyio.create_memory_object_stream[bytes](1_000)
    to_client, at_client = anyio.create_memory_object_stream[bytes](1_000)
    return Pipe(to_server, at_client), Pipe(to_client, at_server)


assert issubclass(Pipe, ByteSendStream)
assert issubclass(Pipe, ByteReceiveStream)


class LoopClock:
    """The lease clock of tests: the event loop's own virtual time."""

    def now_s(self) -> float:
        return anyio.current_time()

    async def sleep_until(self, when_s: float) -> None:
        await anyio.sleep_until(when_s)


@dataclass(slots=True, eq=False)
class Ticket:
    """Whose command it is."""

    server: FakeServer
    request: Request
    command: Any
    stream: Pipe
    connection: Connection

    @property
    def closed(self) -> bool:
        return self.connection.ended


@dataclass(slots=True, eq=False)
class Connection:
    ended: bool = False


Fault = Callable[["FakeServer", Request], str | None]
"""What to do about a request, before it is carried out: see ``FakeServer.fault``."""


@dataclass(eq=False)
class FakeServer:
    """One server. Its time is the event loop's.

    Attributes:
        policy: The settings of every namespace.
        fault: Says what to do about a request: None serves it, ``"cut"`` closes the connection before it is carried
            out, ``"cut after"`` after that and before it is answered, ``"hang"`` carries it out and never answers,
            ``"deaf"`` does not even do that, ``"late:1.5"`` takes 1.5 s to answer; any other text is an error.
        down: Connections are refused.
        seen: What was asked, by method.
        connections: How many connections were made.
        most_at_once: How many requests came without an answer in between, at most.
        token: What has to be authenticated with, if anything.
        sockets: Connections are real sockets, and not pairs of memory streams.
    """

    policy: Policy = field(default_factory=Policy)
    fault: Fault = field(default=lambda _server, _request: None)
    down: bool = False
    token: str | None = None
    seen: Counter[str] = field(default_factory=Counter)
    log: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    connections: int = 0
    tasks: TaskGroup | None = None
    sockets: bool = False
    origin_ms: int = 1_800_000_000_000
    generation: int = 0

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over with nothing on disk, as a server restarted in an empty directory."""
        self.generation += 1
        seed = iter(range(self.generation * 1_000_000, 2**70))
        policies = {NAMESPACE: self.policy}
        self.ledger: Ledger[Ticket] = Ledger(0, policies, Census(), lambda: next(seed), 0, {})
        self.streams: list[Pipe] = []

    def drop(self) -> None:
        """Close every connection."""
        streams, self.streams = self.streams, []
        for stream in streams:
            stream._send.close()
            stream._receive.close()

    def now_ms(self) -> int:
        return self.origin_ms + int(anyio.current_time() * 1000)

    def record(self, key: str) -> dict[str, Any] | None:
        """What ``get`` says of a key, seen from the side."""
        scope = Scope("default", NAMESPACE, self.policy, operator=True)
        command = command_from("get", {"key": key}, scope, Dialect.MSGPACK)
        self.ledger.begin(self.now_ms())
        ticket = Ticket(self, Request(0, "get", {}), command, pipe()[0], Connection())
        self.ledger.apply(ticket, command)
        [(_, reply)] = self.ledger.finish().replies
        found: Any = body_of(reply, command, operator=True, dialect=Dialect.MSGPACK)
        return found["record"] if found["result"] == "found" else None

    async def dial(self) -> ByteStream:
        """A connection to this server."""
        await anyio.lowlevel.checkpoint()
        if self.down:
            raise ConnectionRefusedError("the server is down")
        assert self.tasks is not None
        ours, theirs = pipe()
        self.connections += 1
        self.streams.append(theirs)
        self.tasks.start_soon(self._serve, theirs)
        return await self._with_socket(ours) if self.sockets else ours

    async def _with_socket(self, end: Pipe) -> ByteStream:
        """The other end of a real socket whose near end is ``end``."""
        assert self.tasks is not None
        near, far = socket.socketpair()
        self.tasks.start_soon(_pump, await UNIXSocketStream.from_socket(near), end)
        return await UNIXSocketStream.from_socket(far)

    async def _serve(self, stream: Pipe) -> None:
        reader, connection = FrameReader(), Connection()
        may_call = self.token is None
        try:
            async for data in stream:
                for request in reader.feed(data):
                    assert isinstance(request, Request), request
                    if request.method == "auth":
                        may_call = request.params["token"] == self.token
                        await self._send(stream, self._authenticated(request, may_call))
                    elif not may_call:
                        await self._send(stream, encode_error(request.msgid, "IDEMPOTENCY_UNAUTHENTICATED: who?"))
                    elif not await self._handle(stream, request, connection):
                        return
        except anyio.ClosedResourceError:
            pass  # By ``drop``.
        finally:
            connection.ended = True
            stream._send.close()
            stream._receive.close()

    @staticmethod
    def _authenticated(request: Request, may_call: bool) -> bytes:
        if may_call:
            return encode_result(request.msgid, {"result": "authenticated", "tenant": "default", "role": "operator"})
        return encode_error(request.msgid, "IDEMPOTENCY_UNAUTHENTICATED: the token is not known")

    async def _handle(self, stream: Pipe, request: Request, connection: Connection) -> bool:
        """Serve one request; False where the connection is cut."""
        self.seen[request.method] += 1
        self.log.append((request.method, dict(request.params)))
        fault = self.fault(self, request)
        if fault in ("cut", "deaf"):
            return fault == "deaf"
        late = fault is not None and fault.startswith("late:")
        if late:
            assert fault is not None
            assert self.tasks is not None
            for asker, frame in self._carry_out(stream, request, connection):
                self.tasks.start_soon(self._send_late, float(fault.partition(":")[2]), asker, frame)
            return True
        if fault not in (None, "cut after", "hang"):
            await self._send(stream, encode_error(request.msgid, str(fault)))
            return True
        for asker, frame in self._carry_out(stream, request, connection):
            if asker is not stream or fault is None:
                await self._send(asker, frame)
        return fault != "cut after"

    def _carry_out(self, stream: Pipe, request: Request, connection: Connection) -> list[tuple[Pipe, bytes]]:
        params = dict(request.params)
        params.pop("traceparent", None)
        if request.method == "ping":
            return [(stream, encode_result(request.msgid, {"result": "pong"}))]
        if request.method == "batch":
            return [(stream, encode_result(request.msgid, {"results": [self._one(op) for op in params["ops"]]}))]
        namespace = params.pop("namespace")
        if request.method == "policy":
            return [(stream, encode_result(request.msgid, policy_body(namespace, self.policy)))]
        if request.method not in COMMAND_OPS or namespace != NAMESPACE:
            return [(stream, encode_error(request.msgid, "IDEMPOTENCY_UNKNOWN_NAMESPACE: there is none"))]
        try:
            scope = Scope("default", namespace, self.policy, operator=True)
            command = command_from(request.method, params, scope, Dialect.MSGPACK)
        except RequestError as error:
            return [(stream, encode_error(request.msgid, str(error)))]
        self.ledger.begin(self.now_ms())
        self.ledger.apply(Ticket(self, request, command, stream, connection), command)
        wait_ms = params.get("wait_ms")
        if wait_ms:
            assert self.tasks is not None
            self.tasks.start_soon(self._time_out, wait_ms)
        return [(ticket.stream, _frame(ticket, reply)) for ticket, reply in self.ledger.finish().replies]

    async def _time_out(self, wait_ms: int) -> None:
        """Somebody began to wait: look again when that is over."""
        await anyio.sleep(wait_ms / 1000 + 0.001)
        self.ledger.begin(self.now_ms())
        self.ledger.time_out()
        for ticket, reply in self.ledger.finish().replies:
            await self._send(ticket.stream, _frame(ticket, reply))

    def _one(self, op: dict[str, Any]) -> dict[str, Any]:
        op = dict(op)
        method, namespace = op.pop("op"), op.pop("namespace")
        try:
            scope = Scope("default", namespace, self.policy, operator=True)
            command = command_from(method, op, scope, Dialect.MSGPACK, in_batch=True)
        except RequestError as error:
            return {"code": error.code, "detail": error.detail}
        self.ledger.begin(self.now_ms())
        self.ledger.apply(Ticket(self, Request(0, method, op), command, pipe()[0], Connection()), command)
        [(_, reply)] = self.ledger.finish().replies
        return body_of(reply, command, operator=True, dialect=Dialect.MSGPACK)

    async def _send_late(self, seconds: float, stream: Pipe, frame: bytes) -> None:
        await anyio.sleep(seconds)
        await self._send(stream, frame)

    @staticmethod
    async def _send(stream: Pipe, frame: bytes) -> None:
        # Where the client is gone, what was carried out stays carried out.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await stream.send(frame)

    def client(self, **options: Any) -> Client:
        """A client of this server, going by the event loop's time."""
        link = {"token": None, "connect_ms": 2_000, "silence_ms": 2_000, "in_flight_max": 1_024}
        link |= {name: options.pop(name) for name in list(options) if name in link}
        client = Client("fake:1", **options)
        client._connect = lambda: Link(self.dial, "fake:1", **link)  # type: ignore[arg-type]
        client.lease_clock = LoopClock()
        return client


async def _pump(sock: UNIXSocketStream, end: Pipe) -> None:
    """Carry between a socket and an end of a connection in memory until either is closed."""

    async def carry(source: ByteStream, sink: ByteStream) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                await sink.send(await source.receive())
        tasks.cancel_scope.cancel()

    async with sock, end, anyio.create_task_group() as tasks:
        tasks.start_soon(carry, sock, end)
        tasks.start_soon(carry, end, sock)


def _frame(ticket: Ticket, reply: Any) -> bytes:
    refusal = refusal_of(reply)
    if refusal is not None and refusal.error:
        return encode_error(ticket.request.msgid, f"{refusal.code}: {detail_of(reply)}")
    return encode_result(ticket.request.msgid, body_of(reply, ticket.command, operator=True, dialect=Dialect.MSGPACK))


def on(method: str, *faults: str | None) -> Fault:
    """The first requests of ``method`` meet ``faults``, one each; everything else is served."""
    left = list(faults)

    def fault(_server: FakeServer, request: Request) -> str | None:
        return left.pop(0) if request.method == method and left else None

    return fault


def always(method: str, what: str) -> Fault:
    """Every request of ``method`` meets ``what``."""
    return lambda _server, request: what if request.method == method else None


Body = Callable[[FakeServer, Client], Awaitable[None]]


def with_server(backend: str, body: Body, server: FakeServer | None = None, **options: object) -> FakeServer:
    """Run ``body`` with a server and an open client of it."""
    server = server or FakeServer()
    server.sockets = backend == SOCKETS

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client(**options) as client:
                await body(server, client)
            tasks.cancel_scope.cancel()

    run(backend, main)
    return server


def state(server: FakeServer, key: str = "k") -> str | None:
    found = server.record(key)
    return None if found is None else found["state"]
