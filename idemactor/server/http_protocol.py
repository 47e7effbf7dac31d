"""What one guarded connection speaks: HTTP/1.1 by h11, with hypercorn's HTTP/1.1 and ASGI state machines.

Of hypercorn this uses the half that answers (``H11Protocol.stream_send``, recycling for keep-alive, ``HTTPStream``
with its ASGI scope). The half that reads is ours, because hypercorn 0.18's cannot face a network:

- an h2c upgrade and a websocket upgrade reach code that raises on hostile bytes. Here an offer of h2c is ignored and
  answered in HTTP/1.1, as RFC 9110, section 7.8 allows (some clients offer it on every request), and a websocket is
  refused;
- HTTP/2 is left out altogether, over TLS too: hypercorn's ``H2Protocol`` trusts the peer's stream ids and priorities,
  leaves flow control without a deadline (a peer that opens no window holds its tasks for good), and opens websockets
  by CONNECT. No caller of ours needs HTTP/2;
- headers that come in one packet pass its size limit whatever their size;
- a request whose app ended early leaves the task that reads its body waiting for good.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol

import h11
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.events import Body, EndBody, Request, Response
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState

from idemactor.errors import Code
from idemactor.server.app_tasks import AppTasks


class Phase(enum.Enum):
    """Where a connection stands; each phase has its own deadline, or none."""

    HANDSHAKE = "handshake"
    IDLE = "idle"
    HEADERS = "headers"
    BODY = "body"
    ANSWER = "answer"
    CLOSING = "closing"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the guard's own, given before the app saw the request; the connection is closed after it."""

    status: int
    detail: str
    code: Code = Code.INVALID_REQUEST
    headers: tuple[tuple[bytes, bytes], ...] = ()


def render(refusal: Refusal, date_headers: list[tuple[bytes, bytes]]) -> bytes:
    """The whole answer as RFC 9457 has it. ``proceed`` is false in every one: what was asked is not known for sure."""
    title = HTTPStatus(refusal.status).phrase
    problem = {
        "type": "about:blank",
        "title": title,
        "status": refusal.status,
        "detail": refusal.detail,
        "code": refusal.code,
        "proceed": False,
    }
    body = json.dumps(problem, separators=(",", ":")).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *refusal.headers,
        *date_headers,
    ]
    lines = [b"HTTP/1.1 %d %s" % (refusal.status, title.encode())]
    lines += [name + b": " + value for name, value in headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def objection(request: h11.Request, header_bytes_max: int, header_fields_max: int) -> Refusal | None:
    """What speaks against a request that h11 found well formed; None when nothing does.

    Args:
        request: The request line and headers.
        header_bytes_max: The most that they may take on the wire, bytes; h11 itself looks only at what is incomplete.
        header_fields_max: How many header fields there may be.
    """
    fields = [(bytes(name), bytes(value)) for name, value in request.headers]
    size = len(request.method) + len(request.target) + sum(len(name) + len(value) + 4 for name, value in fields)
    if size > header_bytes_max:
        return Refusal(431, f"The request line and headers exceed {header_bytes_max} bytes.")
    if len(fields) > header_fields_max:
        return Refusal(431, f"There are more than {header_fields_max} header fields.")
    if request.http_version not in (b"1.0", b"1.1"):
        return Refusal(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
    names = {name for name, _ in fields}
    if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
        # Two parties that read the length differently are what request smuggling lives on (RFC 9112, section 6.1).
        return Refusal(400, "The length of the request is ambiguous.")
    if request.method != request.method.upper():
        # Methods are compared exactly (RFC 9110, section 9.1); hypercorn would capitalize them.
        return Refusal(501, "A method of this name is not implemented: the standard ones are in capitals.")
    if request.method == b"CONNECT":
        return Refusal(501, "This server is no proxy.")
    if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in fields):
        return Refusal(400, "No websockets are served here.")
    return None


class Link(Protocol):
    """What the protocol needs of the connection it lives on."""

    closing: bool

    async def send(self, event: Event) -> None:
        """Writes RawData; closes on Closed; starts the keep-alive wait on Updated(idle=True)."""

    def enter(self, phase: Phase) -> None:
        """Starts the deadline of ``phase`` and ends that of the phase before."""

    async def meanwhile(self, turn: Callable[[], Awaitable[object]]) -> None:
        """Waits for ``turn`` and keeps an eye on the client, who may leave before it comes."""

    def refused(self, refusal: Refusal) -> None:
        """Takes note of an answer of the guard's own."""


class GuardedH11(H11Protocol):
    """hypercorn's HTTP/1.1 protocol with a reading half that survives its clients."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        tasks: AppTasks,
        state: ConnectionState,
        *,
        ssl: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        link: Link,
        header_fields_max: int,
    ) -> None:
        # AppTasks has of hypercorn's TaskGroup what HTTP streams use; only websockets and HTTP/2 spawn more.
        super().__init__(app, config, context, tasks, state, ssl, client, server, link.send)  # type: ignore[arg-type]
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=config.h11_max_incomplete_size)
        self.connection = self._h11
        self._link = link
        self._header_fields_max = header_fields_max
        self._tasks = tasks
        tasks.on_asked = self._go_on

    @property
    def may_refuse(self) -> bool:
        """Is it still ours to answer? False once an answer has begun."""
        return self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def has_unread_request(self) -> bool:
        """May more of a request be on its way, which closing now would turn into a reset?"""
        return self._h11.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self._h11.trailing_data[0])

    async def refuse(self, refusal: Refusal) -> None:
        """Answers in the app's place if no answer has begun, and closes."""
        may_refuse = self.may_refuse
        # The app hears of it first, so that it cannot write between our check and our answer.
        await self._close_stream()
        if may_refuse:
            self._link.refused(refusal)
            await self.send(RawData(data=render(refusal, self.config.response_headers("h11"))))
        await self.send(Closed())

    def forget(self) -> None:
        """The connection is over and so are its apps: neither bytes nor the request in hand are kept."""
        self._h11 = self.connection = h11.Connection(h11.SERVER)
        self._tasks.forget()
        self.stream = None

    async def client_left(self) -> None:
        """Tells the app that its client sends no more; whether there still is an answer to give is the app's to say."""
        if isinstance(self.stream, HTTPStream) and self.stream.app_put is not None:
            await self.stream.app_put({"type": "http.disconnect"})

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData) and event.data and self._h11.their_state is h11.IDLE:
            # Only the first byte starts the clock, for a phase is not entered twice: one byte a second gains nothing.
            self._link.enter(Phase.HEADERS)
        await super().handle(event)

    async def stream_send(self, event: StreamEvent) -> None:
        # With an answer ahead of the request's end the connection ends too, and who is not told loses the next request.
        cuts_short = self._h11.their_state is h11.SEND_BODY
        if isinstance(event, Response) and (cuts_short or self.context.terminated.is_set()):
            # Nor should the client send another request into a server that drains.
            event = dataclasses.replace(event, headers=[*event.headers, (b"connection", b"close")])
        await super().stream_send(event)

    def begin_idle(self) -> None:
        """Between two requests: the keep-alive wait, or the next headers where part of them is here already."""
        self._link.enter(Phase.HEADERS if self._h11.trailing_data[0] else Phase.IDLE)

    async def _go_on(self) -> None:
        """The app wants the body: a client that asked first may send it. Who is refused before keeps it."""
        if self._h11.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def _handle_events(self) -> None:
        while not self._link.closing:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                refusal = _refusal_of(error, self.config.h11_max_incomplete_size)
                # Where it was raised is of no use, and a cycle: those frames know the error, and what was read.
                error.__traceback__ = None
                await self.refuse(refusal)
                return
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return
            await self._take(event)

    async def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.Request):
            refusal = objection(event, self.config.h11_max_incomplete_size, self._header_fields_max)
            if refusal is not None:
                await self.refuse(refusal)
                return
            self._link.enter(Phase.BODY)
            await self._create_stream(event)
        elif event is h11.PAUSED:
            # The next request of a pipeline waits, unread, until this one is answered.
            await self.can_read.clear()
            await self._link.meanwhile(self.can_read.wait)
        elif isinstance(event, h11.Data) and self.stream is not None:
            await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage) and self.stream is not None:
            self._link.enter(Phase.ANSWER)
            await self.stream.handle(EndBody(stream_id=STREAM_ID))

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.keep_alive_requests += 1
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=[(bytes(name), bytes(value)) for name, value in request.headers],
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii"),
                raw_path=bytes(request.target),
                state=self.connection_state,
            )
        )


def _refusal_of(error: h11.RemoteProtocolError, header_bytes_max: int) -> Refusal:
    status = error.error_status_hint
    if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return Refusal(status, f"The request line and headers exceed {header_bytes_max} bytes.")
    # h11's own words quote what the client sent, which may hold a credential.
    return Refusal(status, "The request is not well-formed HTTP/1.1.")
