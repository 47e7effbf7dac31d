"""How a trace travels with a command: in the envelope's tag, since context variables do not reach a shard's task.

A door that traces wraps the envelope (``traced``); everybody between door and shard passes it on as it is, whoever
answers it ends the trace, and the shard tells a ``TurnTracer`` what its turns did for it. Who does not trace pays
nothing for it: an envelope is what it was, and a shard without a tracer asks a few questions a turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from idemactor.shard.mailbox import Answer, Envelope, Sink


class Call(Protocol):
    """One call that is traced, from its door to its answer."""

    def ended(self, answer: Answer) -> None:
        """It is answered. Must neither block nor raise."""

    def carrier(self) -> str:
        """Where the trace stands, as a ``traceparent`` (W3C Trace Context), for another process."""


class TurnTrace(Protocol):
    """What one turn of a shard does for the traced calls in it. No method may block or raise."""

    def put_back(self, envelopes: Sequence[Envelope]) -> None:
        """These are left to the next turn."""

    def decided(self) -> None:
        """Everything in the turn is decided."""

    def written(self, commands: int, sync_s: float | None) -> None:
        """It is durable; ``sync_s`` is what its sync took, None: there was nothing to write."""

    def failed(self, error: BaseException) -> None:
        """It could not be decided or written."""


class TurnTracer(Protocol):
    """Is told of a shard's turns."""

    def turn(self, shard: int, envelopes: Sequence[Envelope]) -> TurnTrace | None:
        """A turn begins with these; None: none of them is traced."""


class Traced:
    """The tag of a traced envelope: the trace, the tag that the door gave it, and when it was put into the mailbox."""

    __slots__ = ("call", "put_ns", "tag")

    def __init__(self, call: Call, tag: object) -> None:
        self.call = call
        self.tag = tag
        self.put_ns = time.time_ns()


class TracedSink:
    """Ends traces as their answers pass. Two of one sink are equal, so that its answers still leave together."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Sink) -> None:
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedSink) and other._inner is self._inner

    def __hash__(self) -> int:
        return id(self._inner)

    @property
    def closed(self) -> bool:
        """Whether the caller was seen to leave."""
        return self._inner.closed

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Pass the answers on, each under the tag that its door knows."""
        passed: list[tuple[object, Answer]] = []
        for tag, answer in answers:
            assert isinstance(tag, Traced)
            tag.call.ended(answer)
            passed.append((tag.tag, answer))
        self._inner.deliver(passed)


def traced(envelope: Envelope, call: Call) -> Envelope:
    """The same envelope with a trace that goes along."""
    return Envelope(envelope.command, TracedSink(envelope.sink), Traced(call, envelope.tag))
