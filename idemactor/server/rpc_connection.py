"""One MessagePack-RPC connection: its bytes, its deadlines and its end.

What was read means is the matter of ``rpc_calls``. Plain connections are read by the door's ``Lane``, TLS by the
connection's own task, which otherwise sees to deadlines and to the end. A client that sends faster than it is served,
or does not read its answers, is no longer read from; one that does not read at all is let go.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from idemactor.errors import RequestError
from idemactor.server.arrivals import SMALL_BODY_BYTES
from idemactor.server.context import ServerContext
from idemactor.server.lane import READ_BYTES, Lane
from idemactor.server.outbox import Outbox
from idemactor.server.parting import part
from idemactor.server.rpc_calls import DOOR, RpcCalls
from idemactor.wire.frames import FrameReader, Incoming, ProtocolError

STRANGERS_FRAME_BYTES_MAX: Final = 65_536
"""The largest unfinished frame of a client that has not authenticated where that is asked for: ``auth`` is small, and
decoding a large frame is work for somebody who may ask for it."""

FRAME_COPIES: Final = 2
"""How often an unfinished frame is in memory: what looks for its end has one of its own."""

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The bounds of one connection; times in milliseconds.

    Attributes:
        in_flight_max: Requests being worked on; with more, reading stops. What one read brought may overshoot it.
        waiting_max: Reserves that wait for their key. They do not stop the reading (the commit that they wait for may
            come on this very connection); one more is told ``overloaded``.
        unread_bytes_max: Bytes of answers that wait for the client; with more, reading stops, and answers wait
            as what the shards said, which is small or shared, until there is room. One answer may overshoot it.
        handshake_ms: The time for a TLS handshake.
        auth_ms: From the start to the first ``auth`` that succeeds, where one is asked for: a stranger holds a place.
        frame_ms: From the first bytes of a frame to its last: a frame that never ends holds memory.
        write_ms: The time for a client to take a piece of its answers; then it is closed.
        drain_ms: How long requests in flight may go on once the connection is to be closed.
        linger_ms: How long a connection that is closed from here is read on, so that closing destroys no answer.
    """

    in_flight_max: int = 1_024
    waiting_max: int = 1_024
    unread_bytes_max: int = 4 * 1024 * 1024
    handshake_ms: int = 10_000
    auth_ms: int = 30_000
    frame_ms: int = 30_000
    write_ms: int = 10_000
    drain_ms: int = 10_000
    linger_ms: int = 1_000


class RpcConnection:
    """One connection, from its first byte to its close. Whoever calls ``run`` closes the stream in the end."""

    def __init__(self, context: ServerContext, limits: RpcLimits, stream: trio.abc.Stream, lane: Lane) -> None:
        self._context = context
        self._limits = limits
        self._stream = stream
        self._fd = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None
        self._frames = FrameReader()
        self._arrival = context.arrivals.begin()
        self._outbox = Outbox(stream, limits.write_ms, self.stir, context.backlog)
        self._lane = lane
        self._paused = False
        self._ended = False
        self._news = trio.Event()
        self._calls = RpcCalls(context, limits.waiting_max, self, lane.route)
        self._changed: trio.Event | None = None
        self._frame_ends_at = math.inf
        self._known_by = math.inf
        self._reading = trio.CancelScope()
        self._tasks: trio.Nursery

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
            # What may be large is given back whatever path led here, and we know nobody any more who knows us.
            self._calls.part()
            self._outbox.part()
            self._frames.forget()
            self._arrival.done()
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
            self._calls.closed = True
        await self._settle()
        self._calls.closed = True
        # From here on nobody may write: the descriptor's number will soon be another connection's.
        all_sent = self._outbox.close()
        await part(self._stream, self._limits.linger_ms, broken=not all_sent)

    async def _read(self) -> None:
        if not self._calls.known:
            self._known_by = trio.current_time() + self._limits.auth_ms / _MS_PER_S
        if self._fd is None:
            await self._read_alone()
        else:
            await self._read_in_lane(self._fd)
        if self._frames.broken is not None:
            self._context.observer.connection_failed(DOOR, self._frames.broken)

    async def _read_in_lane(self, fd: int) -> None:
        """Let the door's lane read, until it ends; meanwhile only see to it that a frame that began also ends."""
        self._lane.watch(fd, self)
        try:
            while not self._ended and trio.current_time() < self._ends_at:
                self._news = trio.Event()
                with trio.move_on_at(self._ends_at):
                    await self._news.wait()
            if not self._ended:
                self._too_slow()
        finally:
            self._lane.leave(fd)

    @property
    def _ends_at(self) -> float:
        """When the client has taken too long for what it has to do next."""
        return min(self._frame_ends_at, self._known_by)

    def _too_slow(self) -> None:
        what = "there was no auth in time" if self._known_by < self._frame_ends_at else "a frame did not end in time"
        self._context.observer.connection_failed(DOOR, trio.TooSlowError(what))

    @property
    def whose(self) -> str:
        """The tenant whose token was shown."""
        return self._calls.tenant

    def received(self, data: bytes) -> None:
        """Something came over the lane."""
        self._take(self._frames.feed(data))
        if self._frames.broken is not None or self._presumes_too_much() or not self._fits():
            self.ended()
        elif not self._has_room():
            self._pause()
        elif self._frames.partial and self._frame_ends_at == math.inf:
            self._await_rest()

    def left(self) -> None:
        """The client sends no more: nothing that waits is granted to it any longer."""
        self._calls.closed = True

    def ended(self) -> None:
        """Nothing more will come over the lane."""
        self._ended = True
        self._news.set()

    def _pause(self) -> None:
        assert self._fd is not None
        self._paused = True
        self._lane.pause(self._fd)

    def _resume(self) -> None:
        assert self._fd is not None
        self._paused = False
        # While we did not read, for want of room, a frame's time did not run.
        self._frame_ends_at = math.inf
        if self._frames.partial:
            self._await_rest()
        self._lane.resume(self._fd)

    def _await_rest(self) -> None:
        """A frame has begun: its end has a deadline, which our own task sees to."""
        self._frame_ends_at = trio.current_time() + self._limits.frame_ms / _MS_PER_S
        self._news.set()

    async def _read_alone(self) -> None:
        frames = self._frames
        while frames.broken is None and not self._outbox.broken:
            if not self._has_room():
                await self._until(self._has_room)
                self._frame_ends_at = math.inf
            data = await (self._receive_in_time() if frames.partial or self._known_by < math.inf else self._receive())
            if not data:
                return
            self._take(frames.feed(data))
            if self._presumes_too_much() or not self._fits():
                return

    def _take(self, incoming: Sequence[Incoming]) -> None:
        for _ in range(self._frames.notifications):
            self._context.observer.notification_ignored()
        if incoming or self._frames.notifications:
            # Whatever frame is on its way now has begun only now.
            self._frame_ends_at = math.inf
        self._frames.notifications = 0
        self._calls.take(incoming)
        if self._known_by < math.inf and self._calls.known:
            self._known_by = math.inf

    def _presumes_too_much(self) -> bool:
        """Whether somebody who has not said who it is sends a frame that only others may."""
        if self._calls.known or self._frames.pending_bytes <= STRANGERS_FRAME_BYTES_MAX:
            return False
        self._context.observer.connection_failed(DOOR, ProtocolError("too large a frame before any auth"))
        return True

    def _fits(self) -> bool:
        """Whether there is room for what has come of a frame; who sent it is told where there is none."""
        pending = self._frames.pending_bytes
        if pending <= SMALL_BODY_BYTES and not self._arrival.held_bytes:
            return True
        try:
            self._arrival.holds(pending * FRAME_COPIES, known=self._calls.known)
        except RequestError as error:
            self._calls.turn_away(self._frames.pending_msgid, error)
            self._frames.forget()
            # What is left of it must never be read as a frame of its own.
            self._frames.broken = ProtocolError("there was no room for another frame in arrival")
            return False
        return True

    async def _receive_in_time(self) -> bytes:
        """More of a frame that has begun, or of a stranger; nothing: the client is too slow."""
        if self._frames.partial and self._frame_ends_at == math.inf:
            # While we did not read, for want of room, its time did not run.
            self._frame_ends_at = trio.current_time() + self._limits.frame_ms / _MS_PER_S
        with trio.move_on_at(self._ends_at):
            return await self._receive()
        self._too_slow()
        return b""

    async def _receive(self) -> bytes:
        """What came, as much as one read takes; nothing: the client sends no more."""
        return bytes(await self._stream.receive_some(READ_BYTES))

    async def _settle(self) -> None:
        """Wait until what was read is answered and the answers are sent, within limits."""
        with trio.move_on_after(self._limits.drain_ms / _MS_PER_S):
            # A closed connection's waiters may never be answered; one that found its key free is, and soon.
            with trio.move_on_after(self._limits.linger_ms / _MS_PER_S if self._calls.closed else math.inf):
                await self._until(lambda: self._outbox.broken or not self._calls.waiting)
            await self._until(lambda: self._outbox.broken or not (self._calls.in_flight or self._outbox.waiting_bytes))

    def _has_room(self) -> bool:
        return self._outbox.broken or (self._calls.in_flight < self._limits.in_flight_max and self.room > 0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()

    # ------------------------------------------------------------------------------------------------- for the calls

    def send(self, data: bytes) -> None:
        """Send frames; never blocks."""
        self._outbox.put(data)

    @property
    def room(self) -> int:
        """How many bytes of answers the client may be sent before it reads some; with none, they wait unencoded."""
        return 0 if self._outbox.broken else self._outbox.room(self._limits.unread_bytes_max)

    def stir(self) -> None:
        """Something changed that ``_until`` may wait for; a client that is gone is not read from any more."""
        if self._outbox.broken:
            self._reading.cancel()
        elif self._calls.held:
            self._calls.send_held()
        if self._paused and not self._ended and self._has_room():
            self._resume()
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def fail(self, error: Exception) -> None:
        """Close the connection: an answer could not be written."""
        self._context.observer.connection_failed(DOOR, error)
        self._outbox.give_up()

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that takes a while, as long as the connection lives."""
        self._tasks.start_soon(work)
