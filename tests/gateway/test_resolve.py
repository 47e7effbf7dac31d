"""From a raw request to a key: the order of the rules, what is missing, what counts, windows and modes."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote_plus
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.keys import check_key
from idemactor.errors import InvalidRequest, Unauthorized
from idemactor.gateway.normalise import is_nothing
from idemactor.gateway.profiles import SCHEMES, SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import NoKey, Resolved, resolve, resolver_of
from idemactor.gateway.source import Bucket, Format, Normaliser, Source, Verify
from idemactor.gateway.verify import Scheme

NOW_MS = 1_772_461_800_000
JSON = ("Content-Type", "application/json")

SIGNALS = Source(
    "signals",
    namespace="trade",
    format=Format.JSON,
    id=("header:X-Delivery-Id", "/id"),
    derive=("/exchange", "/symbol", "/action", "/quantity"),
    normalise={"/symbol": (Normaliser.TRIM, Normaliser.UPPER), "/quantity": (Normaliser.DECIMAL,)},
    mode="/test",
    nonce="/nonce",
    exclude=("/price",),
    secrets=("/apiKey", "header:Authorization"),
)
TRADE: dict[str, Any] = {"exchange": "bybit", "symbol": "BTCUSDT", "action": "LONG", "quantity": 0.5, "price": 3}


def asked(
    body: Any = None,
    *headers: tuple[str, str],
    path: str = "/hook",
    method: str = "POST",
) -> RawRequest:
    data = body if isinstance(body, bytes) else json.dumps(TRADE if body is None else body).encode()
    return RawRequest(method, path, (*headers, JSON), data)


def found(source: Source, request: RawRequest, now_ms: int = NOW_MS) -> Resolved:
    return resolve(source, request, now_ms=now_ms)


def trade(source: Source = SIGNALS, *headers: tuple[str, str], now_ms: int = NOW_MS, **members: Any) -> Resolved:
    """What becomes of a trade; a member that is ``...`` is left out."""
    body = {name: value for name, value in (TRADE | members).items() if value is not ...}
    return found(source, asked(body, *headers), now_ms)


def refused(source: Source, request: RawRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        found(source, request)
    return caught.value


def form(**fields: str) -> bytes:
    return "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in fields.items()).encode()


# ---------------------------------------------------------------------------------------- the order of the rules


def test_the_first_rule_that_finds_a_key_wins() -> None:
    header, delivery = ("idempotency-key", "H"), ("x-delivery-id", "D")
    assert (trade(SIGNALS, header, delivery, id="I").key, "header") == ("H", trade(SIGNALS, header).rule)
    found = trade(SIGNALS, delivery, idempotencyKey="B", id="I")
    assert (found.key, found.rule) == ("B", "body")
    found = trade(SIGNALS, delivery, id="I")
    assert (found.key, found.rule) == ("D", "source")
    found = trade(SIGNALS, id="I")
    assert (found.key, found.rule) == ("I", "source")
    found = trade()
    assert found.rule == "derived"
    assert (found.source, found.namespace) == ("signals", "trade")
    assert found.key.startswith("d1:")
    assert len(found.key) == 67


def test_header_and_body_say_the_same_or_are_refused() -> None:
    both = trade(SIGNALS, ("Idempotency-Key", '"K"'), idempotencyKey="K")
    assert (both.key, both.rule) == ("K", "header")
    body = TRADE | {"idempotencyKey": "other"}
    assert refused(SIGNALS, asked(body, ("Idempotency-Key", "K"))).field == "/idempotencyKey"


@pytest.mark.parametrize("values", [["k", "k"], [""], ["  "], ['"k'], ["k" * 257], ["a,b"], ["ü"], ["a\x7f"]])
def test_a_wrong_key_header_is_never_a_fallback(values: list[str]) -> None:
    request = asked(TRADE | {"id": "I"}, *(("Idempotency-Key", value) for value in values))
    assert refused(SIGNALS, request).field == "header:Idempotency-Key"


@pytest.mark.parametrize("value", ["", " ", 7, True, [], {}, "a\x00", "k" * 257])
def test_a_wrong_key_in_the_body_is_never_a_fallback(value: object) -> None:
    error = refused(SIGNALS, asked(TRADE | {"id": "I", "idempotencyKey": value}))
    assert error.field == "/idempotencyKey"


def test_nobody_says_a_key_that_is_made() -> None:
    """Or what is live could be made the same as a test."""
    made = trade(test=True, id="I").key
    assert refused(SIGNALS, asked(TRADE, ("Idempotency-Key", made))).field == "header:Idempotency-Key"
    assert refused(SIGNALS, asked(TRADE | {"idempotencyKey": made})).field == "/idempotencyKey"
    assert refused(SIGNALS, asked(TRADE | {"id": made})).field == "/id"
    assert refused(SIGNALS, asked(TRADE, ("X-Delivery-Id", "d1:0"))).field == "header:X-Delivery-Id"
    assert trade(id="d1").key == "d1"


def test_the_operations_of_one_delivery_have_one_key() -> None:
    one, same, other = TRADE | {"idempotencyKey": "K"}, TRADE | {"idempotencyKey": "K"}, TRADE | {"idempotencyKey": "L"}
    for body in ([one], [one, same]):
        assert (found(SIGNALS, asked(body)).key, found(SIGNALS, asked(body)).rule) == ("K", "body")
        assert found(SIGNALS, asked(body, ("Idempotency-Key", "K"))).rule == "header"
        assert refused(SIGNALS, asked(body, ("Idempotency-Key", "L"))).field == "/idempotencyKey"
    for wrong in ([one, other], [one, TRADE], [TRADE, one], [one, 7], [one, TRADE | {"idempotencyKey": None}]):
        assert refused(SIGNALS, asked(wrong)).field == "/idempotencyKey"
    for value in (7, "", "d1:0"):
        assert refused(SIGNALS, asked([TRADE | {"idempotencyKey": value}])).field == "/idempotencyKey"
    assert found(SIGNALS, asked([TRADE | {"idempotencyKey": None}, TRADE])).rule == "derived"


def test_a_null_key_in_the_body_is_none() -> None:
    assert trade(idempotencyKey=None).rule == "derived"


def test_a_source_may_take_no_keys_from_its_sender() -> None:
    source = replace(SIGNALS, client_key=False)
    found = trade(source, ("Idempotency-Key", "not, one"), idempotencyKey=7, id="I")
    assert (found.key, found.rule) == ("I", "source")


def test_a_key_in_a_form() -> None:
    source = Source("forms", format=Format.FORM)
    found = resolve(source, asked(form(idempotencyKey="a b", x="1")), now_ms=0)
    assert (found.key, found.rule) == ("a b", "body")


def test_nothing_to_go_by_names_what_was_looked_for() -> None:
    for source, field in (
        (SHIPPED["http"], "header:Idempotency-Key"),
        (SHIPPED["github"], "header:X-GitHub-Delivery"),
        (SHIPPED["stripe"], "/id"),
    ):
        error = refused(source, asked({}))
        assert isinstance(error, NoKey)
        assert error.field == field


def test_an_unknown_source_is_a_wrong_member() -> None:
    resolver = resolver_of(SHIPPED, lambda: NOW_MS)
    assert resolver("hoox", asked()).source == "hoox"
    with pytest.raises(InvalidRequest) as caught:
        resolver("hooks", asked())
    assert caught.value.field == "source"


# ----------------------------------------------------------------------------------------------------------- its own id


@pytest.mark.parametrize(
    ("value", "key"),
    [("Ab", "Ab"), (5, "5"), (0, "0"), (-100, "-100"), (10**17, "1" + 17 * "0"), (" pad ", " pad ")],
)
def test_an_id_is_the_key_as_it_is(value: object, key: str) -> None:
    assert found(SHIPPED["stripe"], asked({"id": value})).key == key


@pytest.mark.parametrize("text", [b"5.0", b"50e-1", b"5", b"0.5e1"])
def test_one_number_is_one_id(text: bytes) -> None:
    assert found(SHIPPED["stripe"], asked(b'{"id":%b}' % text)).key == "5"


def test_an_id_of_20_digits_is_exact() -> None:
    assert found(SHIPPED["stripe"], asked(b'{"id":12345678901234567891}')).key == "12345678901234567891"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("1" * 45 + "0" * 5, "1" * 45 + "0" * 5),
        ("-" + "7" * 255, "-" + "7" * 255),
        ("1e255", "1" + "0" * 255),
        ("0.5", "0.5"),
        ("-0.050", "-0.05"),
        ("1234e-2", "12.34"),
        ("5e-3", "0.005"),
        ("-0.0", "0"),
    ],
)
def test_a_number_is_its_digits(text: str, key: str) -> None:
    assert found(SHIPPED["stripe"], asked(b'{"id":%b}' % text.encode())).key == key


@pytest.mark.parametrize(
    "text", ["7" * 257, "1e256", "1e999", "1e999999", "1e-255", "1e-999999", "1e9999999", "1e-9999999"]
)
def test_a_number_whose_digits_are_no_key(text: str) -> None:
    assert refused(SHIPPED["stripe"], asked(b'{"id":%b}' % text.encode())).field == "/id"


@pytest.mark.parametrize("value", [True, [], {}, ["a"], "a\n", "k" * 257])
def test_what_is_no_id(value: object) -> None:
    assert refused(SHIPPED["stripe"], asked({"id": value})).field == "/id"


@pytest.mark.parametrize("value", [..., None, "", "  ", "\t\r\n"])
def test_what_is_missing(value: object) -> None:
    assert trade(id=value).rule == "derived"
    for name in ("exchange", "symbol", "action", "quantity"):
        body = {key: one for key, one in (TRADE | {name: value}).items() if one is not ...}
        error = refused(SIGNALS, asked(body))
        # A part of what a key is made of is missing, which is not the same as no key.
        assert not isinstance(error, NoKey)
        assert error.field == f"/{name}"


def test_a_blank_header_is_missing_and_two_are_an_error() -> None:
    assert trade(SIGNALS, ("X-Delivery-Id", " ")).rule == "derived"
    request = asked(TRADE, ("X-Delivery-Id", "a"), ("x-delivery-id", "a"))
    assert refused(SIGNALS, request).field == "header:X-Delivery-Id"


def test_an_id_of_two_parts_needs_both() -> None:
    event, shop = ("X-Shopify-Event-Id", "e"), ("X-Shopify-Shop-Domain", "s")
    source = SHIPPED["shopify"]
    key = found(source, asked({}, event, shop)).key
    assert key != found(source, asked({}, (event[0], "s"), (shop[0], "e"))).key
    assert refused(source, asked({}, event)).field == "header:X-Shopify-Shop-Domain"
    assert refused(source, asked({}, shop)).field == "header:X-Shopify-Event-Id"
    for part in ("a\x07", "\ud800", "\x9f"):
        assert refused(source, asked({}, event, (shop[0], part))).field == "header:X-Shopify-Shop-Domain"
    several = replace(SIGNALS, id=("/id",))
    assert refused(several, asked([TRADE | {"id": "a"}, TRADE | {"id": "a\n"}])).field == "/id"
    # Even where something could be derived: a part of an id is not no id.
    assert refused(replace(source, derive=("/a",)), asked({"a": 1}, event)).field == "header:X-Shopify-Shop-Domain"


# -------------------------------------------------------------------------------------------------------------- derived


@pytest.mark.parametrize(
    "body", [b"", b" \r\n", b"{}", b"[]", b"null", b'""', b"[{}]", b'{"passphrase":"x"}', b'{"auth":{"token":"x"}}']
)
def test_no_key_is_made_of_nothing(body: bytes) -> None:
    source = replace(SHIPPED["tradingview"], secrets=("/passphrase", "/auth/token"))
    form_type = ("Content-Type", "application/x-www-form-urlencoded")
    assert refused(source, asked(body)).field == "body"
    if not body.strip():
        assert refused(source, RawRequest("POST", "/tv", (), body)).field == "body"
    for nothing in (b"", b"&", b"passphrase=x"):
        assert refused(source, RawRequest("POST", "/tv", (form_type,), nothing)).field == "body"
    assert found(source, asked({"passphrase": "x", "a": 0})).rule == "derived"


@pytest.mark.parametrize(
    ("fields", "headers", "path", "blamed"),
    [
        ({"derive": ("query:x",)}, (), "/?x=%ff", "query:x"),
        ({"derive": ("path", "query:y"), "nonce": "query:x"}, (), "/?x=%ff&y=1", "query:x"),
        ({"derive": ("/a", "header:X-A")}, (("X-A", "\ud800"),), "/", "header:X-A"),
        ({"derive": ("path",)}, (), "/\ud800", "path"),
        ({"id": ("query:x",)}, (), "/?x=%ff", "query:x"),
        ({"id": (("/a", "query:x"),)}, (), "/?x=%ff", "query:x"),
        ({"id": ("/a",), "headers": ("X-A",)}, (("X-A", "\ud800"),), "/", "header:x-a"),
        ({"id": ("/a",)}, (), "/\ud800", "path"),
        ({"id": ("/a",)}, (), "/?\ud800", "path"),
    ],
)
def test_what_cannot_be_compared_is_named(
    fields: dict[str, Any], headers: tuple[tuple[str, str], ...], path: str, blamed: str
) -> None:
    assert refused(Source("mine", **fields), asked({"a": "1"}, *headers, path=path)).field == blamed


def test_a_tuple_is_not_text_joined_by_anything() -> None:
    tuples = [("BINANCE", "BTC:USDT"), ("BINANCE:BTC", "USDT"), ("BINANCE:BTC:USDT", "x"), ("a", "b"), ("ab", "c")]
    keys = {trade(exchange=one, symbol=other).key for one, other in tuples}
    assert len(keys) == len(tuples)


def test_fields_keep_their_type_unless_normalised() -> None:
    assert trade(action=1).key != trade(action="1").key
    assert trade(action=True).key != trade(action=1).key
    assert trade(quantity="0.50").key == trade(quantity=0.5).key == trade(quantity="5e-1").key
    assert trade(symbol=" btcusdt ").key == trade().key
    assert trade(exchange="BYBIT").key != trade().key


def test_two_spellings_of_one_key_are_no_mismatch() -> None:
    assert trade(symbol="btcusdt", quantity="0.50") == trade()
    assert trade(quantity="0.50", leverage="1").fingerprint != trade().fingerprint
    assert trade(price=4) == trade()


def test_what_cannot_be_normalised_is_an_error_where_a_key_is_made_of_it() -> None:
    error = refused(SIGNALS, asked(TRADE | {"quantity": "5%"}))
    assert (error.field, "5%" in error.detail) == ("/quantity", False)
    assert trade(id="I", quantity="5%").rule == "source"
    assert trade(id="I", quantity="5%").fingerprint != trade(id="I").fingerprint


@pytest.mark.parametrize(
    ("headers", "members"),
    [((), {}), ((), {"id": "I"}), ((("Idempotency-Key", "K"),), {}), ((), {"idempotencyKey": "B"})],
)
def test_live_and_test_share_no_key_however_it_was_found(
    headers: tuple[tuple[str, str], ...], members: dict[str, Any]
) -> None:
    live = trade(SIGNALS, *headers, **members)
    test = trade(SIGNALS, *headers, test=True, **members)
    assert test.key != live.key
    assert test.rule == live.rule
    assert trade(SIGNALS, *headers, test=False, **members).key == live.key
    assert trade(SIGNALS, *headers, test="test", **members).key == test.key
    check_key(test.key)


@pytest.mark.parametrize("value", [1, 0, "yes", [], {}, 1.0, "TRUE"])
def test_a_mode_that_is_neither_is_refused(value: object) -> None:
    assert refused(SIGNALS, asked(TRADE | {"test": value})).field == "/test"


def test_a_nonce_makes_two_of_twins() -> None:
    keys = {trade().key, trade(nonce=1).key, trade(nonce=2).key, trade(nonce="1").key}
    assert len(keys) == 4
    assert trade(nonce=None).key == trade(nonce=" ").key == trade().key


def test_two_sources_share_no_derived_key() -> None:
    assert trade().key != trade(replace(SIGNALS, name="others")).key


def test_a_header_a_parameter_and_the_path_may_make_a_key() -> None:
    source = Source("mine", derive=("header:X-A", "query:b", "path"))
    request = asked(7, ("x-a", "1"), path="/p?b=2&c=3")
    key = found(source, request).key
    assert key == found(source, replace(request, path="/p?b=2")).key
    assert key != found(source, replace(request, path="/q?b=2")).key
    assert key != found(source, replace(request, path="/p?b=3")).key
    assert refused(source, replace(request, path="/p")).field == "query:b"
    assert refused(source, replace(request, path="/p?b=2&b=2")).field == "query:b"


def test_a_header_is_normalised_however_its_name_is_spelt() -> None:
    source = Source("mine", derive=("header:X-Id",), normalise={"header:x-id": (Normaliser.UUID,)})
    one = "7D0F6F0E-0000-4000-8000-00000000ABCD"
    assert found(source, asked(None, ("X-ID", one))) == found(source, asked(None, ("x-id", one.lower())))
    assert refused(source, asked(None, ("X-Id", "none"))).field == "header:X-Id"


# ---------------------------------------------------------------------------------------- windows and memory


def test_windows_buckets_and_ttls() -> None:
    window = trade(replace(SIGNALS, window_ms=5, ttl_ms=7))
    assert (window.window_ms, window.ttl_ms) == (5, None)
    for source in (SIGNALS, replace(SIGNALS, bucket=Bucket.MINUTE), replace(SIGNALS, bucket=Bucket.TTL)):
        by_id = trade(replace(source, ttl_ms=7), id="I")
        assert (by_id.window_ms, by_id.ttl_ms) == (None, 7)
    assert (trade().window_ms, trade().ttl_ms) == (60_000, None)
    for bucket in (Bucket.MINUTE, Bucket.TTL):
        found = trade(replace(SIGNALS, bucket=bucket, ttl_ms=7))
        assert (found.window_ms, found.ttl_ms) == (None, 7)


def test_both_sides_of_a_minute() -> None:
    """:59 and :01 of the next minute: two operations to the bucket, one to a window and to a ttl."""
    at_59, at_01 = NOW_MS + 59_000, NOW_MS + 61_000
    body = {name: value for name, value in TRADE.items() if name != "price"}
    for name, one in (("hoox", True), ("hoox-ttl", True), ("hoox-minute", False)):
        source = SHIPPED[name]
        keys = {found(source, asked(body), now_ms=at).key for at in (at_59, at_01)}
        assert (len(keys) == 1) == one, name
    minute = SHIPPED["hoox-minute"]
    assert found(minute, asked(body), NOW_MS).key == found(minute, asked(body), NOW_MS + 59_999).key
    assert found(minute, asked(body), NOW_MS).key != found(minute, asked(body), NOW_MS - 1).key


@pytest.mark.parametrize(
    ("zone", "before"),
    [
        ("Europe/Berlin", datetime.datetime(2026, 10, 25, 0, 59, 30, tzinfo=datetime.UTC)),
        ("Europe/Berlin", datetime.datetime(2026, 3, 29, 0, 59, 30, tzinfo=datetime.UTC)),
        ("Australia/Lord_Howe", datetime.datetime(2026, 4, 4, 14, 59, 30, tzinfo=datetime.UTC)),
    ],
)
def test_a_change_of_the_clocks_is_no_minute_twice(zone: str, before: datetime.datetime) -> None:
    """Local time repeats an hour, or leaves one out; minutes are those of UTC."""
    after = before + datetime.timedelta(minutes=1)
    assert before.astimezone(ZoneInfo(zone)).utcoffset() != after.astimezone(ZoneInfo(zone)).utcoffset()
    source = SHIPPED["hoox-minute"]
    minutes = [before + datetime.timedelta(minutes=step) for step in range(-60, 61)]
    keys = [found(source, asked(), round(minute.timestamp() * 1000)).key for minute in minutes]
    assert len(set(keys)) == len(keys)


# ---------------------------------------------------------------------------------------------- what is not in the key


def test_method_path_and_query_count() -> None:
    source, key = SHIPPED["http"], ("Idempotency-Key", "k")
    requests = [
        asked({"a": 1}, key),
        asked({"a": 1}, key, method="PATCH"),
        asked({"a": 1}, key, path="/other"),
        asked({"a": 1}, key, path="/hook?a=1"),
        asked({"a": 1}, key, path="/hook?a=2"),
        asked({"a": 1}, key, path="/hook?a=1&a=1"),
        asked({"a": 2}, key),
        asked(b"", key),
    ]
    assert len({found(source, request).fingerprint for request in requests}) == len(requests)
    assert found(source, asked(b'{"a" : 1.0}', key)) == found(source, requests[0])


def test_headers_count_where_they_are_named_alone() -> None:
    key = ("Idempotency-Key", "k")
    plain, named = SHIPPED["http"], replace(SHIPPED["http"], headers=("X-Topic",))
    for source, counts in ((plain, False), (named, True)):
        one, other = (found(source, asked({}, key, ("x-topic", topic))) for topic in ("a", "b"))
        assert (one.fingerprint != other.fingerprint) == counts
        again = found(source, asked({}, key, ("x-topic", "a"), ("X-Signature", "s"), ("Date", "today")))
        assert again.fingerprint == one.fingerprint


def test_exclusions_and_secrets_leave_members_and_parameters_out() -> None:
    source = Source("mine", exclude=("query:at", "/sent/at"), secrets=("query:token", "/pass"), derive=("body",))
    first = found(source, asked({"sent": {"at": 1, "by": 2}, "pass": "x"}, path="/h?a=1&at=1&token=s3cret"))
    again = found(source, asked({"sent": {"at": 2, "by": 2}}, path="/h?token=other&a=1&at=2"))
    assert again == first
    other = found(source, asked({"sent": {"by": 3}}, path="/h?a=1"))
    assert other.key != first.key
    # Percent signs or not, it is the same parameter.
    assert found(source, asked({"sent": {"by": 2}}, path="/h?a=1&%74oken=x")) == first
    assert found(source, asked({"sent": {"by": 2}}, path="/h?%61=1")).fingerprint != first.fingerprint


def test_a_rule_that_changed_makes_another_rule_and_no_mismatch() -> None:
    rules = {
        trade(source, id="I").fingerprint.rule
        for source in (
            SIGNALS,
            replace(SIGNALS, exclude=()),
            replace(SIGNALS, secrets=()),
            replace(SIGNALS, headers=("X-Topic",)),
            replace(SIGNALS, normalise={}),
            replace(SIGNALS, format=Format.AUTO),
            replace(SIGNALS, name="others"),
        )
    }
    assert len(rules) == 7
    assert trade(replace(SIGNALS, window_ms=1)).fingerprint.rule == trade().fingerprint.rule


def test_a_setting_that_is_spelt_otherwise_is_the_same_setting() -> None:
    def spelt(name: str) -> tuple[Resolved, Resolved]:
        header = f"header:{name}"
        source = Source("mine", derive=(header,), secrets=("header:B",), normalise={header: (Normaliser.TRIM,)})
        pair = replace(source, id=((header, f"{header}-2"),))
        request = asked(None, ("x-a", "1"), ("x-a-2", "2"))
        return found(source, request), found(pair, request)

    assert spelt("X-A") == spelt("x-a")
    one, other = (
        Source("mine", id=("/id",), headers=(name,), secrets=(f"header:{secret}",))
        for name, secret in (("A", "B"), ("a", "b"))
    )
    assert one.plan.rule_id == other.plan.rule_id


# ---------------------------------------------------------------------------------------- arrays of operations


def test_an_array_is_one_operation_for_the_whole_delivery() -> None:
    twice = [TRADE, TRADE | {"symbol": "ETHUSDT"}]
    first = found(SIGNALS, asked(twice))
    assert first.rule == "derived"
    assert found(SIGNALS, asked([TRADE | {"price": 9, "apiKey": "s"}, TRADE | {"symbol": " ethusdt"}])) == first
    keys = {found(SIGNALS, asked(body)).key for body in (twice, twice[::-1], twice[:1], TRADE, [*twice, TRADE])}
    assert len(keys) == 5


def test_a_delivery_in_which_one_operation_lacks_something() -> None:
    lacking = {name: value for name, value in TRADE.items() if name != "symbol"}
    bodies: list[Any] = [[TRADE, lacking], [lacking], [TRADE, 7], [[]]]
    for body in bodies:
        error = refused(SIGNALS, asked(body))
        # A part of what a key is made of is missing, which is not the same as no key.
        assert not isinstance(error, NoKey)
        assert error.field in ("/symbol", "/exchange")
    assert refused(SIGNALS, asked([])).field == "/exchange"
    assert refused(SIGNALS, asked([TRADE | {"id": "a"}, TRADE])).field == "/id"
    ids = [found(SIGNALS, asked([TRADE | {"id": one} for one in pair])) for pair in ("ab", "ba", "aa")]
    assert {one.rule for one in ids} == {"source"}
    assert len({one.key for one in ids}) == 3


def test_a_delivery_is_live_or_test() -> None:
    assert refused(SIGNALS, asked([TRADE | {"test": True}, TRADE])).field == "/test"
    both = [TRADE | {"test": True}] * 2
    assert found(SIGNALS, asked(both)).key != found(SIGNALS, asked([TRADE] * 2)).key


def test_a_nonce_of_one_operation_counts() -> None:
    keys = {
        found(SIGNALS, asked(body)).key
        for body in ([TRADE, TRADE], [TRADE | {"nonce": 1}, TRADE], [TRADE, TRADE | {"nonce": 1}])
    }
    assert len(keys) == 3


def test_an_index_names_one_operation() -> None:
    source = Source("mine", format=Format.JSON, derive=("/1/symbol",), exclude=("/0",))
    assert found(source, asked([TRADE, TRADE])) == found(source, asked([7, TRADE]))
    assert refused(source, asked([TRADE])).field == "/1/symbol"


# ------------------------------------------------------------------------------------------------------- hostile bodies


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a':1}", b'{"a":1,"a":2}', b'{"a":NaN}', b'"\\ud800"', b"\xff", b"[" * 65 + b"]" * 65]
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    for source in (SIGNALS, *([SHIPPED["http"]] if body else [])):
        assert refused(source, asked(body, ("Idempotency-Key", "k"))).field == "body"


def test_a_body_as_deep_as_may_be() -> None:
    body = b'{"exchange":' + b"[" * 63 + b"]" * 63 + b',"symbol":"a","action":"b","quantity":1}'
    assert found(SIGNALS, asked(body)).rule == "derived"
    assert found(replace(SIGNALS, derive=("body",)), asked(b"[" * 64 + b"7" + b"]" * 64)).rule == "derived"


def test_an_exponent_out_of_bounds_is_refused() -> None:
    assert refused(SIGNALS, asked(b'{"id":"I","x":1e1000000000}')).field == "body"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


somethings = values.map(lambda value: [value, 0] if is_nothing(value) else value)
"""What a key can be made of."""


@given(somethings, somethings)
def test_a_key_of_the_body_is_equal_exactly_where_the_body_is(one: Any, other: Any) -> None:
    source = Source("mine", format=Format.JSON, derive=("body",), client_key=False)
    assert not is_nothing(one)
    assert not is_nothing(other)
    first, second = (found(source, asked(json.dumps(value).encode())) for value in (one, other))
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (first.key == second.key) == same == (first.fingerprint == second.fingerprint)


ANY = st.text(max_size=20) | st.text(st.characters(categories=["Cs", "Cc", "L", "P"]), max_size=8)
SECRETS = {Scheme.STANDARD_WEBHOOKS: "whsec_c2VjcmV0", Scheme.SVIX: "whsec_c2VjcmV0"}
VERIFIED = [
    replace(SHIPPED[name], verify=Verify(scheme, ("S",), (SECRETS.get(scheme, "secret"),)))
    for name, scheme in SCHEMES.items()
]
ODD = [
    SIGNALS,
    Source("f", format=Format.FORM, id=("/a",), derive=("/b", "query:c", "path"), exclude=("query:d", "/e")),
    Source(
        "t", format=Format.TEXT, pattern="(?P<a>[a-z]*)(?P<b>.*)(?s:.*)", derive=("/a", "header:X"), secrets=("/b",)
    ),
    Source("j", derive=("body", "/0/a", "/a/0"), normalise={"/a": tuple(Normaliser)}, mode="query:m", exclude=("/0",)),
]
NAMES = st.sampled_from(
    [
        *("Content-Type", "Idempotency-Key", "X-GitHub-Delivery", "webhook-id", "svix-id", "X", "X-Delivery-Id"),
        *("webhook-signature", "webhook-timestamp", "svix-timestamp", "svix-signature", "Stripe-Signature"),
        *("X-Hub-Signature-256", "X-Shopify-Hmac-Sha256", "X-Slack-Signature", "X-Slack-Request-Timestamp"),
    ]
)
VALUES = ANY | st.sampled_from(
    ["application/json", "multipart/form-data; boundary=a", "1772461800", "t=1772461800,v1=aa", "v1,AAAA", "sha256=aa"]
)
BODIES = st.binary(max_size=60) | st.sampled_from(
    [
        *(b'[{"a":1}]', b'{"a":{"0":1}}', b'{"id":1e5}', b"[[1],2]", b'{"idempotencyKey":"k"}'),
        *(b"--a\r\n\r\n--a--", b"a=%ff&b=1"),
    ]
)


@given(
    st.sampled_from([*SHIPPED.values(), *VERIFIED, *ODD]),
    ANY,
    ANY,
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    BODIES,
)
def test_whatever_comes_is_a_key_or_a_refusal(
    source: Source, method: str, path: str, headers: list[tuple[str, str]], body: bytes
) -> None:
    request = RawRequest(method, path, tuple(headers), body)
    try:
        told = found(source, request)
    except (InvalidRequest, Unauthorized) as error:
        assert error.field  # noqa: PT017 - It is a key or a refusal, and either is right.
    else:
        check_key(told.key)
        assert told == found(source, request)
