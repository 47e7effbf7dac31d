"""One connection of a client: requests read strictly, one after the other, and answered in that order.

Everything the client does has a deadline with a name in ``ProxyLimits``. What is done for it has the upstream's, and
goes on when the client leaves.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final, Protocol

import trio

from idemactor.errors import Code, RequestError
from idemactor.gateway.proxy.answers import of_status
from idemactor.gateway.proxy.client_side import ClientAnswer
from idemactor.gateway.proxy.headers import Peer
from idemactor.gateway.proxy.http1 import BARE_END, HEAD_END, BodyReader, Framing, Refused, RequestHead, parse_head
from idemactor.gateway.proxy.limits import HANGING_UP_MS, READ_BYTES, ProxyLimits
from idemactor.server.arrivals import Arrival, Arrivals
from idemactor.server.parting import part
from idemactor.shard.mailbox import Answer

AHEAD_BYTES_MAX: Final = 65_536
"""How much is read ahead of a client that waits, to see it leave."""

_MS_PER_S: Final = 1_000
_BROKEN: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds (socket(7)): what is not sent yet is thrown away."""
_EMPTY_LINE: Final = b"\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_TRY_AGAIN: Final = 503
_CODES: Final = {413: Code.TOO_LARGE, _TRY_AGAIN: Code.OVERLOADED}

Work = Callable[[], Awaitable[Answer]]


class ClientLeft(Exception):
    """The client closed its connection in the middle of a request."""


class BodySource(Protocol):
    """Where the body of a request is had from."""

    async def __call__(self, *, known: bool) -> bytes:
        """Read it; ``known``: its client has shown a token. Raises: Refused; ClientLeft."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request, for whoever answers it.

    Attributes:
        head: Its head.
        peer: Who sent it.
        client: Where the answer goes.
        read_body: Reads the body.
        meanwhile: Waits for something; None where the client left first. Calls what it is given where the client sends
            no more but may still read, and leaves ``HANGING_UP_MS`` for an answer then.
    """

    head: RequestHead
    peer: Peer
    client: ClientAnswer
    read_body: BodySource
    meanwhile: Callable[[Work, Callable[[], None]], Awaitable[Answer | None]]


class Answerer(Protocol):
    """Who answers requests."""

    async def __call__(self, conversation: Conversation) -> None:
        """Answer one. Raises: Refused; ClientLeft."""


class ProxyConnection:
    """One connection.

    Args:
        stream: The client.
        peer: Who that is.
        limits: What it may take.
        arrivals: The bodies among which those of its requests have to find room.
        answer: Who answers its requests.
        refused: Is told the code of what was refused before it was answered.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        peer: Peer,
        limits: ProxyLimits,
        arrivals: Arrivals,
        answer: Answerer,
        refused: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._peer = peer
        self._limits = limits
        self._arrivals = arrivals
        self._answer = answer
        self._refused = refused
        self._buffer = bytearray()
        self._ended = False
        self._draining = False
        self._idle: trio.CancelScope | None = None
        self._arrival: trio.CancelScope | None = None
        self._answering: ClientAnswer | None = None

    async def run(self) -> None:
        """Serve it to its end."""
        broken = True
        try:
            while await self._one_request():
                pass
            broken = self._ended
        except (ClientLeft, trio.TooSlowError, *_BROKEN):
            pass  # The client is gone, or did not even shake hands: there is nobody to tell.
        finally:
            # What came of a request that has not ended is given back at once.
            self._buffer.clear()
            with contextlib.suppress(*_BROKEN):
                await part(self._stream, self._limits.linger_ms, broken=broken)

    def drain(self) -> None:
        """No further request, nor one that is not there whole: nothing of it was sent on. Others are answered."""
        self._draining = True
        for scope in (self._idle, self._arrival):
            if scope is not None:
                scope.cancel()
        if self._answering is not None:
            # Who is told that the connection ends here closes it as well, and nobody waits for that.
            self._answering.keep_alive = False

    # ---------------------------------------------------------------------------------------------------- one request

    async def _one_request(self) -> bool:
        """Whether there may be another."""
        head: RequestHead | None = None
        client = self._client(None)
        try:
            data = await self._read_head()
            if data is None:
                return False
            head = parse_head(data)
            client = self._answering = self._client(head)
            reader = BodyReader(head, self._limits.body_bytes_max)
            await self._answer(self._conversation(head, client, reader))
        except Refused as refused:
            await self._refuse(refused, client)
            return False
        if client.cut:
            self._reset()
        return client.keep_alive and not self._draining

    def _reset(self) -> None:
        """Close so that it is no end: an answer without a length would pass for a whole one."""
        if isinstance(self._stream, trio.SocketStream):
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._ended = True

    def _conversation(self, head: RequestHead, client: ClientAnswer, reader: BodyReader) -> Conversation:
        keeps_alive = client.keep_alive

        async def read_body(*, known: bool) -> bytes:
            body = await self._read_body(head, reader, known=known)
            client.keep_alive = keeps_alive and not self._draining
            return body

        # Who answers without having read the body ends the connection: what is left of it is no next request.
        client.keep_alive = keeps_alive and reader.done
        return Conversation(head, self._peer, client, read_body, self._meanwhile)

    def _client(self, head: RequestHead | None) -> ClientAnswer:
        head = head or _NO_HEAD
        keep_alive = head.keeps_alive and not self._draining
        return ClientAnswer(self._stream, head, self._limits.write_ms, http_date, keep_alive=keep_alive)

    async def _refuse(self, refused: Refused, client: ClientAnswer) -> None:
        code = _CODES.get(refused.status, Code.INVALID_REQUEST)
        self._refused(code)
        if client.began:
            client.abort()
        else:
            retry = refused.status == _TRY_AGAIN
            await client.whole(of_status(refused.status, code, refused.detail, close=True, retry=retry))

    # -------------------------------------------------------------------------------------------------------- reading

    async def _read_head(self) -> bytes | None:
        """The next head; None where the client is done, or took too long to begin.

        One empty line before it is skipped (RFC 9112, section 2.2): there are clients that end a body with one.
        """
        skipped = self._skip_line()
        if not self._buffer and not await self._begin():
            return None
        if not skipped and (skipped := self._skip_line()) and not self._buffer and not await self._begin():
            return None
        end = self._buffer.find(HEAD_END)
        if end < 0:
            end = await self._find_end()
        if end > self._limits.header_bytes_max:
            raise self._too_large()
        data = bytes(self._buffer[: end + len(HEAD_END)])
        del self._buffer[: end + len(HEAD_END)]
        # The empty line may have come in two pieces.
        return data if skipped else data.removeprefix(_EMPTY_LINE)

    def _skip_line(self) -> bool:
        """Whether an empty line was the next to be read."""
        skipped = self._buffer.startswith(_EMPTY_LINE)
        if skipped:
            del self._buffer[: len(_EMPTY_LINE)]
        return skipped

    async def _find_end(self) -> int:
        """Where the empty line is that ends the head."""
        with self._arriving(self._limits.headers_ms, "request"):
            while (end := self._buffer.find(HEAD_END)) < 0:
                if len(self._buffer) > self._limits.header_bytes_max:
                    raise self._too_large()
                if BARE_END.search(self._buffer):
                    raise Refused(400, "A line does not end with CR LF.")
                if not await self._fill():
                    raise ClientLeft
        return end

    def _too_large(self) -> Refused:
        return Refused(431, f"The request line and headers exceed {self._limits.header_bytes_max} bytes.")

    async def _begin(self) -> bool:
        """Whether a request begins in time."""
        if self._draining or self._ended:
            return False
        with trio.move_on_after(self._limits.idle_ms / _MS_PER_S) as self._idle:
            if self._draining:
                self._idle.cancel()
            await self._handshake()
            await self._fill()
        self._idle = None
        return bool(self._buffer)

    async def _handshake(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            # A second time it does nothing.
            with trio.fail_after(self._limits.handshake_ms / _MS_PER_S):
                await self._stream.do_handshake()

    async def _read_body(self, head: RequestHead, reader: BodyReader, *, known: bool) -> bytes:
        reader.feed(self._buffer)
        if reader.done:
            return reader.taken()
        with self._arriving(self._limits.body_ms, "body"), self._arrivals.begin() as arrival:
            self._find_room(arrival, reader, head, known=known)
            if head.expects_continue:
                await self._stream.send_all(_CONTINUE)
            while not reader.done:
                if not await self._fill():
                    raise ClientLeft
                reader.feed(self._buffer)
                self._find_room(arrival, reader, head, known=known)
        return reader.taken()

    def _find_room(self, arrival: Arrival, reader: BodyReader, head: RequestHead, *, known: bool) -> None:
        """Raises: Refused, where there is no room for what has come of a body, or is announced."""
        try:
            arrival.holds(reader.held_bytes, head.length, known=known)
        except RequestError as error:
            reader.taken()
            raise Refused(_TRY_AGAIN, f"{error.detail[0].upper()}{error.detail[1:]}.") from None

    @contextlib.contextmanager
    def _arriving(self, within_ms: int, what: str) -> Iterator[None]:
        """The time for a part of a request; it ends early where a drain begins. Raises: Refused."""
        with trio.move_on_after(within_ms / _MS_PER_S) as scope:
            self._arrival = scope
            if self._draining:
                scope.cancel()
            yield
        self._arrival = None
        if scope.cancelled_caught and self._draining:
            raise Refused(_TRY_AGAIN, "The server takes no more requests.")
        if scope.cancelled_caught:
            raise Refused(408, f"The {what} did not arrive in time.")

    async def _fill(self) -> bool:
        """Read something; False at the end."""
        data = b"" if self._ended else await self._stream.receive_some(READ_BYTES)
        self._buffer += data
        self._ended = not data
        return not self._ended

    async def _meanwhile(self, work: Work, hung_up: Callable[[], None]) -> Answer | None:
        """Wait for ``work`` and watch the client; None: it left, and ``work`` was cancelled."""
        done: Answer | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope, hung_up)
            done = await work()
            nursery.cancel_scope.cancel()
        return done

    async def _watch(self, waiting: trio.CancelScope, hung_up: Callable[[], None]) -> None:
        try:
            while len(self._buffer) < AHEAD_BYTES_MAX:
                if not await self._fill():
                    break
            else:
                return
        except _BROKEN:
            self._ended = True
        else:
            # It may have closed its sending side alone: what does not wait is about to be answered.
            hung_up()
            await trio.sleep(HANGING_UP_MS / _MS_PER_S)
        waiting.cancel()


_NO_HEAD: Final = RequestHead("", "", 1, (), Framing.LENGTH, 0)
"""What is answered where no request could be read."""


def http_date() -> str:
    """The present moment as the Date field has it (RFC 9110, section 5.6.7)."""
    return formatdate(usegmt=True)
