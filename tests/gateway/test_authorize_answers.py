"""What a gateway is told: no refusal ever has the status that lets a request through."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from idemactor.core.commands import Accept
from idemactor.core.keys import Identity
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
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.gateway.authorize import Question
from idemactor.gateway.authorize_answers import (
    error_told,
    gone,
    proceed_told,
    refusal_told,
    verdict_code,
    verdict_of_record,
    verdict_of_word,
)
from idemactor.gateway.source import Answers
from idemactor.server.http_answers import Told
from idemactor.wire.answers import Answer

COMMAND = Accept(Identity("acme", "orders", "k"))
OPERATION = "018bcfe5-6800-726b-b2a7-4de452e6b438"
OTHERS: tuple[Answer, ...] = (
    Completed(OPERATION, 1, 2, None, True),
    InFlight(1, None, 1, 2, 1),
    InDoubt(1, OPERATION, None, 1, 2, None),
    Mismatch(),
    Withdrawn(),
    QuotaExceeded(1),
    Overloaded(1),
    Unavailable(1),
)
QUESTIONS = [
    Question(proceed=proceed, deny=deny, with_success=with_success)
    for proceed in (200, 201, 203, 204, 299)
    for deny, with_success in ((None, False), (None, True), (401, False), (403, False), (500, False))
]
SUCCESSES = (200, 201, 202, 203, 204, 205, 206, 299)


def completed(status: int, *headers: tuple[str, str], body: bytes = b"body", omitted: bool = False) -> Completed:
    return Completed(OPERATION, 1, 2, Outcome(status, headers, body, omitted), False)


def answers_of(status: int) -> Answers:
    return Answers(**{field.name: status for field in fields(Answers)})


def headers_of(told: Told) -> dict[str, str]:
    return {name.lower(): value for name, value in told.headers}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_refusal_never_lets_a_request_through(question: Question) -> None:
    told = []
    for status in (*SUCCESSES, 302, 409, 503):
        answers = answers_of(status)
        stored = (completed(status), completed(status, omitted=True), Completed(OPERATION, 1, 2, None, False))
        told += [refusal_told(answer, COMMAND, answers, question) for answer in (*OTHERS, *stored)]
        told += [error_told(RequestError(code, "Why."), "/v1/a/authorize", answers, question) for code in Code]
    for answer in told:
        assert answer.status != question.proceed
        if question.deny is not None:
            assert answer.status == question.deny
        elif not question.with_success:
            assert not 200 <= answer.status < 300
        if answer.media_type == "application/problem+json":
            problem = json.loads(answer.body)
            assert (problem["status"], problem["proceed"]) == (answer.status, False)


@pytest.mark.parametrize("takeover", [False, True])
def test_leave_to_go_on(takeover: bool) -> None:
    told = proceed_told(Accepted(OPERATION, 2 if takeover else 1, 9, False), Question(proceed=204))
    assert (told.status, told.media_type, told.body) == (204, "", b"")
    assert headers_of(told) == {
        "x-idemactor-result": "accepted",
        "idempotency-operation-id": OPERATION,
        "idempotency-takeover": str(takeover).lower(),
    }


def test_words() -> None:
    def word(answer: Answer) -> str:
        return headers_of(refusal_told(answer, COMMAND, Answers(), Question()))["x-idemactor-result"]

    found = [word(answer) for answer in OTHERS]
    assert found == [
        "duplicate",
        "in_flight",
        "in_doubt",
        "mismatch",
        "released",
        "quota_exceeded",
        "overloaded",
        "unavailable",
    ]
    assert word(completed(201)) == "completed"
    for answer, said in zip(OTHERS, found, strict=True):
        # The second step makes of each word what the first one had.
        if verdict_code(said) is None:
            assert type(verdict_of_word(said, 1)) is type(answer)
    assert verdict_code("completed") is Code.DUPLICATE
    for none in ("accepted", "", "IN_FLIGHT", "In_flight"):
        with pytest.raises(InvalidRequest):
            verdict_of_word(none, 1)


def test_the_sender_itself_is_told_as_its_source_says() -> None:
    answers = Answers(completed=202, in_flight=425, in_doubt=500, mismatch=409, unavailable=429)
    statuses = [refusal_told(answer, COMMAND, answers, None).status for answer in OTHERS]
    assert statuses == [409, 425, 500, 409, 409, 429, 429, 429]
    assert refusal_told(Completed(OPERATION, 1, 2, None, False), COMMAND, answers, None).status == 202
    assert refusal_told(completed(200), COMMAND, answers, None).status == 200
    # What is left of an answer that was too large is no answer.
    assert refusal_told(completed(200, omitted=True), COMMAND, answers, None).status == 202


def test_a_stored_answer_comes_back_byte_by_byte() -> None:
    stored = completed(
        200,
        ("Content-Type", "application/json"),
        ("Content-Encoding", "gzip"),
        ("Link", "<a>"),
        ("link", "<b>"),
        ("Set-Cookie", "s=1"),
        ("Connection", "close"),
        ("Authorization", "Bearer x"),
        ("Retry-After", "5"),
        ("Etag", "\x01"),
        ("Location", " /a"),
        ("Vary", "ä"),
        ("Allow", ""),
        body=b"\x1f\x8b\x00",
    )
    told = refusal_told(stored, COMMAND, Answers(), None)
    assert (told.status, told.media_type, told.body) == (200, "application/json", b"\x1f\x8b\x00")
    assert told.headers == (
        ("X-Idemactor-Result", "completed"),
        ("Idempotent-Replayed", "true"),
        ("Content-Encoding", "gzip"),
        ("Link", "<a>"),
        ("link", "<b>"),
        ("Retry-After", "5"),
        ("Allow", ""),
    )


@pytest.mark.parametrize("status", [204, 205, 304])
def test_what_has_no_content_is_told_without(status: int) -> None:
    answers = answers_of(status)
    asked = Question(proceed=201, with_success=True)
    for question in (asked, None):
        told = [refusal_told(completed(status), COMMAND, answers, question)]
        told += [refusal_told(answer, COMMAND, answers, question) for answer in (*OTHERS, completed(200, omitted=True))]
        told.append(error_told(RequestError(Code.IN_FLIGHT, "Why."), "/v1/a/authorize", answers, question))
        for answer in told:
            assert answer.status != status or (answer.media_type, answer.body) == ("", b"")
        assert told[0].status == told[-1].status == status


def test_what_a_record_says() -> None:
    record = Record(State.COMMITTED, 1, 7, OPERATION, 1, 1, committed_at=2, expires_at=9, outcome=Outcome(201))
    assert verdict_of_record(record, "completed", 3) == Completed(OPERATION, 2, 9, Outcome(201), False)
    assert verdict_of_record(record, "duplicate", 3) == Completed(OPERATION, 2, 9, Outcome(201), True)
    # One that was refused for who held it is not told what came of that: its payload may be another.
    assert verdict_of_record(record, "in_flight", 3) == Completed(OPERATION, 2, 9, Outcome(201), True)
    held = Record(State.PENDING, 2, 7, OPERATION, 1, 3, lease_expires_at=8, holder="h")
    assert verdict_of_record(held, "in_flight", 5) == InFlight(2, "h", 3, 8, 3)
    assert verdict_of_record(held, "completed", 8) == InFlight(2, "h", 3, 8, 1)
    for state in (State.LAPSED, State.DOUBTED):
        lapsed = Record(state, 2, 7, OPERATION, 1, 3, lease_expires_at=8, holder="h", reason="r")
        assert verdict_of_record(lapsed, "in_doubt", 9) == InDoubt(2, OPERATION, "h", 3, 8, "r")


def test_a_key_that_is_gone_can_be_sent_again() -> None:
    error = gone(Code.IN_FLIGHT)
    told = error_told(error, "/v1/a/verdict", Answers(in_flight=425), None)
    assert (told.status, headers_of(told)["retry-after"]) == (425, "1")
