"""The hot calls over HTTP, without a framework: read by a lane, decided by the shards, answered by whoever delivers.

A connection begins here. As long as it asks for what ``wire/http_head.py`` knows, whole and in the usual shape, its
requests are answered from here, one after the other; at the first that is anything else the connection, unread bytes
included, goes to the guarded hypercorn for good. Both give the same answers: they share everything but the bytes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple
from wsgiref.handlers import format_date_time

import trio

from idemactor.core.commands import Command
from idemactor.errors import InvalidRequest, RequestError
from idemactor.server import operations
from idemactor.server.context import ServerContext
from idemactor.server.http_answers import Told, answered, refused, told
from idemactor.server.http_guard import HttpDoor
from idemactor.server.http_request import key_of, members_of
from idemactor.server.lane import Lane
from idemactor.server.listeners import Listener
from idemactor.server.outbox import Outbox
from idemactor.server.parting import part
from idemactor.server.sinks import Replies
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.wire.http_head import END, HEAD_BYTES_MAX, Head, Heads
from idemactor.wire.requests import Dialect, command_from

DOOR: Final = "http"

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class FastLimits:
    """The bounds of a connection that has not been handed over; times in milliseconds.

    Attributes:
        idle_ms: How long it may wait between two requests.
        whole_ms: From the first bytes of a request to its last; a slower one is handed over, to other deadlines.
        write_ms: The time for a client to take a piece of its answers; then it is closed.
        linger_ms: How long a connection that is closed from here is read on, so that closing destroys no answer.
        unread_bytes_max: What may wait of requests that were sent before the answer to an earlier one.
    """

    idle_ms: int = 75_000
    whole_ms: int = 1_000
    write_ms: int = 10_000
    linger_ms: int = 1_000
    unread_bytes_max: int = 65_536


class FastDoor:
    """Serves the hot calls in front of a guarded HTTP door, on the same addresses.

    Args:
        context: The server.
        guarded: Who gets every connection that asks for anything else.
        limits: The bounds; None for the defaults.
    """

    def __init__(self, context: ServerContext, guarded: HttpDoor, limits: FastLimits | None = None) -> None:
        self._context = context
        self._guarded = guarded
        self._limits = limits or FastLimits()
        self._lane = Lane(context.router.route)
        self._heads = Heads()
        self._connections: set[_Connection] = set()

    async def serve(
        self,
        listeners: Sequence[Listener],
        *,
        task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves ``listeners`` until drained, or until cancelled; see ``HttpDoor.serve``."""
        async with self.lane():
            await self._guarded.serve(listeners, handle=self.handle, task_status=task_status)

    @contextlib.asynccontextmanager
    async def lane(self) -> AsyncIterator[None]:
        """Runs the task that reads for the door's plain connections; ``handle`` needs it."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._lane.run)
            yield
            nursery.cancel_scope.cancel()

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serves one connection to its end."""
        preread = b""
        if isinstance(stream, trio.SocketStream) and not self._guarded.draining:
            connection = _Connection(self._context, self._limits, self._lane, self._heads, stream)
            with self._registered(connection):
                rest = await connection.run()
            if rest is None:
                return
            preread = rest
        await self._guarded.handle(stream, preread)

    def drain(self) -> None:
        """Stops accepting and closes idle connections; requests in flight are answered."""
        self._guarded.drain()
        for connection in list(self._connections):
            connection.drain()

    @contextlib.contextmanager
    def _registered(self, connection: _Connection) -> Iterator[None]:
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)


class _Tag(NamedTuple):
    """What the answer to a single call needs to become a response."""

    command: Command
    is_operator: bool


class _Connection:
    """One connection, and the ``Sink`` of its single calls."""

    def __init__(
        self, context: ServerContext, limits: FastLimits, lane: Lane, heads: Heads, stream: trio.SocketStream
    ) -> None:
        self.closed = False
        self._context = context
        self._limits = limits
        self._lane = lane
        self._heads = heads
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._outbox = Outbox(stream, limits.write_ms, self._stir)
        self._unread = bytearray()
        self._busy = False
        self._advancing = False
        self._paused = False
        self._over = False
        self._handed_over = False
        self._draining = False
        self._used_at = trio.current_time()
        self._whole_by = math.inf
        self._news = trio.Event()

    # --------------------------------------------------------------------------------------------- from first to last

    async def run(self) -> bytes | None:
        """Serve the connection; returns what is unread where somebody else has to go on with it, None at its end."""
        broken = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.run)
            self._lane.watch(self._fd, self)
            try:
                await self._watch_the_clock()
                self._lane.leave(self._fd)
                await self._until_sent()
                broken = self._outbox.broken
            finally:
                self._lane.leave(self._fd)
                if not self._handed_over:
                    # From here on nobody may write: the descriptor will soon be another connection's.
                    self.closed = True
                    self._outbox.give_up()
            if not self._handed_over:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await part(self._stream, self._limits.linger_ms, broken=broken)
            nursery.cancel_scope.cancel()
        if self._outbox.too_slow:
            self._context.observer.connection_failed(DOOR, trio.TooSlowError("an answer was not read in time"))
        return bytes(self._unread) if self._handed_over and not self._outbox.broken else None

    async def _watch_the_clock(self) -> None:
        """Sleep until there is something to do that the lane does not do."""
        while not self._over:
            self._news = trio.Event()
            with trio.move_on_at(min(self._whole_by, self._idle_until())):
                await self._news.wait()
            now = trio.current_time()
            if now >= self._whole_by:
                self._hand_over()
            elif now >= self._idle_until():
                self._over = True

    def _idle_until(self) -> float:
        waits = self._busy or self._unread
        return math.inf if waits else self._used_at + self._limits.idle_ms / _MS_PER_S

    async def _until_sent(self) -> None:
        """What is in flight is answered before the end; a client that was seen to leave may wait for nothing longer."""
        limit_ms = self._limits.linger_ms if self.closed else self._limits.write_ms
        with trio.move_on_after(limit_ms / _MS_PER_S):
            while (self._busy or self._outbox.waiting_bytes) and not self._outbox.broken:
                self._news = trio.Event()
                await self._news.wait()

    def drain(self) -> None:
        """Answer what is in flight, then close."""
        self._draining = True
        if not self._busy:
            self._end()

    def _end(self) -> None:
        self._over = True
        self._news.set()

    def _hand_over(self) -> None:
        """Let the complete implementation go on from the first byte that is not answered yet."""
        self._handed_over = True
        self._lane.leave(self._fd)
        self._end()

    def _stir(self) -> None:
        if self._outbox.broken:
            self.closed = True
            self._over = True
        if self._over:
            self._news.set()

    # --------------------------------------------------------------------------------------------------- requests come

    def received(self, data: bytes) -> None:
        """Something came over the lane."""
        self._unread += data
        if not self._busy:
            self._advance()
        elif len(self._unread) > self._limits.unread_bytes_max:
            self._paused = True
            self._lane.pause(self._fd)

    def ended(self) -> None:
        """Nothing more will come over the lane: half-closing counts as hanging up, as behind us."""
        self.closed = True
        self._end()

    def _advance(self) -> None:
        """Take requests as long as they are whole and the one before is answered."""
        if self._advancing:
            return
        self._advancing = True
        while self._unread and not self._busy and not self._over:
            if self._draining or not self._take():
                break
        self._advancing = False
        if self._draining and not self._busy:
            self._end()

    def _take(self) -> bool:
        """Take one request; False where it is not whole, or not ours."""
        unread = self._unread
        end = unread.find(END, 0, HEAD_BYTES_MAX + len(END))
        if end < 0:
            return self._wait_for_the_rest() if len(unread) <= HEAD_BYTES_MAX else self._not_ours()
        start = end + len(END)
        head = self._heads.parse(bytes(unread[:start]))
        if head is None:
            return self._not_ours()
        stop = start + head.length
        if len(unread) < stop:
            return self._wait_for_the_rest()
        body = bytes(unread[start:stop])
        del unread[:stop]
        self._whole_by = math.inf
        self._busy = True
        self._used_at = trio.current_time()
        self._serve(head, body)
        return True

    def _wait_for_the_rest(self) -> bool:
        if self._whole_by == math.inf:
            self._whole_by = trio.current_time() + self._limits.whole_ms / _MS_PER_S
            self._news.set()
        return False

    def _not_ours(self) -> bool:
        self._hand_over()
        return False

    def _serve(self, head: Head, body: bytes) -> None:
        try:
            principal = self._context.authenticator.from_header(head.authorization)
            if head.op == "batch":
                self._batch(operations.Batch.read(self._context, principal, _batch_members(head, body), Dialect.JSON))
                return
            scope = self._context.authenticator.scope(principal, head.namespace, head.op)
            members = members_of(body, has_type=True)
            command = command_from(head.op, members, scope, Dialect.JSON, header_key=key_of(head.keys))
        except RequestError as error:
            self._context.observer.refused(DOOR, error.code)
            self._respond(refused(error, head.path))
            return
        self._lane.route([Envelope(command, self, _Tag(command, scope.operator))])

    def _batch(self, batch: operations.Batch) -> None:
        for error in batch.errors:
            self._context.observer.refused(DOOR, error.code)
        commands = batch.commands
        replies = Replies(len(commands), lambda: self._respond(told(batch.body(replies.answers))))
        if commands:
            self._lane.route(batch.envelopes(replies))
        else:
            self._respond(told(batch.body([])))

    # --------------------------------------------------------------------------------------------------- answers leave

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answer to the call in hand."""
        for tag, answer in answers:
            assert isinstance(tag, _Tag)
            self._respond(answered(answer, tag.command, is_operator=tag.is_operator))

    def _respond(self, answer: Told) -> None:
        self._busy = False
        self._outbox.put(_render(answer, closing=self._draining))
        if self._over:
            self._news.set()
            return
        if self._paused:
            self._paused = False
            self._lane.resume(self._fd)
        if self._unread or self._draining:
            self._advance()
        elif self._used_at + self._limits.idle_ms / _MS_PER_S < trio.current_time():
            self._news.set()


def _batch_members(head: Head, body: bytes) -> dict[str, object]:
    if head.keys:
        raise InvalidRequest("a batch has no Idempotency-Key of its own", field="key")
    return members_of(body, has_type=True)


# ------------------------------------------------------------------------------------------------------------- bytes


class _DateLine:
    """The ``Date`` field (RFC 9110, section 6.6.1), made once a second."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._line = f"date: {format_date_time(second)}\r\n\r\n".encode()
        return self._line


_DATE: Final = _DateLine()
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} \r\n".encode() for status in HTTPStatus}


def _render(answer: Told, *, closing: bool) -> bytes:
    fields = "".join(f"{name.lower()}: {value}\r\n" for name, value in answer.headers)
    if closing:
        # The client should not send another request into a server that drains.
        fields += "connection: close\r\n"
    head = f"content-type: {answer.media_type}\r\ncontent-length: {len(answer.body)}\r\n{fields}"
    return b"".join((_STATUS_LINES[answer.status], head.encode(), _DATE.line(), answer.body))
