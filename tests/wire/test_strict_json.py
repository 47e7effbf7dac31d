"""Strict JSON: what is taken, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idemactor.core.fingerprint import Number
from idemactor.core.limits import VALUES_MAX
from idemactor.wire.strict_json import InvalidJSON, parse


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b" \t\r\n true \n", True),
        (b"false", False),
        (b'""', ""),
        (b'"\\u00e9\\ud83d\\ude00\\/\\b"', "é😀/\b"),
        ('"\u007f\u0080\ufeff\uffff😀"'.encode(), "\u007f\u0080\ufeff\uffff😀"),
        (b'"\\u0000"', "\x00"),
        (b'"\\\\ud800"', "\\ud800"),
        (b'"\\\\\\ud83d\\uDE00"', "\\😀"),
        (b"[]", []),
        (b"{}", {}),
        (b'{"":{"a":[1,[2]]},"b":null}', {"": {"a": [1, [2]]}, "b": None}),
        (b'{"a":1,"A":2,"e\xcc\x81":3,"\xc3\xa9":4}', {"a": 1, "A": 2, "e\u0301": 3, "é": 4}),
        (b'[{"a":1},{"a":1}]', [{"a": 1}, {"a": 1}]),
    ],
)
def test_values(data: bytes, value: object) -> None:
    assert parse(data) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"0", 0),
        (b"-1", -1),
        (b"999999999999999999", 10**18 - 1),
        (b"-999999999999999999", 1 - 10**18),
    ],
)
def test_small_integers_are_int(data: bytes, value: int) -> None:
    parsed = parse(data)
    assert type(parsed) is int
    assert parsed == value


@pytest.mark.parametrize(
    "literal",
    [
        "-0",
        "-0.0",
        "1.0",
        "1e3",
        "1E+3",
        "10e-1",
        "0.1000000000000000055511151231257827",
        "1000000000000000000",
        "-1000000000000000000",
        "12345678901234567890",
        "1e999999999",
        "9" * 5_000,
        "1." + "0" * 100_000,
    ],
)
def test_every_other_number_is_kept_as_it_was_written(literal: str) -> None:
    parsed = parse(f"[{literal}]".encode())[0]
    assert parsed == Number(literal)
    assert not isinstance(parsed, (int, float, str))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"1 2",
        b"{} {}",
        b"{}x",
        b"1\x00",
        b"nul",
        b"True",
        b"01",
        b"-01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"-",
        b"0x1",
        b"1_000",
        "１".encode(),
        b"NaN",
        b"[NaN]",
        b'{"a":Infinity}',
        b"-Infinity",
        b"nan",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b'{"a":1,}',
        b"{a:1}",
        b"{'a':1}",
        b"{1:2}",
        b'{"a" 1}',
        b'{"a"}',
        b"[1}",
        b"[",
        b'{"a":',
        b"]",
        b'"',
        b'"abc',
        b'"\\',
        b'"\\x"',
        b'"\\u12"',
        b'"\\u12g4"',
        b'"\\u 123"',
        b'"\\u+123"',
        b'"tab\there"',
        b'"line\n"',
        b'"\x00"',
        b"// c\n1",
        b"/**/1",
        b"\xa01",
        b"\x0c1",
        b"\xc2\xa01",
        b"\xe2\x80\xa81",
    ],
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        "{}".encode("utf-16-le"),
        "{}".encode("utf-32"),
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\xed\xa0\xbd\xed\xb8\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe9"',
    ],
    ids=repr,
)
def test_only_utf_8_without_a_mark(data: bytes) -> None:
    with pytest.raises(InvalidJSON):
        parse(data)


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(InvalidJSON, match="byte order mark"):
        parse(b"\xef\xbb\xbf{}")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"b":2,"\\u0061":3}',
        b'[0,{"x":{"a":1,"a":null}}]',
        b'{"":1,"":2}',
        b'{"\xc3\xa9":1,"\\u00E9":1}',
    ],
)
def test_a_member_named_twice_anywhere(data: bytes) -> None:
    with pytest.raises(InvalidJSON, match="twice"):
        parse(data)


@pytest.mark.parametrize(
    "data",
    [
        b'"\\ud800"',
        b'"\\uDFFF"',
        b'"\\ude00\\ud83d"',
        b'"\\ud83d\\\\ude00"',
        b'"\\ud83d \\ude00"',
        b'"\\ud83d\\ud83d\\ude00"',
        b'{"\\udbff":1}',
        b'{"a":[{"b":["\\udc00"]}]}',
        b'[{"\\ud83d\\ude00":1},{"a":{"\\ud800":null}}]',
    ],
)
def test_a_lone_surrogate_anywhere(data: bytes) -> None:
    with pytest.raises(InvalidJSON, match="surrogate"):
        parse(data)


@pytest.mark.parametrize(
    ("data", "member"),
    [
        (b'{"key":"k","key":"k"}', "key"),
        (b'{"payload":{"x":[{"y":1,"y":2}]},"key":"k"}', "payload"),
        (b'{"key":"\\ud800"}', "key"),
        (b'{"a":1,"outcome":{"headers":[["x","\\udc00"]]}}', "outcome"),
        (b'{"key":"k","payload":[-Infinity]}', "payload"),
        (b'{"key":"k","payload":"NaN","n":NaN}', "n"),
        (b'{"key":"k","n":' + b"9" * 10_000 + b',"key":NaN}', "key"),
        (b'{"key":1,"key":2} and more', None),
        (b'{"S3CRET":1,"S3CRET":2}', None),
        (b'{"\\ud800":1}', None),
        (b'[{"a":1,"a":2}]', None),
        (b'{"a":', None),
    ],
)
def test_which_member_it_is(data: bytes, member: str | None) -> None:
    with pytest.raises(InvalidJSON) as caught:
        parse(data)
    assert caught.value.member == member


@pytest.mark.parametrize("opened", ["[", '{"a":'])
@pytest.mark.parametrize("limit", [1, 2, 64])
def test_depth_counts_from_the_outermost(opened: str, limit: int) -> None:
    closed = {"[": "]", '{"a":': "}"}[opened]

    def nested(levels: int) -> bytes:
        return (opened * levels + "1" + closed * levels).encode()

    parse(nested(limit), max_depth=limit)
    with pytest.raises(InvalidJSON, match="deeper"):
        parse(nested(limit + 1), max_depth=limit)


def test_width_is_no_depth() -> None:
    assert parse(b"[" + b",".join([b'{"a":[]}'] * 1_000) + b"]", max_depth=3) == [{"a": []}] * 1_000


def test_brackets_within_strings_are_no_depth() -> None:
    text = '[[[{{{\\"[[[{{{' * 50
    assert parse(f'["{text}", "\\\\", "["]'.encode(), max_depth=1) == [text.replace("\\", ""), "\\", "["]


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b"[" * 100 + b'"' + b'\\"' * 500_000,
        b"[" * 100 + b'"' * 1_000_001,
        b"[" * 100 + b'"' + b"\\" * 1_000_001,
        b"[]" * 500_000,
        b"]" * 1_000_000 + b"[" * 1_000_000,
        b'"' + b"\\ud800" * 150_000 + b'"',
        b"-" * 1_000_000,
        b"[" + b"1," * 500_000,
    ],
    ids=range(10),
)
def test_hostile_bodies_are_refused(data: bytes) -> None:
    """No RecursionError, no MemoryError; and quadratic work on any of these would take minutes."""
    with pytest.raises(InvalidJSON):
        parse(data)


def test_digits_without_end_are_no_error_of_int() -> None:
    assert parse(b"9" * 1_000_000) == Number("9" * 1_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b'{"hunter2":1,"hunter2":2}',
        b'"hunter2',
        b"hunter2",
        b'"hunter2\\ud800"',
        b'["hunter2\xff"]',
        b'"hunter2\\h"',
        b'{"hunter2":NaN}',
        b"[" * 65 + b'"hunter2"' + b"]" * 65,
    ],
)
def test_a_refusal_never_quotes_the_body(data: bytes) -> None:
    with pytest.raises(InvalidJSON) as refusal:
        parse(data)
    assert "hunter2" not in str(refusal.value)
    assert str(refusal.value)
    assert refusal.value.__cause__ is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 10**18, 10**18 - 1) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.integers(0, 6))
@example(['[{\\"', {"]": "}"}], False, None, 2)
def test_what_json_writes_is_read_back(value: Any, ascii_only: bool, indent: int | None, limit: int) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert parse(data) == value
    if depth_of(value) <= limit:
        assert parse(data, max_depth=limit) == value
    else:
        with pytest.raises(InvalidJSON, match="deeper"):
            parse(data, max_depth=limit)


@given(st.text(alphabet=st.sampled_from('[]{}",:\\u0d81a1-.e \n'), max_size=30), st.integers(0, 3))
def test_whatever_comes_is_what_json_says_or_a_refusal(text: str, limit: int) -> None:
    """Stricter than the standard library, and never otherwise different from it."""
    try:
        value = parse(text.encode(), max_depth=limit)
    except InvalidJSON:
        return
    assert depth_of(value) <= limit
    assert json.dumps(value, default=lambda number: float(number.text)) == json.dumps(
        json.loads(text, parse_int=lambda digits: float(digits) if digits == "-0" else int(digits))
    )


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(InvalidJSON):
        parse(data)


BASE = b'{"a":[1,-0,1.5e3,"\\ud83d\\ude00",{"b":null,"c":true}],"d":"x\\\\\\"y","e":{}}'


@given(
    st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 4),
)
def test_mutated_documents_raise_nothing_else(changes: list[tuple[int, int]], limit: int) -> None:
    data = bytearray(BASE)
    for position, byte in changes:
        data[position] = byte
    with contextlib.suppress(InvalidJSON):
        assert depth_of(parse(bytes(data), max_depth=limit)) <= limit


def test_more_values_than_anybody_may_be_held_up_for_are_refused_before_any_is_built() -> None:
    assert len(parse(b"[" + b",".join([b"1"] * VALUES_MAX) + b"]")) == VALUES_MAX
    with pytest.raises(InvalidJSON, match="more than 100000 values"):
        parse(b"[" + b",".join([b"1"] * (VALUES_MAX + 1)) + b"]")
    with pytest.raises(InvalidJSON, match="more than 100000 values"):
        parse(b'{"payload":[' + b",".join([b"[]"] * (VALUES_MAX + 1)) + b"]}")


def test_commas_in_a_text_are_no_values() -> None:
    assert parse(b'{"body":"' + b"a,b\\n" * VALUES_MAX + b'"}')["body"].count(",") == VALUES_MAX


def test_what_is_wrong_is_said_without_stammering() -> None:
    with pytest.raises(InvalidJSON) as refusal:
        parse(b'{"a":"\x01"}')
    assert "at at" not in str(refusal.value)
