"""The proxy without sockets: real shards, clients and an upstream on streams in memory, a clock of the test."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import h11
import trio
import trio.testing
from trio.testing import MemoryReceiveStream, MemorySendStream

from idemactor.core.commands import Get
from idemactor.core.keys import Identity
from idemactor.core.policy import OnLeaseExpiry, OnUnavailable, Policy
from idemactor.core.record import Record
from idemactor.core.replies import Found
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.door import ProxyDoor, ProxySettings
from idemactor.gateway.proxy.headers import encoded
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Origin, Route
from idemactor.gateway.source import Source
from idemactor.observability.observer import Observer
from idemactor.server.auth import TokenEntry
from idemactor.server.sinks import Replies
from idemactor.server.tracing import Tracing
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.wire.requests import Watch
from tests.server.rig import Rig, running

ORIGIN = Origin("http", "upstream.test", 80)
LEASE_MS = 30_000
POLICIES = {
    "default": Policy(lease_ms=LEASE_MS, on_lease_expiry=OnLeaseExpiry.HOLD, lease_total_max_ms=3_600_000),
    "retry": Policy(lease_ms=LEASE_MS, on_lease_expiry=OnLeaseExpiry.RETRY),
    "brief": Policy(lease_ms=10_000, on_lease_expiry=OnLeaseExpiry.RETRY, lease_total_max_ms=40_000),
    "hasty": Policy(lease_ms=LEASE_MS, unavailable_after_ms=0),
    "small": Policy(lease_ms=LEASE_MS, outcome_max_bytes=100),
    "open": Policy(lease_ms=LEASE_MS, on_unavailable=OnUnavailable.OPEN),
}
ROUTE = Route("/orders", ORIGIN, "default")
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


@dataclass(slots=True)
class Received:
    """A request as the upstream got it."""

    stream: Stream
    protocol: h11.Connection
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name.lower()]

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        await self.stream.send_all(data)

    async def answer(
        self, status: int = 200, body: bytes = b"", headers: Sequence[tuple[str, str]] = (), *, reason: str = "OK"
    ) -> None:
        """A whole answer; the connection goes on."""
        head = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
        if status not in (204, 304):
            head.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body)


Behaviour = Callable[[Received], Awaitable[None]]


@dataclass(slots=True)
class FakeUpstream:
    """Takes what the proxy sends, and behaves as the test says."""

    nursery: trio.Nursery
    behaviour: Behaviour
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    refuses: bool = False
    connect_s: float = 0.0

    async def connect(self, origin: Origin) -> trio.abc.Stream:
        assert origin == ORIGIN
        await trio.sleep(self.connect_s)
        if self.refuses:
            raise ConnectionRefusedError
        near, far = trio.testing.memory_stream_pair()
        self.connections += 1
        self.nursery.start_soon(self._serve, far)
        return near

    async def _serve(self, stream: Stream) -> None:
        protocol = h11.Connection(h11.SERVER)
        try:
            while (received := await self._receive(stream, protocol)) is not None:
                self.requests.append(received)
                await self.behaviour(received)
                if protocol.our_state is h11.SEND_RESPONSE:
                    # What was answered went past the protocol; it only has to be ready for the next.
                    protocol.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                    protocol.send(h11.EndOfMessage())
                if protocol.states[h11.CLIENT] is not h11.DONE:
                    return
                protocol.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _receive(self, stream: Stream, protocol: h11.Connection) -> Received | None:
        request, body = None, b""
        while True:
            event = protocol.next_event()
            if event is h11.NEED_DATA:
                protocol.receive_data(bytes(await stream.receive_some()))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                pairs = [
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw_items()
                ]
                return Received(stream, protocol, request.method.decode(), request.target.decode(), pairs, body)
            else:
                return None


@dataclass(slots=True)
class Told:
    """An answer as the client got it."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    informational: list[int] = field(default_factory=list)

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name.lower()]


class Client:
    """One connection to the proxy."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._protocol = h11.Connection(h11.CLIENT)

    async def call(
        self,
        method: str = "POST",
        target: str = "/orders",
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
        *,
        key: str | None = "k",
    ) -> Told:
        await self.send(method, target, body, headers, key=key)
        return await self.read()

    async def send(
        self,
        method: str = "POST",
        target: str = "/orders",
        body: bytes = b"",
        headers: Sequence[tuple[str, str]] = (),
        *,
        key: str | None = "k",
    ) -> None:
        own = [("Content-Length", str(len(body)))]
        if all(name.lower() != "host" for name, _ in headers):
            own.append(("Host", "shop.test"))
        if key is not None:
            own.append(("Idempotency-Key", key))
        data = self._protocol.send(h11.Request(method=method, target=target, headers=encoded([*own, *headers])))
        if body:
            data += self._protocol.send(h11.Data(data=body))
        data += self._protocol.send(h11.EndOfMessage())
        await self.stream.send_all(data)

    async def raw(self, data: bytes) -> bytes:
        """Bytes there, and everything that comes back until the connection ends."""
        await self.stream.send_all(data)
        return await self.rest()

    async def rest(self) -> bytes:
        got = b""
        with trio.move_on_after(1_000):
            while data := await self.stream.receive_some():
                got += data
        return got

    async def read(self) -> Told:
        told, body, informational = None, b"", []
        while True:
            event: Any = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(bytes(await self.stream.receive_some()))
            elif isinstance(event, h11.InformationalResponse):
                informational.append(event.status_code)
            elif isinstance(event, h11.Response):
                pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items()]
                told = Told(event.status_code, event.reason.decode(), pairs, b"", informational)
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert told is not None
                if self._protocol.our_state is self._protocol.their_state is h11.DONE:
                    self._protocol.start_next_cycle()
                return replace(told, body=body)
            else:
                raise AssertionError(event)


class MemoryListener:
    """Hands out streams that a test made."""

    address = "memory"

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](math.inf)

    def connect(self) -> Stream:
        near, far = trio.testing.memory_stream_pair()
        self.take(far)
        return near

    def take(self, stream: trio.abc.Stream) -> None:
        self._send.send_nowait(stream)

    async def accept(self) -> trio.abc.Stream:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None

    def close(self) -> None:
        self._send.close()


@dataclass(slots=True)
class Proxy:
    """Everything of one test."""

    rig: Rig
    door: ProxyDoor
    upstream: FakeUpstream
    listener: MemoryListener

    def client(self) -> Client:
        return Client(self.listener.connect())

    async def call(self, *args: Any, **named: Any) -> Told:
        """One call on a connection of its own."""
        return await self.client().call(*args, **named)

    async def ask(self, command: Any) -> Answer:
        """What a shard answers."""
        replies = Replies(1)
        self.rig.context.router.route([Envelope(command, replies, 0)])
        [answer] = await replies.wait()
        return answer

    async def record(self, key: str = "k", *, namespace: str = "default", tenant: str = "default") -> Record | None:
        """The record of a key; None: there is none."""
        answer = await self.ask(Get(Identity(tenant, namespace, key)))
        return answer.record if isinstance(answer, Found) else None

    def metrics(self) -> str:
        return self.rig.context.metrics.render([], 0).decode()


async def ok(received: Received) -> None:
    """An upstream that does what it is asked."""
    await received.answer(200, b'{"success": true}', [("Content-Type", "application/json")])


@contextlib.asynccontextmanager
async def proxying(
    clock: trio.abc.Clock,
    *routes: Route,
    behaviour: Behaviour = ok,
    limits: ProxyLimits | None = None,
    tokens: Sequence[TokenEntry] = (),
    run: bool = True,
    trusted: Sequence[str] = (),
    sources: Mapping[str, Source] = SHIPPED,
    watch: Watch | None = None,
    observer: Observer | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Proxy]:
    """A proxy with ``routes``, by default the one for orders."""
    shards = running(
        clock,
        policies=POLICIES,
        tokens=tokens,
        run=run,
        sources=sources,
        watch=watch,
        observer=observer,
        tracing=tracing,
        proxied=[route.namespace for route in routes or (ROUTE,)],
    )
    async with shards as rig, trio.open_nursery() as nursery:
        upstream = FakeUpstream(nursery, behaviour)
        settings = ProxySettings(routes or (ROUTE,), limits or ProxyLimits(), trusted)
        door = ProxyDoor(rig.context, settings, lambda: 0x1234, upstream.connect)
        listener = MemoryListener()
        await nursery.start(door.serve, [listener])
        yield Proxy(rig, door, upstream, listener)
        nursery.cancel_scope.cancel()
