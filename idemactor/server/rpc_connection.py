"""One MessagePack-RPC connection (contract, sections 6 and 12): requests in, answers out, in any order.

One task reads. What one read brought goes to the router in one call, in the order in which it was sent, so that
the requests of one connection for one key are applied in that order, and a login counts for everything behind it.
Answers come back by batches of a shard, each encoded once and sent in one write. A client that sends faster than
it is served, or does not read its answers, is no longer read from; one that does not read at all is let go.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import trio

from idemactor.core.commands import Command, Reserve
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.server import operations
from idemactor.server.auth import Principal, unauthenticated
from idemactor.server.context import ServerContext
from idemactor.server.outbox import Outbox
from idemactor.server.sinks import Replies
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import OVERLOADED_RETRY_MS
from idemactor.wire.answers import body_of
from idemactor.wire.frames import BadRequest, FrameReader, FrameWriter, Incoming, Request, text_of
from idemactor.wire.refusals import detail_of, refusal_of
from idemactor.wire.requests import COMMAND_OPS, Dialect, command_from

DOOR: Final = "rpc"
READ_BYTES: Final = 65_536
LINGER_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of a connection that is closed from here is read and thrown away, so that the client sees its answers."""

_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The bounds of one connection; times in milliseconds.

    Attributes:
        in_flight_max: Requests being worked on; with more, reading stops. What one read brought may overshoot it.
        waiting_max: Reserves that wait for their key. They do not stop the reading (the commit that they wait for may
            come on this very connection); one more is told ``overloaded``.
        unread_bytes_max: Bytes of answers that wait for the client; with more, reading stops.
        handshake_ms: The time for a TLS handshake.
        write_ms: The time for a client to take a piece of its answers; then it is closed.
        drain_ms: How long requests in flight may go on once the connection is to be closed.
        linger_ms: How long a connection that is closed from here is read on, so that closing destroys no answer.
    """

    in_flight_max: int = 1_024
    waiting_max: int = 1_024
    unread_bytes_max: int = 4 * 1024 * 1024
    handshake_ms: int = 10_000
    write_ms: int = 10_000
    drain_ms: int = 10_000
    linger_ms: int = 1_000


class _Call(NamedTuple):
    """The tag of a command: what its answer needs to become a frame."""

    msgid: int
    command: Command
    is_operator: bool
    waits: bool


Frame = tuple[int, str | None, object]
"""(msgid, error or None, result or None)"""


class RpcConnection:
    """One connection, and the ``Sink`` of its commands. Whoever calls ``run`` closes the stream in the end."""

    def __init__(self, context: ServerContext, limits: RpcLimits, stream: trio.abc.Stream) -> None:
        self.closed = False
        self._context = context
        self._limits = limits
        self._stream = stream
        self._fd = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        self._principal: Principal | None = context.authenticator.anonymous
        self._frames = FrameReader()
        self._writer = FrameWriter()
        self._outbox = Outbox(stream, limits.write_ms, self._stir)
        self._in_flight = 0
        self._waiting = 0
        self._changed: trio.Event | None = None
        self._reading = trio.CancelScope()
        self._tasks: trio.Nursery
        self._batch: list[Envelope] = []
        self._said: list[Frame] = []

    # --------------------------------------------------------------------------------------------- from first to last

    async def run(self) -> None:
        """Serve the connection until either side ends it.

        Raises:
            Exception: A bug, here or in a library; the connection is beyond use.
        """
        try:
            if await self._shake_hands():
                async with trio.open_nursery() as nursery:
                    self._tasks = nursery
                    nursery.start_soon(self._outbox.run)
                    await self._converse()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The client is gone; there is nobody to tell.
        finally:
            self.closed = True
            self._outbox.give_up()
            if self._outbox.too_slow:
                self._context.observer.connection_failed(DOOR, trio.TooSlowError("answers were not read in time"))

    def drain(self) -> None:
        """Read nothing more; answer what was read, then close."""
        self._reading.cancel()

    async def _shake_hands(self) -> bool:
        if isinstance(self._stream, trio.SSLStream):
            with trio.move_on_after(self._limits.handshake_ms / _MS_PER_S) as scope:
                await self._stream.do_handshake()
            return not scope.cancelled_caught
        return True

    async def _converse(self) -> None:
        with self._reading:
            await self._read()
            # Only the client's end, or its mistake, leads here: whoever waits is never granted any more.
            self.closed = True
        await self._settle()
        await self._part()

    async def _read(self) -> None:
        frames = self._frames
        while frames.broken is None and not self._outbox.broken:
            if not self._has_room():
                await self._until(self._has_room)
            data = await self._receive()
            if not data:
                return
            self._take(frames.feed(data))
        if frames.broken is not None:
            self._context.observer.connection_failed(DOOR, frames.broken)

    async def _receive(self) -> bytes:
        """What came, as much as one read takes; nothing: the client sends no more."""
        if self._fd is None:
            return bytes(await self._stream.receive_some(READ_BYTES))
        while True:
            # The stream would try to read first and fail, once for every request of a client that waits for answers.
            await trio.lowlevel.wait_readable(self._fd)
            try:
                return os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def _settle(self) -> None:
        """Wait until what was read is answered and the answers are sent, within limits."""
        with trio.move_on_after(self._limits.drain_ms / _MS_PER_S):
            # A closed connection's waiters may never be answered; one that found its key free is, and soon.
            with trio.move_on_after(self._limits.linger_ms / _MS_PER_S if self.closed else math.inf):
                await self._until(lambda: self._outbox.broken or not self._waiting)
            await self._until(lambda: self._outbox.broken or not (self._in_flight or self._outbox.waiting_bytes))

    async def _part(self) -> None:
        """Close so that the client sees its answers: with bytes of its unread, closing would reset the connection."""
        with trio.move_on_after(self._limits.linger_ms / _MS_PER_S):
            if isinstance(self._stream, trio.abc.HalfCloseableStream) and not self._outbox.broken:
                await self._stream.send_eof()
                left = LINGER_BYTES_MAX
                while left > 0 and (data := await self._stream.receive_some(READ_BYTES)):
                    left -= len(data)
            await self._stream.aclose()

    def _has_room(self) -> bool:
        return self._outbox.broken or (
            self._in_flight < self._limits.in_flight_max
            and self._outbox.waiting_bytes < self._limits.unread_bytes_max
        )

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()

    def _stir(self) -> None:
        """Something changed that ``_until`` may wait for; a client that is gone is not read from any more."""
        if self._outbox.broken:
            self._reading.cancel()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    # --------------------------------------------------------------------------------------------------- answers leave

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Take the answers of one batch of a shard: encoded once, sent in one write."""
        for call, _ in answers:
            assert isinstance(call, _Call)
            if call.waits:
                self._waiting -= 1
            else:
                self._in_flight -= 1
        try:
            self._outbox.put(self._writer.encode([_frame(c, a) for c, a in answers if isinstance(c, _Call)]))
        except Exception as error:  # A sink never raises: the shard has other callers.
            self._fail(error)
        self._stir()

    def _say(self, msgid: int, result: object) -> None:
        self._said.append((msgid, None, result))

    def _refuse(self, msgid: int, error: RequestError) -> None:
        self._context.observer.refused(DOOR, error.code)
        self._said.append((msgid, f"{error.code}: {error.detail}", None))

    def _flush(self) -> None:
        """Send what was said since the last time, in one write."""
        if self._said:
            said, self._said = self._said, []
            self._outbox.put(self._writer.encode(said))

    def _fail(self, error: Exception) -> None:
        _log.error("an answer could not be written; its connection is closed", exc_info=error)
        self._context.observer.connection_failed(DOOR, error)
        self._outbox.give_up()
        self._reading.cancel()

    # --------------------------------------------------------------------------------------------------- requests come

    def _take(self, incoming: Sequence[Incoming]) -> None:
        """What one read brought, in order; its commands go to the router together."""
        for _ in range(self._frames.notifications):
            self._context.observer.notification_ignored()
        self._frames.notifications = 0
        self._batch = []
        for one in incoming:
            try:
                self._accept(one)
            except RequestError as error:
                self._refuse(one.msgid, error)
        if self._batch:
            self._context.router.route(self._batch)
        self._flush()

    def _accept(self, one: Incoming) -> None:
        if isinstance(one, BadRequest):
            raise InvalidRequest(one.detail)
        if one.method in COMMAND_OPS:
            self._command(one)
        else:
            call = _METHODS.get(one.method)
            if call is None:
                raise InvalidRequest("unknown method")
            call(self, one)

    def _command(self, request: Request) -> None:
        method, params = request.method, request.params
        scope = self._context.authenticator.scope(self._principal, self._namespace(params), method)
        command = command_from(method, params, scope, Dialect.MSGPACK)
        waits = type(command) is Reserve and command.wait_ms > 0
        if waits:
            if self._waiting >= self._limits.waiting_max:
                self._context.observer.overloaded(1)
                raise RequestError(
                    Code.OVERLOADED, "too many reserves wait on this connection", retry_after_ms=OVERLOADED_RETRY_MS
                )
            self._waiting += 1
        else:
            self._in_flight += 1
        self._batch.append(Envelope(command, self, _Call(request.msgid, command, scope.operator, waits)))

    def _namespace(self, params: dict[str, Any]) -> str:
        """Takes the namespace out of the members, which are then those of the HTTP body."""
        if self._principal is None:
            raise unauthenticated()
        namespace = text_of(params.pop("namespace", None))
        if namespace is None:
            raise InvalidRequest("namespace is missing, or no text", field="namespace")
        return namespace

    def _ping(self, request: Request) -> None:
        _refuse_members(request.params)
        self._say(request.msgid, {"result": "pong"})

    def _auth(self, request: Request) -> None:
        # Whatever goes wrong from here on, the rights of before are gone.
        self._principal = self._context.authenticator.anonymous
        token = text_of(request.params.pop("token", None))
        _refuse_members(request.params)
        if token is None:
            raise InvalidRequest("token is missing, or no text", field="token")
        self._principal = self._context.authenticator.authenticate(token)
        if self._principal is None:
            raise unauthenticated()
        result = {"result": "authenticated", "tenant": self._principal.tenant, "role": str(self._principal.role)}
        self._say(request.msgid, result)

    def _policy(self, request: Request) -> None:
        namespace = self._namespace(request.params)
        scope = self._context.authenticator.scope(self._principal, namespace, request.method)
        _refuse_members(request.params)
        self._say(request.msgid, operations.policy(scope))

    def _batched(self, request: Request) -> None:
        batch = operations.Batch.read(self._context, self._principal, request.params, Dialect.MSGPACK)
        count = len(batch.commands)

        def finish() -> None:
            self._in_flight -= count
            try:
                self._say(request.msgid, batch.body(replies.answers))
                self._flush()
            except Exception as error:  # As in ``deliver``.
                self._fail(error)
            self._stir()

        replies = Replies(count, finish)
        self._in_flight += count
        self._batch.extend(batch.envelopes(replies))
        if not count:
            finish()

    def _listing(self, request: Request) -> None:
        namespace = self._namespace(request.params)
        scope = self._context.authenticator.scope(self._principal, namespace, request.method)
        ask = operations.QUESTIONS[request.method](self._context, scope, request.params, Dialect.MSGPACK)
        self._in_flight += 1
        self._tasks.start_soon(self._answer_later, request.msgid, ask)

    async def _answer_later(self, msgid: int, ask: operations.Question) -> None:
        try:
            self._say(msgid, await ask())
        except RequestError as error:
            self._refuse(msgid, error)
        self._flush()
        self._in_flight -= 1
        self._stir()


_METHODS: Final[dict[str, Callable[[RpcConnection, Request], None]]] = {
    "ping": RpcConnection._ping,
    "auth": RpcConnection._auth,
    "policy": RpcConnection._policy,
    "batch": RpcConnection._batched,
    **dict.fromkeys(operations.QUESTIONS, RpcConnection._listing),
}
"""What is no command, by method."""


def _frame(call: _Call, answer: Answer) -> Frame:
    refusal = refusal_of(answer)
    if refusal is not None and refusal.error:
        return call.msgid, f"{refusal.code}: {detail_of(answer)}", None
    return call.msgid, None, body_of(answer, call.command, operator=call.is_operator, dialect=Dialect.MSGPACK)


def _refuse_members(params: dict[str, Any]) -> None:
    if params:
        raise InvalidRequest("there is an unknown member")
