"""The connections of one worker with all others: one with each, made by the one of the higher number.

Also what is passed on every now and then, whatever the traffic: callers that left, and how many keys there are.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import trio

from idemactor.server.lane import READ_BYTES, Lane
from idemactor.shard.router import Router
from idemactor.workers import sockets
from idemactor.workers.census import SharedCensus
from idemactor.workers.messages import COUNTS, RUNG, SETTLED, unpacker
from idemactor.workers.peer import Peer

TICK_MS: Final = 10
"""How old the others' knowledge of keys and of callers that left may be, and the way between."""

TICK_WAITERS: Final = 500
"""For every so many callers that wait the tick is a millisecond longer: they are all looked at."""

MEETING_MS_MAX: Final = 2_000
"""How long a worker waits for the others before it serves without them."""

GREETING_MS_MAX: Final = 10_000
"""How long who connects may take to say who it is."""

FLUSH_MS_MAX: Final = 2_000
"""How long a worker that stops waits for the others to take its last answers."""

_MS_PER_S: Final = 1_000


class Mesh:
    """See above.

    Args:
        here: This worker's number.
        peers: The others.
        listener: Where they connect to.
        directory: Where their sockets are.
        router: This worker's.
        lane: Reads the connections; the mesh runs it.
        census: This worker's.
    """

    def __init__(
        self,
        here: int,
        peers: Mapping[int, Peer],
        listener: socket.socket,
        directory: Path,
        router: Router,
        lane: Lane,
        census: SharedCensus,
    ) -> None:
        self._here = here
        self._peers = peers
        self._listener = listener
        self._directory = directory
        self._router = router
        self._lane = lane
        self._census = census

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be connected as long as the body runs, which begins when all are (or ``MEETING_MS_MAX`` is over)."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._lane.run)
            nursery.start_soon(self._accept)
            nursery.start_soon(self._tick)
            for peer in self._peers.values():
                if peer.number < self._here:
                    nursery.start_soon(self._stay_connected, peer)
            with trio.move_on_after(MEETING_MS_MAX / _MS_PER_S):
                for peer in self._peers.values():
                    await peer.up.wait()
            yield
            with trio.move_on_after(FLUSH_MS_MAX / _MS_PER_S):
                for peer in self._peers.values():
                    await peer.all_sent()
            nursery.cancel_scope.cancel()

    async def all_settled(self) -> None:
        """Say that this worker's proxy has nothing under way any more, and wait for all others to say so."""
        for peer in self._peers.values():
            peer.send((SETTLED, self._here))
        for peer in self._peers.values():
            await peer.settled()

    def ring(self, namespace: str) -> None:
        """Ring the bell of all others."""
        for peer in self._peers.values():
            peer.send((RUNG, namespace))

    async def reports(self, timeout_ms: int) -> dict[int, str | None]:
        """The metrics of all others as text, None for one that does not say."""
        reports: dict[int, str | None] = {}

        async def ask(peer: Peer) -> None:
            reports[peer.number] = await peer.metrics(timeout_ms)

        async with trio.open_nursery() as nursery:
            for peer in self._peers.values():
                nursery.start_soon(ask, peer)
        return reports

    # ------------------------------------------------------------------------------------------------- connections

    async def _stay_connected(self, peer: Peer) -> None:
        while True:
            stream = await sockets.connect(self._directory, peer.number)
            await peer.converse(stream, self._router, self._lane)

    async def _accept(self) -> None:
        listener = trio.socket.from_stdlib_socket(self._listener)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    sock, _ = await listener.accept()
                except OSError:
                    # Out of descriptors, for instance: it may pass.
                    await trio.sleep(sockets.RETRY_MS / _MS_PER_S)
                else:
                    nursery.start_soon(self._greet, trio.SocketStream(sock))

    async def _greet(self, stream: trio.SocketStream) -> None:
        """Find out who connected."""
        data, number = b"", None
        with trio.move_on_after(GREETING_MS_MAX / _MS_PER_S):
            while number is None:
                try:
                    more = bytes(await stream.receive_some(READ_BYTES))
                except trio.BrokenResourceError:
                    break
                if not more:
                    break
                data += more
                messages = unpacker()
                messages.feed(data)
                number = next((message[1] for message in messages), None)
        if number is None:
            await trio.aclose_forcefully(stream)
        else:
            await self._peers[number].converse(stream, self._router, self._lane, data)

    # ------------------------------------------------------------------------------------------ every now and then

    async def _tick(self) -> None:
        while True:
            waiting = sum(peer.waiting for peer in self._peers.values())
            await trio.sleep((TICK_MS + waiting / TICK_WAITERS) / _MS_PER_S)
            counts = None
            if self._census.changed:
                counts = (COUNTS, self._census.own(self._census.changed), False)
                self._census.changed.clear()
            for peer in self._peers.values():
                peer.tell_departures()
                if counts is not None:
                    peer.send(counts)
