"""Bad input at a real server, over both doors: it gets its answer and changes nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack
import pytest

from tests.system.clients import Answer, Lost, Members, RpcError, connect, frame, raw, read_to_end
from tests.system.conftest import TWO_NAMESPACES
from tests.system.process import Server, assert_calm, eventually

CASES: Final = Path(__file__).resolve().parents[1] / "cases"
KEYS: Final = json.loads((CASES / "keys.json").read_text())["cases"]
PAIRS: Final = json.loads((CASES / "fingerprints.json").read_text())["pairs"]
INVALID: Final = "IDEMPOTENCY_INVALID_REQUEST"
JSON_TYPE: Final = {"Content-Type": "application/json"}
NAMESPACES: Final = ("default", "trade", "again", "strict")
MIB: Final = 1_048_576


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a record in every state."""
    with Server(tmp_path_factory.mktemp("bad"), TWO_NAMESPACES) as running:
        with running.http_client() as client:
            client.call("reserve", key="held", payload={"qty": 1}, lease_ms=3_600_000, holder="h")
            # Tokens are a shard's own: a few more make sure that these two differ.
            for _ in range(3):
                other = client.call("reserve", key="other", lease_ms=3_600_000).members
                client.call("release", key="other", token=other["token"])
            client.call("reserve", key="other", lease_ms=3_600_000)
            client.call("accept", key="done", ttl_ms=3_600_000, outcome={"status": 200, "body": "as it was"})
            doubted = client.call("reserve", "trade", key="doubted").members
            client.call("doubt", "trade", key="doubted", token=doubted["token"], reason="timeout")
        yield running
        assert running.alive, "a test took the server down"
        assert_calm(running)


@pytest.fixture
def token(server: Server) -> int:
    """The token of the key that is held."""
    found: int = record_of(server, "held")["token"]
    return found


@pytest.fixture
def unchanged(server: Server) -> Iterator[None]:
    """Whatever the test does, what the server holds is the same afterwards."""
    before = holdings(server)
    yield
    assert holdings(server) == before


def holdings(server: Server) -> Members:
    with server.http_client() as client:
        listed = {name: client.get(f"/v1/{name}/records?limit=1000").members for name in NAMESPACES}
        incidents = {name: client.get(f"/v1/{name}/incidents").members for name in NAMESPACES}
        return {"records": listed, "incidents": incidents, "done": client.call("get", key="done").members}


def record_of(server: Server, key: str, namespace: str = "default") -> Members:
    with server.http_client() as client:
        record: Members = client.call("get", namespace, key=key).members["record"]
    return record


def post(server: Server, op: str, body: bytes, namespace: str = "default", **headers: str) -> Answer:
    with server.http_client(30) as client:
        return client.send("POST", f"/v1/{namespace}/{op}", body, JSON_TYPE | headers)


def assert_problem(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code), answer.members
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail"} <= answer.members.keys()
    assert "result" not in answer.members, "what never reached the table has no result"


# --------------------------------------------------------------------------------------------------------- whole bodies

BODIES: Final = {
    "no-json": b"key=held",
    "cut": b'{"key": "held"',
    "empty-text": b" ",
    "array": b'[{"key": "held"}]',
    "text": b'"held"',
    "number": b"17",
    "null": b"null",
    "two-values": b'{"key": "a"} {"key": "b"}',
    "not-utf-8": b'{"key": "\xff\xfe"}',
    "utf-16": '{"key": "a"}'.encode("utf-16"),
    "byte-order-mark": b'\xef\xbb\xbf{"key": "a"}',
    "single-quotes": b"{'key': 'a'}",
    "comment": b'{"key": "a" /* the key */}',
    "trailing-comma": b'{"key": "a",}',
    "member-twice": b'{"key": "a", "key": "a"}',
    "inner-member-twice": b'{"key": "a", "payload": {"x": 1, "x": 1}}',
    "nan": b'{"key": "a", "payload": NaN}',
    "infinity": b'{"key": "a", "payload": -Infinity}',
    "lone-surrogate-in-the-key": b'{"key": "\\ud800"}',
    "lone-surrogate-in-the-payload": b'{"key": "a", "payload": ["\\udc00"]}',
    "nested-65-deep": b'{"key": "a", "payload": ' + b"[" * 64 + b"]" * 64 + b"}",
    "nested-100000-deep": b'{"key": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested-and-never-closed": b'{"key": "a", "payload": ' + b'{"a":' * 50_000,
    "huge-exponent": b'{"key": "a", "payload": 1e9999999}',
    "unknown-member": b'{"key": "a", "leese_ms": 5}',
    "exponent-for-an-integer": b'{"key": "a", "lease_ms": 1e3}',
    "fraction-for-an-integer": b'{"key": "a", "lease_ms": 1000.0}',
    "integer-of-5000-digits": b'{"key": "a", "lease_ms": ' + b"1" * 5_000 + b"}",
    "payload-json-is-for-rpc": b'{"key": "a", "payload_json": "{}"}',
    "namespace-in-the-body": b'{"key": "a", "namespace": "trade"}',
    "tenant-in-the-body": b'{"key": "a", "tenant": "acme"}',
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_cannot_be(server: Server, name: str) -> None:
    answer = post(server, "reserve", BODIES[name])
    assert_problem(answer, 400, INVALID)
    assert answer.members["proceed"] is False


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("member-twice", "key"),
        ("inner-member-twice", "payload"),
        ("lone-surrogate-in-the-key", "key"),
        ("lone-surrogate-in-the-payload", "payload"),
    ],
)
def test_what_is_no_strict_json_is_named_by_its_member(server: Server, name: str, field: str) -> None:
    assert post(server, "reserve", BODIES[name]).members["field"] == field


@pytest.mark.usefixtures("unchanged")
def test_a_body_nested_as_deep_as_may_be(server: Server) -> None:
    body = b'{"key": "deep", "payload": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert post(server, "reserve", body).status == 201
    assert post(server, "forget", b'{"key": "deep", "force": true}').status == 200


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("op", "limit"), [("reserve", MIB), ("get", MIB), ("commit", 2 * MIB), ("accept", 2 * MIB)])
def test_a_body_too_large(server: Server, op: str, limit: int) -> None:
    whole = b'{"key": "' + b"k" * (limit - 11) + b'"}'
    assert len(whole) == limit
    assert_problem(post(server, op, whole), 400, INVALID)
    assert_problem(post(server, op, whole + b" "), 413, "IDEMPOTENCY_TOO_LARGE")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (limit + 1, whole + b" ")
    head = f"POST /v1/default/{op} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    answer = raw(server.http, head.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks, 30)
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:200]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json", ""])
def test_a_content_type_that_is_not_json(server: Server, kind: str) -> None:
    answer = post(server, "reserve", b'{"key": "a"}', **{"Content-Type": kind})
    assert_problem(answer, 415, "IDEMPOTENCY_UNSUPPORTED_MEDIA_TYPE")
    assert answer.members["proceed"] is False


@pytest.mark.usefixtures("unchanged")
def test_no_content_type_and_a_coded_body(server: Server) -> None:
    with server.http_client() as client:
        answer = client.send("POST", "/v1/default/reserve", b'{"key": "a"}', {})
        assert_problem(answer, 415, "IDEMPOTENCY_UNSUPPORTED_MEDIA_TYPE")
    coded = post(server, "reserve", b'{"key": "a"}', **{"Content-Encoding": "gzip"})
    assert_problem(coded, 415, "IDEMPOTENCY_UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.acme+json"])
def test_a_content_type_that_is_json(server: Server, kind: str) -> None:
    assert post(server, "get", b'{"key": "held"}', **{"Content-Type": kind}).status == 200


# --------------------------------------------------------------------------------------------------- single members

NOT_AN_INTEGER: Final = ["5", 5.0, True, False, [5], {"ms": 5}, ""]
NOT_A_TEXT: Final = [1, 1.5, True, [], {}]
NOT_A_KEY: Final = ["", " ", "\t \u00a0", "a\0b", "\x1f", "\x7f", "\u0085", "k" * 257, "\U0001f512" * 257, *NOT_A_TEXT]
NOT_A_TOKEN: Final = [0, -1, 2**53, 2**63, 2**64 - 1, *NOT_AN_INTEGER]
NOT_A_LEASE: Final = [0, -1, 86_400_001, 2**53, 2**63, *NOT_AN_INTEGER]
NOT_A_TTL: Final = [0, -1, 400 * 86_400_000 + 1, 2**53, *NOT_AN_INTEGER]
NOT_AN_OUTCOME: Final = [
    [], "filled", 200, {}, {"body": "x"}, {"status": 99}, {"status": 600}, {"status": "200"}, {"status": 200.0},
    {"status": True}, {"status": 200, "headers": {}}, {"status": 200, "headers": [["a"]]},
    {"status": 200, "headers": [["a", 1]]}, {"status": 200, "headers": [["a", "b", "c"]]}, {"status": 200, "body": 7},
    {"status": 200, "more": 1},
]  # fmt: skip
HELD: Final = "the token of the held key"

MEMBERS: Final[list[tuple[str, str, list[Any], Members]]] = [
    ("reserve", "key", NOT_A_KEY, {}),
    ("get", "key", NOT_A_KEY, {}),
    ("reserve", "lease_ms", NOT_A_LEASE, {"key": "a"}),
    ("reserve", "ttl_ms", NOT_A_TTL, {"key": "a"}),
    ("reserve", "window_ms", NOT_A_TTL, {"key": "a"}),
    ("reserve", "wait_ms", [-1, 60_001, *NOT_AN_INTEGER], {"key": "a"}),
    ("reserve", "request_id", ["r" * 129, *NOT_A_TEXT], {"key": "a"}),
    ("reserve", "holder", ["h" * 129, *NOT_A_TEXT], {"key": "a"}),
    ("reserve", "fingerprint", ["f" * 129, *NOT_A_TEXT], {"key": "a"}),
    ("reserve", "on_duplicate", ["maybe", "REPLAY", *NOT_A_TEXT], {"key": "a"}),
    ("accept", "outcome", NOT_AN_OUTCOME, {"key": "a"}),
    ("accept", "lease_ms", [5], {"key": "a"}),
    ("accept", "wait_ms", [5], {"key": "a"}),
    ("commit", "token", [None, *NOT_A_TOKEN], {"key": "held"}),
    ("commit", "outcome", NOT_AN_OUTCOME, {"key": "held", "token": HELD}),
    ("commit", "ttl_ms", NOT_A_TTL, {"key": "held", "token": HELD}),
    ("release", "token", [None, *NOT_A_TOKEN], {"key": "held"}),
    ("release", "reason", ["r" * 513, *NOT_A_TEXT], {"key": "held", "token": HELD}),
    ("extend", "lease_ms", [None, *NOT_A_LEASE], {"key": "held", "token": HELD}),
    ("doubt", "token", [None, *NOT_A_TOKEN], {"key": "held"}),
    ("doubt", "reason", ["r" * 513, *NOT_A_TEXT], {"key": "held", "token": HELD}),
    ("resolve", "verdict", [None, "maybe", "COMMITTED", *NOT_A_TEXT], {"key": "doubted", "token": HELD}),
    ("forget", "force", ["true", 1, 0, []], {"key": "held"}),
]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("op", "field", "values", "rest"), MEMBERS, ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_member_that_cannot_be(
    server: Server, token: int, op: str, field: str, values: list[Any], rest: Members
) -> None:
    rest = {name: token if value is HELD else value for name, value in rest.items()}
    with server.http_client() as http, server.rpc_client() as rpc:
        for value in values:
            members = {**rest, field: value}
            answer = http.call(op, **members)
            assert_problem(answer, 400, INVALID)
            # An accept has no lease and no wait at all; elsewhere the field is named.
            assert answer.members.get("field", field).startswith(field), (value, answer.members)
            with pytest.raises(RpcError, match=f"^{INVALID}: "):
                rpc.call(op, **members)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"key": None},
        {"key": "a", "fingerprint": "f", "payload": 1},
        {"key": "a", "ttl_ms": 5, "window_ms": 5},
        {"key": "a", "unknown": None},
        {"key": "a", "token": 5},
        {"Key": "a"},
    ],
)
def test_members_that_cannot_be_together(server: Server, members: Members) -> None:
    with server.http_client() as http, server.rpc_client() as rpc:
        assert_problem(http.call("reserve", **members), 400, INVALID)
        with pytest.raises(RpcError, match=f"^{INVALID}: "):
            rpc.call("reserve", **members)


@pytest.mark.usefixtures("unchanged")
def test_members_of_one_door_alone(server: Server) -> None:
    with server.http_client() as http, server.rpc_client() as rpc:
        for outcome in ({"status": 200, "body_b64": "?"}, {"status": 200, "body": "a", "body_b64": "YQ=="}):
            assert_problem(http.call("accept", key="a", outcome=outcome), 400, INVALID)
        for more in (
            {"payload_json": "{}", "payload": 1},
            {"payload_json": "{}", "fingerprint": "f"},
            {"payload_json": "{"},
            {"payload_json": 7},
            {"payload": msgpack.ExtType(5, b"x")},
            {"payload": float("nan")},
            {"payload": float("inf")},
            {"payload": {1: "a key that is no text"}},
            {"key": b"\xff\xfe"},
            {"key": b"\xed\xa0\x80"},
        ):
            with pytest.raises(RpcError, match=f"^{INVALID}: "):
                rpc.call("reserve", **{"key": "a", **more})


@pytest.mark.usefixtures("unchanged")
def test_null_is_as_if_it_were_absent(server: Server) -> None:
    optional: dict[str, Any] = dict.fromkeys(
        ("request_id", "lease_ms", "ttl_ms", "window_ms", "wait_ms", "holder", "payload")
    )
    with server.http_client() as http, server.rpc_client() as rpc:
        assert http.call("reserve", key="nulls", **optional, fingerprint="f").status == 201
        assert http.call("forget", key="nulls", force=True).status == 200
        assert rpc.call("reserve", key="nulls", **optional, fingerprint="f")["result"] == "reserved"
        assert rpc.call("forget", key="nulls", force=True)["result"] == "forgotten"


# -------------------------------------------------------------------------------------------------- keys and namespaces


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "key", ["k" * 256, "\U0001f512" * 256, "\u00e9", "e\u0301", "a\u200bb", " padded ", "a:b/c?d=é"]
)
def test_a_key_that_is_unusual_and_right(server: Server, key: str) -> None:
    with server.http_client() as http, server.rpc_client() as rpc:
        told = http.call("reserve", key=key)
        assert (told.status, told.members["key"]) == (201, key)
        assert rpc.call("reserve", key=key)["result"] == "in_flight"
        assert rpc.call("reserve", key=key.encode())["result"] == "in_flight"
        assert rpc.call("get", key=key)["record"]["key"] == key
        assert http.call("forget", key=key, force=True).status == 200


@pytest.mark.usefixtures("unchanged")
def test_keys_are_compared_exactly(server: Server) -> None:
    alike = ["Order", "order", "order ", "\u00e9", "e\u0301", "\u212b", "\u00c5"]
    with server.http_client() as http:
        assert [http.call("reserve", key=key).status for key in alike] == [201] * len(alike)
        assert [http.call("forget", key=key, force=True).status for key in alike] == [200] * len(alike)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("namespace", "status", "code"),
    [
        ("payments", 404, "IDEMPOTENCY_UNKNOWN_NAMESPACE"),
        ("Default", 400, INVALID),
        ("9lives", 400, INVALID),
        ("a" * 64, 400, INVALID),
        ("d%65fault%00", 400, INVALID),
    ],
)
def test_a_namespace_that_is_not_there(server: Server, namespace: str, status: int, code: str) -> None:
    answer = post(server, "reserve", b'{"key": "a"}', namespace)
    assert_problem(answer, status, code)
    assert answer.members["proceed"] is False
    with server.rpc_client() as rpc:
        with pytest.raises(RpcError, match=f"^{code}: "):
            rpc.call("reserve", namespace.replace("%00", "\0"), key="a")
        for params in ({"key": "a"}, {"key": "a", "namespace": 7}, {"key": "a", "namespace": None}):
            with pytest.raises(RpcError, match=f"^{INVALID}: "):
                rpc.request("reserve", params)


def test_the_token_of_another_key(server: Server, token: int) -> None:
    other = record_of(server, "other")["token"]
    assert other != token
    before = holdings(server)
    with server.http_client() as http, server.rpc_client() as rpc:
        calls: list[tuple[str, Members]] = [("commit", {}), ("release", {}), ("extend", {"lease_ms": 5}), ("doubt", {})]
        for op, more in calls:
            for wrong in (other, token + 1_000, 2**53 - 1):
                answer = http.call(op, key="held", token=wrong, **more)
                assert (answer.status, answer.code) == (409, "IDEMPOTENCY_STALE_TOKEN")
                assert answer.members["attempt"] == 1
                assert rpc.call(op, key="held", token=wrong, **more)["result"] == "stale"
            answer = http.call(op, key="nobody's", token=token, **more)
            assert (answer.status, answer.members["result"]) == (404, "unknown")
        stale = http.call("resolve", "trade", key="doubted", token=token + 1_000, verdict="released")
        assert stale.members["result"] == "stale"
    assert holdings(server) == before


# ----------------------------------------------------------------------------------------------------------- cases


def _row(server: Server, values: list[str], op: str) -> bytes:
    lines = "".join(f"Idempotency-Key: {value}\r\n" for value in values)
    head = f"POST /v1/default/{op} HTTP/1.1\r\nHost: t\r\n{lines}Connection: close\r\n\r\n"
    return raw(server.http, head.encode())


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("case", KEYS, ids=lambda case: repr(case["header"]))
def test_the_key_header(server: Server, case: Members) -> None:
    values = case["header"] if isinstance(case["header"], list) else [case["header"]]
    answer = _row(server, values, "reserve")
    members = json.loads(answer.partition(b"\r\n\r\n")[2])
    if case["key"] is None:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert (members["code"], members["field"], members["proceed"]) == (INVALID, "key", False)
        return
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert members["key"] == case["key"]
    with server.http_client() as client:
        # Header and body name one key.
        assert client.call("reserve", key=case["key"]).members["result"] == "in_flight"
        both = client.post("/v1/default/get", {"key": case["key"]}, **{"Idempotency-Key": values[0]})
        assert both.status == 200
        differing = client.post("/v1/default/get", {"key": case["key"] + "x"}, **{"Idempotency-Key": values[0]})
        assert_problem(differing, 400, INVALID)
        assert client.call("forget", key=case["key"], force=True).status == 200


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("door", ["http", "rpc"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair['a']} {pair['b']}")
def test_fingerprints_of_payloads(server: Server, pair: Members, door: str) -> None:
    first = _reserve_payload(server, door, pair["a"])
    assert first["result"] == "reserved"
    second = _reserve_payload(server, door, pair["b"])
    if pair.get("invalid"):
        assert second["code"] == INVALID
    else:
        assert second["result"] == ("in_flight" if pair["same"] else "mismatch")
    # The other door sees the same fingerprint.
    other = _reserve_payload(server, "rpc" if door == "http" else "http", pair["a"])
    assert other["result"] == "in_flight"
    with server.http_client() as client:
        assert client.call("forget", key="f", force=True).status == 200


def _reserve_payload(server: Server, door: str, payload: str) -> Members:
    if door == "http":
        return post(server, "reserve", f'{{"key": "f", "payload": {payload}}}'.encode()).members
    with server.rpc_client() as rpc:
        try:
            return rpc.call("reserve", key="f", payload_json=payload)
        except RpcError as error:
            return {"code": error.code}


# ------------------------------------------------------------------------------------------------------------- frames

RESERVE: Final = frame(3, "reserve", {"namespace": "default", "key": "framed"})
FRAMES: Final = {
    "garbage": bytes(range(256)) * 8,
    "http": b"GET / HTTP/1.1\r\nHost: t\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00" + b"\0" * 600,
    "never-used-byte": b"\xc1",
    "a-number": b"\x05",
    "a-map": msgpack.packb({"method": "reserve"}),
    "a-response": msgpack.packb([1, 1, None, {}]),
    "an-unknown-type": msgpack.packb([3, 1, "reserve", [{}]]),
    "five-items": msgpack.packb([0, 1, "reserve", [{}], 1]),
    "msgid-of-text": msgpack.packb([0, "1", "reserve", [{}]]),
    "msgid-beyond-32-bits": msgpack.packb([0, 2**32, "reserve", [{}]]),
    "msgid-negative": msgpack.packb([0, -1, "reserve", [{}]]),
    "nested-1000-deep": b"\x94\x00\x01\xa7reserve\x91\x81\xa7payload" + b"\x91" * 1_000 + b"\xc0",
    "nested-1000000-deep": b"\x91" * 1_000_000,
    "oversized": frame(1, "reserve", {"namespace": "default", "key": "a", "payload": "x" * (2 * MIB + 65_536)}),
    "oversized-and-never-ended": b"\x94\x00\x01\xa7reserve\xdb\xff\xff\xff\xff" + b"x" * (3 * MIB),
    "an-array-of-4-billion": b"\x94\x00\x01\xa7reserve\xdd\xff\xff\xff\xff" + b"\xc0" * (3 * MIB),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_closes_its_connection(server: Server, name: str) -> None:
    with server.rpc_client() as bystander:
        assert bystander.request("ping", {}) == {"result": "pong"}
        # What came whole before is still answered; nothing after it is.
        answer = raw(server.rpc, frame(9, "ping", {}) + FRAMES[name] + RESERVE, 20)
        unpacker = msgpack.Unpacker()
        unpacker.feed(answer)
        assert list(unpacker) in ([], [[1, 9, None, {"result": "pong"}]])
        assert bystander.call("get", key="held")["result"] == "found"
        assert bystander.call("get", key="framed")["result"] == "unknown"


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "request_bytes",
    [
        msgpack.packb([0, 5, "reserve", []]),
        msgpack.packb([0, 5, "reserve", [{}, {}]]),
        msgpack.packb([0, 5, "reserve", ["default", "key"]]),
        msgpack.packb([0, 5, "reserve", {"namespace": "default", "key": "a"}]),
        msgpack.packb([0, 5, "reserve", None]),
        msgpack.packb([0, 5, "no_such_method", [{}]]),
        msgpack.packb([0, 5, 17, [{}]]),
        msgpack.packb([0, 5, b"\xff\xfe", [{}]]),
        b"\x94\x00\x05\xa7reserve\x91\x82\xa3key\xa1a\xa3key\xa1a",
        b"\x94\x00\x05\xa7reserve\x91\x82\x01\xa1a\xa3key\xa1a",
    ],
)
def test_a_request_that_is_answered_with_an_error(server: Server, request_bytes: bytes) -> None:
    with connect(server.rpc) as sock:
        sock.sendall(request_bytes + frame(6, "ping", {}))
        unpacker = msgpack.Unpacker()
        found: dict[int, tuple[Any, Any]] = {}
        while len(found) < 2:
            unpacker.feed(sock.recv(65_536))
            found |= {msgid: (error, result) for _, msgid, error, result in unpacker}
    assert isinstance(found[5][0], str)
    assert found[5][0].startswith(f"{INVALID}: ")
    assert found[5][1] is None
    assert found[6] == (None, {"result": "pong"})


@pytest.mark.usefixtures("unchanged")
def test_frames_byte_by_byte_and_truncated(server: Server) -> None:
    with connect(server.rpc) as sock:
        for byte in frame(8, "get", {"namespace": "default", "key": "held"}):
            sock.sendall(bytes([byte]))
            time.sleep(0.001)
        unpacker = msgpack.Unpacker()
        unpacker.feed(sock.recv(65_536))
        [[_, msgid, error, result]] = list(unpacker)
        assert (msgid, error, result["result"]) == (8, None, "found")
    for end in range(1, len(RESERVE)):
        with connect(server.rpc) as sock:
            sock.sendall(RESERVE[:end])
            sock.shutdown(socket.SHUT_WR)
            assert read_to_end(sock) == b""


@pytest.mark.usefixtures("unchanged")
def test_notifications_are_ignored(server: Server) -> None:
    with connect(server.rpc) as sock:
        notification = msgpack.packb([2, "reserve", [{"namespace": "default", "key": "notified"}]])
        sock.sendall(notification * 3 + frame(1, "ping", {}))
        unpacker = msgpack.Unpacker()
        unpacker.feed(sock.recv(65_536))
        assert list(unpacker) == [[1, 1, None, {"result": "pong"}]]
    with server.rpc_client() as rpc:
        assert rpc.call("get", key="notified")["result"] == "unknown"


# -------------------------------------------------------------------------------------------------- clients that vanish


def _http_request(op: str, members: Members) -> bytes:
    body = json.dumps(members).encode()
    head = f"POST /v1/default/{op} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("door", ["http", "rpc"])
@pytest.mark.parametrize("with_reset", [False, True], ids=["goodbye", "reset"])
def test_a_client_that_vanishes_at_any_point(server: Server, door: str, with_reset: bool) -> None:
    before = holdings(server)
    whole = _http_request("reserve", {"key": "vanished"}) if door == "http" else RESERVE
    key = "vanished" if door == "http" else "framed"
    address = server.http if door == "http" else server.rpc
    for end in range(0, len(whole), 3):
        _vanish(address, whole[:end], with_reset)
    assert holdings(server) == before
    for _ in range(3):
        _vanish(address, whole, with_reset)
    with server.http_client() as client:
        if not with_reset:
            # Read whole, it is carried out, though nobody is left to be told.
            eventually(lambda: client.call("get", key=key).status == 200)
        client.call("forget", key=key, force=True)
    assert holdings(server) == before


def _vanish(address: str, data: bytes, with_reset: bool) -> None:
    sock = connect(address)
    sock.sendall(data)
    if with_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_waiter_that_vanished_is_never_granted(server: Server) -> None:
    with server.http_client() as client:
        held = client.call("reserve", key="queue", lease_ms=60_000).members
        for address, data in (
            (server.http, _http_request("reserve", {"key": "queue", "wait_ms": 30_000})),
            (server.rpc, frame(1, "reserve", {"namespace": "default", "key": "queue", "wait_ms": 30_000})),
        ):
            sock = connect(address)
            sock.sendall(data)
            time.sleep(0.3)
            sock.close()
        time.sleep(0.3)
        assert client.call("release", key="queue", token=held["token"]).status == 200
        assert client.call("get", key="queue").status == 404
        assert client.call("forget", key="queue").status == 200


def test_clients_that_never_read_or_send_a_byte_a_second(server: Server) -> None:
    """All at once, for as long as the longest of the limits; meanwhile others are served."""
    before = holdings(server)
    over: dict[str, bytes] = {}

    def slow_headers() -> None:
        started = time.monotonic()
        with connect(server.http, 20) as sock, contextlib.suppress(ConnectionError):
            sock.settimeout(1.0)
            for byte in b"POST /v1/default/reserve HTTP/1.1\r\nHost: t\r\n" * 2:
                sock.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    over["headers"] = sock.recv(1_000)
                    break
        assert time.monotonic() - started < 15

    def slow_body() -> None:
        with connect(server.http, 20) as sock:
            sock.sendall(b"POST /v1/default/reserve HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n")
            sock.sendall(b"Content-Length: 100\r\n\r\n{")
            time.sleep(3)

    def never_reads() -> None:
        with connect(server.rpc, 5) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            ask = frame(1, "get", {"namespace": "default", "key": "done"}) * 500
            with contextlib.suppress(OSError):
                while True:
                    sock.sendall(ask)
            over["unread"] = b"let go, or no longer read from"

    def never_reads_http() -> None:
        with connect(server.http, 5) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            with contextlib.suppress(OSError):
                while True:
                    sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n" * 100)
            over["unread-http"] = b"let go, or no longer read from"

    clients = [threading.Thread(target=one) for one in (slow_headers, slow_body, never_reads, never_reads_http)]
    for thread in clients:
        thread.start()
    served = 0
    while any(thread.is_alive() for thread in clients):
        started = time.monotonic()
        with server.http_client() as http, server.rpc_client() as rpc:
            assert http.call("get", key="held").status == 200
            assert rpc.call("get", key="held")["result"] == "found"
        assert time.monotonic() - started < 5
        served += 1
        time.sleep(0.1)
    assert served > 10
    assert over["headers"].startswith(b"HTTP/1.1 408 ")
    assert {"unread", "unread-http"} <= over.keys()
    assert holdings(server) == before


# ---------------------------------------------------------------------------------------------------------- listings


@pytest.mark.parametrize(
    "query",
    ["state=maybe", "limit=0", "limit=1001", "limit=x", "older_than_ms=-1", "older_than_ms=1.5", "contested=perhaps",
     "cursor=made-up", "colour=red", "limit=5&limit=6", "state=", "limit"],
)  # fmt: skip
def test_a_filter_that_cannot_be(server: Server, query: str) -> None:
    with server.http_client() as client:
        assert_problem(client.get(f"/v1/default/records?{query}"), 400, INVALID)


@pytest.mark.usefixtures("unchanged")
def test_paths_and_methods_that_are_not_there(server: Server) -> None:
    with server.http_client() as client:
        for path in ("/", "/v1", "/v1/default/reserve/", "/v1//reserve", "/v1/default/steal", "/v2/default/reserve"):
            assert_problem(client.send("POST", path, b"{}", JSON_TYPE), 404, "IDEMPOTENCY_NOT_FOUND")
        for method, path in (("GET", "/v1/default/reserve"), ("PUT", "/v1/batch"), ("POST", "/v1/default/records")):
            answer = client.send(method, path, None, {})
            assert_problem(answer, 405, "IDEMPOTENCY_METHOD_NOT_ALLOWED")
            assert answer.headers["allow"]


@pytest.mark.usefixtures("unchanged")
def test_batches_that_cannot_be(server: Server) -> None:
    get = {"op": "get", "namespace": "default", "key": "held"}
    with server.http_client() as http, server.rpc_client() as rpc:
        no_batches: list[Members] = [{}, {"ops": {}}, {"ops": None}, {"ops": [get], "more": 1}, {"ops": [get] * 1_001}]
        for members in no_batches:
            assert_problem(http.post("/v1/batch", members), 400, INVALID)
            with pytest.raises(RpcError, match=f"^{INVALID}: "):
                rpc.request("batch", members)
        header = {"Idempotency-Key": "k"}
        assert_problem(http.post("/v1/batch", {"ops": [get]}, **header), 400, INVALID)
        wrong = [
            {"op": "reserve", "namespace": "default", "key": "held", "wait_ms": 5},
            {"op": "steal", "namespace": "default", "key": "held"},
            {"op": "batch", "ops": []},
            {"op": "records", "namespace": "default"},
            {"op": "reserve", "namespace": "nowhere", "key": "held"},
            {"op": "commit", "namespace": "default", "key": "held", "token": 0},
            "reserve",
            get,
        ]
        for results in (http.post("/v1/batch", {"ops": wrong}).members, rpc.request("batch", {"ops": wrong})):
            assert len(results["results"]) == len(wrong)
            for one in results["results"][:-1]:
                assert one["code"] in {INVALID, "IDEMPOTENCY_UNKNOWN_NAMESPACE"}
                assert "detail" in one
                assert "result" not in one
            assert results["results"][-1]["result"] == "found"


def test_a_server_that_was_told_all_this_is_as_it_was(server: Server) -> None:
    with server.http_client() as client:
        assert client.get("/readyz").status == 200
        assert client.call("reserve", key="done").members["outcome"]["body"] == "as it was"
        try:
            client.send("GET", "/livez", None, {})
        except Lost as error:
            raise AssertionError("it is gone") from error
