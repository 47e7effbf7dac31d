"""What this worker asks of another's shards: envelopes to messages, answers to those who wait for them.

A call that was sent and is not answered when its connection ends is answered ``unavailable``: what became of it is not
known, and nobody is told anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from idemactor.core.replies import Unavailable
from idemactor.shard.mailbox import Answer, Envelope, Sink, may_be_left
from idemactor.shard.tracing import Traced
from idemactor.wire.crossing import answer_of, command_data
from idemactor.workers.messages import ASKED, LEFT, Message, packer

OUTSTANDING_MAX: Final = 32_768
"""Calls that one worker may have open with another; one more is told ``overloaded``."""

UNAVAILABLE_RETRY_MS: Final = 100
"""When a caller may try again whose key's worker is away: one that died is back in about that time."""


class Outgoing:
    """The open calls to one other worker."""

    def __init__(self) -> None:
        self._pack = packer()
        self._next = 0
        self._open: dict[int, Envelope] = {}
        self._waiting: dict[int, Envelope] = {}

    @property
    def open(self) -> int:
        """How many calls are open."""
        return len(self._open)

    @property
    def waiting(self) -> int:
        """How many of them the other has to be told of when their callers leave."""
        return len(self._waiting)

    def take(self, shard: int, envelopes: Sequence[Envelope]) -> tuple[int, bytes]:
        """Take calls for a shard, as many as there is room for; returns how many, and the bytes to send."""
        taken = envelopes[: max(0, OUTSTANDING_MAX - len(self._open))]
        pack, opened, call = self._pack, self._open, self._next
        pieces: list[bytes] = []
        for envelope in taken:
            command = envelope.command
            call += 1
            tag = envelope.tag
            if type(tag) is Traced:
                pieces.append(pack((ASKED, call, shard, command_data(command), tag.call.carrier())))
            else:
                pieces.append(pack((ASKED, call, shard, command_data(command))))
            opened[call] = envelope
            if may_be_left(command):
                self._waiting[call] = envelope
        self._next = call
        return len(taken), b"".join(pieces)

    def told(self, messages: Iterable[Message]) -> None:
        """Hand out answers: one delivery for each sink that has any."""
        by_sink: dict[Sink, list[tuple[object, Answer]]] = {}
        waiting = self._waiting
        for _, call, data in messages:
            envelope = self._open.pop(call)
            if waiting:
                waiting.pop(call, None)
            by_sink.setdefault(envelope.sink, []).append((envelope.tag, answer_of(data)))
        _deliver(by_sink)

    def departures(self) -> bytes:
        """The bytes that say which callers have been seen to leave since the last time, of those who wait."""
        left = [call for call, envelope in self._waiting.items() if envelope.closed]
        for call in left:
            del self._waiting[call]
        return b"".join([self._pack((LEFT, call)) for call in left])

    def abandon(self) -> None:
        """The connection is gone: nobody knows what becomes of the open calls."""
        opened, self._open = self._open, {}
        self._waiting = {}
        refuse(opened.values())


def refuse(envelopes: Iterable[Envelope]) -> None:
    """Answer ``unavailable``."""
    by_sink: dict[Sink, list[tuple[object, Answer]]] = {}
    for envelope in envelopes:
        by_sink.setdefault(envelope.sink, []).append((envelope.tag, Unavailable(UNAVAILABLE_RETRY_MS)))
    _deliver(by_sink)


def _deliver(by_sink: dict[Sink, list[tuple[object, Answer]]]) -> None:
    for sink, answers in by_sink.items():
        sink.deliver(answers)
