"""Another worker, as this one sees it: the one connection between the two, and both directions of calls on it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from idemactor.server.outbox import Outbox
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
    STANDING,
    TOLD,
    Message,
    packer,
    unpacker,
)
from idemactor.workers.outgoing import Outgoing, refuse

READ_BYTES: Final = 262_144
"""The most that is read from another worker at once: what a few hundred callers sent or wait for."""

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

    Attributes:
        up: An event that is set while the other is there.
        standings: How its shards stood when they were last asked, by number.
    """

    def __init__(self, here: int, number: int, census: SharedCensus, report: Callable[[], str]) -> None:
        self.number = number
        self.up = trio.Event()
        self.standings: dict[int, Standing] = {}
        self._hello: Message = (HELLO, here)
        self._census = census
        self._report = report
        self._pack = packer()
        self._outgoing = Outgoing()
        self._outbox: Outbox | None = None
        self._talk: _Talk | None = None
        self._changed = trio.Event()
        self._questions: dict[int, trio.MemorySendChannel[str]] = {}
        self._question = 0

    # ----------------------------------------------------------------------------------------------- for this worker

    def submit(self, shard: int, envelopes: Sequence[Envelope]) -> int:
        """Take calls for a shard of the other; they leave with ``flush``. Returns how many there was room for."""
        outbox = self._outbox
        if outbox is None or not self.up.is_set():
            refuse(envelopes)
            return len(envelopes)
        if outbox.waiting_bytes > UNSENT_BYTES_MAX:
            return 0
        return self._outgoing.take(shard, envelopes)

    def flush(self) -> None:
        """Send what was taken, in one write."""
        if self._outbox is not None:
            self._outbox.put(self._outgoing.unsent())

    def send(self, message: Message) -> None:
        """Send a message, or drop it where the other is away."""
        if self._outbox is not None:
            self._outbox.put(self._pack(message))

    def tell_departures(self) -> None:
        """Pass on which of the callers that wait at the other were seen to leave."""
        if self._outbox is not None and self._outgoing.waiting:
            self._outbox.put(self._outgoing.departures())

    @property
    def waiting(self) -> int:
        """How many callers wait at the other."""
        return self._outgoing.waiting

    async def all_sent(self) -> None:
        """Wait until the other has taken everything, or is gone."""
        while self._outbox is not None and self._outbox.waiting_bytes:
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

    async def converse(self, stream: trio.SocketStream, router: Router, preread: bytes = b"") -> None:
        """Serve a connection to its end; one that is still there, of a worker that is dead by now, ends first.

        Args:
            stream: Is closed in the end.
            router: This worker's.
            preread: What was read of it already.
        """
        if self._talk is not None:
            self._talk.scope.cancel()
            await self._talk.over.wait()
        self._talk = talk = _Talk()
        try:
            with talk.scope:
                await self._serve(stream, router, talk, preread)
        finally:
            self._fall()
            await trio.aclose_forcefully(stream)
            talk.over.set()
            if self._talk is talk:
                self._talk = None

    async def _serve(self, stream: trio.SocketStream, router: Router, talk: _Talk, preread: bytes) -> None:
        def changed() -> None:
            # One that is gone is read to the end all the same: what it answered before it went is worth having.
            if outbox.too_slow:
                talk.scope.cancel()
            self._changed.set()

        self._outbox = outbox = Outbox(stream, WRITE_MS, changed)
        incoming = Incoming(router, outbox.put, lambda: outbox.waiting_bytes)
        messages = unpacker()
        self.send(self._hello)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outbox.run)
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    data = preread or await stream.receive_some(READ_BYTES)
                    while data:
                        messages.feed(data)
                        self._take(messages, incoming)
                        data = await stream.receive_some(READ_BYTES)
                nursery.cancel_scope.cancel()
        finally:
            incoming.closed = True
            # From here on nobody may write: the descriptor's number will soon be another connection's.
            outbox.give_up()

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
            case (kind, counts) if kind == COUNTS:
                self._census.heard(self.number, counts)
            case (kind, question) if kind == QUESTION:
                self.send((REPORT, question, self._report()))
            case (kind, question, text) if kind == REPORT:
                channel = self._questions.get(question)
                if channel is not None:
                    channel.send_nowait(text)
            case (kind, _) if kind == HELLO:
                self.send((COUNTS, self._census.own()))
                self.up.set()
            case _:
                raise AssertionError(f"no message of ours: {message[0]}")

    def _fall(self) -> None:
        """The other is away."""
        self.up = trio.Event()
        self._outbox = None
        self._changed.set()
        for channel in self._questions.values():
            channel.close()
        self._outgoing.abandon()


class _Talk:
    """One connection's life: how to end it, and when it has ended."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.over = trio.Event()


Peers = Mapping[int, Peer]
"""The other workers by number."""
