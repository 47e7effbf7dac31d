"""Fingerprints: equal exactly where the meaning is."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.fingerprint import (
    CALLER_RULE,
    Fingerprint,
    FingerprintRule,
    InvalidPayload,
    InvalidPointer,
    Number,
    canonical,
    canonical_number,
    contradict,
    fingerprint_of,
    parse_pointer,
)
from idemactor.wire.strict_json import InvalidJSON, parse

CASES = Path(__file__).parent.parent / "cases"
PAIRS: list[dict[str, Any]] = json.loads((CASES / "fingerprints.json").read_bytes())["pairs"]
EVERYTHING = FingerprintRule()


def digest(text: str, rule: FingerprintRule = EVERYTHING) -> str:
    return fingerprint_of(parse(text.encode()), rule).value


def excluding(*pointers: str) -> FingerprintRule:
    return FingerprintRule(exclude=pointers)


def including(*pointers: str) -> FingerprintRule:
    return FingerprintRule(include=pointers)


@pytest.mark.parametrize("pair", PAIRS, ids=[f"{pair['a']} and {pair['b']}" for pair in PAIRS])
def test_the_pairs_of_the_contract(pair: dict[str, Any]) -> None:
    first = digest(pair["a"])
    if pair.get("invalid"):
        with pytest.raises(InvalidJSON):
            digest(pair["b"])
    else:
        assert (digest(pair["b"]) == first) is pair["same"]


def test_the_digest_is_what_is_on_disk() -> None:
    """Stored with records: a change of the canonical form needs a new version, not a new number here."""
    payload = '{"symbol":"BTCUSDT","qty":1.0,"tags":["a",null,true,false],"é":-0.5e3,"z":{}}'
    assert digest(payload) == "v1:5242267ae8b10f89c8027fb495096feff5ddb411c7a88a1b15c5b6365e46aa80"
    assert EVERYTHING.rule_id == "v1"
    assert excluding("/sent_at", "/a~1b").rule_id == "v1:caa748673e99fc34"
    assert CALLER_RULE not in (EVERYTHING.rule_id, excluding("/a").rule_id)


def test_a_fingerprint_is_a_version_and_a_digest_with_its_rule() -> None:
    fingerprint = fingerprint_of({"a": 1}, EVERYTHING)
    version, _, hexadecimal = fingerprint.value.partition(":")
    assert version == "v1"
    assert len(bytes.fromhex(hexadecimal)) == 32
    assert fingerprint.rule == EVERYTHING.rule_id


@pytest.mark.parametrize(
    ("one", "other", "contradiction"),
    [
        ("source:stripe:aa", "source:stripe:aa", False),
        ("source:stripe:aa", "source:github:aa", True),
        ("source:stripe:aa", "source:stripe2:bb", True),
        # A setting of the source was changed, or a gateway left the body out.
        ("source:stripe:aa", "source:stripe:bb", False),
        ("source:stripe:aa", "source:stripe:aa;bodiless", False),
        ("source:stripe:aa;bodiless", "source:github:aa", True),
        ("source:stripe:aa", "v1", False),
        ("source:stripe:aa", CALLER_RULE, False),
        (CALLER_RULE, "v1", False),
    ],
)
def test_what_contradicts_what(one: str, other: str, contradiction: bool) -> None:
    for value in ("x", "y"):
        expected = value != "x" if one == other else contradiction
        assert contradict(Fingerprint("x", one), Fingerprint(value, other)) == expected
        assert contradict(Fingerprint(value, other), Fingerprint("x", one)) == expected


def test_fingerprints_and_rules_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Fingerprint("v1:00", "v1").value = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        EVERYTHING.required = True  # type: ignore[misc]


# Numbers


@pytest.mark.parametrize(
    ("literal", "form"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0e999999", "0"),
        ("1", "1e0"),
        ("1.0", "1e0"),
        ("1e0", "1e0"),
        ("10e-1", "1e0"),
        ("1E2", "1e2"),
        ("100", "1e2"),
        ("1e+2", "1e2"),
        ("-12.50", "-125e-1"),
        ("0.001", "1e-3"),
        ("12345678901234567890", "1234567890123456789e1"),
        ("0.1000000000000000055511151231257827", "1000000000000000055511151231257827e-34"),
        ("1e999999", "1e999999"),
        ("1e-999999", "1e-999999"),
        ("12e999999", "12e999999"),
        ("120e999999", "12e1000000"),
    ],
)
def test_the_canonical_form_of_a_number(literal: str, form: str) -> None:
    assert canonical_number(literal) == form


@pytest.mark.parametrize("literal", ["1e1000000", "1e-1000000", "0e1000000", "1e0000001", "1e" + "9" * 100_000])
def test_an_exponent_of_more_than_six_digits_is_invalid(literal: str) -> None:
    with pytest.raises(InvalidPayload, match="exponent"):
        canonical_number(literal)


@pytest.mark.parametrize("literal", ["nan", "inf", "-inf", "", "-", "1.", ".5", "+1", "１", "1 ", "0x1"])
def test_what_is_no_decimal_is_invalid(literal: str) -> None:
    with pytest.raises(InvalidPayload, match="decimal"):
        canonical_number(literal)


def test_a_number_of_a_million_digits_stays_text() -> None:
    assert digest("1" + "0" * 1_000_000) == digest("1" + "0" * 999_999 + "0.0")
    assert digest("0." + "0" * 1_000_000 + "1") != digest("0." + "0" * 999_999 + "1")


LITERALS = st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


def model_of(literal: str) -> tuple[int, tuple[int, ...], int]:
    """What a literal means, by decimal's exact constructor: sign, digits without trailing zeros, exponent."""
    sign, digits, exponent = Decimal(literal).as_tuple()
    assert isinstance(exponent, int)
    kept = list(digits)
    while len(kept) > 1 and kept[-1] == 0:
        kept.pop()
        exponent += 1
    return (0, (0,), 0) if kept == [0] else (sign, tuple(kept), exponent)


@given(LITERALS, LITERALS)
def test_numbers_are_equal_exactly_where_decimals_are(one: str, other: str) -> None:
    assert (canonical_number(one) == canonical_number(other)) == (model_of(one) == model_of(other))


@given(LITERALS)
def test_the_canonical_form_means_the_same_number(literal: str) -> None:
    assert Decimal(canonical_number(literal)) == Decimal(literal)


@given(LITERALS, st.integers(0, 30))
def test_another_spelling_is_the_same_number(literal: str, shift: int) -> None:
    sign, digits, exponent = Decimal(literal).as_tuple()
    assert isinstance(exponent, int)
    respelt = f"{'-' if sign else ''}{''.join(map(str, digits))}{'0' * shift}e{exponent - shift}"
    assert canonical_number(respelt) == canonical_number(literal)


@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_is_its_own_literal(number: int) -> None:
    assert canonical(number) == canonical(Number(str(number)))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_counts_as_its_shortest_decimal(number: float) -> None:
    assert canonical(number) == canonical(Number(repr(number)))
    assert Decimal(canonical_number(repr(number))) == Decimal(repr(number))


def test_numbers_are_no_text() -> None:
    assert not isinstance(Number("1"), (str, int))
    assert Number("1.0") == Number("1.0") != Number("1")
    assert Number("1") != "1"
    assert len({Number("1"), Number("1"), Number("2")}) == 2
    assert repr(Number("1.0")) == "Number('1.0')"


# MessagePack values


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"q": 1}, {"q": 1.0}),
        ({"q": 0.1}, {"q": Number("0.10")}),
        ({"q": -0.0}, {"q": 0}),
        ({"q": 1e16}, {"q": 10**16}),
        ({"q": 2**64 - 1}, {"q": Number("18446744073709551615")}),
        (b"", b""),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
    ],
)
def test_values_that_mean_the_same(one: object, other: object) -> None:
    assert fingerprint_of(one, EVERYTHING) == fingerprint_of(other, EVERYTHING)


DIFFERENT: list[object] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    "",
    "0",
    "1",
    "1e0",
    "null",
    "true",
    b"",
    b"1",
    b"a",
    "a",
    [],
    {},
    [None],
    [[]],
    [{}],
    [[], []],
    [1],
    [1, 1],
    [[1], 1],
    [[1, 1]],
    ["a", "b"],
    ["ab"],
    ["a1:b"],
    {"a": None},
    {"a": "b"},
    {"a": ["b"]},
    {"b": "a"},
    {"": None},
    {"a": {}, "b": 1},
    {"a": {"b": 1}},
    "s1:a",
    "é",
    "e\u0301",
    "\u212b",
    "\u00c5",
    "\x00",
]


def test_values_that_mean_something_else() -> None:
    forms = [canonical(value) for value in DIFFERENT]
    assert len(set(forms)) == len(forms)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
        "\ud800",
        "a\udfffb",
        {"\ud800": 1},
        {1: 2},
        {b"a": 2},
        {"a": 1, 2: 3},
        {None: 1},
        (1, 2),
        object(),
        {"a": [{"b": float("nan")}]},
        [Decimal(1)],
    ],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_values_without_a_meaning_are_invalid(value: object) -> None:
    with pytest.raises(InvalidPayload):
        fingerprint_of(value, EVERYTHING)
    with pytest.raises(InvalidPayload):
        fingerprint_of({"left_out": value}, excluding("/left_out"))
    with pytest.raises(InvalidPayload):
        fingerprint_of({"kept": 1, "left_out": value}, including("/kept"))


def test_a_refusal_never_quotes_the_payload() -> None:
    for value in ({"secret": "hunter2\ud800"}, {"hunter2": float("nan")}, Number("hunter2")):
        with pytest.raises(InvalidPayload) as refusal:
            fingerprint_of(value, EVERYTHING)
        assert "hunter2" not in str(refusal.value)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_bounded() -> None:
    fingerprint_of(nested(64), EVERYTHING)
    fingerprint_of({"a": nested(63)}, including("", "/a"))
    with pytest.raises(InvalidPayload, match="deep"):
        fingerprint_of(nested(65), EVERYTHING)
    with pytest.raises(InvalidPayload, match="deep"):
        fingerprint_of({"a": {"b": nested(63)}}, EVERYTHING)
    with pytest.raises(InvalidPayload, match="deep"):
        fingerprint_of(nested(3), EVERYTHING, max_depth=2)
    with pytest.raises(InvalidPayload, match="deep"):
        fingerprint_of(nested(100_000), excluding("/0/0"))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | LITERALS.map(Number)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet=st.sampled_from("ab/~0é😀\uffff"), max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def meaning_of(value: object) -> object:
    """An independent model of what a value means, comparable with ``==``."""
    match value:
        case bool() | None:
            return ("constant", value)
        case int() | float():
            return ("number", model_of(repr(value)))
        case Number():
            return ("number", model_of(value.text))
        case str() | bytes():
            return (type(value).__name__, value)
        case list():
            return ("list", [meaning_of(item) for item in value])
        case dict():
            return ("map", {name: meaning_of(member) for name, member in value.items()})
        case _:
            raise AssertionError(value)


@given(JSON_VALUES, JSON_VALUES)
def test_canonical_forms_are_equal_exactly_where_the_meaning_is(one: object, other: object) -> None:
    assert (canonical(one) == canonical(other)) == (meaning_of(one) == meaning_of(other))


def reordered(value: object, dice: random.Random) -> object:
    """The same value with its members in another order and its numbers in another spelling."""
    match value:
        case list():
            return [reordered(item, dice) for item in value]
        case dict():
            members = [(name, reordered(member, dice)) for name, member in value.items()]
            dice.shuffle(members)
            return dict(members)
        case int() if not isinstance(value, bool):
            return Number(dice.choice([f"{value}", f"{value}.00", f"{value}e0", f"{value}0e-1"]))
        case _:
            return value


@given(JSON_VALUES, st.randoms(use_true_random=False))
def test_order_and_spelling_do_not_count(value: object, dice: random.Random) -> None:
    assert canonical(value) == canonical(reordered(value, dice))


def test_members_are_sorted_by_code_point() -> None:
    """U+FFFF sorts before U+10000, though its UTF-16 form does not."""
    assert canonical({"\U00010000": 1, "\uffff": 2}) == canonical({"\uffff": 2, "\U00010000": 1})
    assert canonical({"\uffff": 2, "\U00010000": 1}).index("\uffff".encode()) < canonical(
        {"\uffff": 2, "\U00010000": 1}
    ).index("\U00010000".encode())


# Pointers and rules


@pytest.mark.parametrize(
    ("pointer", "tokens"),
    [
        ("", ()),
        ("/", ("",)),
        ("/a", ("a",)),
        ("/a/0/b", ("a", "0", "b")),
        ("/a~1b", ("a/b",)),
        ("/m~0n", ("m~n",)),
        ("/~01", ("~1",)),
        ("/ /%25", (" ", "%25")),
        ("//", ("", "")),
    ],
)
def test_pointers(pointer: str, tokens: tuple[str, ...]) -> None:
    assert parse_pointer(pointer) == tokens


@pytest.mark.parametrize("pointer", ["a", "a/b", "#/a", "/~", "/a~", "/~2", "/a~b/c", "/\ud800", " /a"])
def test_texts_that_are_no_pointers(pointer: str) -> None:
    for make in (including, excluding):
        with pytest.raises(InvalidPointer):
            make(pointer)


def test_excluding_everything_is_refused() -> None:
    with pytest.raises(InvalidPointer, match="nothing"):
        excluding("/a", "")


def test_an_excluded_member_is_as_if_it_were_not_there() -> None:
    rule = excluding("/createdAt", "/meta/sig", "/list/0/at", "/a~1b")
    base = digest('{"qty":1}', rule)
    assert digest('{"createdAt":17,"qty":1}', rule) == base
    assert digest('{"createdAt":null,"qty":1.0}', rule) == base
    assert digest('{"createdAt":{"deep":[1]},"qty":1,"a/b":5}', rule) == base
    assert digest('{"qty":2}', rule) != base
    assert digest('{"qty":1,"meta":{"sig":"x"}}', rule) == digest('{"qty":1,"meta":{}}', rule) != base
    assert digest('{"list":[{"at":1,"b":2}]}', rule) == digest('{"list":[{"b":2}]}', rule)
    assert digest('{"list":[{"b":2},{"at":1}]}', rule) != digest('{"list":[{"b":2},{"at":2}]}', rule)
    assert digest('{"nested":{"createdAt":1}}', rule) != digest('{"nested":{"createdAt":2}}', rule)


def test_only_included_members_count() -> None:
    rule = including("/id", "/order/qty", "/legs/1")
    base = digest('{"id":"a","order":{"qty":1},"legs":[0,5]}', rule)
    assert digest('{"id":"a","order":{"qty":1.0,"note":"x"},"legs":[9,5,7],"more":1}', rule) == base
    assert digest('{"id":"b","order":{"qty":1},"legs":[0,5]}', rule) != base
    assert digest('{"id":"a","order":{},"legs":[0,5]}', rule) != base
    assert digest('{"id":"a","order":{"qty":null},"legs":[0,5]}', rule) != digest(
        '{"id":"a","order":{},"legs":[0,5]}', rule
    )
    assert digest("{}", rule) == digest('{"other":1}', rule) == digest("[]", rule) == digest('"text"', rule)


def test_which_member_a_value_came_from_counts() -> None:
    rule = including("/a", "/b")
    assert digest('{"a":1}', rule) != digest('{"b":1}', rule)
    assert digest('{"a":1,"b":2}', rule) != digest('{"a":2,"b":1}', rule)


def test_exclusions_reach_into_what_is_included() -> None:
    rule = FingerprintRule(include=("/order", "/list/1"), exclude=("/order/at", "/list/0", "/order/gone"))
    base = digest('{"order":{"qty":1,"at":5},"list":[1,2]}', rule)
    assert digest('{"order":{"qty":1,"at":6},"list":[7,2]}', rule) == base
    assert digest('{"order":{"qty":1,"at":6},"list":[1,3]}', rule) != base
    inside = FingerprintRule(include=("/order/gone/deep", "/x"), exclude=("/order/gone",))
    assert digest('{"order":{"gone":{"deep":1}}}', inside) == digest("{}", inside)
    whole = FingerprintRule(include=("",), exclude=("/at",))
    assert digest('{"a":1,"at":1}', whole) == digest('{"a":1,"at":2}', whole) != digest('{"a":2}', whole)


def test_an_exclusion_within_an_excluded_member_changes_nothing() -> None:
    rule = excluding("/a/b/c", "/a", "/a/b")
    assert digest('{"a":{"b":{"c":1,"d":2},"e":3}}', rule) == digest("{}", rule)
    assert digest('{"a":5,"f":1}', rule) != digest("{}", rule)


@pytest.mark.parametrize("pointer", ["/01", "/-", "/1e0", "/+1", "/-1", "/9", "/" + "9" * 5_000, "/٣", "/"])
def test_what_is_no_index_selects_nothing_of_an_array(pointer: str) -> None:
    assert digest("[1,2,3]", including(pointer)) == digest("[]", including(pointer))
    assert digest("[1,2,3]", excluding(pointer)) != digest("[1,2]", excluding(pointer))


def test_a_token_of_digits_names_a_member_of_an_object() -> None:
    assert digest('{"01":1}', including("/01")) != digest('{"01":2}', including("/01"))
    assert digest('{"0":1}', excluding("/0")) == digest("{}", excluding("/0"))


def test_pointers_into_a_scalar_select_nothing() -> None:
    assert digest('"a"', excluding("/a")) != digest('"b"', excluding("/a"))
    assert digest('{"a":"text"}', including("/a/0")) == digest("{}", including("/a/0"))


def test_the_rule_is_named_by_what_it_selects() -> None:
    assert including("/a", "/b").rule_id == including("/b", "/a", "/a").rule_id
    assert including("/a").rule_id != excluding("/a").rule_id != EVERYTHING.rule_id
    assert including("/a", "/b").rule_id != including("/a/b").rule_id
    assert FingerprintRule(required=True).rule_id == EVERYTHING.rule_id
    assert fingerprint_of({}, excluding("/a")).rule == excluding("/a").rule_id


def without(value: Any, tokens: Sequence[str]) -> Any:
    """An independent model of one exclusion."""
    if not isinstance(value, dict) or tokens[0] not in value:
        return value
    rest = {name: member for name, member in value.items() if name != tokens[0]}
    if len(tokens) > 1:
        rest[tokens[0]] = without(value[tokens[0]], tokens[1:])
    return rest


NAMES = st.sampled_from(["a", "b", "c"])
OBJECTS = st.recursive(st.integers(0, 2), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=8).filter(
    lambda value: isinstance(value, Mapping)
)


@given(OBJECTS, st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=3))
def test_exclusion_against_a_model(value: dict[str, Any], paths: list[list[str]]) -> None:
    rule = excluding(*("/" + "/".join(path) for path in paths))
    expected = value
    for path in paths:
        expected = without(expected, path)
    assert fingerprint_of(value, rule).value == fingerprint_of(expected, EVERYTHING).value


def test_the_canonical_form_itself() -> None:
    value = {"b": [1, None, True, "é"], "a": b"\xff", "": {}, "c": -2.50, "d": False, "e": Number("-0e1")}
    assert canonical(value) == (b"m6:s0:m0:s1:ab1:\xffs1:bl4:n3:1e0zts2:\xc3\xa9s1:cn6:-25e-1s1:dfs1:en1:0")
