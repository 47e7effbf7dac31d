"""The Idempotency-Key header, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.keys import check_key
from idemactor.wire.idempotency_key import InvalidKey, parse_key_header

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "cases" / "keys.json").read_bytes())["cases"]


@pytest.mark.parametrize("case", CASES, ids=[repr(case["header"]) for case in CASES])
def test_the_rows_of_the_contract(case: dict[str, Any]) -> None:
    headers = case["header"] if isinstance(case["header"], list) else [case["header"]]
    values = [header.encode() for header in headers]
    if case["key"] is None:
        with pytest.raises(InvalidKey):
            parse_key_header(values)
    else:
        assert parse_key_header(values) == case["key"]


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b'"k"', "k"),
        (b' \t"k"\t ', "k"),
        (b'" k "', " k "),
        (b'"a,b;c"', "a,b;c"),
        (b'"\\\\\\""', '\\"'),
        (b'"k";a', "k"),
        (b'"k"; a', "k"),
        (b'"k";   a=1;  b', "k"),
        (b'"k";a;b=?1;c=?0', "k"),
        (b'"k";a=1;a=-2', "k"),
        (b'"k";a=1.5;b=-123456789012.125;c=123456789012345', "k"),
        (b'"k";a="x;y\\"z"', "k"),
        (b'"k";a=tok:en/1;*b=*', "k"),
        (b'"k";a=:aGk=:', "k"),
        (b'"k";a-b_c.d*0', "k"),
        (b"k\\k", "k\\k"),
        (b"it's~all!#$%&()*+-./:<=>?@[]^_`{|}", "it's~all!#$%&()*+-./:<=>?@[]^_`{|}"),
        (b"\tk\t", "k"),
        (b'"' + b"x" * 256 + b'"', "x" * 256),
        (b'"' + b"\\\\" * 256 + b'"', "\\" * 256),
        (b"y" * 256, "y" * 256),
    ],
)
def test_headers_that_name_a_key(header: bytes, key: str) -> None:
    assert parse_key_header([header]) == key


@pytest.mark.parametrize(
    "header",
    [
        b'"   "',
        b'"k',
        b'k"',
        b'a"b',
        b'"k"x',
        b'"k" x',
        b'"k""l"',
        b'"k" ;a',
        b'"k";',
        b'"k";;a',
        b'"k";A=1',
        b'"k";1=a',
        b'"k";a=',
        b'"k";a= 1',
        b'"k";a=1.',
        b'"k";a=1.2345',
        b'"k";a=1234567890123.1',
        b'"k";a=1234567890123456',
        b'"k";a=--1',
        b'"k";a=?2',
        b'"k";a="x',
        b'"k";a=:x',
        b'"k";a=@1',
        b'"k";a=(1)',
        b'"k";\ta',
        b'"k"\x00',
        b'"\\',
        b'"a\\"',
        b'"tab\there"',
        b'"\x7f"',
        b'"\xc3\xa9"',
        b'"k";a="\xc3\xa9"',
        b"\xc3\xa9",
        b"a\x7fb",
        b"a\tb",
        b"a;b",
        b"a\nb",
        b"k\r",
        b"'k', 'l'",
        b"\x00",
        b"\x0b",
        b'"' + b"x" * 257 + b'"',
        b"y" * 257,
    ],
)
def test_headers_that_are_refused(header: bytes) -> None:
    with pytest.raises(InvalidKey):
        parse_key_header([header])


def test_no_header_and_two_headers_are_refused() -> None:
    for values in ([], [b"k", b"k"], [b'"k"', b"k"], [b"", b"k"]):
        with pytest.raises(InvalidKey, match="exactly once"):
            parse_key_header(values)


def test_a_refusal_never_quotes_the_header() -> None:
    with pytest.raises(InvalidKey) as refusal:
        parse_key_header([b'"hunter2'])
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    "header",
    [
        b'"' + b"\\" * 500_001,
        b'"' + b'\\"' * 500_000,
        b'"k"' + b";a" * 300_000 + b"!",
        b'"k";a="' + b"x" * 1_000_000,
        b'"k";' + b" " * 1_000_000,
        b'"k";a=' + b"1" * 1_000_000,
        b'"k";a=' + b"t" * 1_000_000 + b"(",
        b"x" * 1_000_000 + b",",
        b" " * 1_000_000 + b'"',
    ],
    ids=range(9),
)
def test_hostile_headers_are_refused_in_linear_time(header: bytes) -> None:
    """Quadratic matching of any of these would take minutes."""
    with pytest.raises(InvalidKey):
        parse_key_header([header])


PRINTABLE = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=256)


@given(PRINTABLE.filter(lambda key: not key.isspace()))
def test_every_printable_key_travels_as_a_string(key: str) -> None:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_key_header([f'"{escaped}"'.encode()]) == key


@given(PRINTABLE.filter(lambda key: not set(key) & set(' ",;')))
def test_every_visible_key_travels_bare(key: str) -> None:
    assert parse_key_header([key.encode()]) == key
    assert parse_key_header([f'"{key}"'.replace("\\", "\\\\").encode()]) == key


@given(st.binary(max_size=40))
def test_whatever_comes_is_a_key_or_a_refusal(header: bytes) -> None:
    try:
        key = parse_key_header([header])
    except InvalidKey:
        return
    check_key(key)
    assert key.isascii()
    assert key.isprintable()
