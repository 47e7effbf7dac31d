"""The connections between the workers of a simulated server: the real protocol on simulated bytes.

Bytes of one direction arrive in order, late, and in pieces; where a wire breaks, some of what was under way is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import trio

from idemactor.server.lane import Lane
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.workers.incoming import Incoming
from idemactor.workers.peer import Peer, _Reader, _Talk
from tests.sim.history import Op


class End(trio.abc.AsyncResource):
    """One end of a wire: what ``Peer`` writes to in place of an outbox, and reads from in place of a socket.

    Attributes:
        calls: The ops that were sent from this end, by the id of their call.
        waiting_bytes: None ever wait.
    """

    waiting_bytes = 0

    def __init__(self, rng: Random) -> None:
        self.other = self
        self.broken = False
        self.calls: dict[object, Op] = {}
        self.gone = trio.Event()
        self._rng = rng
        self._arriving: deque[tuple[float, bytes]] = deque()
        self._wake = trio.Event()

    def put(self, data: bytes) -> None:
        """Send bytes on their way."""
        if self.broken or not data:
            return
        there = self.other._arriving
        cut = self._rng.randint(0, len(data)) if self._rng.random() < 0.2 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece:
                delay_s = self._rng.choice((0, 0, 0.0005, 0.002, 0.01))
                there.append((max(there[-1][0] if there else 0.0, trio.current_time() + delay_s), piece))
        self.other._wake.set()

    async def receive(self) -> bytes:
        """What comes next; nothing once the wire is broken and all that was not lost is read."""
        while not self._arriving:
            if self.broken:
                await trio.lowlevel.checkpoint()
                return b""
            self._wake = trio.Event()
            await self._wake.wait()
        at, piece = self._arriving[0]
        await trio.sleep(max(0, at - trio.current_time()))
        if self._arriving and self._arriving[0][1] is piece:
            self._arriving.popleft()
            return piece
        return await self.receive()

    def cut(self) -> None:
        """The wire breaks: of what is under way in both directions the later part is lost, or all, or nothing."""
        for end in (self, self.other):
            if not end.broken:
                end.broken = True
                kept = self._rng.randint(0, len(end._arriving))
                while len(end._arriving) > kept:
                    end._arriving.pop()
                end._wake.set()

    async def aclose(self) -> None:
        """Whoever used this end is done with it."""
        self.cut()
        self.gone.set()
        await trio.lowlevel.checkpoint()


def wire(rng: Random) -> tuple[End, End]:
    """Both ends of a new connection."""
    one, other = End(rng), End(rng)
    one.other, other.other = other, one
    return one, other


class SimIncoming(Incoming):
    """Knows, as no worker does, whose the calls are."""

    calls: dict[object, Op]


class SimPeer(Peer):
    """Another worker at the end of a simulated wire: everything but the sockets is as it is."""

    incoming_type = SimIncoming
    _end: End

    def submit(self, shard: int, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """As ever, and note which call is whose."""
        first = self._outgoing._next
        refused = super().submit(shard, envelopes)
        for call in range(first + 1, self._outgoing._next + 1):
            op = self._outgoing._open[call].sink
            if isinstance(op, Op):
                op.remote = True
                self._end.calls[call] = op
        return refused

    async def _serve(self, stream: Any, router: Router, lane: Lane, talk: _Talk, preread: bytes) -> None:
        del lane, talk, preread
        self._end = end = cast("End", stream)
        self._outbox = cast("Any", end)
        incoming = self.incoming_type(router, cast("Any", router.route), self._put, lambda: 0)
        incoming.calls = end.other.calls
        reader = _Reader(lambda messages: self._take(messages, incoming))
        self.send(self._hello)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, cast("Any", end))
                while data := await end.receive():
                    reader.received(data)
                nursery.cancel_scope.cancel()
        finally:
            incoming.closed = True


def op_of(envelope: Envelope) -> Op | None:
    """Whose call this is, also where another worker passed it on."""
    sink: Any = envelope.sink
    if isinstance(sink, Op):
        return sink
    calls: dict[object, Op] = getattr(getattr(sink, "_incoming", sink), "calls", {})
    return calls.get(envelope.tag)
