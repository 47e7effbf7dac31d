"""Another worker, as this one sees it: the one connection between the two, and both directions of calls on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from idemactor.server.lane import Lane
from idemactor.server.outbox import Outbox
from idemactor.server.tracing import Tracing
from idemactor.shard.bell import Bell
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.workers.census import SharedCensus
from idemactor.workers.incoming import Incoming
from idemactor.workers.messages import (
    ASKED,
    COUNTS,
    HELLO,
    LEFT,
    QUESTION,
    REPORT,
    RUNG,
    SETTLED,
    STANDING,
    TOLD,
    Message,
    packer,
    unpacker,
)
from idemactor.workers.outgoing import Outgoing, refuse

WRITE_MS: Final = 10_000
"""How long another worker may take to read a piece of what it is sent; then it counts as dead."""

UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that another worker has not taken yet; with more, its callers are told ``overloaded``."""

_MS_PER_S: Final = 1_000

Standing = tuple[int, bool, bool]
"""Queue depth, whether quarantined, whether in memory."""


class Peer:
    """One other worker. While there is no connection to it, its keys are unavailable.

    Args:
        here: This worker's number.
        number: The other's.
        census: Learns how many keys the other has.
        report: This worker's metrics as text.
        bell: This worker's.
        tracing: This worker's; None: nobody follows calls.

    Attributes:
        up: An event that is set while the other is there.
        standings: How its shards stood when they were last asked, by number.
    """

    def __init__(
        self,
        here: int,
        number: int,
        census: SharedCensus,
        report: Callable[[], str],
        bell: Bell,
        tracing: Tracing | None = None,
    ) -> None:
        self.number = number
        self.up = trio.Event()
        self.standings: dict[int, Standing] = {}
        self._hello: Message = (HELLO, here)
        self._census = census
        self._report = report
        self._tracing = tracing
        self._bell = bell
        self._pack = packer()
        self._outgoing = Outgoing()
        self._unsent: list[bytes] = []
        self._writer: trio.lowlevel.Task | None = None
        self._outbox: Outbox | None = None
        self._talk: _Talk | None = None
        self._latest: _Talk | None = None
        self._changed = trio.Event()
        self._settled = False
        self._questions: dict[int, trio.MemorySendChannel[str]] = {}
        self._question = 0

    # ----------------------------------------------------------------------------------------------- for this worker

    def submit(self, shard: int, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Take calls for a shard of the other. Returns those that there was no room for."""
        outbox = self._outbox
        if outbox is None or not self.up.is_set():
            refuse(envelopes)
            return ()
        if outbox.waiting_bytes > UNSENT_BYTES_MAX:
            return envelopes
        taken, data = self._outgoing.take(shard, envelopes)
        self._put(data)
        return envelopes[taken:]

    def send(self, message: Message) -> None:
        """Send a message, or drop it where the other is away."""
        self._put(self._pack(message))

    def tell_departures(self) -> None:
        """Pass on which of the callers that wait at the other were seen to leave."""
        if self._outgoing.waiting:
            self._put(self._outgoing.departures())

    @property
    def waiting(self) -> int:
        """How many callers wait at the other."""
        return self._outgoing.waiting

    async def all_sent(self) -> None:
        """Wait until the other has taken everything, or is gone."""
        while self._outbox is not None and (self._unsent or self._outbox.waiting_bytes):
            self._changed = trio.Event()
            await self._changed.wait()

    async def settled(self) -> None:
        """Wait until the other has said that its proxy has nothing under way, or is gone."""
        # A connection is no sign of life: the listening socket of a dead worker takes them for the one to come.
        while self.up.is_set() and not self._settled:
            self._changed = trio.Event()
            await self._changed.wait()

    async def metrics(self, timeout_ms: int) -> str | None:
        """The other's metrics as text; None where it is away or does not say in time."""
        if not self.up.is_set():
            return None
        self._question += 1
        question = self._question
        sender, receiver = trio.open_memory_channel[str](1)
        self._questions[question] = sender
        self.send((QUESTION, question))
        try:
            with trio.move_on_after(timeout_ms / _MS_PER_S), contextlib.suppress(trio.EndOfChannel):
                return await receiver.receive()
            return None
        finally:
            self._questions.pop(question, None)

    # ----------------------------------------------------------------------------------------------- the conversation

    async def converse(self, stream: trio.SocketStream, router: Router, lane: Lane, preread: bytes = b"") -> None:
        """Serve a connection to its end; one that is still there, of a worker that is dead by now, ends first.

        Of several that wait for that, the latest is served; the others are closed.

        Args:
            stream: Is closed in the end.
            router: This worker's.
            lane: Reads the connection.
            preread: What was read of it already.
        """
        self._latest = talk = _Talk()
        try:
            # Several may wait here at once; were two to go on, the one that ends would take the other's outbox away.
            # Nor may one that is not the latest any more wake up after that, and end it.
            while self._talk is not None and self._latest is talk:
                self._talk.scope.cancel()
                await self._talk.over.wait()
            if self._latest is talk:
                self._talk = talk
                with talk.scope:
                    await self._serve(stream, router, lane, talk, preread)
        finally:
            if self._talk is talk:
                self._fall()
            await trio.aclose_forcefully(stream)
            talk.over.set()
            if self._talk is talk:
                self._talk = None

    async def _serve(self, stream: trio.SocketStream, router: Router, lane: Lane, talk: _Talk, preread: bytes) -> None:
        def changed() -> None:
            # One that is gone is read to the end all the same: what it answered before it went is worth having.
            if outbox.too_slow:
                talk.scope.cancel()
            self._changed.set()

        self._outbox = outbox = Outbox(stream, WRITE_MS, changed)
        incoming = Incoming(router, lane.route, self._put, lambda: outbox.waiting_bytes, self._tracing)
        reader = _Reader(lambda messages: self._take(messages, incoming))
        fd = stream.socket.fileno()
        self.send(self._hello)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.run)
                nursery.start_soon(self._write, outbox)
                reader.received(preread)
                lane.watch(fd, reader)
                await reader.over.wait()
                nursery.cancel_scope.cancel()
        finally:
            lane.leave(fd)
            incoming.closed = True
            # From here on nobody may write: the descriptor's number will soon be another connection's.
            outbox.give_up()

    def _put(self, data: bytes) -> None:
        """Send bytes, together with all others of this turn of the loop."""
        if self._outbox is None:
            return
        self._unsent.append(data)
        if self._writer is not None:
            writer, self._writer = self._writer, None
            trio.lowlevel.reschedule(writer)

    async def _write(self, outbox: Outbox) -> None:
        """One write for what everybody who ran in a turn of the loop had to say: calls and answers."""

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            if self._unsent:
                unsent, self._unsent = self._unsent, []
                outbox.put(b"".join(unsent))
                self._changed.set()
            self._writer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _take(self, messages: Sequence[Message], incoming: Incoming) -> None:
        """What one read brought: calls go to their shards together, and answers to their callers."""
        told: list[Message] = []
        for message in messages:
            kind = message[0]
            if kind == ASKED:
                incoming.asked(message)
            elif kind == TOLD:
                told.append(message)
            else:
                self._take_other(message, incoming)
        incoming.hand_over()
        if told:
            self._outgoing.told(told)

    def _take_other(self, message: Message, incoming: Incoming) -> None:
        match message:
            case (kind, call) if kind == LEFT:
                incoming.left(call)
            case (kind, shard, *standing) if kind == STANDING:
                depth, quarantined, in_memory = standing
                self.standings[shard] = (depth, quarantined, in_memory)
            case (kind, counts, whole) if kind == COUNTS:
                self._census.heard(self.number, counts, whole=whole)
            case (kind, question) if kind == QUESTION:
                self.send((REPORT, question, self._report()))
            case (kind, question, text) if kind == REPORT:
                channel = self._questions.get(question)
                if channel is not None:
                    channel.send_nowait(text)
            case (kind, namespace) if kind == RUNG:
                self._bell.hear(namespace)
            case (kind, _) if kind == SETTLED:
                self._settled = True
                self._changed.set()
            case (kind, _) if kind == HELLO:
                self.send((COUNTS, self._census.own(), True))
                self.up.set()
            case _:
                raise AssertionError(f"no message of ours: {message[0]}")

    def _fall(self) -> None:
        """The other is away."""
        self.up = trio.Event()
        self._settled = False
        self._outbox = None
        self._unsent = []
        self._changed.set()
        for channel in self._questions.values():
            channel.close()
        self._outgoing.abandon()


class _Reader:
    """What the lane reads for: bytes to messages."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self.over = trio.Event()
        self._take = take
        self._messages = unpacker()

    @property
    def whose(self) -> None:
        """No tenant's: it carries what all of them ask."""

    def received(self, data: bytes) -> None:
        self._messages.feed(data)
        self._take(self._messages)

    def left(self) -> None:
        """Nothing: the connection is never paused."""

    def ended(self) -> None:
        self.over.set()


class _Talk:
    """One connection's life: how to end it, and when it has ended."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.over = trio.Event()


Peers = Mapping[int, Peer]
"""The other workers by number."""
