"""An upstream and its connections, which are reused.

Everything that fails before the first byte of a request could have left is ``NotSent``: the effect surely did not
happen. Everything after that is ``Lost``: nobody knows. There is no third case.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import h11
import trio

from idemactor.gateway.proxy.call import Call, Link, NotSent, Outgoing, call_over
from idemactor.gateway.proxy.connecting import Connect, connector, why_not
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Origin

_MS_PER_S: Final = 1_000


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
        self._idle: list[Link] = []

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
            call = call_over(link, outgoing, reused=reused)
            try:
                yield call
            finally:
                keep = call.finish()
        finally:
            await self.give_back(link, keep=keep)

    def borrow(self) -> Link | None:
        """A used connection, with a place, without waiting for anything; None: ``call`` has to find one.

        Whoever gets it calls ``give_back`` in the end.
        """
        if not self._idle or self._slots.statistics().tasks_waiting:
            return None
        link = self._idle[-1]
        if link.idle_since <= self._oldest() or not link.is_quiet():
            return None
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            return None
        return self._idle.pop()

    async def give_back(self, link: Link, *, keep: bool) -> None:
        """The end of a request; ``keep``: the connection is good for another. Waits for nothing where it is."""
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

    async def _link(self, connect_ms: int, fresh: bool) -> tuple[Link, bool]:
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
            raise NotSent(f"the upstream cannot be reached: {why_not(error)}") from error

    async def _kept(self) -> Link | None:
        await self._close(self._stale())
        while self._idle:
            link = self._idle.pop()
            if link.is_quiet():
                return link
            await trio.aclose_forcefully(link.stream)
        return None

    def _stale(self) -> list[Link]:
        """The idle ones that are too old, taken out."""
        oldest = self._oldest()
        stale = [link for link in self._idle if link.idle_since <= oldest]
        self._idle = [link for link in self._idle if link.idle_since > oldest]
        return stale

    def _oldest(self) -> float:
        return trio.current_time() - self._limits.upstream_idle_ms / _MS_PER_S

    async def _open(self) -> Link:
        stream = await self._connect(self._origin)
        head_bytes_max = self._limits.answer_header_bytes_max
        return Link(stream, h11.Connection(h11.CLIENT, head_bytes_max), head_bytes_max=head_bytes_max)

    @staticmethod
    async def _close(links: list[Link]) -> None:
        for link in links:
            await trio.aclose_forcefully(link.stream)
