"""Outcomes: out of shape is refused, and what is taken comes back byte for byte."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core import limits
from idemactor.core.record import HEADER_BYTES, Outcome
from idemactor.errors import InvalidRequest
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import OUTCOME, cost_in, outcome_body

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
        {"status": 200, "headers": {}},
        {"status": 200, "headers": "a"},
        {"status": 200, "headers": ["ab"]},
        {"status": 200, "headers": [["a"]]},
        {"status": 200, "headers": [["a", "b", "c"]]},
        {"status": 200, "headers": [[1, "b"]]},
        {"status": 200, "headers": [["a", 1]]},
        {"status": 200, "headers": [["a", None]]},
        {"status": 200, "headers": [["", "b"]]},
        {"status": 200, "headers": [["a\n", "b"]]},
        {"status": 200, "headers": [["a", "b\r\nSet-Cookie: c"]]},
        {"status": 200, "headers": [["a", "b\x00"]]},
        {"status": 200, "headers": [["a", "\ud800"]]},
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


# -------------------------------------------------------------------------------------------------------------- sizes

PAIRS = st.lists(st.tuples(st.text(), st.text()), max_size=3)
BODIES = st.one_of(st.binary(), st.text().map(str.encode), st.text(st.characters(max_codepoint=0x7F)).map(str.encode))


@given(BODIES, PAIRS)
def test_what_an_outcome_costs_is_what_json_makes_of_it(body: bytes, pairs: list[tuple[str, str]]) -> None:
    outcome = Outcome(200, tuple(pairs), body)
    shown = outcome_body(outcome, Dialect.JSON)
    assert shown is not None
    texts = [shown.get("body", shown.get("body_b64")), *(text for pair in pairs for text in pair)]
    written = sum(len(json.dumps(text)) - len('""') for text in texts)
    assert cost_in(Dialect.JSON, outcome) == written + HEADER_BYTES * len(pairs)
    assert cost_in(Dialect.MSGPACK, outcome) == outcome.cost() <= cost_in(Dialect.JSON, outcome)


@pytest.mark.parametrize(
    ("body", "size"),
    [(b"\x01", 6), (b'"', 2), (b"\n", 2), (b"\x7f", 6), ("é".encode(), 6), ("€".encode(), 6), ("😀".encode(), 12),
     (b"\xff", 4), (b"\xff" * 4, 8), (b"plain", 5)],
)  # fmt: skip
def test_what_bytes_become_in_json(body: bytes, size: int) -> None:
    assert cost_in(Dialect.JSON, Outcome(200, (), body)) == size


def test_what_is_omitted_costs_nothing() -> None:
    assert cost_in(Dialect.JSON, Outcome(200, omitted=True)) == 0
