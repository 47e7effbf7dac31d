"""What a gateway that asks is told: leave to go on, or a refusal in the codes that it understands. Pure.

A refusal begins as what the **sender** should be told: the answer that is stored with the key, or the status by which
its source answers this result, with a problem as everywhere (RFC 9457). Then it is fitted to the gateway, which must
never take it for leave to go on:

=========================  ==========================================================================================
``deny``                   a refusal has
=========================  ==========================================================================================
a status                   that status, whatever it is about; a finished duplicate is told as a problem
left out                   its own status; a finished duplicate is 409
``answer``                 its own status; a finished duplicate is the stored answer, or the source's status for it
=========================  ==========================================================================================
"""

from __future__ import annotations

import re
from typing import Final, assert_never

from idemactor.core.commands import Accept
from idemactor.core.record import Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    Completed,
    InDoubt,
    InFlight,
    Mismatch,
    Overloaded,
    QuotaExceeded,
    Unavailable,
    Withdrawn,
)
from idemactor.core.told import in_doubt, in_flight
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.gateway.authorize import PROCEED_DEFAULT, RESULT_HEADER, Question
from idemactor.gateway.proxy.answers import CONTENTLESS
from idemactor.gateway.proxy.headers import REPLAYED, REPLAYED_MARK
from idemactor.gateway.source import Answers
from idemactor.server.http_answers import Told, problem_told, refused, told
from idemactor.wire.answers import Answer, body_of, detail_of, refusal_of, retry_after_s
from idemactor.wire.fields import Dialect
from idemactor.wire.problems import http_status_of_code

OPERATION_ID_HEADER: Final = "Idempotency-Operation-Id"
"""For the upstream: the operation that it is about to carry out."""
TAKEOVER_HEADER: Final = "Idempotency-Takeover"
"""For the upstream: whether an earlier attempt may already have had its effect, ``true`` or ``false``."""

RETRY_MS: Final = 1_000
"""When to ask again where the second step does not find any more what the first one decided on."""

_CONFLICT: Final = 409
_TRANSFORMED: Final = 203
"""Non-Authoritative Information (RFC 9110, section 15.3.4): a success that something on the way has altered."""
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?|")

_COMPLETED: Final = "completed"
_LOOKED_UP: Final = {
    _COMPLETED: Code.DUPLICATE,
    "duplicate": Code.DUPLICATE,
    "in_flight": Code.IN_FLIGHT,
    "in_doubt": Code.IN_DOUBT,
}
"""The results that the record of the key has more to say about, and how they are told when it is gone."""


def proceed_told(answer: Accepted, question: Question) -> Told:
    """Leave to go on, and what the gateway may tell the upstream."""
    headers = (
        (RESULT_HEADER, "accepted"),
        (OPERATION_ID_HEADER, answer.operation_id),
        (TAKEOVER_HEADER, str(answer.takeover).lower()),
    )
    return Told(question.proceed, "", b"", headers)


def refusal_told(answer: Answer, command: Accept, answers: Answers, question: Question | None) -> Told:
    """A refusal of the state table.

    Args:
        answers: How this sender is told each result.
        question: What the gateway understands; None: the sender itself is told.
    """
    shows_success = question is None or question.with_success
    if isinstance(answer, Completed) and not answer.rejected and shows_success:
        return _marked(_completed(answer, command, answers, question), _COMPLETED)
    refusal = refusal_of(answer)
    code = Code.DUPLICATE if refusal is None else refusal.code
    status = _fitted(_status(code, answers), question)
    members = body_of(answer, command, operator=False, dialect=Dialect.JSON)
    members.pop("outcome", None)
    found = problem_told(status, code, detail_of(answer), "", members, retry_after_s(answer))
    return _marked(found, _word(code) if refusal is not None else _COMPLETED)


def error_told(error: RequestError, path: str, answers: Answers, question: Question | None) -> Told:
    """A refusal of what never reached the state table."""
    return _marked(
        refused(error, path, _fitted(_status(error.code, answers), question)),
        _word(error.code),
    )


def verdict_code(word: str) -> Code | None:
    """The code of a result in a word, where the record of the key has more to say about it; else None."""
    return _LOOKED_UP.get(word)


def verdict_of_record(record: Record, word: str, now_ms: int) -> Completed | InFlight | InDoubt:
    """What a record says about a request that was refused a moment ago, with ``word``."""
    match record.state:
        case State.COMMITTED:
            assert record.committed_at is not None
            assert record.expires_at is not None
            rejected = word != _COMPLETED
            return Completed(record.operation_id, record.committed_at, record.expires_at, record.outcome, rejected)
        case State.PENDING:
            return in_flight(record, now_ms)
        case State.LAPSED | State.DOUBTED:
            return in_doubt(record)
        case _:
            assert_never(record.state)


def verdict_of_word(word: str, records_max: int) -> Mismatch | Withdrawn | QuotaExceeded | Overloaded | Unavailable:
    """What a result in a word says by itself.

    Raises:
        InvalidRequest: It is none that a refused request has.
    """
    match word:
        case "mismatch":
            return Mismatch()
        case "released":
            return Withdrawn()
        case "quota_exceeded":
            return QuotaExceeded(records_max)
        case "overloaded":
            return Overloaded(RETRY_MS)
        case "unavailable" | "invalid_request" | "unauthenticated" | "too_large":
            # Of the last three the request itself tells why, and it did a moment ago.
            return Unavailable(RETRY_MS)
        case _:
            raise InvalidRequest("the gateway does not say what was decided", field=RESULT_HEADER)


def gone(code: Code) -> RequestError:
    """What is told of a key whose record was there a moment ago."""
    return RequestError(code, "The key was refused a moment ago and is free by now.", retry_after_ms=RETRY_MS)


def _completed(answer: Completed, command: Accept, answers: Answers, question: Question | None) -> Told:
    """A finished duplicate as its sender should see it."""
    outcome = answer.outcome
    if outcome is not None and not outcome.omitted and outcome.status >= 200:
        return _replayed(outcome, _fitted(outcome.status, question))
    status = _fitted(answers.completed, question)
    members = body_of(answer, command, operator=False, dialect=Dialect.JSON)
    if status < 400:
        return told(members, status)
    del members["outcome"]
    return problem_told(status, Code.DUPLICATE, detail_of(answer), "", members)


def _replayed(outcome: Outcome, status: int) -> Told:
    media_type = ""
    kept = [REPLAYED_MARK]
    for name, value in outcome.headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            continue
        if name.lower() == "content-type":
            media_type = value
        elif name.lower() in REPLAYED:
            kept.append((name, value))
    if outcome.status in CONTENTLESS:
        return Told(status, "", b"", tuple(kept))
    return Told(status, media_type, outcome.body, tuple(kept))


def _marked(answer: Told, word: str) -> Told:
    has_content = answer.status not in CONTENTLESS
    media_type, body = (answer.media_type, answer.body) if has_content else ("", b"")
    return Told(answer.status, media_type, body, ((RESULT_HEADER, word), *answer.headers))


def _fitted(status: int, question: Question | None) -> int:
    """A refusal's status as the gateway has to have it: never one that lets the request through."""
    if question is None:
        return status
    if question.deny is not None:
        return question.deny
    if not 200 <= status < 300:
        return status
    if not question.with_success:
        return _CONFLICT
    if status != question.proceed:
        return status
    return _TRANSFORMED if question.proceed == PROCEED_DEFAULT else PROCEED_DEFAULT


def _status(code: Code, answers: Answers) -> int:
    return answers.status_of(code) or http_status_of_code(code)


def _word(code: Code) -> str:
    return code.removeprefix("IDEMPOTENCY_").lower()
