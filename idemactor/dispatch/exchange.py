"""One request to a destination, and its whole answer: what is sent, and the two ways in which that fails.

``NotSent``: nothing left, so nothing happened. ``Lost``: something may have, and no whole answer came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import trio

from idemactor.core.queries import TakenIntent
from idemactor.core.record import Outcome
from idemactor.dispatch.destination import Destination, StatusPage
from idemactor.dispatch.signing import Signer
from idemactor.gateway.proxy.headers import (
    ATTEMPT_HEADER,
    KEY_HEADER,
    TAKEOVER_MARK,
    Pairs,
    end_to_end,
    readable,
    replayable,
)
from idemactor.gateway.proxy.routes import CONNECT_MS_DEFAULT
from idemactor.gateway.proxy.upstream import AnswerHead, Call, Lost, NotSent, Outgoing, Upstream
from idemactor.gateway.proxy.verdict import READ_BYTES_MAX
from idemactor.observability.logs import log_event
from idemactor.wire.intent_headers import is_ours

BODY_BYTES_MAX: Final = READ_BYTES_MAX
"""What of an answer is kept at most: more no outcome may have, and no rule looks into."""
USER_AGENT: Final = "idemactor"
_MS_PER_S: Final = 1_000

_log = logging.getLogger(__name__)


class CutOff(NotSent):
    """Nothing was sent, because the relay itself stopped before that."""


class TimedOut(Lost):
    """It was given no whole answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        body: None: it is larger than ``BODY_BYTES_MAX``, and was read to its end.
    """

    status: int
    headers: Pairs
    body: bytes | None

    def header(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for known, value in self.headers if known.lower() == name]

    def outcome(self) -> Outcome:
        """What is kept of it: what describes the answer itself, as the reverse proxy keeps it."""
        if self.body is None:
            return Outcome(self.status, omitted=True)
        return Outcome(self.status, replayable(self.headers, frozenset()), self.body)


def delivery_of(taken: TakenIntent, destination: Destination, signer: Signer, authority: str, now_ms: int) -> Outgoing:
    """The request that delivers an intent: its body and its own fields, and what makes a repeat recognisable."""
    intent = taken.intent
    own = tuple(pair for pair in end_to_end(intent.headers) if not is_ours(pair[0]))
    content_type = (("Content-Type", intent.content_type),) if intent.content_type else ()
    marks: Pairs = ((KEY_HEADER, taken.operation_id), (ATTEMPT_HEADER, str(taken.attempt)))
    if taken.perhaps_sent:
        marks = (*marks, TAKEOVER_MARK)
    signed = signer.headers(taken.operation_id, intent.body, now_ms)
    pairs = (("Host", authority), *content_type, *_with_defaults(own), *marks, *signed)
    return Outgoing("POST", destination.endpoint.of(taken.operation_id), pairs, intent.body)


def question_of(operation_id: str, page: StatusPage, signer: Signer, authority: str, now_ms: int) -> Outgoing:
    """The request that asks what became of an operation; it is signed, with an empty body."""
    pairs = (("Host", authority), *_with_defaults(()), *signer.headers(operation_id, b"", now_ms))
    return Outgoing("GET", page.endpoint.of(operation_id), pairs, b"")


def _with_defaults(own: Pairs) -> Pairs:
    """With what a client says of itself, and no content coding that a rule about the body could not read."""
    names = {name.lower() for name, _ in own}
    defaults = (("User-Agent", USER_AGENT), ("Accept-Encoding", "identity"))
    return (*(pair for pair in defaults if pair[0].lower() not in names), *readable(own))


async def exchange(upstream: Upstream, outgoing: Outgoing, scope: trio.CancelScope, timeout_ms: int) -> Answer:
    """Send a request and read its answer to the end.

    Args:
        scope: Is not entered yet; whoever draws its deadline nearer cuts the request off.
        timeout_ms: The whole of it, from the connection on.

    Raises:
        NotSent: Nothing was sent.
        Lost: Something may have been, and no whole answer came in time, or ever.
    """
    ends_at = trio.current_time() + timeout_ms / _MS_PER_S
    scope.deadline = min(scope.deadline, ends_at)
    async with upstream.call(outgoing, connect_ms=min(CONNECT_MS_DEFAULT, timeout_ms)) as call:
        if scope.deadline <= trio.current_time() < ends_at:
            raise CutOff("the relay stopped before it was sent")
        if trio.current_time() >= ends_at:
            raise NotSent("there was no time left to send it once the connection was made")
        with scope:
            try:
                return await _answered(call)
            except (Lost, trio.Cancelled):
                raise
            except Exception as error:  # Whatever broke, something may have been sent.
                log_event(_log, logging.ERROR, "delivery_exchange_broke", error)
                raise Lost("the exchange with the destination broke") from error
        raise TimedOut("the destination did not answer in time")


async def _answered(call: Call) -> Answer:
    """Read the answer while the request may still be on its way out: it can come before all of that was read."""
    failed: Lost | None = None
    answer: Answer | None = None
    async with trio.open_nursery() as nursery:
        try:
            await call.send(nursery)
            answer = await _read(call)
        except Lost as error:
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    assert answer is not None
    return answer


async def _read(call: Call) -> Answer:
    head = await call.head(_unheard)
    kept: bytearray | None = bytearray()
    piece, ended = call.arrived()
    while True:
        if kept is not None:
            kept = kept + piece if len(kept) + len(piece) <= BODY_BYTES_MAX else None
        if ended:
            return Answer(head.status, head.headers, None if kept is None else bytes(kept))
        piece, ended = await call.more()


async def _unheard(_head: AnswerHead) -> None:
    """What comes before an answer is for nobody here."""
