"""Mistakes that workers might make with what they ask of each other, planted on purpose: the simulator finds each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from idemactor.core.replies import Overloaded
from idemactor.shard.mailbox import Envelope
from idemactor.workers.messages import ASKED, HELLO, TOLD, Message
from idemactor.workers.outgoing import Outgoing
from tests.sim.wires import SimIncoming, SimPeer


class _AsksAgain(SimPeer):
    """Sends what was not answered once more when the other is back, as if that were harmless."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._shards: dict[Envelope, int] = {}
        self._again: list[Envelope] = []

    def submit(self, shard: int, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        self._shards.update(dict.fromkeys(envelopes, shard))
        return super().submit(shard, envelopes)

    def _fall(self) -> None:
        self._again += self._outgoing._open.values()
        self._outgoing._open, self._outgoing._waiting = {}, {}
        super()._fall()

    def _take_other(self, message: Message, incoming: Any) -> None:
        super()._take_other(message, incoming)
        if message[0] == HELLO:
            again, self._again = self._again, []
            for envelope in again:
                self.submit(self._shards[envelope], [envelope])


class _SaysNothingHappened(Outgoing):
    """Takes a call whose answer was lost for one that was never made."""

    def abandon(self) -> None:
        opened, self._open, self._waiting = self._open, {}, {}
        for envelope in opened.values():
            envelope.sink.deliver([(envelope.tag, Overloaded(1))])


class _TakesLostForUntold(SimPeer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outgoing = _SaysNothingHappened()


class _Undead(SimIncoming):
    """Goes on answering what a connection asked that is no more, on the one that came after it."""

    @property
    def closed(self) -> bool:
        return False

    @closed.setter
    def closed(self, _closed: bool) -> None:
        """Never."""


class _AnswersTheDead(SimPeer):
    incoming_type = _Undead


class _ForgetsOpenCalls(Outgoing):
    """Leaves those who wait for the other without a word when it dies."""

    def abandon(self) -> None:
        self._open, self._waiting = {}, {}


class _LeavesThemWaiting(SimPeer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outgoing = _ForgetsOpenCalls()


class _AsksTwice(SimPeer):
    """Passes a call on twice, for good measure; the second answer is thrown away."""

    def _put(self, data: bytes) -> None:
        super()._put(data)
        if len(data) > 2 and data[1] == ASKED:
            super()._put(data)

    def _take(self, messages: Any, incoming: Any) -> None:
        known = self._outgoing._open
        told: set[int] = set()
        kept = []
        for message in messages:
            if message[0] != TOLD or (message[1] in known and message[1] not in told):
                kept.append(message)
                if message[0] == TOLD:
                    told.add(message[1])
        super()._take(kept, incoming)


PLANTED_WORKERS: Final[dict[str, type[SimPeer]]] = {
    "calls asked again of a worker that came back": _AsksAgain,
    "calls of a worker that died told as never made": _TakesLostForUntold,
    "answers for a connection that is no more": _AnswersTheDead,
    "callers of a worker that died left waiting": _LeavesThemWaiting,
    "calls between workers made twice": _AsksTwice,
}
