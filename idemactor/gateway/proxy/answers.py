"""What the proxy answers by itself: refusals, and outcomes that are replayed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from idemactor.core.commands import Reserve
from idemactor.core.record import Outcome
from idemactor.core.replies import Completed
from idemactor.errors import Code, RequestError
from idemactor.gateway.proxy.headers import REPLAYED_MARK, Pairs, sendable
from idemactor.gateway.source import Answers
from idemactor.server.http_answers import Told, problem_told, refused, told
from idemactor.shard.mailbox import Answer
from idemactor.wire.answers import body_of
from idemactor.wire.outcomes import outcome_body
from idemactor.wire.problems import MEDIA_TYPE, problem
from idemactor.wire.refusals import detail_of, refusal_of, retry_after_s
from idemactor.wire.requests import Dialect

UNFRAMED: Final = frozenset({204, 304})
"""Statuses whose answers end with their head, whatever length that tells (RFC 9112, section 6.3)."""
RESET: Final = 205
"""The status whose answers have an end like all others, and nothing before it (RFC 9110, section 15.3.6)."""
CONTENTLESS: Final = UNFRAMED | {RESET}
"""Statuses whose answers have no content."""

_FINAL_FROM: Final = 200
_REFUSALS_FROM: Final = 400


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is complete; its length, its date and the connection's fields are added where it is written."""

    status: int
    headers: Pairs = ()
    body: bytes = b""
    close: bool = False

    @property
    def bodiless(self) -> bool:
        """Whether its status has neither a body nor a length (RFC 9110, sections 15.3.5 and 15.4.5)."""
        return self.status in UNFRAMED

    @property
    def content(self) -> bytes:
        """What is sent of its body: nothing where its status has no content."""
        return b"" if self.status in CONTENTLESS else self.body


def replay(answer: Completed, told_as: Answers) -> Whole:
    """The answer to a repeat of what was done: the stored one, byte for byte, or what there is to say without it."""
    outcome = answer.outcome
    if outcome is not None and not outcome.omitted and outcome.status >= _FINAL_FROM:
        return Whole(outcome.status, (*sendable(outcome.headers), REPLAYED_MARK), outcome.body)
    members: dict[str, object] = {"result": "completed", "proceed": False, "operation_id": answer.operation_id}
    members |= {"committed_at": answer.committed_at, "expires_at": answer.expires_at}
    members["outcome"] = outcome_body(outcome, Dialect.JSON)
    status = told_as.completed
    if status < _REFUSALS_FROM:
        return _whole(told(members, status), REPLAYED_MARK)
    # A sender that waits for the operation's own answer would take any other success for it.
    body = problem(status, Code.DUPLICATE, detail_of(answer), members=members)
    return _whole(told(body, status, MEDIA_TYPE), REPLAYED_MARK)


def stored(status: int, headers: Pairs, body: bytes | None) -> Outcome:
    """What is kept of an upstream's answer; ``body`` is None where it was too large."""
    return Outcome(status, omitted=True) if body is None else Outcome(status, headers, body)


def refusal(answer: Answer, command: Reserve, told_as: Answers) -> Whole:
    """The answer to a request that may not go on, by the status that its source wants to hear."""
    refused_as = refusal_of(answer)
    assert refused_as is not None
    status = told_as.status_of(refused_as.code) or refused_as.status
    members = body_of(answer, command, operator=False, dialect=Dialect.JSON)
    body = problem(status, refused_as.code, detail_of(answer), title=refused_as.title, members=members)
    retry_s = retry_after_s(answer)
    more = () if retry_s is None else (("Retry-After", str(retry_s)),)
    return _whole(told(body, status, MEDIA_TYPE), *more)


def not_sent(detail: str) -> Whole:
    """The upstream was not reached: nothing happened."""
    return upstream_failed(502, f"Nothing was sent: {detail}.", retry=True)


def in_doubt(status: int, detail: str, operation_id: str) -> Whole:
    """The upstream may have carried it out, and did not say so."""
    members = {"result": "in_doubt", "proceed": False, "operation_id": operation_id}
    return _whole(problem_told(status, Code.IN_DOUBT, f"It may have happened: {detail}.", "", members))


def upstream_failed(status: int, detail: str, *, retry: bool = False) -> Whole:
    """An upstream that gave no whole answer."""
    retry_s = 1 if retry else None
    return _whole(problem_told(status, Code.UPSTREAM_FAILED, detail, "", {"proceed": False}, retry_s))


def of_error(error: RequestError) -> Whole:
    """A request that was not asked about at all."""
    return _whole(refused(error, "/reserve"))


def of_status(status: int, code: Code, detail: str, *, close: bool = False, retry: bool = False) -> Whole:
    """A request that does not get as far as its route."""
    answer = problem_told(status, code, detail, "", {"proceed": False}, 1 if retry else None)
    return Whole(answer.status, (("Content-Type", answer.media_type), *answer.headers), answer.body, close)


def not_allowed(methods: Iterable[str]) -> Whole:
    """A method that a route does not take; ``methods`` are those that it does (RFC 9110, section 15.5.6)."""
    allowed = ", ".join(sorted(methods))
    detail = f"Only {allowed} can be verified here, and nothing else is let through."
    answer = problem_told(405, Code.METHOD_NOT_ALLOWED, detail, "", {"proceed": False})
    return _whole(answer, ("Allow", allowed))


def _whole(answer: Told, *more: tuple[str, str]) -> Whole:
    return Whole(answer.status, (("Content-Type", answer.media_type), *answer.headers, *more), answer.body)
