"""Requests to an upstream: connections that are reused, and errors that say whether anything was sent.

Everything that fails before the first byte of a request could have left is ``NotSent``: the effect surely did not
happen. Everything after that is ``Lost``: nobody knows. There is no third case.

Answers are read by h11, whose state machine knows where the answers to HEAD, 204 and 304 end.
"""

from __future__ import annotations

import contextlib
import logging
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import h11
import trio

from idemactor.gateway.proxy.connecting import Connect, connector
from idemactor.gateway.proxy.headers import Pairs, encoded
from idemactor.gateway.proxy.limits import INFORMATIONAL_MAX, READ_BYTES, ProxyLimits
from idemactor.gateway.proxy.routes import Origin
from idemactor.observability.logs import log_event

AT_ONCE_BYTES: Final = 65_536
"""A request of this size goes out before its answer is read; a larger one meanwhile, since the upstream may answer
before it has read it all, and neither would go on."""

_MS_PER_S: Final = 1_000
_log = logging.getLogger(__name__)
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class NotSent(Exception):
    """Nothing of the request was sent; the message says why, for people."""


class Unsendable(NotSent):
    """Nothing was, or ever will be: it is no request of HTTP."""


class Lost(Exception):
    """The request, or part of it, was sent, and no whole answer came; the message says why, for people."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as the upstream gets it; without a length in ``headers``."""

    method: str
    target: str
    headers: Pairs
    body: bytes


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The status line and the fields of an answer, names as they were sent."""

    status: int
    reason: bytes
    headers: Pairs

    @property
    def length(self) -> int | None:
        """The length of the body where it is told; h11 has checked it."""
        names = {name.lower(): value for name, value in self.headers}
        return int(names["content-length"]) if "content-length" in names and "transfer-encoding" not in names else None


@dataclass(slots=True, eq=False)
class _Link:
    """One connection to an upstream."""

    stream: trio.abc.Stream
    protocol: h11.Connection
    idle_since: float = 0.0

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither the end of the connection nor bytes nobody asked for."""
        transport = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        if not isinstance(transport, trio.SocketStream):
            return True
        poll = select.poll()
        poll.register(transport.socket.fileno(), select.POLLIN)
        return not poll.poll(0)


class Call:
    """One request under way, and its answer as it comes."""

    def __init__(self, link: _Link, outgoing: Outgoing, *, reused: bool) -> None:
        self.reused = reused
        self._link = link
        self._protocol = link.protocol
        self._sent = False
        self._ended = False
        self._sending = trio.CancelScope()
        has_length = bool(outgoing.body) or outgoing.method not in ("GET", "HEAD", "DELETE", "OPTIONS", "TRACE")
        length = (("Content-Length", str(len(outgoing.body))),) if has_length else ()
        head = h11.Request(
            method=outgoing.method.encode(),
            target=outgoing.target.encode(),
            headers=encoded((*outgoing.headers, *length)),
        )
        parts = [self._protocol.send(head)]
        if outgoing.body:
            parts.append(self._protocol.send(h11.Data(data=outgoing.body)))
        parts.append(self._protocol.send(h11.EndOfMessage()))
        self._bytes = b"".join(part for part in parts if part)

    async def send(self, nursery: trio.Nursery) -> None:
        """Send the request; a large one goes on from ``nursery`` while the answer is read."""
        if len(self._bytes) <= AT_ONCE_BYTES:
            await self._send()
        else:
            nursery.start_soon(self._send)

    async def _send(self) -> None:
        # Where sending fails the upstream may have answered all the same: that it wants no more, and why.
        with self._sending, contextlib.suppress(*_BROKEN):
            await self._link.stream.send_all(self._bytes)
            self._sent = True

    async def head(self, inform: Callable[[AnswerHead], Awaitable[None]]) -> AnswerHead:
        """The head of the answer; ``inform`` gets what comes before it, 100 left out.

        Raises:
            Lost: The connection ended, or what came is no answer.
        """
        for _ in range(INFORMATIONAL_MAX + 1):
            event = await self._next()
            if isinstance(event, h11.Response):
                return _head(event)
            if not isinstance(event, h11.InformationalResponse):
                break
            if event.status_code != 100:
                await inform(_head(event))
        raise Lost("the upstream sent something else than an answer")

    def arrived(self) -> tuple[bytes, bool]:
        """What has come of the body and was not taken yet, perhaps nothing; and whether that was the end.

        Raises:
            Lost: It broke its framing.
        """
        parts = []
        while (event := self._event()) is not None:
            if isinstance(event, h11.EndOfMessage):
                self._ended = True
                break
            assert isinstance(event, h11.Data)
            parts.append(bytes(event.data))
        return b"".join(parts), self._ended

    async def more(self) -> tuple[bytes, bool]:
        """As ``arrived``, and waits for something to come.

        Raises:
            Lost: The connection ended before the body did, or broke its framing.
        """
        await self._receive()
        return self.arrived()

    def finish(self) -> bool:
        """Stop sending; whether the connection is good for another request."""
        self._sending.cancel()
        protocol = self._protocol
        if not (self._sent and self._ended and protocol.our_state is protocol.their_state is h11.DONE):
            return False
        if protocol.trailing_data[0]:
            return False
        protocol.start_next_cycle()
        return True

    async def _next(self) -> h11.Event:
        while (event := self._event()) is None:
            await self._receive()
        return event

    async def _receive(self) -> None:
        try:
            data = await self._link.stream.receive_some(READ_BYTES)
        except _BROKEN:
            raise Lost("the connection to the upstream was lost") from None
        self._protocol.receive_data(bytes(data))

    def _event(self) -> h11.Event | None:
        try:
            event = self._protocol.next_event()
        except h11.RemoteProtocolError:
            raise Lost("the upstream's answer ended early, or is not HTTP/1.1") from None
        if event is h11.NEED_DATA:
            return None
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            raise Lost("the upstream closed the connection, or switched protocols unasked")
        assert isinstance(event, h11.Event)
        return event


def _call(link: _Link, outgoing: Outgoing, *, reused: bool) -> Call:
    try:
        return Call(link, outgoing, reused=reused)
    except Exception as error:  # Whatever broke, nothing was sent.
        log_event(_log, logging.ERROR, "gateway_request_broke", error)
        raise Unsendable("the request cannot be sent as HTTP/1.1") from error


def _head(event: h11.Response | h11.InformationalResponse) -> AnswerHead:
    pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items())
    return AnswerHead(event.status_code, bytes(event.reason), pairs)


class Upstream:
    """One upstream and the connections to it.

    Args:
        origin: Where it is.
        limits: How many requests at once, and how long connections are kept.
        connect: Opens a connection; None: as ``origin`` says.
    """

    def __init__(self, origin: Origin, limits: ProxyLimits, connect: Connect | None = None) -> None:
        self._origin = origin
        self._limits = limits
        self._connect = connect or connector(origin)
        self._slots = trio.Semaphore(limits.concurrent_max)
        self._idle: list[_Link] = []

    @property
    def origin(self) -> Origin:
        """Where it is."""
        return self._origin

    @property
    def authority(self) -> str:
        """Its ``Host``."""
        return self._origin.authority

    @contextlib.asynccontextmanager
    async def call(self, outgoing: Outgoing, *, connect_ms: int, fresh: bool = False) -> AsyncIterator[Call]:
        """A connection for a request; the body sends it and reads its answer.

        Args:
            connect_ms: The time for a free place and a connection, milliseconds.
            fresh: Whether no used connection will do.

        Raises:
            NotSent: There was no connection in time, or none at all.
        """
        link, reused = await self._link(connect_ms, fresh)
        keep = False
        try:
            call = _call(link, outgoing, reused=reused)
            try:
                yield call
            finally:
                keep = call.finish()
        finally:
            self._slots.release()
            if keep:
                link.idle_since = trio.current_time()
                self._idle.append(link)
            else:
                await trio.aclose_forcefully(link.stream)

    async def tidy(self) -> None:
        """Close what was idle for too long, for ever."""
        while True:
            await trio.sleep(self._limits.upstream_idle_ms / _MS_PER_S)
            await self._close(self._stale())

    async def aclose(self) -> None:
        """Close every idle connection."""
        links, self._idle = self._idle, []
        await self._close(links)

    async def _link(self, connect_ms: int, fresh: bool) -> tuple[_Link, bool]:
        """A connection, with a place of the upstream's taken; whether it was used before."""
        try:
            with trio.fail_after(connect_ms / _MS_PER_S):
                try:
                    self._slots.acquire_nowait()
                except trio.WouldBlock:
                    await self._slots.acquire()
                try:
                    kept = None if fresh else await self._kept()
                    return kept or await self._open(), kept is not None
                except BaseException:
                    self._slots.release()
                    raise
        except trio.TooSlowError:
            raise NotSent("the upstream could not be reached in time, or has too many requests") from None
        except NotSent:
            raise
        except Exception as error:  # Whatever broke, nothing was sent.
            raise NotSent(f"the upstream cannot be reached: {type(error).__name__}") from error

    async def _kept(self) -> _Link | None:
        await self._close(self._stale())
        while self._idle:
            link = self._idle.pop()
            if link.is_quiet():
                return link
            await trio.aclose_forcefully(link.stream)
        return None

    def _stale(self) -> list[_Link]:
        """The idle ones that are too old, taken out."""
        oldest = trio.current_time() - self._limits.upstream_idle_ms / _MS_PER_S
        stale = [link for link in self._idle if link.idle_since <= oldest]
        self._idle = [link for link in self._idle if link.idle_since > oldest]
        return stale

    async def _open(self) -> _Link:
        stream = await self._connect(self._origin)
        return _Link(stream, h11.Connection(h11.CLIENT, self._limits.answer_header_bytes_max))

    @staticmethod
    async def _close(links: list[_Link]) -> None:
        for link in links:
            await trio.aclose_forcefully(link.stream)
