"""Answers: exactly their members, their status, and what is an error over RPC."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core import limits
from idemactor.core.fingerprint import FingerprintRule
from idemactor.core.policy import Policy
from idemactor.core.queries import (
    Behind,
    Finding,
    IncidentsPage,
    Inspected,
    NoSuchIncident,
    Noted,
    OperationAt,
    RecordsPage,
    StuckPage,
    Taken,
)
from idemactor.core.record import State
from idemactor.core.replies import (
    Claimed,
    Completed,
    Found,
    InFlight,
    Lapsed,
    NotDue,
    NothingToForget,
    OutboxFull,
    Overloaded,
    QuotaExceeded,
    Reply,
    Reserved,
    Stale,
    Unavailable,
    Unsettled,
    Untold,
)
from idemactor.errors import Code
from idemactor.wire.answers import (
    Answer,
    body_of,
    detail_of,
    http_status_of_code,
    policy_body,
    problem,
    refusal_of,
    reserved_body,
    reserved_json,
    retry_after_s,
    status_of,
)
from idemactor.wire.fields import Dialect
from idemactor.wire.records import incident_body, record_body
from tests.wire.samples import COMMITTED, COMMITTED_MEMBERS, GET, INCIDENT, OPERATION, PENDING, RESERVE, SAMPLES, Sample

PAGES = (
    RecordsPage((), None),
    IncidentsPage((), None),
    StuckPage((), (), (), False),
    Inspected((), None, 0, 0),
    Claimed(7, 1, 20),
    NotDue(),
    Lapsed(),
    Taken((), (), (), None, more=False),
    Behind(()),
    OperationAt(None),
    Noted(),
)
"""What no single call is answered with: pages, and what is between a shard and who delivers."""

each_sample = pytest.mark.parametrize(
    "sample", SAMPLES, ids=[f"{s.op}-{type(s.answer).__name__}-{i}" for i, s in enumerate(SAMPLES)]
)


def test_there_is_a_sample_of_every_answer() -> None:
    shown = {type(sample.answer) for sample in SAMPLES} | {type(page) for page in PAGES}
    assert shown == {*get_args(Reply), *get_args(Finding)}


@each_sample
def test_members(sample: Sample) -> None:
    body = body_of(sample.answer, sample.command, operator=False, dialect=Dialect.JSON)
    assert body == sample.members
    assert {name: type(value) for name, value in body.items()} == {
        name: type(value) for name, value in sample.members.items()
    }


@each_sample
def test_the_members_over_rpc_differ_only_in_the_body_of_an_outcome(sample: Sample) -> None:
    def without_body(members: object) -> object:
        if not isinstance(members, dict):
            return members
        return {name: without_body(value) for name, value in members.items() if name not in ("body", "body_b64")}

    body = body_of(sample.answer, sample.command, operator=False, dialect=Dialect.MSGPACK)
    assert without_body(body) == without_body(sample.members)


@given(
    answer=st.builds(
        Reserved,
        key=st.text(min_size=1),
        token=st.integers(1),
        attempt=st.integers(1, 3),
        operation_id=st.uuids().map(str),
        reserved_at=st.integers(),
        lease_expires_at=st.integers(),
        repeated=st.booleans(),
    )
)
def test_a_reserve_put_together_is_what_an_encoder_makes_of_it(answer: Reserved) -> None:
    assert reserved_json(answer) == json.dumps(reserved_body(answer), separators=(",", ":")).encode()


@each_sample
def test_status_and_refusal(sample: Sample) -> None:
    assert status_of(sample.answer, sample.command) == sample.status
    refusal = refusal_of(sample.answer)
    assert (refusal is not None) == sample.refused
    if refusal is not None:
        assert refusal.code == sample.members["code"]
        assert refusal.status == sample.status == http_status_of_code(refusal.code)
        assert refusal.title
        errors = QuotaExceeded | OutboxFull | Overloaded | Unavailable | NothingToForget | Unsettled | NoSuchIncident
        assert refusal.error == isinstance(sample.answer, errors)
        # What never reached the table of states has a code and no result.
        assert refusal.error == ("result" not in sample.members)


@each_sample
def test_every_answer_to_who_asks_to_go_on_says_whether_to_proceed_and_no_other_does(sample: Sample) -> None:
    body = body_of(sample.answer, sample.command, operator=False, dialect=Dialect.JSON)
    if sample.op in ("reserve", "accept", "dispatch"):
        assert body["proceed"] is (sample.status == 201)
    else:
        assert "proceed" not in body


@each_sample
def test_details_are_sentences_that_quote_nothing(sample: Sample) -> None:
    marked = replace(sample.answer, key="MARK") if isinstance(sample.answer, Reserved | Found) else sample.answer
    detail = detail_of(marked)
    assert detail[0].isupper()
    assert detail.endswith(".")
    assert "MARK" not in detail


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_rendered_elsewhere(page: Answer) -> None:
    assert refusal_of(page) is None
    assert detail_of(page)
    with pytest.raises(TypeError):
        body_of(page, GET, operator=True, dialect=Dialect.JSON)


# ------------------------------------------------------------------------------------------------------------ records


def test_only_operators_see_the_token() -> None:
    found = Found("k", COMMITTED)
    seen = [body_of(found, GET, operator=operator, dialect=Dialect.JSON)["record"] for operator in (False, True)]
    assert seen == [COMMITTED_MEMBERS, COMMITTED_MEMBERS | {"token": 7}]


def test_a_request_id_is_never_revealed() -> None:
    assert PENDING.request_id is not None
    shown = record_body("k", PENDING, operator=True, with_outcome=True, dialect=Dialect.JSON)
    assert PENDING.request_id not in str(shown)


def test_lapsed_and_doubted_are_in_doubt() -> None:
    states = {
        state: record_body("k", replace(PENDING, state=state), True, False, Dialect.JSON)["state"] for state in State
    }
    assert states == {
        State.PENDING: "pending",
        State.LAPSED: "in_doubt",
        State.DOUBTED: "in_doubt",
        State.COMMITTED: "committed",
    }


def test_a_listing_leaves_the_outcome_out() -> None:
    shown = record_body("k", COMMITTED, operator=True, with_outcome=False, dialect=Dialect.JSON)
    assert shown == {name: value for name, value in COMMITTED_MEMBERS.items() if name != "outcome"} | {"token": 7}


def test_over_rpc_a_body_is_bin() -> None:
    record = body_of(Found("k", COMMITTED), GET, operator=False, dialect=Dialect.MSGPACK)["record"]
    assert record == COMMITTED_MEMBERS | {"outcome": {"status": 200, "headers": [], "body": b"\xff"}}
    done = Completed(OPERATION, 12, 99, COMMITTED.outcome, False)
    body = body_of(done, RESERVE, operator=False, dialect=Dialect.MSGPACK)
    assert body["outcome"] == {"status": 200, "headers": [], "body": b"\xff"}


def test_incidents() -> None:
    assert incident_body("2-9", INCIDENT, Dialect.JSON) == {
        "id": "2-9",
        "key": "k",
        "operation_id": OPERATION,
        "token": 7,
        "present_token": None,
        "at": 40,
        "outcome": {"status": 201, "headers": [["a", "b"]], "body": "late"},
    }


# ----------------------------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize(
    ("milliseconds", "seconds"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (4001, 5), (5000, 5), (86_400_000, 5)]
)
def test_retry_after(milliseconds: int, seconds: int) -> None:
    assert retry_after_s(InFlight(1, None, 0, milliseconds, milliseconds)) == seconds
    assert retry_after_s(Overloaded(milliseconds)) == seconds
    assert retry_after_s(Unavailable(milliseconds)) == seconds


def test_what_is_not_told_for_want_of_room_says_so() -> None:
    told = [detail_of(Overloaded(1, why)) for why in Untold]
    assert len(set(told)) == len(Untold)
    assert detail_of(Overloaded(1)).startswith("The command was not taken")
    assert all("ask again" in detail for detail in told[1:])


def test_nothing_else_says_when_to_try_again() -> None:
    others = [s.answer for s in SAMPLES if not isinstance(s.answer, InFlight | Overloaded | Unavailable)]
    assert {retry_after_s(answer) for answer in others} == {None}


STATUSES = {
    409: {
        Code.IN_FLIGHT,
        Code.DUPLICATE,
        Code.IN_DOUBT,
        Code.RELEASED,
        Code.STALE_TOKEN,
        Code.ALREADY_COMMITTED,
        Code.UNCANCELLABLE,
        Code.UNSETTLED,
    },
    404: {Code.UNKNOWN_KEY, Code.UNKNOWN_NAMESPACE, Code.NOT_FOUND},
    422: {Code.MISMATCH},
    400: {Code.INVALID_REQUEST},
    413: {Code.TOO_LARGE},
    415: {Code.UNSUPPORTED_MEDIA_TYPE},
    401: {Code.UNAUTHENTICATED, Code.BAD_SIGNATURE},
    403: {Code.FORBIDDEN},
    405: {Code.METHOD_NOT_ALLOWED},
    429: {Code.QUOTA_EXCEEDED},
    502: {Code.UPSTREAM_FAILED},
    503: {Code.OVERLOADED, Code.UNAVAILABLE},
}


def test_the_status_of_every_code() -> None:
    by_status: dict[int, set[Code]] = {}
    for code in Code:
        by_status.setdefault(http_status_of_code(code), set()).add(code)
    assert by_status == STATUSES


def test_problems() -> None:
    members = body_of(Stale(2), RESERVE, operator=False, dialect=Dialect.JSON)
    assert problem(409, Code.STALE_TOKEN, "Too late.", members=members) == {
        "type": "urn:idemactor:problem:stale-token",
        "title": "The token is stale",
        "status": 409,
        "detail": "Too late.",
        "code": "IDEMPOTENCY_STALE_TOKEN",
        "result": "stale",
        "attempt": 2,
        "proceed": False,
    }
    assert problem(500, Code.UNAVAILABLE, "d", title="t") == {
        "type": "urn:idemactor:problem:unavailable",
        "title": "t",
        "status": 500,
        "detail": "d",
        "code": "IDEMPOTENCY_UNAVAILABLE",
    }
    assert len({problem(400, code, "")["type"] for code in Code}) == len(Code)


# ------------------------------------------------------------------------------------------------------------- policy


def test_the_policy_has_the_settings_under_their_names() -> None:
    policy = Policy(ttl_ms=5, fingerprint=FingerprintRule(required=True, include=("/a",), exclude=("/b",)))
    body = policy_body("trade", policy)
    assert body.pop("namespace") == "trade"
    assert body.pop("fingerprint") == {
        "required": True,
        "include": ["/a"],
        "exclude": ["/b"],
        "rule": policy.fingerprint.rule_id,
    }
    assert body.pop("dispatch") == {
        "pushed": False,
        "downstream_dedups": True,
        "horizon_ms": 86_400_000,
        "intent_max_bytes": 262_144,
        "on_failure": "failed",
    }
    published = body.pop("limits")
    assert body == {
        "lease_ms": 300_000,
        "lease_total_max_ms": 86_400_000,
        "ttl_ms": 5,
        "unresolved_ttl_ms": 604_800_000,
        "on_lease_expiry": "retry",
        "on_doubt": "hold",
        "on_duplicate": "replay",
        "on_unavailable": "closed",
        "unavailable_after_ms": 2_000,
        "outcome_max_bytes": 65_536,
        "records_max": 10_000_000,
    }
    assert isinstance(published, dict)
    assert published["lease_ms_max"] == limits.LEASE_MS_MAX
    assert all(value == getattr(limits, name.upper()) for name, value in published.items())
