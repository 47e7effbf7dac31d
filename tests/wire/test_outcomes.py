"""Outcomes: out of shape is refused, and what is taken comes back byte for byte."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core import limits
from idemactor.core.record import Outcome
from idemactor.errors import InvalidRequest
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import OUTCOME, outcome_body

READ = {dialect: OUTCOME.reader("outcome", dialect) for dialect in Dialect}
both_dialects = pytest.mark.parametrize("dialect", list(Dialect))


@pytest.mark.parametrize(
    ("given_members", "outcome"),
    [
        ({"status": 200}, Outcome(200)),
        ({"status": 200, "headers": None, "body": None, "body_b64": None}, Outcome(200)),
        ({"status": 200, "headers": [], "body": ""}, Outcome(200)),
        ({"status": 100, "body": "\x00\u20ac\ufeff"}, Outcome(100, body="\x00\u20ac\ufeff".encode())),
        ({"status": 599, "body_b64": "AP8="}, Outcome(599, body=b"\x00\xff")),
        ({"status": 599, "body_b64": ""}, Outcome(599)),
        (
            {"status": 200, "headers": [["A", "1"], ["A", "2"], ["b", '\té, "']]},
            Outcome(200, (("A", "1"), ("A", "2"), ("b", '\té, "'))),
        ),
    ],
)
def test_json(given_members: dict[str, Any], outcome: Outcome) -> None:
    assert READ[Dialect.JSON](given_members) == outcome


@pytest.mark.parametrize(
    ("given_members", "outcome"),
    [
        ({"status": 200, "body": b"\x00\xff"}, Outcome(200, body=b"\x00\xff")),
        ({"status": 200, "body": "é"}, Outcome(200, body="é".encode())),
        # What an old client packed as raw bytes, as the frame reader hands it on.
        ({"status": 200, "body": "a\udcff"}, Outcome(200, body=b"a\xff")),
        ({"status": 200, "headers": [[b"A", "1"]], "body": None}, Outcome(200, (("A", "1"),))),
    ],
)
def test_msgpack(given_members: dict[str, Any], outcome: Outcome) -> None:
    assert READ[Dialect.MSGPACK](given_members) == outcome


@both_dialects
@pytest.mark.parametrize(
    "bad",
    [
        None,
        "text",
        7,
        [],
        {},
        {"status": None},
        {"body": "a"},
        {"status": 99},
        {"status": 600},
        {"status": "200"},
        {"status": True},
        {"status": 200.0},
        {"status": 200, "body": 1},
        {"status": 200, "body": []},
        {"status": 200, "omitted": True},
        {"status": 200, "Body": "a"},
    ],
)
def test_out_of_shape(bad: Any, dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READ[dialect](bad)
    assert caught.value.field == "outcome"


@both_dialects
@pytest.mark.parametrize(
    "headers",
    [
        {},
        "a",
        ["ab"],
        [["a"]],
        [["a", "b", "c"]],
        [[1, "b"]],
        [["a", 1]],
        [["a", None]],
        *([[name, "b"]] for name in ("", "a\n", "a b", "a:", " a", "a\t", "(a)", "é", "a/b", "a\x7f", "a\x85")),
        [["a", "b\r\nSet-Cookie: c"]],
        *([["A", "1"], ["a", f"b{control}c"]] for control in "\r\n\0\x0b\x01\x08\x0c\x1f\x7f\ud800"),
    ],
)
def test_headers_out_of_shape_are_named(headers: object, dialect: Dialect) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READ[dialect]({"status": 200, "headers": headers})
    assert caught.value.field == "outcome.headers"


@both_dialects
def test_any_token_and_any_value_of_a_field_are_taken(dialect: Dialect) -> None:
    pairs = [["!#$%&'*+.^_`|~0-9A-Za-z-", " \t\x80\xff€ "], ["x", ""]]
    expected = Outcome(200, (("!#$%&'*+.^_`|~0-9A-Za-z-", " \t\x80\xff€ "), ("x", "")))
    assert READ[dialect]({"status": 200, "headers": pairs}) == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"status": 200, "body": "a", "body_b64": "AA=="},
        {"status": 200, "body": "", "body_b64": ""},
        {"status": 200, "body": "\ud800"},
        {"status": 200, "body": b"a"},
        *(
            {"status": 200, "body_b64": text}
            for text in (
                "A",
                "AA",
                "AA=",
                "A===",
                "====",
                "AA==\n",
                " AA==",
                "A A=",
                "AP8_",
                "AA==AA==",
                "é",
                1,
                b"AA==",
            )
        ),
    ],
)
def test_out_of_shape_in_json(bad: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        READ[Dialect.JSON](bad)
    assert caught.value.field == "outcome"


def test_rpc_has_no_base64() -> None:
    with pytest.raises(InvalidRequest):
        READ[Dialect.MSGPACK]({"status": 200, "body_b64": "AA=="})


@both_dialects
def test_no_size_is_refused_here(dialect: Dialect) -> None:
    body = "x" * limits.OUTCOME_BODY_BYTES_MAX
    assert READ[dialect]({"status": 200, "body": body}) == Outcome(200, body=body.encode())


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (None, None),
        (Outcome(200), {"status": 200, "headers": [], "body": ""}),
        (Outcome(200, (("a", "b"),), "é\x00".encode()), {"status": 200, "headers": [["a", "b"]], "body": "é\x00"}),
        (Outcome(200, (), b"\xff"), {"status": 200, "headers": [], "body_b64": "/w=="}),
        (Outcome(200, omitted=True), {"status": 200, "headers": [], "omitted": True}),
    ],
)
def test_shown_in_json(outcome: Outcome | None, shown: dict[str, object] | None) -> None:
    assert outcome_body(outcome, Dialect.JSON) == shown


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (None, None),
        (Outcome(200, (("a", "b"),), b"text"), {"status": 200, "headers": [["a", "b"]], "body": b"text"}),
        (Outcome(200, omitted=True), {"status": 200, "headers": [], "omitted": True}),
    ],
)
def test_shown_in_msgpack(outcome: Outcome | None, shown: dict[str, object] | None) -> None:
    assert outcome_body(outcome, Dialect.MSGPACK) == shown


@given(st.binary(max_size=64), st.sampled_from(list(Dialect)))
def test_bytes_come_back_exactly(body: bytes, dialect: Dialect) -> None:
    member: dict[str, object] = {"body": body}
    if dialect is Dialect.JSON:
        member = {"body_b64": base64.b64encode(body).decode()}
    outcome = READ[dialect]({"status": 200, **member})
    assert outcome.body == body
    assert READ[dialect](outcome_body(outcome, dialect)) == outcome
