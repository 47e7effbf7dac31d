"""One request to an upstream over one connection, and errors that say whether anything was sent.

Everything that fails before the first byte of a request could have left is ``NotSent``: the effect surely did not
happen. Everything after that is ``Lost``: nobody knows. There is no third case.

Answers are read by h11, whose state machine knows where the answers to HEAD, 204 and 304 end, once their heads were
found to be such as everybody reads alike (``answer_head.py``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import h11
import trio

from idemactor.gateway.proxy.answer_head import AnswerHeads, Ending, Unreadable
from idemactor.gateway.proxy.answers import UNFRAMED
from idemactor.gateway.proxy.headers import Pairs, encoded
from idemactor.gateway.proxy.limits import ANSWER_HEADER_BYTES_MAX, INFORMATIONAL_MAX, READ_BYTES
from idemactor.observability.logs import log_event

AT_ONCE_BYTES: Final = 65_536
"""A request of this size goes out before its answer is read; a larger one meanwhile, since the upstream may answer
before it has read it all, and neither would go on."""

_log = logging.getLogger(__name__)
BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


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
class Link:
    """One connection to an upstream."""

    stream: trio.abc.Stream
    protocol: h11.Connection
    idle_since: float = 0.0
    head_bytes_max: int = ANSWER_HEADER_BYTES_MAX
    _fd: int | None = field(init=False, default=None)
    _poll: select.poll | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.stream, trio.SocketStream):
            self._fd = self.stream.socket.fileno()
        transport = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        if isinstance(transport, trio.SocketStream):
            self._poll = select.poll()
            self._poll.register(transport.socket.fileno(), select.POLLIN)

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer: neither the end of the connection nor bytes nobody asked for."""
        return self._poll is None or not self._poll.poll(0)

    async def send(self, data: bytes) -> bool:
        """Send all of it; False: the connection broke, and nobody knows how much of it was read."""
        try:
            # Nearly every request fits into the socket's buffer: then nothing has to be waited for. A large one is sent
            # by a task of its own, whose turn may come when the descriptor's number is another connection's already.
            at_once = self._fd if len(data) <= AT_ONCE_BYTES else None
            sent = 0 if at_once is None else _write_now(at_once, data)
            if sent < len(data):
                await self.stream.send_all(memoryview(data)[sent:] if sent else data)
        except BROKEN:
            return False
        return True

    async def receive(self) -> bytes:
        """What comes next; nothing: the end of the connection. Raises: Lost."""
        try:
            if self._fd is None:
                return bytes(await self.stream.receive_some(READ_BYTES))
            while True:
                # An answer takes its time: to look for it first would be in vain.
                await trio.lowlevel.wait_readable(self._fd)
                with contextlib.suppress(BlockingIOError):
                    return os.read(self._fd, READ_BYTES)
        except BROKEN:
            raise Lost("the connection to the upstream was lost") from None


def _write_now(fd: int, data: bytes) -> int:
    """How much was sent without waiting. Raises: OSError."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


class Call:
    """One request under way, and its answer as it comes."""

    def __init__(self, link: Link, outgoing: Outgoing, *, reused: bool) -> None:
        self.reused = reused
        self._link = link
        self._protocol = link.protocol
        self._method = outgoing.method
        self._sent = False
        self._ended = False
        self._heads = AnswerHeads(link.head_bytes_max)
        self._ending: Ending | None = None
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
        with self._sending:
            self._sent = await self._link.send(self._bytes)

    def take_over(self, arrived: bytes, *, sent: bool) -> None:
        """Somebody else sent the request, as a whole or not, and ``arrived`` is how the answer begins."""
        self._sent = sent
        self._heads.add(arrived)

    async def head(self, inform: Callable[[AnswerHead], Awaitable[None]]) -> AnswerHead:
        """The head of the answer; ``inform`` gets what comes before it, 100 left out.

        Raises:
            Lost: The connection ended, or what came is no answer.
        """
        for _ in range(INFORMATIONAL_MAX + 1):
            event = await self._next_head()
            if isinstance(event, h11.Response):
                is_framed = event.status_code not in UNFRAMED and self._method != "HEAD"
                self._ending = Ending() if self._heads.is_chunked and is_framed else None
                self._take(self._heads.rest())
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
                if self._ending is not None and not self._ending.is_plain(len(self._protocol.trailing_data[0])):
                    raise _ambiguous("a line at its end does not end with CR LF")
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
        piece = await self._link.receive()
        if piece:
            self._take(piece)
        else:
            self._protocol.receive_data(b"")
        return self.arrived()

    def finish(self) -> bool:
        """Stop sending; whether the connection is good for another request."""
        self._sending.cancel()
        protocol = self._protocol
        if not (self._sent and self._ended and protocol.our_state is protocol.their_state is h11.DONE):
            return False
        if any(protocol.trailing_data):
            # Bytes that nobody asked for, or the end of the connection, which an answer without a length has.
            return False
        protocol.start_next_cycle()
        return True

    async def _next_head(self) -> h11.Event | None:
        """Raises: Lost."""
        try:
            while (head := self._heads.next()) is None:
                piece = await self._link.receive()
                if not piece:
                    raise Lost("the upstream closed the connection before its answer began, or in its header")
                self._heads.add(piece)
        except Unreadable as error:
            raise _ambiguous(str(error)) from None
        self._protocol.receive_data(head)
        return self._event()

    def _take(self, piece: bytes) -> None:
        """A part of the body; nothing of it may have come yet, which is not the end."""
        if piece:
            self._protocol.receive_data(piece)
            if self._ending is not None:
                self._ending.add(piece)

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


def call_over(link: Link, outgoing: Outgoing, *, reused: bool) -> Call:
    """A request that is ready to be sent. Raises: Unsendable."""
    try:
        return Call(link, outgoing, reused=reused)
    except Exception as error:  # Whatever broke, nothing was sent.
        log_event(_log, logging.ERROR, "gateway_request_broke", error)
        raise Unsendable("the request cannot be sent as HTTP/1.1") from error


def _ambiguous(why: str) -> Lost:
    """An answer that can be read in two ways, or not at all: what it says of the effect is no more than a guess."""
    return Lost(f"the upstream's answer cannot be relied on: {why}")


def _head(event: h11.Response | h11.InformationalResponse) -> AnswerHead:
    pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers.raw_items())
    return AnswerHead(event.status_code, bytes(event.reason), pairs)
