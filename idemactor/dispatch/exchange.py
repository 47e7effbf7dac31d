"""One request to a destination, and its whole answer: what is sent, and the two ways in which that fails.

``NotSent``: nothing left, so nothing happened. ``Lost``: something may have, and no whole answer came.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

import trio

from idemactor.core.intent_headers import is_ours
from idemactor.core.queries import TakenIntent
from idemactor.core.record import Outcome
from idemactor.dispatch.destination import Destination, StatusPage
from idemactor.dispatch.plain_http import answer_start, request_bytes
from idemactor.dispatch.signing import Signer
from idemactor.gateway.proxy.call import AT_ONCE_BYTES, AnswerHead, Call, Link, Lost, NotSent, Outgoing
from idemactor.gateway.proxy.headers import (
    ATTEMPT_HEADER,
    KEY_HEADER,
    TAKEOVER_MARK,
    Pairs,
    end_to_end,
    readable,
    replayable,
)
from idemactor.gateway.proxy.routes import CONNECT_MS_DEFAULT, Origin
from idemactor.gateway.proxy.upstream import Upstream
from idemactor.gateway.proxy.verdict import READ_BYTES_MAX
from idemactor.observability.logs import log_event
from idemactor.server.tracing import TRACE_FIELDS, Attempt, path_of

BODY_BYTES_MAX: Final = READ_BYTES_MAX
"""What of an answer is kept at most: more no outcome may have, and no rule looks into."""
USER_AGENT: Final = "idemactor"
_KINDS_OF_INTENTS: Final = 64
"""For how many different sets of header fields it is remembered what is sent of them."""
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
    own = _own_fields(intent.content_type, intent.headers)
    marks: Pairs = ((KEY_HEADER, taken.operation_id), (ATTEMPT_HEADER, str(taken.attempt)))
    if taken.perhaps_sent:
        marks = (*marks, TAKEOVER_MARK)
    signed = signer.headers(taken.operation_id, intent.body, now_ms)
    pairs = (("Host", authority), *own, *marks, *signed)
    return Outgoing("POST", destination.endpoint.of(taken.operation_id), pairs, intent.body)


def attempt_of(namespace: str, taken: TakenIntent, origin: Origin, outgoing: Outgoing) -> Attempt:
    """What a trace tells of a delivery; it belongs to whatever the intent's own fields say."""
    own = [(name.lower(), value) for name, value in taken.intent.headers]
    parent = {name: values[0] for name in TRACE_FIELDS if len(values := [v for n, v in own if n == name]) == 1}
    return Attempt(
        namespace,
        taken.operation_id,
        taken.attempt,
        f"{origin.scheme}://{origin.authority}",
        origin.host or origin.unix,
        origin.port,
        path_of(outgoing.target),
        parent,
    )


@functools.lru_cache(_KINDS_OF_INTENTS)
def _own_fields(content_type: str, headers: Pairs) -> Pairs:
    """What of a request describes the intent: most intents of a namespace have the same."""
    own = tuple(pair for pair in end_to_end(headers) if not is_ours(pair[0]))
    return (*((("Content-Type", content_type),) if content_type else ()), *_with_defaults(own))


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
    request = _plain_request(outgoing)
    link = upstream.borrow() if request is not None else None
    if request is not None and link is not None:
        with scope:
            return await _whole(_over(upstream, link, outgoing, request))
        raise TimedOut("the destination did not answer in time")
    async with upstream.call(outgoing, connect_ms=min(CONNECT_MS_DEFAULT, timeout_ms)) as call:
        if scope.deadline <= trio.current_time() < ends_at:
            raise CutOff("the relay stopped before it was sent")
        if trio.current_time() >= ends_at:
            raise NotSent("there was no time left to send it once the connection was made")
        with scope:
            return await _whole(_answered(call))
        raise TimedOut("the destination did not answer in time")


async def _whole(answer: Awaitable[Answer]) -> Answer:
    try:
        return await answer
    except (Lost, trio.Cancelled):
        raise
    except Exception as error:  # Whatever broke, something may have been sent.
        log_event(_log, logging.ERROR, "delivery_exchange_broke", error)
        raise Lost("the exchange with the destination broke") from error


def _plain_request(outgoing: Outgoing) -> bytes | None:
    """The bytes of what goes out at once; None: it is large, or h11 has to say how it is sent."""
    is_plain = outgoing.method == "POST" and len(outgoing.body) < AT_ONCE_BYTES
    return request_bytes(outgoing) if is_plain else None


async def _over(upstream: Upstream, link: Link, outgoing: Outgoing, request: bytes) -> Answer:
    """A request over a connection that was used before."""
    keep = False
    try:
        answer, keep = await _exchanged(link, outgoing, request)
        return answer
    finally:
        await upstream.give_back(link, keep=keep)


async def _exchanged(link: Link, outgoing: Outgoing, request: bytes) -> tuple[Answer, bool]:
    """The answer, and whether the connection is good for another request."""
    # Where sending fails the destination may have answered all the same: that it wants no more, and why.
    sent = await link.send(request)
    data = await link.receive()
    start = answer_start(data)
    if start is None or start.ends_at - start.body_at > BODY_BYTES_MAX:
        call = Call(link, outgoing, reused=True)
        call.take_over(data, sent=sent)
        answer = await _read(call)
        return answer, call.finish()
    if len(data) < start.ends_at:
        data = await _rest(link, data, start.ends_at)
    answer = Answer(start.status, start.headers, data[start.body_at : start.ends_at])
    # Bytes behind it nobody asked for: whatever comes next over this connection could be no answer to what is sent.
    return answer, sent and len(data) == start.ends_at


async def _rest(link: Link, data: bytes, ends_at: int) -> bytes:
    whole = bytearray(data)
    while len(whole) < ends_at:
        piece = await link.receive()
        if not piece:
            raise Lost("the destination's answer ended early")
        whole += piece
    return bytes(whole)


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
