"""Where connections come in: an accept loop that no client can stop, on sockets bound by ``binding``.

Both doors (HTTP and RPC) stand on this module. It knows nothing of what is spoken on a connection: it accepts, hands
each stream to a handler and holds three promises for it:

- what goes wrong in one connection ends that connection and nothing else;
- running out of descriptors slows accepting down and never ends it;
- closing a listener ends its accept loop, while the connections it accepted live on. So a door drains by closing its
  listeners, and ``serve_listeners`` returns when the last handler is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from idemactor.server.binding import UNIX_SOCKET_MODE, SocketListener, bind_listeners, server_ssl_context

__all__ = [
    "ACCEPT_BACKOFF_MS",
    "CONNECTIONS_MAX_DEFAULT",
    "FAILURES",
    "LOOK_AFTER_CLOSED",
    "UNIX_SOCKET_MODE",
    "AcceptLimits",
    "AcceptObserver",
    "Handler",
    "Listener",
    "SocketListener",
    "bind_listeners",
    "guard_connection",
    "serve_listeners",
    "server_ssl_context",
]

CONNECTIONS_MAX_DEFAULT: Final = 10_240
"""Of a door, as far as there are descriptors: an idle connection costs some 40 KB."""
ACCEPT_BACKOFF_MS: Final = 100
"""How long accepting rests when the process or the machine is out of descriptors or memory."""

FAILURES: Final = (Exception, asyncio.CancelledError)
"""What ends one connection and no more. asyncio's cancellation means nothing here and is no ``Exception``; code that is
at home in both worlds, as Quart is, must not bring the process down with it."""

LOOK_AFTER_CLOSED: Final = 64
"""How many connections of a door are closed before Python looks for cycles among what is young. What a connection
leaves in cycles (tracebacks of its cancelled tasks, a framework's request with its body) may hold up to a whole body,
and the collector counts objects, not bytes. It takes 14 ms for each
200,000 objects that live and came since the last look: each is looked at once, as the collector itself would later."""
_YOUNG: Final = 1
"""The generation that is looked at: what is older are records, which live long."""

_MS_PER_S: Final = 1_000

# What accept(2) reports of the machine: it may pass, and until then another try at once would only spin.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# What accept(2) reports of a connection that died before it was taken: the next one may be fine.
_CONNECTION_LOST: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.EPERM,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
    }
)

_log = logging.getLogger(__name__)

Handler = Callable[[trio.abc.Stream], Awaitable[None]]


class Listener(Protocol):
    """What the accept loop needs of a listening socket."""

    @property
    def address(self) -> str:
        """The address really bound: ``127.0.0.1:8787``, ``[::1]:8787`` or ``unix:/path``."""

    async def accept(self) -> trio.abc.Stream:
        """The next connection. Raises: OSError as accept(2) does; trio.ClosedResourceError once closed."""

    def close(self) -> None:
        """Stops accepting, at once and for good; harmless when repeated."""


class AcceptObserver:
    """What happens at the door; every method is empty, and ``listener`` is the listener's address."""

    def connection_opened(self, listener: str) -> None:
        """A connection was accepted and goes to its handler."""

    def connection_closed(self, listener: str) -> None:
        """The handler of a connection is done with it, whatever the reason."""

    def connection_refused(self, listener: str) -> None:
        """A connection came while ``connections_max`` were open, and was closed."""

    def accept_failed(self, listener: str, error: OSError) -> None:
        """accept(2) failed; the loop goes on."""

    def connection_failed(self, listener: str, error: BaseException) -> None:
        """A handler broke with ``error``, a bug of ours or of a library; its connection was closed."""


@dataclass(frozen=True, slots=True)
class AcceptLimits:
    """The bounds of one accept loop.

    Attributes:
        connections_max: How many connections may be open at once, over all listeners of the call.
        backoff_ms: The rest after accept(2) ran out of descriptors or memory, milliseconds.
    """

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    backoff_ms: int = ACCEPT_BACKOFF_MS


async def guard_connection(stream: trio.abc.Stream, handle: Handler, listener: str, observer: AcceptObserver) -> None:
    """Runs ``handle`` for one connection, so that whatever it raises ends that connection and nothing else.

    Only cancellation, and what is meant to end the process (KeyboardInterrupt, SystemExit), passes, also out of a
    group that mixes it with errors. The stream is closed in every case.
    """
    try:
        await handle(stream)
    except* FAILURES as errors:
        _log.error("a connection to %s failed and was closed", listener, exc_info=errors)
        observer.connection_failed(listener, errors)
    finally:
        await trio.aclose_forcefully(stream)


async def serve_listeners(
    listeners: Sequence[Listener],
    handle: Handler,
    *,
    limits: AcceptLimits | None = None,
    observer: AcceptObserver | None = None,
    refusal: bytes = b"",
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accepts on ``listeners`` until each is closed, then waits for the handlers still running.

    Args:
        listeners: Taken over: they are closed when this returns or is cancelled.
        handle: Called in a task of its own with each connection, under ``guard_connection``.
        limits: The bounds; None for the defaults.
        observer: Who is told; None for nobody.
        refusal: What a connection over ``connections_max`` is told before it is closed (not under TLS, where
            nothing can be said without a handshake).
        task_status: Started with the bound addresses, in order.
    """
    doorman = _Doorman(handle, limits or AcceptLimits(), observer or AcceptObserver(), refusal)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(doorman.accept_from, listener, nursery)
            task_status.started([listener.address for listener in listeners])
    finally:
        for listener in listeners:
            listener.close()


class _Doorman:
    """The accept loops of one ``serve_listeners`` call, and how many connections they have let in."""

    def __init__(self, handle: Handler, limits: AcceptLimits, observer: AcceptObserver, refusal: bytes) -> None:
        self._handle = handle
        self._limits = limits
        self._observer = observer
        self._refusal = refusal
        self._open = 0
        self._closed = 0

    async def accept_from(self, listener: Listener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                await self._rest(listener.address, error)
            else:
                await self._admit(stream, listener.address, nursery)

    async def _rest(self, address: str, error: OSError) -> None:
        if error.errno in _EXHAUSTED:
            _log.warning("accepting on %s rests for %d ms: %s", address, self._limits.backoff_ms, error)
            self._observer.accept_failed(address, error)
            await trio.sleep(self._limits.backoff_ms / _MS_PER_S)
        elif error.errno in _CONNECTION_LOST:
            self._observer.accept_failed(address, error)
            await trio.lowlevel.checkpoint()
        else:
            # The listening socket itself is broken: a bug here, and a door that is silently shut would hide it.
            raise error

    async def _admit(self, stream: trio.abc.Stream, address: str, nursery: trio.Nursery) -> None:
        if self._open >= self._limits.connections_max:
            # Told at once rather than left waiting: the caller can try again or elsewhere.
            self._observer.connection_refused(address)
            await self._turn_away(stream)
            return
        self._open += 1
        self._observer.connection_opened(address)
        nursery.start_soon(self._attend, stream, address)

    async def _turn_away(self, stream: trio.abc.Stream) -> None:
        if self._refusal and isinstance(stream, trio.SocketStream):
            # A fresh socket takes a few hundred bytes without waiting; one that does not must not hold up the loop.
            with contextlib.suppress(OSError), trio.move_on_after(self._limits.backoff_ms / _MS_PER_S):
                await stream.socket.send(self._refusal)
        await trio.aclose_forcefully(stream)

    async def _attend(self, stream: trio.abc.Stream, address: str) -> None:
        try:
            await guard_connection(stream, self._handle, address, self._observer)
        finally:
            self._open -= 1
            self._observer.connection_closed(address)
            self._closed += 1
            if self._closed % LOOK_AFTER_CLOSED == 0:
                gc.collect(_YOUNG)
