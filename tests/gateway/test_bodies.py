"""Bodies as they are read: forms, text with a pattern, multipart by its parts, and bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idemactor.core.fingerprint import Fingerprint
from idemactor.errors import InvalidRequest
from idemactor.gateway.bodies import FIELDS_MAX, PATTERN_BYTES_MAX
from idemactor.gateway.multipart import PARTS_MAX, parts_of
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import NoKey, Resolved, resolve
from idemactor.gateway.source import Format, Normaliser, Source

HTTP = Source("mine")
KEY = ("Idempotency-Key", "k")


def found(source: Source, body: bytes, kind: str | None = None, *headers: tuple[str, str]) -> Resolved:
    typed = (("Content-Type", kind),) if kind is not None else ()
    return resolve(source, RawRequest("POST", "/", (KEY, *typed, *headers), body), now_ms=0)


def fingerprint(body: bytes, kind: str | None = None, *headers: tuple[str, str], source: Source = HTTP) -> Fingerprint:
    return found(source, body, kind, *headers).fingerprint


def refused(source: Source, body: bytes) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        resolve(source, RawRequest("POST", "/", (), body), now_ms=0)
    return caught.value.field


# ---------------------------------------------------------------------------------------------------- by content type


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.a+json"])
def test_json_is_compared_by_meaning(kind: str) -> None:
    assert fingerprint(b'{"a":1,"b":2}', kind) == fingerprint(b' {"b":2.0, "a":10e-1}', kind)


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/jsonp", "text/json", "application/x-www-form-urlencoded"]
)
def test_anything_else_is_compared_byte_by_byte(kind: str | None) -> None:
    bodies = [b'{"a":1}', b'{"a": 1}', b"", b"\xff\x00", b"a=1&b=2", b"b=2&a=1", b"a=1&b=2&"]
    assert len({fingerprint(body, kind) for body in bodies}) == len(bodies)


def test_a_coded_or_doubtful_body_is_bytes() -> None:
    body, other = b'{"a":1}', b'{"a": 1}'
    for more in (("Content-Encoding", "gzip"), ("Content-Type", "application/json")):
        assert fingerprint(body, "application/json", more) != fingerprint(other, "application/json", more)
    assert fingerprint(b"\x1f\x8b", "application/json", ("Content-Encoding", "gzip"))
    plain = ("Content-Encoding", "identity")
    assert fingerprint(body, "application/json", plain) == fingerprint(other, "application/json", plain)


def test_a_body_read_in_another_way_is_another() -> None:
    assert fingerprint(b"7", "application/json") != fingerprint(b"7", "text/plain")
    as_bytes = replace(HTTP, format=Format.BYTES)
    for body, other in ((b"7", b"7.0"), (b"{", b"{ ")):
        assert fingerprint(body, "application/json", source=as_bytes) != fingerprint(
            other, "application/json", source=as_bytes
        )


# ---------------------------------------------------------------------------------------------------------------- forms

FORM = Source("forms", format=Format.FORM, id=("/id",), exclude=("/sign",), normalise={"/sum": (Normaliser.DECIMAL,)})


def test_fields_of_a_form() -> None:
    for body, key in (
        (b"id=a", "a"),
        (b"x=1&id=a+b%2Bc", "a b+c"),
        (b"%69d=%C3%A9", "é"),
        (b"id=a=b", "a=b"),
        (b"&&id=a&", "a"),
    ):
        assert resolve(FORM, RawRequest("POST", "/", (), body), now_ms=0).key == key
    for body in (b"", b"id", b"id=", b"id=+", b"ID=a", b"x=id"):
        assert refused(FORM, body) == "/id"
    assert refused(FORM, b"id=a&id=a") == "/id"
    assert refused(FORM, b"id=%FF") == "/id"
    assert refused(FORM, b"id=a%00") == "/id"


def test_what_counts_of_a_form() -> None:
    first = fingerprint(b"id=a&sum=1&sign=x", source=FORM)
    for same in (b"id=a&sum=1&sign=y", b"id=a&sum=1", b"sign=1&id=a&sum=1.0", b"sign=&sign=&id=a&sum=1&%73ign=z"):
        assert fingerprint(same, source=FORM) == first, same
    others = [
        b"id=a&sum=2",
        b"sum=1&id=a",
        b"id=a",
        b"id=a&sum=1&sum=1",
        b"id=%61&sum=1",
        b"id=a&sum=x",
        b"id=a&sum=1&",
    ]
    assert [other for other in others if fingerprint(other, source=FORM) == first] == [b"id=a&sum=1&"]


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "Application/X-WWW-Form-urlencoded; charset=UTF-8"]
)
def test_a_form_is_read_by_its_content_type(kind: str) -> None:
    source = replace(FORM, format=Format.AUTO, id=("/id", "/id/of"), exclude=("/sign", "/a/b"))
    typed = (("Content-Type", kind),)
    assert resolve(source, RawRequest("POST", "/", typed, b"x=1&id=a+b"), now_ms=0).key == "a b"
    body = b"idempotencyKey=K&id=a"
    assert resolve(source, RawRequest("POST", "/", typed, body), now_ms=0).key == "K"
    assert fingerprint(b"id=a&sum=1&sign=x", kind, source=source) == fingerprint(b"id=a&sum=1.0", kind, source=source)
    # Nothing is within a field.
    assert fingerprint(b"a=1", kind, source=source) != fingerprint(b"a=2", kind, source=source)
    within = replace(source, id=("/id/of",))
    for request in (
        RawRequest("POST", "/", typed, b"id=a"),
        RawRequest("POST", "/", typed, b""),
        RawRequest("POST", "/", (*typed, ("Content-Encoding", "gzip")), b"id=a"),
        RawRequest("POST", "/", (*typed, *typed), b"id=a"),
    ):
        with pytest.raises(NoKey):
            resolve(within, request, now_ms=0)


def test_a_form_of_too_many_fields() -> None:
    assert resolve(FORM, RawRequest("POST", "/", (), b"id=a" + b"&" * (FIELDS_MAX - 1)), now_ms=0).key == "a"
    assert refused(FORM, b"id=a" + b"&" * FIELDS_MAX) == "body"


# ----------------------------------------------------------------------------------------------------------------- text

SIGNAL = Source(
    "text",
    format=Format.TEXT,
    pattern=r"(?P<action>BUY|SELL) (?P<symbol>\S+) (?P<quantity>\S+)(?: @ (?P<price>\S+))? token=(?P<token>\S+)",
    derive=("/action", "/symbol", "/quantity"),
    normalise={"/quantity": (Normaliser.DECIMAL,)},
    exclude=("/price",),
    secrets=("/token",),
)


def test_text_with_a_pattern() -> None:
    def of(text: str) -> Resolved:
        return resolve(SIGNAL, RawRequest("POST", "/", (), text.encode()), now_ms=0)

    first = of("BUY BTCUSDT 0.015 @ 64210.5 token=s3cret")
    assert of("BUY BTCUSDT 0.0150 @ 64210.6 token=other") == first
    assert of("BUY BTCUSDT 0.016 @ 64210.5 token=s3cret").key != first.key
    without_price = of("BUY BTCUSDT 0.015 token=s3cret")
    assert without_price.key == first.key
    # The text around what is left out counts, byte by byte.
    assert without_price.fingerprint != first.fingerprint
    for text in ("BUY  BTCUSDT 0.015 token=a", "HOLD BTCUSDT 1 token=a", "BUY BTCUSDT 0.015 token=a\n", ""):
        assert refused(SIGNAL, text.encode()) == "body"
    assert refused(SIGNAL, b"BUY BTCUSDT x token=a") == "/quantity"
    assert refused(SIGNAL, b"BUY BTC\xff 1 token=a") == "body"


def test_a_text_that_is_too_long_for_a_pattern() -> None:
    fits = b"BUY A 1 token=" + b"a" * (PATTERN_BYTES_MAX - 14)
    assert resolve(SIGNAL, RawRequest("POST", "/", (), fits), now_ms=0)
    with pytest.raises(InvalidRequest, match=str(PATTERN_BYTES_MAX)) as caught:
        resolve(SIGNAL, RawRequest("POST", "/", (), fits + b"a"), now_ms=0)
    assert caught.value.field == "body"


def test_text_without_a_pattern_is_compared_byte_by_byte() -> None:
    source = Source("text", format=Format.TEXT, derive=("body",))
    keys = {resolve(source, RawRequest("POST", "/", (), body), now_ms=0).key for body in (b"a", b"a ", b"A")}
    assert len(keys) == 3
    assert refused(source, b"") == "body"
    assert refused(source, b"\xff") == "body"


def test_groups_within_groups_are_left_out_with_them() -> None:
    source = Source("text", format=Format.TEXT, pattern=r"(?P<all>a(?P<in>.).)(?P<rest>.*)", exclude=("/all", "/in"))
    assert fingerprint(b"abcx", source=source) == fingerprint(b"axdx", source=source)
    assert fingerprint(b"abcx", source=source) != fingerprint(b"abcy", source=source)
    inner = replace(source, exclude=("/in",))
    assert fingerprint(b"abcx", source=inner) == fingerprint(b"axcx", source=inner)


# ------------------------------------------------------------------------------------------------------------ multipart


def multipart(boundary: str, *parts: tuple[str, bytes], preamble: bytes = b"", epilogue: bytes = b"") -> bytes:
    line = b"--" + boundary.encode()
    body = b"".join(b"%b\r\n%b\r\n\r\n%b\r\n" % (line, head.encode(), content) for head, content in parts)
    return preamble + body + line + b"--" + epilogue


FILE = (
    'Content-Disposition: form-data; name="f"; filename="a.bin"\r\nContent-Type: application/octet-stream',
    b"\x00\r\n\xff",
)
NAME = ('Content-Disposition: form-data; name="n"', b"value")


def test_a_multipart_body_is_its_parts() -> None:
    first = fingerprint(multipart("one", FILE, NAME), "multipart/form-data; boundary=one")
    for body, kind in (
        (multipart("two", FILE, NAME), "multipart/form-data; boundary=two"),
        (multipart("a b", FILE, NAME), 'Multipart/Form-Data; charset=utf-8; boundary="a b"'),
        (multipart("one", FILE, NAME, preamble=b"hi\r\n", epilogue=b"\r\nbye"), "multipart/mixed;boundary=one"),
        (multipart("one", FILE, NAME).replace(b"Content-Disp", b"content-disp"), "multipart/form-data; boundary=one"),
    ):
        assert fingerprint(body, kind) == first, kind
    others = [
        multipart("one", NAME, FILE),
        multipart("one", FILE),
        multipart("one", FILE, (NAME[0], b"Value")),
        multipart("one", FILE, (NAME[0].replace('"n"', '"m"'), NAME[1])),
        multipart("one", FILE, (NAME[0], NAME[1] + b"\r\n")),
    ]
    found = {fingerprint(body, "multipart/form-data; boundary=one") for body in others}
    assert len(found | {first}) == len(others) + 1
    as_bytes = replace(HTTP, format=Format.BYTES)
    one, two = (fingerprint(multipart(at, FILE), f"multipart/mixed; boundary={at}", source=as_bytes) for at in "ab")
    assert one == two


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--one",
        b"--one--",
        b"--one\r\n\r\na",
        b"--one\r\nno colon\r\n\r\na\r\n--one--",
        b"--one\r\nA: b\r\n--one--",
        b"--onetwo\r\n\r\na\r\n--one--",
        multipart("one", *[NAME] * (PARTS_MAX + 1)),
    ],
)
def test_what_is_no_multipart_is_bytes(body: bytes) -> None:
    kind = "multipart/form-data; boundary=one"
    assert parts_of(kind, body) is None
    assert fingerprint(body, kind) != fingerprint(body + b" ", kind)


def test_boundaries_that_are_none() -> None:
    body = multipart("one", NAME)
    assert parts_of("multipart/form-data; boundary=one", body) is not None
    assert parts_of("multipart/form-data; boundary=one", multipart("one", *[NAME] * PARTS_MAX)) is not None
    for kind in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "text/plain; boundary=one",
        "multipart/; boundary=one",
    ):
        assert parts_of(kind, body) is None
    assert parts_of("multipart/form-data; " + "boundary=" * 10_000, body) is None


def test_a_part_without_header_fields() -> None:
    assert parts_of("multipart/mixed; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n") == [[[], b"x"]]
    assert parts_of("multipart/mixed; boundary=b", b"--b \t\r\n\r\n\r\n--b--") == [[[], b""]]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4), st.binary(max_size=8))
def test_parts_come_back_as_they_are(contents: list[bytes], junk: bytes) -> None:
    parts = [("A: b", content) for content in contents]
    body = multipart("no-such-thing", *parts, epilogue=b"\r\n" + junk)
    assert parts_of("multipart/mixed; boundary=no-such-thing", body) == [
        [[[b"a", b"b"]], content] for content in contents
    ]
