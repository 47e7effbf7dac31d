"""Requests of senders through every source there is, and through sources that somebody might configure."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from random import Random
from typing import Any, Final

from idemactor.core.keys import check_key
from idemactor.errors import InvalidRequest, Unauthorized
from idemactor.gateway.normalise import Normaliser
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.resolve import resolve
from idemactor.gateway.source import Bucket, Format, InvalidSource, Source
from tests.fuzz.harness import fuzz

NOW_MS: Final = 1_772_461_800_000
SOURCES: Final = [
    *SHIPPED.values(),
    Source("ids", id=("header:X-Id", ("/a", "/b/0"), "query:id"), format=Format.JSON, exclude=("/price",)),
    Source("all", derive=("path", "body", "header:X-A"), bucket=Bucket.MINUTE, headers=("X-A",), secrets=("/key",)),
    Source("form", derive=("/a",), format=Format.FORM, nonce="/n", normalise={"/a": tuple(Normaliser)}),
    Source(
        "text", derive=("/side", "/symbol"), format=Format.TEXT, pattern=r"(?P<side>BUY|SELL) (?P<symbol>\S+)( .*)?"
    ),
]
PAYLOADS: Final = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "cases" / "payloads").iterdir())]
GOOD: Final = ("header:X-Id", "query:id", "/a", "/a/0", "/a~1b", "/b", "/side", "/symbol", "header:Content-Type", "/")
BAD: Final = (
    "header:",
    "query:",
    "/~",
    "x",
    "",
    "header:X Y",
    "/\ud800",
    "path",
    "body",
    "//",
    "header:Idempotency-Key",
)


def as_bytes(path: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    head = "\n".join([path, *(f"{name}: {value}" for name, value in headers)])
    return head.encode("latin-1") + b"\n\n" + body


def as_request(data: bytes) -> RawRequest:
    head, _, body = data.partition(b"\n\n")
    path, *lines = head.decode("latin-1").split("\n")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return RawRequest("POST", path, headers, body)


def samples() -> list[bytes]:
    found = []
    for payload in PAYLOADS:
        case = json.loads(payload) if payload.startswith(b"{") else {}
        request: dict[str, Any] = case.get("request", case) if isinstance(case, dict) else {}
        pairs = request.get("headers") if isinstance(request.get("headers"), list) else []
        headers = [(str(pair[0]), str(pair[1])) for pair in pairs or [] if isinstance(pair, list) and len(pair) == 2]
        body = request.get("body")
        text = body.encode() if isinstance(body, str) else payload
        found.append(as_bytes("/hook?id=1&a=b", headers or [("Content-Type", "application/json")], text))
    found += [
        as_bytes("/x", [("Content-Type", "application/x-www-form-urlencoded")], b"a=1&b=%zz&a=2&n=+"),
        as_bytes(
            "/x",
            [("Content-Type", "multipart/form-data; boundary=q")],
            b'--q\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--q--',
        ),
        as_bytes("/x", [("Content-Type", "text/plain"), ("X-Id", "7")], b"BUY BTCUSDT now"),
        as_bytes("/x", [("Idempotency-Key", '"k"'), ("X-A", "a")], b'{"a":{"b":[1.50]},"idempotencyKey":"k"}'),
        as_bytes(
            "/x", [("X-GitHub-Delivery", "d"), ("webhook-id", "w"), ("X-Shopify-Event-Id", "e")], b'{"id":"evt_1"}'
        ),
    ]
    return found


WORDS: Final = (
    *(b"\n\n", b"\n", b": ", b"&", b"=", b"%", b"%ff", b"+", b"?", b'"', b"{", b"}", b"[", b"null", b"1e999", b"\xff"),
    *(b"Content-Type: application/json\n", b"Content-Type: text/plain; charset=latin-1\n", b"Idempotency-Key: k\n"),
    *(
        b"Content-Type: multipart/form-data; boundary=",
        b"--q",
        b"\r\n",
        b'"idempotencyKey":"x",',
        b"\\u0000",
        b"X-Id: ",
    ),
    *(
        b"[" * 70,
        b"a=1&" * 200,
        b"\x00",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"Content-Encoding: gzip\n",
        b"true",
        b"test",
    ),
)


def outcome_of(source: Source, request: RawRequest) -> str:
    """What becomes of a request: always the same, and always a key that a record may have."""
    told = []
    for _ in range(2):
        try:
            found = resolve(source, request, now_ms=NOW_MS)
        except (InvalidRequest, Unauthorized) as error:
            told.append(f"{source.name} {error.code}")
        else:
            check_key(found.key)
            told.append(f"{source.name} {found.rule} {found.key} {found.fingerprint}")
    assert told[0] == told[1]
    return " ".join(told[0].split()[:2])


def test_sources() -> None:
    def target(data: bytes) -> str:
        request = as_request(data)
        return " ".join(outcome_of(source, request) for source in SOURCES)

    assert len(fuzz("sources", target, samples(), WORDS)) > 20


def made(rng: Random) -> Source | None:
    """A source that somebody might write; None where it is none, which has to be said as an ``InvalidSource``."""
    for _ in range(4):
        with contextlib.suppress(InvalidSource):
            return Source("made", **written(rng))
    return None


def written(rng: Random) -> dict[str, Any]:
    """Settings of a source, many of which cannot be together."""

    def one() -> str:
        return rng.choice(BAD if rng.random() < 0.05 else GOOD)

    def some(most: int) -> tuple[str, ...]:
        return tuple(one() for _ in range(rng.randrange(most)))

    settings: dict[str, Any] = {
        "format": rng.choice(tuple(Format)),
        "id": tuple(rng.choice((ref, (ref, one()))) for ref in some(3)),
        "derive": some(4),
        "exclude": some(3),
        "headers": rng.choice(((), ("X-A",), ("X-A", "Content-Type"), ("a b",))),
        "secrets": some(3),
        "mode": rng.choice((None, one())),
        "nonce": rng.choice((None, one())),
        "bucket": rng.choice(tuple(Bucket)),
        "client_key": rng.choice((None, True, False)),
        "pattern": rng.choice((None, None, "", "(", "(?P<a>x*)", "(?P<a>.)(?P<b>.*)", "(a|b)*c", "(?P<side>\\w+) .*")),
        "normalise": {ref: (rng.choice(tuple(Normaliser)),) for ref in some(3)},
    }
    return {name: value for name, value in settings.items() if rng.random() < 0.4}


def test_sources_that_somebody_might_write() -> None:
    """The first bytes are the seed of a source, the rest is a request to it."""

    def target(data: bytes) -> str:
        source = made(Random(data[:4]))
        return "no source" if source is None else outcome_of(source, as_request(data[4:]))

    seeds = [bytes((number,)) * 4 for number in range(64)]
    said = fuzz("made_sources", target, [seed + sample for seed in seeds for sample in samples()[:3]], WORDS)
    assert {"no source"} < said.keys()
