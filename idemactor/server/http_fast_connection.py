"""One connection of the hot calls over HTTP: read by a lane, decided by the shards, answered by whoever delivers.

Requests are taken one after the other, each when the one before is answered. What is not whole and in the usual shape
is not refused here: the connection is given up to a complete implementation, unread bytes included.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from idemactor.core.commands import Command
from idemactor.core.replies import Reserved
from idemactor.errors import InvalidRequest, RequestError
from idemactor.server import http_large, operations
from idemactor.server.arrivals import SMALL_BODY_BYTES
from idemactor.server.backlog import Hold, outcome_bytes
from idemactor.server.context import ServerContext
from idemactor.server.http_answers import Told, answered, refused, told
from idemactor.server.http_bytes import head as head_of
from idemactor.server.http_bytes import response
from idemactor.server.http_request import key_of, members_of
from idemactor.server.lane import Lane
from idemactor.server.outbox import Outbox
from idemactor.server.parting import part
from idemactor.server.sinks import Replies
from idemactor.server.tracing import Request, Tracing, parent_of
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.tracing import traced
from idemactor.wire.http_head import END, HEAD_BYTES_MAX, Head, Heads
from idemactor.wire.requests import Dialect, command_from

DOOR: Final = "http"

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class FastLimits:
    """The bounds of a connection that has not been handed over; times in milliseconds.

    Attributes:
        idle_ms: How long it may wait between two requests; it may be as much again before that is noticed.
        whole_ms: From the first bytes of a request to its last; a slower one is handed over, to other deadlines.
        write_ms: The time for a client to take a piece of its answers; then it is closed.
        linger_ms: How long a connection that is closed from here is read on, so that closing destroys no answer.
        unread_bytes_max: What may wait of requests that were sent before the answer to an earlier one; with more,
            reading stops. What one read brought may overshoot it.
        unsent_bytes_max: What may wait of answers that the client does not read; with more, no request is taken.
    """

    idle_ms: int = 75_000
    whole_ms: int = 1_000
    write_ms: int = 10_000
    linger_ms: int = 1_000
    unread_bytes_max: int = 65_536
    unsent_bytes_max: int = 262_144


class _Tag(NamedTuple):
    """What the answer to a single call needs to become a response."""

    command: Command
    is_operator: bool


class FastConnection:
    """One connection, and the ``Sink`` of its single calls. Whoever calls ``run`` closes the stream in the end.

    Attributes:
        closed: Set once the client was seen to leave: no call of its that waits is granted any more.
        whose: The tenant of the latest request.
    """

    def __init__(
        self, context: ServerContext, limits: FastLimits, lane: Lane, heads: Heads, stream: trio.SocketStream
    ) -> None:
        self.closed = False
        self.whose = ""
        self._context = context
        self._tracing = context.tracing
        self._request: Request | None = None
        self._limits = limits
        self._lane = lane
        self._heads = heads
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._outbox = Outbox(stream, limits.write_ms, self._stir, context.backlog)
        self._unread = bytearray()
        self._arrival = context.arrivals.begin()
        self._busy = False
        self._advancing = False
        self._paused = False
        self._over = False
        self._handed_over = False
        self._draining = False
        self._used_at = trio.current_time()
        self._whole_by = math.inf
        self._news = trio.Event()
        self._tasks: trio.Nursery | None = None

    # --------------------------------------------------------------------------------------------- from first to last

    async def run(self) -> bytearray | None:
        """Serve the connection; returns what is unread where somebody else has to go on with it, None at its end."""
        try:
            return await self._serve_all()
        finally:
            # What may be large is given back whatever path led here, and we know nobody any more who knows us.
            self._tasks = None
            self._unread = bytearray()
            self._arrival.done()
            self._outbox.part()

    async def _serve_all(self) -> bytearray | None:
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(self._outbox.run)
            self._lane.watch(self._fd, self)
            try:
                await self._watch_the_clock()
                self._lane.leave(self._fd)
                await self._until_sent()
            finally:
                self._lane.leave(self._fd)
                # From here on nobody may write: the descriptor's number will soon be another connection's.
                self.closed = True
                self._tasks = None
                all_sent = self._outbox.close()
            # An answer that was cut short is no beginning for anybody else's.
            goes_on = self._handed_over and all_sent and not self._draining
            if not goes_on:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await part(self._stream, self._limits.linger_ms, broken=not all_sent)
            nursery.cancel_scope.cancel()
        if self._outbox.too_slow:
            self._context.observer.connection_failed(DOOR, trio.TooSlowError("an answer was not read in time"))
        return self._unread if goes_on else None

    async def _watch_the_clock(self) -> None:
        """Sleep until there is something to do that the lane does not do."""
        idle_s = self._limits.idle_ms / _MS_PER_S
        while not self._over:
            self._news = trio.Event()
            with trio.move_on_at(min(self._whole_by, trio.current_time() + idle_s)):
                await self._news.wait()
            now = trio.current_time()
            if now >= self._whole_by:
                self._hand_over()
            elif not self._busy and not self._unread and now >= self._used_at + idle_s:
                self._over = True

    async def _until_sent(self) -> None:
        """What is in flight is answered before the end; a client that was seen to leave may wait for nothing longer."""
        limit_ms = self._limits.linger_ms if self.closed else self._limits.write_ms
        # One that goes on elsewhere has all its answers first, and only each piece of them its time.
        with trio.move_on_after(math.inf if self._handed_over else limit_ms / _MS_PER_S):
            while (self._busy or self._outbox.waiting_bytes) and not self._outbox.broken:
                self._news = trio.Event()
                await self._news.wait()

    def drain(self) -> None:
        """Answer what is in flight, within limits, and close; take nothing more."""
        self._draining = True
        self._end()

    def _end(self) -> None:
        self._over = True
        self._news.set()

    def _hand_over(self) -> None:
        """Let the complete implementation go on from the first byte that is not answered yet."""
        self._handed_over = True
        self._lane.leave(self._fd)
        self._end()

    def _fail(self, error: Exception) -> None:
        """Close the connection: there is a bug in how one of its requests is handled."""
        self._context.observer.connection_failed(DOOR, error)
        self._outbox.give_up()

    def _stir(self) -> None:
        """The client took some of its answers, or is gone."""
        if self._outbox.broken:
            self.closed = True
            self._over = True
        self._go_on()

    # --------------------------------------------------------------------------------------------------- requests come

    def received(self, data: bytes) -> None:
        """Something came over the lane."""
        self._unread += data
        if not self._busy:
            self._advance()
        if len(self._unread) > self._limits.unread_bytes_max and not self._may_take and not self._over:
            self._paused = True
            self._lane.pause(self._fd)

    def left(self) -> None:
        """The client sends no more: nothing that waits is granted to it any longer."""
        self.closed = True

    def ended(self) -> None:
        """Nothing more will come over the lane: half-closing counts as hanging up, as behind us.

        What was read whole is carried out all the same.
        """
        self.closed = True
        self._paused = False
        if self._unread:
            self._advance()
        else:
            self._end()

    @property
    def _may_take(self) -> bool:
        return not self._busy and self._outbox.room(self._limits.unsent_bytes_max) > 0

    def _go_on(self) -> None:
        """Something was answered, or sent: take what had to wait for that."""
        if self._over:
            self._news.set()
            return
        if self._paused and self._may_take:
            self._paused = False
            self._lane.resume(self._fd)
        if self._unread or self.closed:
            self._advance()

    def _advance(self) -> None:
        """Take requests as long as they are whole and the one before is answered."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._unread and self._may_take and not self._over and self._take():
                pass
        except Exception as error:  # Whoever calls, the lane or a shard, has other connections.
            self._fail(error)
        self._advancing = False
        if self.closed and self._may_take:
            self._end()

    def _take(self) -> bool:
        """Take one request; False where it is not whole, or not ours."""
        unread = self._unread
        end = unread.find(END, 0, HEAD_BYTES_MAX + len(END))
        if end < 0:
            return self._wait_for_the_rest() if len(unread) <= HEAD_BYTES_MAX else self._not_ours()
        start = end + len(END)
        raw = bytes(unread[:start])
        head = self._heads.parse(raw)
        if head is None:
            return self._not_ours()
        stop = start + head.length
        if len(unread) < stop:
            return self._await_body(head, raw)
        body = bytes(unread[start:stop])
        del unread[:stop]
        if self._whole_by < math.inf:
            self._whole_by = math.inf
            self._arrival.done()
        self._busy = True
        if self._tracing is not None:
            self._follow(self._tracing, head, raw)
        self._serve(head, body)
        return True

    def _follow(self, tracing: Tracing, head: Head, raw: bytes) -> None:
        route = f"/v1/{{namespace}}/{head.op}" if head.namespace else head.path
        self._request = tracing.http("POST", route, head.path, parent_of(raw), tracing.now_ns())

    def _await_body(self, head: Head, raw: bytes) -> bool:
        """A head is there without its whole body: a large one is only taken where it will be of use, and has room."""
        if head.length > SMALL_BODY_BYTES:
            try:
                if not self._arrival.held_bytes:
                    self._judge(head)
                self._arrival.holds(len(self._unread), len(raw) + head.length)
            except RequestError as error:
                return self._turn_away(head, raw, error)
        return self._wait_for_the_rest()

    def _judge(self, head: Head) -> None:
        """Raises: RequestError, where the head alone is enough to refuse the call."""
        principal = self._context.authenticator.from_header(head.authorization)
        self.whose = principal.tenant
        if head.op == "batch":
            _check_no_key(head)
        else:
            self._context.authenticator.scope(principal, head.namespace, head.op)

    def _turn_away(self, head: Head, raw: bytes, error: RequestError) -> bool:
        """Answer a call without its body, and close: what is left of it is only read so that the answer arrives."""
        self._lane.leave(self._fd)
        self._unread.clear()
        self._arrival.done()
        self._whole_by = math.inf
        if self._tracing is not None:
            self._follow(self._tracing, head, raw)
        self._draining = True
        self._refuse(head, error)
        self._end()
        return False

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
            self.whose = principal.tenant
            if head.op == "batch":
                _check_no_key(head)
                members = members_of(body, has_type=True)
                self._batch(operations.Batch.read(self._context, principal, members, Dialect.JSON))
                return
            scope = self._context.authenticator.scope(principal, head.namespace, head.op)
            members = members_of(body, has_type=True)
            command = command_from(head.op, members, scope, Dialect.JSON, header_key=key_of(head.keys))
        except RequestError as error:
            self._refuse(head, error)
            return
        envelope = Envelope(command, self, _Tag(command, scope.operator))
        if self._request is not None:
            envelope = traced(envelope, self._request.command(command))
        self._lane.route([envelope])

    def _refuse(self, head: Head, error: RequestError) -> None:
        self._context.observer.refused(DOOR, error.code)
        self._respond(refused(error, head.path))

    def _batch(self, batch: operations.Batch) -> None:
        for error in batch.errors:
            self._context.observer.refused(DOOR, error.code)
        commands = batch.commands
        backlog = self._context.backlog

        def finish() -> None:
            if replies.held_bytes > http_large.ENCODED_AT_ONCE_BYTES:
                hold = Hold(backlog, Dialect.JSON)
                results = batch.results(replies.take(hold))
                self._answer_in_steps(
                    hold, partial(http_large.listed, operations.RESULTS, results, {}, backlog.encoding)
                )
            else:
                self._answer(lambda: told(batch.body(replies.take())))

        replies = Replies(len(commands), finish, backlog, Dialect.JSON)
        if commands:
            self._lane.route(batch.envelopes(self._context, replies, self._request))
        else:
            self._respond(told(batch.body([])))

    # --------------------------------------------------------------------------------------------------- answers leave

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answer to the call in hand."""
        backlog = self._context.backlog
        if backlog.full:
            answers = backlog.spared(answers)
        [(tag, answer)] = answers
        assert isinstance(tag, _Tag)

        def make() -> Told:
            return answered(answer, tag.command, is_operator=tag.is_operator)

        size = 0 if type(answer) is Reserved else outcome_bytes(answer, Dialect.JSON)
        if size > http_large.ENCODED_AT_ONCE_BYTES:
            hold = Hold(backlog, Dialect.JSON)
            hold.add(size)
            self._answer_in_steps(hold, partial(http_large.whole, make, backlog.encoding))
        else:
            self._answer(make)

    def _answer_in_steps(self, hold: Hold, encode: Callable[[], Awaitable[http_large.Pieces]]) -> None:
        """What is large is encoded by a task, so that whoever delivers can go on; ``hold`` counts it till then."""
        if self._tasks is None:
            hold.abandon()
        else:
            self._tasks.start_soon(self._encode, hold, encode)

    async def _encode(self, hold: Hold, encode: Callable[[], Awaitable[http_large.Pieces]]) -> None:
        try:
            answer, pieces = await encode()
        except Exception as error:
            self._fail(error)
        else:
            hold.abandon()
            self._respond(answer, pieces)
        finally:
            hold.abandon()

    def _answer(self, make: Callable[[], Told]) -> None:
        try:
            answer = make()
        except Exception as error:  # A sink never raises: the shard has other callers.
            self._fail(error)
        else:
            self._respond(answer)

    def _respond(self, answer: Told, pieces: list[bytes] | None = None) -> None:
        """Send the answer to the request in hand, whose body may be in pieces beside it, and go on."""
        self._busy = False
        self._used_at = trio.current_time()
        if self._request is not None:
            request, self._request = self._request, None
            request.ended(answer.status)
        if pieces is None:
            self._outbox.put(response(answer, closing=self._draining))
        else:
            self._outbox.put(head_of(answer, sum(map(len, pieces)), closing=self._draining))
            pieces.reverse()
            while pieces:
                # Each is given back as soon as it is there a second time.
                self._outbox.put(pieces.pop())
        self._go_on()


def _check_no_key(head: Head) -> None:
    if head.keys:
        raise InvalidRequest("a batch has no Idempotency-Key of its own", field="key")
