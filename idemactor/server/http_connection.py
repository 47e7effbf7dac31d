"""One guarded HTTP connection: its deadlines, its reads and writes, and its end.

Each connection has one cancel scope, and the phase it is in sets that scope's deadline; so a client that is slow in
whatever it does is let go at a time that has a name in ``HttpLimits``, and there is no second place where a task
could hang. An answer has no deadline of its own while the app works on it (a caller may wait for a minute), only its
writing has: hypercorn shields its writes from cancellation, and a client that stops reading could keep it for good.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from idemactor.server.app_tasks import AppTasks
from idemactor.server.http_protocol import GuardedH11, Phase, Refusal
from idemactor.server.http_shared import HANGING_UP_MS, WRITE_BYTES, Shared

READ_BYTES: Final = 65_536
LINGER_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of a request that was refused half-way is read and thrown away, so that the client sees the refusal."""

AHEAD_BYTES_MAX: Final = 65_536
"""How much is read ahead of a pipeline while an answer is awaited: its end tells that the client has left."""

_MS_PER_S: Final = 1_000
_TOO_SLOW: Final = Refusal(408, "The request did not arrive in time.")


class HttpConnection:
    """One connection, from its first byte to its close. Whoever calls ``run`` closes the stream in the end."""

    def __init__(self, shared: Shared, stream: trio.abc.Stream) -> None:
        self.closing = False
        self.phase: Phase | None = None
        self._shared = shared
        self._limits = shared.limits
        self._stream = stream
        self._protocol: GuardedH11 | None = None
        self._life = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._write_lock = trio.Lock()
        self._is_broken = False
        self._ahead = bytearray()
        self._ahead_ended = False
        self._entered = trio.Event()
        self._phase_ends_at = math.inf

    async def run(self, preread: bytearray) -> None:
        """Serves the connection until either side ends it.

        Raises:
            Exception: A bug, here or in a library; the connection is beyond use.
        """
        if self._shared.draining:
            return
        try:
            with self._life:
                await self._shake_hands()
                await self._converse(preread)
            has_answered = await self._let_go() if self._life.cancelled_caught else True
            await self._part(linger=has_answered)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # The client is gone; there is nobody to tell.
        finally:
            # What may be large is given back whatever path led here; both of us know each other.
            self._ahead.clear()
            if self._protocol is not None:
                self._protocol.forget()
                self._protocol = None

    def drain(self) -> None:
        """Ends the connection now if no request of it is in flight, else with its answer or at ``closes_at``."""
        if self.phase in (Phase.BODY, Phase.ANSWER, Phase.CLOSING):
            self._arm()
        else:
            self._life.cancel()

    def enter(self, phase: Phase) -> None:
        """Starts the deadline of ``phase``; entering the phase it is in already changes nothing."""
        if phase is self.phase:
            return
        self.phase = phase
        self._entered.set()
        self._phase_ends_at = trio.current_time() + self._allowed_s(phase)
        self._arm()

    async def send(self, event: Event) -> None:
        """What the protocol wants done: bytes written, the connection closed, or the next request awaited."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            await self._stop()
        elif isinstance(event, Updated) and event.idle and self._protocol is not None:
            self._protocol.begin_idle()

    def refused(self, refusal: Refusal) -> None:
        """The protocol answered in the app's place."""
        self._shared.observer.request_refused(refusal.status)

    def _allowed_s(self, phase: Phase) -> float:
        match phase:
            case Phase.HANDSHAKE:
                return self._limits.handshake_ms / _MS_PER_S
            case Phase.IDLE:
                return self._limits.idle_ms / _MS_PER_S
            case Phase.HEADERS:
                return self._limits.headers_ms / _MS_PER_S
            case Phase.BODY:
                return self._limits.body_ms / _MS_PER_S
            case Phase.ANSWER | Phase.CLOSING:
                return math.inf
            case _:
                assert_never(phase)

    def _arm(self) -> None:
        self._life.deadline = min(self._phase_ends_at, self._shared.closes_at)

    async def _shake_hands(self) -> None:
        if isinstance(self._stream, trio.SSLStream):
            self.enter(Phase.HANDSHAKE)
            await self._stream.do_handshake()

    async def _converse(self, preread: bytearray) -> None:
        sock = _socket_of(self._stream)
        async with trio.open_nursery() as nursery:
            self._protocol = GuardedH11(
                self._shared.app,
                self._shared.config,
                self._shared.context,
                AppTasks(nursery, self._shared.observer.app_failed),
                ConnectionState(self._shared.state),
                ssl=isinstance(self._stream, trio.SSLStream),
                client=parse_socket_addr(sock.family, sock.getpeername()) if sock else None,
                server=parse_socket_addr(sock.family, sock.getsockname()) if sock else None,
                link=self,
                header_fields_max=self._limits.header_fields_max,
            )
            # The clock of the first request runs from the start, or silence would cost a client nothing.
            self.enter(Phase.HEADERS)
            with self._reading:
                await self._read(self._protocol, preread)
            await self._half_close()
            # Here the nursery waits for an app that is not done yet, though nobody may want its answer any more.

    async def _read(self, protocol: GuardedH11, preread: bytearray) -> None:
        # Piece by piece, so that what may be large is hardly ever there twice.
        while preread and not self.closing:
            piece = bytes(preread[:READ_BYTES])
            del preread[:READ_BYTES]
            await protocol.handle(RawData(data=piece))
        # Whoever called us knows it as long as the connection lives.
        preread.clear()
        while not self.closing:
            data = await self._next_bytes()
            await protocol.handle(RawData(data=data))
            if not data:
                await self._client_left(protocol)

    async def _next_bytes(self) -> bytes:
        """What comes next, nothing at the end: what was read ahead first."""
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            return data
        return b"" if self._ahead_ended else await self._receive()

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._stream.receive_some(READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def meanwhile(self, turn: Callable[[], Awaitable[object]]) -> None:
        """Waits for ``turn`` and reads ahead, within a limit: a client that leaves is seen to leave."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_ahead)
            await turn()
            nursery.cancel_scope.cancel()

    async def _read_ahead(self) -> None:
        while not self._ahead_ended and len(self._ahead) < AHEAD_BYTES_MAX:
            data = await self._receive()
            self._ahead += data
            self._ahead_ended = not data
        if self._ahead_ended and self._protocol is not None:
            # Requests that were read whole behind this one still have their turn.
            await self._protocol.client_left()

    async def _client_left(self, protocol: GuardedH11) -> None:
        """The client sends no more. Who waits is told at once; what was read whole has a moment to be answered."""
        await protocol.client_left()
        with trio.move_on_after(HANGING_UP_MS / _MS_PER_S):
            while self.phase is Phase.ANSWER and not self.closing:
                self._entered = trio.Event()
                await self._entered.wait()
        await self._stop()

    async def _write(self, data: bytes) -> None:
        try:
            async with self._write_lock:
                if not self._is_broken:
                    await self._write_pieces(data)
        except trio.TooSlowError:
            self._shared.observer.deadline_passed(Phase.ANSWER)
            await self._break()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._break()
        except trio.Cancelled:
            # The protocol counts these bytes as sent, and whoever was cancelled may write on: never after this gap.
            await self._break()
            raise

    async def _write_pieces(self, data: bytes) -> None:
        view, backlog = memoryview(data), self._shared.backlog
        left = len(view)
        backlog.waiting_bytes += left
        try:
            while left:
                piece = view[-left:][:WRITE_BYTES]
                with trio.fail_after(self._limits.write_ms / _MS_PER_S):
                    await self._stream.send_all(piece)
                backlog.waiting_bytes -= len(piece)
                left -= len(piece)
        finally:
            backlog.waiting_bytes -= left

    async def _break(self) -> None:
        self._is_broken = True
        await self._stop()

    async def _stop(self) -> None:
        """Ends the conversation: nothing more is read, and the app hears ``http.disconnect``.

        It has no checkpoint: the app that is told may be the caller, and may be cancelled by what it is told.
        """
        if self.closing:
            return
        self.closing = True
        self.enter(Phase.CLOSING)
        if self._protocol is not None:
            await self._protocol.handle(Closed())
        # Wakes the reader wherever it waits: for bytes, for the app to take a body, or for its turn in a pipeline.
        self._reading.cancel()

    async def _half_close(self) -> None:
        """An answer without a length ends where the stream ends: the client should see that before the app is done."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            async with self._write_lock:
                if not self._is_broken:
                    # Raised, this would cancel an app that may still be carrying out what it was asked.
                    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        await self._stream.send_eof()

    async def _let_go(self) -> bool:
        """A deadline passed. A client that was still sending its request is told so; was it?"""
        if self._shared.draining or self.phase is None:
            return False
        self._shared.observer.deadline_passed(self.phase)
        if self._protocol is None or self.phase not in (Phase.HEADERS, Phase.BODY):
            return False
        await self._protocol.refuse(_TOO_SLOW)
        return True

    async def _part(self, *, linger: bool) -> None:
        """Reads on for a while where closing would reset the connection under an answer, then says goodbye."""
        until = min(trio.current_time() + self._limits.linger_ms / _MS_PER_S, self._shared.closes_at)
        with trio.move_on_at(until):
            if linger and not self._is_broken and self._protocol is not None and self._protocol.has_unread_request:
                await self._linger()
            await self._stream.aclose()

    async def _linger(self) -> None:
        left = LINGER_BYTES_MAX
        while left > 0:
            data = await self._stream.receive_some(READ_BYTES)
            if not data:
                return
            left -= len(data)


def _socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return transport.socket if isinstance(transport, trio.SocketStream) else None
