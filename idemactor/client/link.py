"""One multiplexed connection that comes back by itself.

Callers put calls into a queue; one task owns the connection. It connects when something is wanted, says who it is,
writes what is queued in as few pieces as possible, and hands answers to whom they belong. When the connection ends,
what has no answer goes back to the head of the queue and is sent again: every call may be repeated as it stands. A
caller that is cancelled never tears a frame apart, because callers do not write.
"""

from __future__ import annotations

import os
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from idemactor.client.backoff import Backoff
from idemactor.client.errors import (
    ClientClosed,
    IdemactorClientError,
    ProtocolViolation,
    ServerNotTrusted,
    Unreachable,
)
from idemactor.client.flight import Answer, Flight
from idemactor.client.protocol import Protocol, encode_body
from idemactor.client.results import error_of

READ_BYTES: Final = 262_144
WRITE_BYTES: Final = 262_144
"""About how much is handed to the socket at once."""

WAITING_MAX: Final = 1_024
"""How many reserves may wait on the server at a time. They have a bound of their own: were they among the others,
they could keep out the commit that they wait for."""

_WATCHES: Final = 4
"""How often a silence is looked for while it lasts."""

_PING: Final = encode_body("ping", {})

_BROKEN: Final = (
    OSError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    ProtocolViolation,
    TimeoutError,
)
"""How connections end."""


Dial = Callable[[], Awaitable[ByteStream]]
"""Makes a connection; raises OSError where that cannot be."""


class Link:
    """The connection to one address; ``run`` must be running for calls to get anywhere.

    Args:
        dial: Makes a connection.
        where: To whom, for people.
        token: What to authenticate with, if anything.
        connect_ms: How long connecting and authenticating may take.
        silence_ms: A connection on which nothing comes for so long after a call was sent is given up.
        in_flight_max: How many calls may be on their way; one more waits.
    """

    local = False

    def __init__(
        self,
        dial: Dial,
        where: str,
        *,
        token: str | None,
        connect_ms: int,
        silence_ms: int,
        in_flight_max: int,
    ) -> None:
        self.where = where
        self.trouble: BaseException | None = None
        self._dial = dial
        self._token = token
        self._connect_s = connect_ms / 1000
        self._silence_s = silence_ms / 1000
        self._slots = anyio.Semaphore(in_flight_max)
        self._waiting = anyio.Semaphore(WAITING_MAX)
        self._queue: deque[Flight] = deque()
        self._wanted = anyio.Event()
        self._on_wire: dict[int, Flight] = {}
        self._protocol = Protocol()
        self._heard_at = 0.0
        self._heard = False

    # ---------------------------------------------------------------------------------------------------- for callers

    async def exchange(self, flight: Flight) -> Answer:
        """Send a call and wait for its answer, over as many connections as it takes.

        Raises:
            InvalidRequest: It cannot be sent at all.
            TooLarge: No server would take it.
        """
        flight.body = flight.body or encode_body(flight.method, flight.params)
        slots = self._waiting if flight.waits_ms else self._slots
        # A place among those that wait is not worth less patience than the waiting itself.
        flight.wait(True)
        await slots.acquire()
        flight.wait(False)
        flight.slots = slots
        flight.begin()
        self._queue.append(flight)
        self._wanted.set()
        try:
            await flight.done.wait()
        except BaseException:
            self._leave(flight)
            raise
        assert flight.answer is not None
        return flight.answer

    async def adopt(self, flight: Flight) -> Answer | None:
        """The answer to a call whose caller was cancelled; None where the connection ended before it came."""
        if flight.answer is None and flight.adopted:
            await flight.done.wait()
        return flight.answer if flight.answer and not isinstance(flight.answer.error, Unreachable) else None

    def _leave(self, flight: Flight) -> None:
        """The caller is cancelled: what was not sent never will be, what was sent is adopted or forgotten."""
        if flight.answer is not None:
            return
        if flight in self._queue:
            self._queue.remove(flight)
            _free(flight)
        elif flight.kept:
            flight.adopted = True
        else:
            flight.abandoned = True

    # ---------------------------------------------------------------------------------------------------- its own task

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Connect whenever something is wanted, and serve until the connection ends; until cancelled."""
        task_status.started()
        try:
            await self._run()
        finally:
            self._refuse_all(ClientClosed("the client was closed"))

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            await self._demand()
            try:
                with anyio.fail_after(self._connect_s):
                    stream = await self._connect()
            except ssl.SSLCertVerificationError as error:
                self._refuse_all(ServerNotTrusted(f"the certificate of {self.where} is not trusted: {error}"))
                continue
            except _BROKEN as error:
                self.trouble = error
                await anyio.sleep(backoff.next_s())
                continue
            except IdemactorClientError as error:
                # The server answers but does not let us in: whoever waits is told why.
                self._refuse_all(error)
                continue
            self.trouble = None
            await self._serve(stream)
            if self._heard:
                backoff.reset()
            await anyio.sleep(backoff.next_s())

    async def _demand(self) -> None:
        while not self._queue:
            self._wanted = anyio.Event()
            await self._wanted.wait()

    async def _connect(self) -> ByteStream:
        stream = await self._dial()
        try:
            self._protocol = Protocol()
            if self._token is not None:
                await self._authenticate(stream, self._token)
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise
        return stream

    async def _authenticate(self, stream: ByteStream, token: str) -> None:
        """Say who calls, before anything else.

        Raises:
            IdemactorClientError: The server does not take the token.
        """
        _, frame = self._protocol.request(encode_body("auth", {"token": token}))
        await stream.send(frame)
        while True:
            for response in self._protocol.receive(await stream.receive(READ_BYTES)):
                if response.error is None:
                    return
                raise error_of(response.error)

    async def _serve(self, stream: ByteStream) -> None:
        self._heard = False
        self._heard_at = anyio.current_time()
        number = _share_with_no_child(stream)
        try:
            async with anyio.create_task_group() as tasks:
                for part in (self._read, self._write, self._watch):
                    tasks.start_soon(_until_broken, part, stream, tasks.cancel_scope, self)
        finally:
            _SOCKETS.discard(number)
            self._lose()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(stream)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            await self._demand()
            frames: list[bytes] = []
            room = WRITE_BYTES
            now = anyio.current_time()
            while self._queue and room > 0:
                flight = self._queue.popleft()
                msgid, frame = self._protocol.request(flight.body)
                flight.sent(now)
                self._on_wire[msgid] = flight
                frames.append(frame)
                room -= len(frame)
            await stream.send(b"".join(frames))

    async def _read(self, stream: ByteStream) -> None:
        while True:
            data = await stream.receive(READ_BYTES)
            self._heard = True
            self._heard_at = anyio.current_time()
            for response in self._protocol.receive(data):
                flight = self._on_wire.pop(response.msgid)
                error = error_of(response.error) if response.error is not None else None
                flight.finish(Answer(error, response.result))
                _free(flight)

    async def _watch(self, _stream: ByteStream) -> None:
        """A server that hangs, or a network that swallows everything, looks like this: asked, and not a byte."""
        while True:
            await anyio.sleep(self._silence_s / _WATCHES)
            now = anyio.current_time()
            if now - self._heard_at < self._silence_s:
                continue
            if any(now > f.sent_at + self._silence_s + f.waits_ms / 1000 for f in self._on_wire.values()):
                raise TimeoutError("nothing came after a call was sent")
            if self._on_wire and not self._queue and all(f.waits_ms for f in self._on_wire.values()):
                # Who is waited for may be gone: a server that is there answers this.
                self._queue.append(Flight("ping", {}, abandoned=True, body=_PING))
                self._wanted.set()

    def _lose(self) -> None:
        """The connection is over: what somebody still waits for goes out again, in the order in which it was sent."""
        lost = list(self._on_wire.values())
        self._on_wire.clear()
        again: list[Flight] = []
        for flight in lost:
            flight.uncertain = True
            flight.wait(False, spent=self._heard_at > flight.sent_at)
            if flight.adopted:
                flight.finish(Answer(Unreachable("the connection ended before the answer came")))
                _free(flight)
            elif flight.abandoned:
                _free(flight)
            else:
                again.append(flight)
        self._queue.extendleft(reversed(again))

    def _refuse_all(self, error: IdemactorClientError) -> None:
        refused = list(self._queue)
        self._queue.clear()
        for flight in refused:
            flight.finish(Answer(error))
            _free(flight)


async def _until_broken(
    part: Callable[[ByteStream], Awaitable[None]], stream: ByteStream, scope: anyio.CancelScope, link: Link
) -> None:
    """Run one part of a connection; the first that breaks ends the others."""
    try:
        await part(stream)
    except _BROKEN as error:
        link.trouble = error
    finally:
        scope.cancel()


def _free(flight: Flight) -> None:
    slots, flight.slots = flight.slots, None
    if slots is not None:
        slots.release()


# ----------------------------------------------------------------------------------------------------------------- fork

NO_SOCKET: Final = -1
"""In the place of a file descriptor."""

_SOCKETS: Final[set[int]] = set()
"""The sockets of this process, by file descriptor."""


def _share_with_no_child(stream: ByteStream) -> int:
    sock = stream.extra(SocketAttribute.raw_socket, None)
    if sock is None:
        return NO_SOCKET
    number: int = sock.fileno()
    _SOCKETS.add(number)
    return number


def _drop_inherited() -> None:
    """In a forked child: let go of the parent's connections, so that the server sees them end when the parent ends.

    The descriptors are replaced and not closed: their owners, copied along with everything else, would close them a
    second time, when the numbers may long be somebody else's.
    """
    if not _SOCKETS:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in _SOCKETS:
        os.dup2(null, number, inheritable=False)
    os.close(null)
    _SOCKETS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
