"""What callers send: frames, JSON, heads, header keys, outcomes."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack

from idemactor.core.commands import Commit
from idemactor.core.keys import check_key
from idemactor.core.limits import FRAME_BYTES_MAX
from idemactor.core.policy import Policy
from idemactor.errors import RequestError
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.proxy.headers import key_value
from idemactor.gateway.resolve import resolver_of
from idemactor.observability.metrics import Metrics
from idemactor.server.auth import Authenticator
from idemactor.server.context import ServerContext
from idemactor.server.rpc_calls import RpcCalls
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.storage import rows
from idemactor.wire.frames import FrameReader
from idemactor.wire.http_head import Heads
from idemactor.wire.idempotency_key import InvalidKey, parse_key_header
from idemactor.wire.outcomes import outcome_body
from idemactor.wire.requests import Dialect, Scope, command_from
from idemactor.wire.strict_json import InvalidJSON, parse
from tests.fuzz.harness import fuzz
from tests.server.rig import TOKENS

NOW_MS: Final = 1_700_000_000_000
RAW: Final = {"method": "POST", "path": "/x?a=b", "headers": [["Idempotency-Key", "k"]], "body": '{"id":1}'}
OUTCOME: Final = {"status": 200, "headers": [["a", "b"]], "body": "done"}
CALLS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("reserve", {"key": "k", "payload": {"a": [1, 2.5, None]}, "wait_ms": 5, "holder": "h", "request_id": "r"}),
    ("reserve", {"source": "http", "request": RAW, "lease_ms": 1_000, "ttl_ms": 5_000}),
    ("accept", {"key": "k", "payload_json": '{"a":1.50}', "outcome": OUTCOME, "window_ms": 60_000}),
    ("commit", {"key": "k", "token": 1, "outcome": OUTCOME, "ttl_ms": 1_000}),
    ("release", {"key": "k", "token": 1, "reason": "no"}),
    ("extend", {"key": "k", "token": 2**52, "lease_ms": 10}),
    ("doubt", {"key": "k", "token": 1, "reason": "who knows"}),
    ("resolve", {"key": "k", "token": 1, "verdict": "committed", "outcome": OUTCOME}),
    ("get", {"key": "k"}),
    ("forget", {"key": "k", "force": True}),
    ("records", {"state": "pending", "limit": 5, "cursor": None}),
    ("incidents", {}),
    ("acknowledge", {"id": "0-1"}),
    ("key", {"source": "tradingview", "request": RAW}),
    ("policy", {}),
]


def frame(msgid: int, method: str, *params: object) -> bytes:
    packed: bytes = msgpack.packb([0, msgid, method, list(params)])
    return packed


FRAMES: Final = [
    *(frame(number, op, {"namespace": "default", **members}) for number, (op, members) in enumerate(CALLS)),
    frame(1, "ping", {}),
    frame(2, "auth", {"token": "operator-token"}) + frame(3, "get", {"namespace": "trade", "key": "k"}),
    frame(4, "batch", {"ops": [{"op": op, "namespace": "default", **members} for op, members in CALLS[:4]]}),
    frame(5, "shards"),
    msgpack.packb([2, "notified", []]),
]
NAMES: Final = sorted({name for _, members in CALLS for name in members} | {op for op, _ in CALLS} | {"namespace"})
PACKED: Final = [msgpack.packb(name) for name in NAMES] + [
    *(
        b"\xc0",
        b"\xc1",
        b"\xc2",
        b"\xcb\x7f\xf8\0\0\0\0\0\0",
        b"\xcb\x7f\xf0\0\0\0\0\0\0",
        b"\xd9\xff",
        b"\xdd\xff\xff\xff\xff",
    ),
    *(
        b"\xdf\xff\xff\xff\xff",
        b"\xc7\x01\x05x",
        b"\x91" * 40,
        b"\x81\xa1a" * 40,
        b"\xcf" + b"\xff" * 8,
        b"\xa2\xed\xa0",
    ),
]


class Nowhere:
    """A connection that takes note of what is sent."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.failed: list[Exception] = []

    @property
    def room(self) -> int:
        return FRAME_BYTES_MAX

    def send(self, data: bytes) -> None:
        self.sent += data

    def stir(self) -> None: ...

    def fail(self, error: Exception) -> None:
        self.failed.append(error)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        del work


def context(*, tokens: bool) -> ServerContext:
    metrics = Metrics(process=False)
    policies = {"default": Policy(), "trade": Policy()}
    resolver = resolver_of(SHIPPED, lambda: NOW_MS)
    authenticator = Authenticator(TOKENS if tokens else (), policies, resolver)
    found = ServerContext(Router((), metrics), policies, authenticator, metrics, metrics, lambda: NOW_MS)
    found.sources = SHIPPED
    return found


OPEN, CLOSED = context(tokens=False), context(tokens=True)


def calls_of(data: bytes, cuts: Sequence[int], where: ServerContext) -> tuple[bytes, list[str], bool]:
    """What a connection is answered at once, which commands reach the shards, and whether it is closed."""
    link, commands = Nowhere(), list[str]()

    def route(envelopes: Sequence[Envelope]) -> None:
        commands.extend(type(envelope.command).__name__ for envelope in envelopes)

    reader, calls = FrameReader(), RpcCalls(where, 4, link, route)
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        calls.take(reader.feed(data[start:end]))
    assert not link.failed, link.failed
    return bytes(link.sent), commands, reader.broken is not None


def test_frames() -> None:
    rng = Random(7)

    def target(data: bytes) -> str:
        whole = calls_of(data, (), OPEN)
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(3))
        assert calls_of(data, cuts, OPEN) == whole, "where the bytes are split matters"
        refused, reached, _ = calls_of(data, (), CLOSED)
        assert b"operator-token" in data or not reached, "a command without rights"
        return f"{whole[1][:2]} {whole[2]} {details(whole[0])} {len(refused) > 0}"

    said = fuzz("frames", target, FRAMES, PACKED)
    assert len(said) > 20


def details(sent: bytes) -> list[str]:
    """The errors that were sent, without what differs by chance."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(sent)
    return sorted({str(error)[:60] for _, _, error, _ in unpacker if error is not None})[:2]


JSON_WORDS: Final = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"1e999", b"-0", b"1.0", b"NaN", b"Infinity"),
    *(
        b"\\ud800",
        b"\\u0000",
        b"\xff",
        b"\xef\xbb\xbf",
        b"[" * 70,
        b'{"a":' * 70,
        b"1" * 5_000,
        b"1e-99999999",
        b"\xf0\x9f\xa6\x80",
    ),
    *(f'"{name}":'.encode() for name in NAMES),
]


def test_calls_as_json() -> None:
    """Members of every call: a command, or a refusal that is declared."""
    where = Scope("acme", "default", Policy(), True, resolver_of(SHIPPED, lambda: NOW_MS))

    def target(data: bytes) -> str:
        op, _, body = data.partition(b" ")
        name = op.decode("latin-1")
        if name not in dict(CALLS[:10]):
            name = "reserve"
        try:
            members = parse(body)
        except InvalidJSON as error:
            return re.sub(r"\d+", "n", str(error))
        if not isinstance(members, dict):
            return "no object"
        try:
            command = command_from(name, members, where, Dialect.JSON)
        except RequestError as error:
            return f"{name} {error.code} {error.field in NAMES and error.field}"
        check_key(command.identity.key)
        return f"{name} {len(members)}"

    samples = [op.encode() + b" " + json.dumps(members).encode() for op, members in CALLS[:10]]
    assert len(fuzz("calls", target, samples, JSON_WORDS)) > 20


def test_outcomes() -> None:
    """What a commit took is what is stored, shown, and taken again."""
    where = Scope("acme", "default", Policy(), False)

    def target(data: bytes) -> str:
        try:
            given = parse(data)
            command = command_from("commit", {"key": "k", "token": 1, "outcome": given}, where, Dialect.JSON)
        except (InvalidJSON, RequestError) as error:
            return re.sub(r"\d+", "n", str(error))[:80]
        assert isinstance(command, Commit)
        outcome = command.outcome
        if outcome is None:
            return "none"
        assert rows.outcome_of(rows.outcome_row(outcome)) == outcome
        shown = outcome_body(outcome, Dialect.JSON)
        again = parse(json.dumps(shown).encode())
        repeated = command_from("commit", {"key": "k", "token": 1, "outcome": again}, where, Dialect.JSON)
        assert isinstance(repeated, Commit)
        assert repeated.outcome == outcome
        for name, value in outcome.headers:
            assert not re.search("[\r\n\0]", name + value), "a field that could become two"
        return f"{outcome.status // 100} {len(outcome.headers)} {bool(outcome.body)}"

    samples = [json.dumps(OUTCOME).encode(), b'{"status":599,"body_b64":"/wA="}', b'{"status":204,"headers":[]}']
    words = [
        *JSON_WORDS,
        b'"status":',
        b'"headers":[["a","b\\r\\nc"]]',
        b'"body":',
        b'"body_b64":"//8="',
        b'"omitted":true',
    ]
    assert len(fuzz("outcomes", target, samples, words)) > 10


KEYS: Final = json.loads((Path(__file__).parents[1] / "cases" / "keys.json").read_bytes())["cases"]


def test_header_keys() -> None:
    """A key, or a refusal; and a key can be written as a header that is read as the same key."""

    def target(data: bytes) -> str:
        values = data.split(b"\n")
        try:
            key = parse_key_header(values)
        except InvalidKey as error:
            return str(error)
        check_key(key)
        assert key.isascii()
        assert len(values) == 1
        assert parse_key_header([key_value(key, "").encode()]) == key
        return ("quoted" if b'"' in values[0] else "bare") + str(min(3, values[0].count(b";")))

    samples = [
        b"k",
        b'"k"',
        b'"a\\"b\\\\c";p=1;q="x";r=?1;s=:aGk=:;t=-1.5',
        b"\t k \t",
        b"k\nk",
        b'"' + b"x" * 256 + b'"',
    ]
    words = [
        b'"',
        b"\\",
        b";",
        b"=",
        b":",
        b"?1",
        b"*",
        b" ",
        b"\t",
        b"\x00",
        b"\x7f",
        b"\xff",
        b",",
        b'"; a=',
        b"x" * 250,
    ]
    assert len(fuzz("header_keys", target, samples, words)) > 5


HEAD: Final = (
    b"POST /v1/default/reserve HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
    b"POST /v1/batch HTTP/1.1\r\nhost: a\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: 100\r\n"
    b"Authorization: Bearer x\r\nIdempotency-Key: k\r\nConnection: keep-alive\r\n\r\n",
)
HEAD_WORDS: Final = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"\xff", b":", b"HTTP/1.0", b"GET ", b"%2f", b"//", b"?", b"#"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Expect: 100-continue\r\n", b"Host: b\r\n"),
    *(b"Content-Type: application/json\r\n", b"Upgrade: x\r\n", b" folded\r\n", b"X" * 2_000, b"a: b\r\n" * 120),
)


def test_heads() -> None:
    """A head that is taken says one thing only, and what is remembered is what would be read anew."""
    kept = Heads()

    def target(data: bytes) -> str:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return "no end"
        found = kept.parse(data[: end + 4])
        assert found == Heads().parse(data[: end + 4])
        if found is None:
            return "elsewhere"
        lowered = data[: end + 2].lower()
        assert lowered.count(b"\r\ncontent-length:") == 1
        assert b"\r\ntransfer-encoding:" not in lowered
        assert b"\n" not in lowered.replace(b"\r\n", b"")
        return f"{found.op} {min(2, len(found.keys))} {min(2, len(found.authorization))}"

    assert len(fuzz("heads", target, HEAD, HEAD_WORDS)) > 3
