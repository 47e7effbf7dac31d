"""One request, two ways: the fast lane and the guarded framework give the same answers to the byte.

Every case is a conversation on one connection. It is held twice, over socket pairs, with servers that are alike down to
their random numbers: once with the fast door in front, once with the guarded one alone.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.limits import BATCH_OPS_MAX, BODY_BYTES_MAX, OUTCOME_BODY_BYTES_MAX
from idemactor.observability.metrics import Metrics
from idemactor.server.door_observer import DoorObserver
from idemactor.server.http_app import build_app
from idemactor.server.http_fast import FastDoor
from idemactor.server.http_guard import HttpDoor
from idemactor.server.listeners import Handler, serve_listeners
from idemactor.shard.router import Router
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from tests.server.rig import START_MS, TOKENS, Rig, running

KEYS = json.loads((Path(__file__).parent.parent / "cases" / "keys.json").read_bytes())["cases"]
HOT = ("reserve", "accept", "commit", "release", "extend", "dispatch")

Reply = tuple[bytes, list[bytes], bytes]
"""Status line, fields in order of the alphabet but for the date, body."""


def post(path: str, body: Any = None, *fields: bytes | str, kind: str | None = "application/json") -> bytes:
    """A request; ``body`` as bytes, or as what is to be JSON."""
    data = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", b"Content-Length: %d" % len(data)]
    lines += [f"Content-Type: {kind}".encode()] if kind is not None else []
    lines += [field.encode("latin-1") if isinstance(field, str) else field for field in fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + data


def call(op: str, *fields: bytes | str, namespace: str = "default", **members: Any) -> bytes:
    return post(f"/v1/{namespace}/{op}", members, *fields)


class Lanes:
    """The two servers' answers, and how many connections the fast one gave up."""

    def __init__(self) -> None:
        self.fast: list[Reply] = []
        self.guarded: list[Reply] = []
        self.counts: list[dict[str, str]] = []
        self.handed_over = 0


class Listening:
    """A listener that has one connection to offer."""

    address = "here"

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._streams = [stream]
        self._closed = trio.Event()

    async def accept(self) -> trio.abc.Stream:
        if not self._streams:
            await self._closed.wait()
            raise trio.ClosedResourceError
        return self._streams.pop()

    def close(self) -> None:
        self._closed.set()


async def read_reply(stream: trio.SocketStream, had: bytearray) -> Reply:
    while b"\r\n\r\n" not in had:
        had += await receive(stream)
    head, _, _ = had.partition(b"\r\n\r\n")
    status, *fields = bytes(head).split(b"\r\n")
    del had[: len(head) + 4]
    [length] = [int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length:")]
    while len(had) < length:
        had += await receive(stream)
    body = bytes(had[:length])
    del had[:length]
    assert sum(field.startswith(b"date: ") for field in fields) == 1
    return status, sorted(field for field in fields if not field.startswith(b"date: ")), body


async def receive(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some(65_536)
    assert data, "the connection was closed"
    return bytes(data)


def counts(metrics: Metrics) -> dict[str, str]:
    """What is counted of connections and requests."""
    lines = metrics.render([], START_MS).decode().splitlines()
    names = ("idemactor_refused_total", "idemactor_connection", "idemactor_overloaded", "idemactor_replies")
    return dict(line.rsplit(" ", 1) for line in lines if line.startswith(names))


async def converse(requests: Sequence[bytes], clock: MockClock, rig: Rig, handle: Handler) -> list[Reply]:
    ours, theirs = trio.socket.socketpair()
    observer = DoorObserver(rig.context.observer, "http")
    listener, client = Listening(trio.SocketStream(ours)), trio.SocketStream(theirs)
    had = bytearray()
    replies = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: serve_listeners([listener], handle, observer=observer))
        for request in requests:
            await client.send_all(request)
            replies.append(await read_reply(client, had))
            clock.jump(0.1)
        assert not had
        await client.aclose()
        listener.close()
    return replies


async def both(
    requests: Sequence[bytes],
    clock: MockClock,
    *,
    drained: bool = False,
    failing: bool = False,
    **options: Any,
) -> Lanes:
    """Hold the conversation with either server."""
    lanes = Lanes()
    start = clock.current_time()
    for fast in (True, False):
        async with running(clock, shards=1, **options) as rig:
            if drained:
                rig.context.router.close()
            if failing:
                rig.disks[0].faults.extend([Fault(CommitResult.FAILED)] * 100)
            door = HttpDoor(build_app(rig.context))
            if fast:
                handed_over = 0

                class Counting(HttpDoor):
                    async def handle(self, stream: trio.abc.Stream, preread: bytearray | None = None) -> None:
                        nonlocal handed_over
                        handed_over += 1
                        await super().handle(stream, preread)

                front = FastDoor(rig.context, Counting(build_app(rig.context)))
                async with front.lane():
                    lanes.fast = await converse(requests, clock, rig, front.handle)
                lanes.handed_over = handed_over
            else:
                lanes.guarded = await converse(requests, clock, rig, door.handle)
            lanes.counts.append(counts(rig.context.metrics))
    assert clock.current_time() > start
    return lanes


async def agree(
    clock: MockClock, *requests: bytes, status: int | Sequence[int], handed_over: bool = False, **options: Any
) -> Lanes:
    """Both give the same answers, with ``status``, and count the same."""
    with trio.fail_after(1_000_000):
        lanes = await both(requests, clock, **options)
    assert lanes.fast == lanes.guarded
    assert lanes.counts[0] == lanes.counts[1]
    assert lanes.counts[0]['idemactor_connections_total{door="http"}'] == "1.0"
    statuses = [status] * len(requests) if isinstance(status, int) else list(status)
    assert [int(reply[0].split()[1]) for reply in lanes.fast] == statuses
    assert lanes.handed_over == handed_over
    return lanes


OUTCOME = {"status": 201, "headers": [["x", "y"]], "body": "ü"}


async def test_an_operation_from_reserve_to_replay(mock_clock: MockClock) -> None:
    lanes = await agree(
        mock_clock,
        call("reserve", key="k", payload={"a": 1}, request_id="r", holder="h"),
        call("reserve", key="k", payload={"a": 1.0}, request_id="r"),
        call("reserve", key="k", request_id="other"),
        call("reserve", key="k", payload=2),
        call("extend", key="k", token=1, lease_ms=1_000),
        call("commit", key="k", token=2, outcome=OUTCOME),
        call("commit", key="k", token=1, outcome=OUTCOME),
        call("commit", key="k", token=1),
        call("reserve", key="k"),
        call("reserve", key="k", on_duplicate="reject"),
        call("accept", key="k"),
        call("release", key="k", token=1),
        call("extend", key="k", token=1, lease_ms=1),
        status=[201, 201, 409, 422, 200, 409, 200, 200, 200, 409, 200, 409, 409],
    )
    assert json.loads(lanes.fast[8][2])["outcome"] == OUTCOME
    assert any(field.startswith(b"retry-after: ") for field in lanes.fast[2][1])


async def test_dispatching(mock_clock: MockClock) -> None:
    intent = {"content_type": "application/json", "body": '{"a":1}', "headers": {"X-A": "b"}}
    dispatch = {"op": "dispatch", "namespace": "default", "key": "b", "intent": intent}
    events = [{"content_type": "text/plain", "body_b64": "/w==", "order_key": "o"}]
    lanes = await agree(
        mock_clock,
        call("dispatch", key="k", intent=intent, order_key="o"),
        call("dispatch", key="k", intent={**intent, "body": '{ "a": 1.0 }'}),
        call("dispatch", key="k", intent={**intent, "body": '{"a":2}'}),
        call("dispatch", "Idempotency-Key: h", intent=intent),
        call("dispatch", key="x", intent={**intent, "headers": {"Host": "b"}}),
        call("dispatch", key="x", intent={**intent, "body": "x" * 262_144}),
        call("dispatch", key="x"),
        call("reserve", key="k"),
        call("reserve", key="e"),
        call("commit", key="e", token=3, events=events),
        call("commit", key="e", token=3, events=[*events, {"more": 1}]),
        post("/v1/batch", {"ops": [dispatch, dispatch]}),
        call("dispatch", key="e", intent=intent),
        status=[202, 202, 422, 202, 400, 413, 400, 409, 201, 200, 400, 200, 200],
    )
    operation_id = json.loads(lanes.fast[0][2])["operation_id"]
    place = b"location: /v1/default/operations/" + operation_id.encode()
    assert [place in reply[1] for reply in lanes.fast[:4]] == [True, True, False, False]
    assert all(json.loads(reply[2])["proceed"] is False for reply in lanes.fast[:8])


RAW = {"method": "POST", "path": "/h?a=1", "headers": [["X-GitHub-Delivery", "d-1"]], "body": "{}"}


async def test_a_request_with_its_source(mock_clock: MockClock) -> None:
    sourced: dict[str, Any] = {"source": "github", "request": RAW}
    other: dict[str, Any] = {"source": "github", "request": {**RAW, "body_b64": "AAE=", "body": None}}
    lanes = await agree(
        mock_clock,
        call("reserve", **sourced, request_id="r"),
        call("reserve", **sourced),
        call("accept", **other),
        call("commit", key="d-1", token=1),
        call("accept", **sourced),
        call("reserve", **sourced, key="k"),
        call("reserve", "Idempotency-Key: k", **sourced),
        call("reserve", **sourced, payload=1),
        call("reserve", source="github"),
        call("accept", request=RAW),
        call("reserve", **sourced | {"source": "hub"}),
        call("reserve", source="github", request={**RAW, "headers": []}),
        call("reserve", source="github", request={**RAW, "more": 1}),
        post("/v1/batch", {"ops": [{"op": "accept", "namespace": "small", **sourced}, {"op": "get", **sourced}]}),
        status=[201, 409, 422, 200, 200, *[400] * 8, 200],
    )
    told = [json.loads(reply[2]) for reply in lanes.fast]
    assert told[0]["key"] == "d-1"
    fields = ["key", "key", "payload", "request", "source", "source", "header:X-GitHub-Delivery", "request"]
    assert [members["field"] for members in told[5:13]] == fields
    assert all(members["proceed"] is False for members in told[1:13] if "expires_at" not in members)
    assert [members.get("result") for members in told[13]["results"]] == ["accepted", None]


async def test_a_dry_run(mock_clock: MockClock) -> None:
    sourced: dict[str, Any] = {"source": "github", "request": RAW}
    lanes = await agree(
        mock_clock,
        call("key", **sourced),
        call("key", **sourced, key="k"),
        call("key", source="github"),
        call("key", "Idempotency-Key: k", **sourced),
        call("key", namespace="nowhere", **sourced),
        call("get", key="d-1"),
        status=[200, 400, 400, 400, 404, 404],
        handed_over=True,
    )
    told = json.loads(lanes.fast[0][2])
    assert told == {
        "result": "key",
        "key": "d-1",
        "fingerprint": told["fingerprint"],
        "rule": "source",
        "source": "github",
    }


async def test_releases_and_keys_without_a_record(mock_clock: MockClock) -> None:
    await agree(
        mock_clock,
        call("reserve", key="k", request_id="r"),
        call("release", key="k", token=1, reason="no"),
        call("release", key="k", token=1),
        call("reserve", key="k", request_id="r"),
        call("commit", key="k", token=1),
        call("accept", key="b", request_id="r", outcome={"status": 200, "body_b64": "/w=="}),
        call("accept", key="b", request_id="r"),
        call("commit", key="none", token=1),
        call("release", key="none", token=1),
        call("extend", key="none", token=1, lease_ms=1),
        status=[201, 200, 200, 409, 409, 201, 201, 404, 404, 404],
    )


async def test_a_lease_that_ran_out_and_doubt(mock_clock: MockClock) -> None:
    doubt = {"op": "doubt", "namespace": "default", "key": "d", "token": 3, "reason": "?"}
    await agree(
        mock_clock,
        call("reserve", key="k", lease_ms=50),
        call("reserve", key="k"),
        call("commit", key="k", token=1),
        call("reserve", key="d"),
        post("/v1/batch", {"ops": [doubt]}),
        call("reserve", key="d"),
        call("accept", key="d"),
        call("extend", key="d", token=3, lease_ms=1),
        call("commit", key="d", token=3),
        status=[201, 201, 409, 201, 200, 409, 409, 409, 200],
    )


BODIES = [
    b"{}",
    b"[]",
    b"null",
    b"not json",
    b'{"key":"k","key":"k"}',
    b'{"key":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"key":"k","nonsense":1}',
    b'{"key":""}',
    b'{"key":"a\\u0000b"}',
    b'{"key":"\\ud800"}',
    b'{"key":1}',
    b'{"key":null}',
    b'{"key":"k","token":0}',
    b'{"key":"k","token":9007199254740992}',
    b'{"key":"k","token":1.0}',
    b'{"key":"k","token":true}',
    b'{"key":"k","lease_ms":0}',
    b'{"key":"k","lease_ms":86400001,"token":1}',
    b'{"key":"k","wait_ms":60001}',
    b'{"key":"k","ttl_ms":1,"window_ms":1}',
    b'{"key":"k","fingerprint":"f","payload":1}',
    b'{"key":"k","payload_json":"1"}',
    b'{"key":"k","payload":NaN}',
    b'{"key":"k","token":1,"outcome":{}}',
    b'{"key":"k","token":1,"outcome":{"status":99}}',
    b'{"key":"k","payload":' + b"[" * 70 + b"]" * 70 + b"}",
    b'{"key":"k","payload":' + b"[" * 70_000,
    b"\r\n\r\n",
    b"POST /v1/default/reserve HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("op", [*HOT, "batch"])
async def test_bodies_that_are_refused(op: str, mock_clock: MockClock) -> None:
    path = "/v1/batch" if op == "batch" else f"/v1/default/{op}"
    lanes = await both([post(path, body) for body in BODIES], mock_clock)
    assert lanes.fast == lanes.guarded
    assert lanes.counts[0] == lanes.counts[1]
    assert not lanes.handed_over
    assert sum(b" 400 " in reply[0] for reply in lanes.fast) > len(BODIES) // 2


@pytest.mark.parametrize("case", KEYS, ids=repr)
async def test_the_key_in_the_header(case: dict[str, Any], mock_clock: MockClock) -> None:
    values = case["header"] if isinstance(case["header"], list) else [case["header"]]
    fields = [f"Idempotency-Key: {value}" for value in values]
    lanes = await agree(
        mock_clock,
        post("/v1/default/reserve", {}, *fields),
        post("/v1/default/reserve", {"key": case["key"] or "k"}, *fields),
        post("/v1/default/reserve", {"key": "another"}, *fields),
        post("/v1/batch", {"ops": []}, *fields),
        status=[400] * 4 if case["key"] is None else [201, 409, 400, 400],
    )
    if case["key"] is not None:
        assert json.loads(lanes.fast[0][2])["key"] == case["key"]


@pytest.mark.parametrize("value", [b"\xe9", b"k\x7f", b"k\x01"])
async def test_a_key_that_h11_lets_through_and_the_fast_lane_does_not_know(value: bytes, mock_clock: MockClock) -> None:
    await agree(mock_clock, post("/v1/default/reserve", {}, b"Idempotency-Key: " + value), status=400, handed_over=True)


AUTHORIZATIONS: list[tuple[list[str], int]] = [
    ([], 401),
    (["Bearer nobody"], 401),
    (["Bearer"], 401),
    (["Basic caller-token"], 401),
    (["Bearer caller-token", "Bearer caller-token"], 401),
    (["Bearer caller-token x"], 401),
    (["Bearer " + "a" * 5_000], 401),
    (["bearer   caller-token"], 201),
    (["Bearer operator-token"], 201),
    (["Bearer metrics-token"], 403),
    (["Bearer trade-token"], 403),
]


@pytest.mark.parametrize(("values", "status"), AUTHORIZATIONS, ids=repr)
async def test_who_calls(values: list[str], status: int, mock_clock: MockClock) -> None:
    fields = [f"Authorization: {value}" for value in values]
    batch = {"ops": [{"op": "reserve", "namespace": "default", "key": "b"}]}
    lanes = await agree(
        mock_clock,
        call("reserve", *fields, key="k"),
        post("/v1/default/reserve", b"nonsense", *fields),
        call("reserve", *fields, namespace="nowhere", key="k"),
        call("reserve", *fields, namespace="gone", key="k"),
        post("/v1/batch", batch, *fields),
        post("/v1/batch", b"nonsense", *fields),
        status=[status, *_others(values, status)],
        tokens=TOKENS,
    )
    assert (b"www-authenticate: Bearer" in lanes.fast[0][1]) is (status == 401)


def _others(values: list[str], status: int) -> list[int]:
    if status == 201:
        return [400, 404, 404, 200, 400]
    if status == 401:
        return [401] * 5
    may_call = "trade" in values[0]
    return [403, 403, 404 if may_call else 403, 200 if may_call else 403, 400]


@pytest.mark.parametrize(
    ("kind", "status", "handed_over"),
    [
        ("application/json", 201, False),
        ("APPLICATION/JSON; charset=utf-8", 201, False),
        ("application/json ;charset=latin-1;x", 201, False),
        ("application/json;", 201, False),
        ("application/a.b+json", 201, True),
        ("text/plain", 415, True),
        ("application/jsonp", 415, True),
        ("application/json, application/json", 415, True),
        ("", 415, True),
        (None, 415, True),
    ],
)
async def test_content_types(kind: str | None, status: int, handed_over: bool, mock_clock: MockClock) -> None:
    requests = [post("/v1/default/reserve", {"key": key}, kind=kind) for key in ("a", "b")]
    await agree(mock_clock, *requests, status=status, handed_over=handed_over)


@pytest.mark.parametrize(
    ("fields", "status", "handed_over"),
    [
        ([b"Content-Type: application/json"], 415, True),
        ([b"Content-Encoding: gzip"], 415, True),
        ([b"Content-Encoding: identity"], 201, True),
        ([b"Connection: keep-alive"], 201, False),
        ([b"Upgrade: h2c", b"Connection: upgrade"], 201, True),
        ([b"X-Forwarded-Host: a b", b"X-HTTP-Method-Override: GET", b"Cookie: a=b"], 201, False),
        ([b"Accept: text/html", b"Origin: http://x", b"Range: bytes=0-1", b"If-Match: x"], 201, False),
        ([b"X: a\xe9"], 201, True),
    ],
)
async def test_other_fields(fields: list[bytes], status: int, handed_over: bool, mock_clock: MockClock) -> None:
    await agree(mock_clock, call("reserve", *fields, key="k"), status=status, handed_over=handed_over)


@pytest.mark.parametrize(
    "host", [b"", b"a b", b"[", b"a:b:c", b"user@h", b"h/x", b"h:99999", b"\"'<>", b"a" * 64, b"a..b"]
)
async def test_odd_hosts(host: bytes, mock_clock: MockClock) -> None:
    request = call("reserve", key="k").replace(b"Host: test", b"Host: " + host)
    lanes = await both([request], mock_clock)
    assert lanes.fast == lanes.guarded


@pytest.mark.parametrize("op", [*HOT, "batch"])
async def test_the_size_of_a_body(op: str, mock_clock: MockClock) -> None:
    most = OUTCOME_BODY_BYTES_MAX if op in ("commit", "accept", "dispatch") else BODY_BYTES_MAX
    path = "/v1/batch" if op == "batch" else f"/v1/default/{op}"
    start = b'{"nonsense":1}'
    await agree(mock_clock, post(path, start + b" " * (most - len(start))), status=400)
    # The guard refuses a length over the limit before the body came, and closes.
    head = post(path, b"").replace(b"Content-Length: 0", b"Content-Length: %d" % (most + 1))
    await agree(mock_clock, head, status=413, handed_over=True)


async def test_calls_that_are_not_hot(mock_clock: MockClock) -> None:
    await agree(
        mock_clock,
        call("reserve", key="k"),
        call("get", key="k"),
        call("doubt", key="k", token=1, reason="?"),
        call("reserve", key="k"),
        call("accept", key="k"),
        call("resolve", key="k", token=1, verdict="committed"),
        call("forget", key="k"),
        b"GET /v1/default/policy HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /v1/default/records HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /v1/default/reserve HTTP/1.1\r\nHost: test\r\n\r\n",
        post("/v1/default/reserve/", {}),
        post("/v1/default/reserve?x=1", {"key": "k"}),
        status=[201, 200, 200, 409, 409, 200, 200, 200, 200, 405, 404, 400],
        handed_over=True,
    )


@pytest.mark.parametrize("name", ["nowhere", "a" * 63, "batch", "reserve"])
async def test_namespaces_that_are_not_there(name: str, mock_clock: MockClock) -> None:
    await agree(mock_clock, *(call(op, namespace=name, key="k", token=1) for op in HOT), status=404)


@pytest.mark.parametrize("name", ["Trade", "1", "a" * 64, "a%20b", "a.b"])
async def test_names_that_no_namespace_has(name: str, mock_clock: MockClock) -> None:
    requests = [call(op, namespace=name, key="k", token=1) for op in HOT]
    await agree(mock_clock, *requests, status=400, handed_over=True)


async def test_a_full_namespace(mock_clock: MockClock) -> None:
    requests = [call(op, namespace="small", key=key) for op, key in zip(("accept", "reserve") * 2, "abcd", strict=True)]
    await agree(mock_clock, *requests, status=[201, 201, 429, 429])


async def test_batches(mock_clock: MockClock) -> None:
    ops: list[Any] = [
        {"op": "reserve", "namespace": "default", "key": "a"},
        {"op": "reserve", "namespace": "trade", "key": "a", "payload": [1]},
        {"op": "reserve", "namespace": "default", "key": "a"},
        {"op": "reserve", "namespace": "default", "key": "b", "wait_ms": 5},
        {"op": "get", "namespace": "default", "key": "none"},
        {"op": "reserve", "namespace": "nowhere", "key": "a"},
        {"op": "forget", "namespace": "default", "key": "a"},
        {"op": "policy", "namespace": "default"},
        {"op": "accept", "key": "a"},
        {"namespace": "default", "key": "a"},
        7,
        {"op": "commit", "namespace": "default", "key": "a", "token": 0},
        *({"op": "accept", "namespace": "small", "key": key} for key in "abc"),
    ]
    many = [{"op": "accept", "namespace": "default", "key": f"k{n}"} for n in range(BATCH_OPS_MAX)]
    bodies: list[Any] = [{"ops": ops}, {"ops": []}, {"ops": many}, {"ops": many * 2}, {"ops": {}}, {"ops": [], "x": 1}]
    requests = [post("/v1/batch", body) for body in bodies]
    await agree(mock_clock, *requests, status=[200, 200, 200, 400, 400, 400])


@pytest.mark.parametrize("op", [*HOT, "batch"])
async def test_overload_failure_and_shutdown(op: str, mock_clock: MockClock) -> None:
    members: dict[str, Any] = {"key": "k"} if op in ("reserve", "accept") else {"key": "k", "token": 1}
    if op == "extend":
        members["lease_ms"] = 5
    if op == "dispatch":
        members = {"key": "k", "intent": {"body": "do it"}}
    request = call(op, **members)
    if op == "batch":
        request = post("/v1/batch", {"ops": [{"op": "accept", "namespace": "default", "key": "k"}]})
    status = 200 if op == "batch" else 503
    full = await agree(mock_clock, request, request, status=status, mailbox_max=0)
    await agree(mock_clock, request, request, status=status, drained=True)
    if op != "batch":
        assert b"retry-after: 1" in full.fast[0][1]
    if op in ("reserve", "accept", "dispatch", "batch"):
        await agree(mock_clock, request, status=status, failing=True)


async def test_an_answer_of_a_draining_server_ends_its_connection(mock_clock: MockClock) -> None:
    said = []
    for fast in (True, False):
        async with running(mock_clock, shards=1, run=False) as rig, trio.open_nursery() as nursery:
            guarded = HttpDoor(build_app(rig.context))
            front = FastDoor(rig.context, guarded)
            ours, theirs = trio.socket.socketpair()
            client = trio.SocketStream(theirs)
            async with front.lane():
                nursery.start_soon(front.handle if fast else guarded.handle, trio.SocketStream(ours))
                await client.send_all(call("reserve", key="k") + call("reserve", key="not taken"))
                await trio.testing.wait_all_tasks_blocked(0.01)
                front.drain()
                await _run_until_idle(nursery, rig.context.router)
                had = bytearray()
                said.append(await read_reply(client, had))
                assert b"connection: close" in said[-1][1]
                assert not had
                assert not await client.receive_some()
                await client.aclose()
    assert said[0] == said[1]


async def _run_until_idle(nursery: trio.Nursery, router: Router) -> None:
    await nursery.start(router.run)
    router.close()


# -------------------------------------------------------------------------------------------------- random pipelines

_WHOLE = [
    call("reserve", key="k", wait_ms=0),
    call("reserve", namespace="trade", key="k", payload={"a": [1, 2.50]}),
    call("accept", key="a", outcome=OUTCOME),
    call("commit", key="k", token=1, outcome=OUTCOME),
    call("release", key="k", token=1),
    call("extend", b"Connection: keep-alive", key="k", token=2, lease_ms=77),
    post("/v1/default/reserve", {}, b'Idempotency-Key: "h"'),
    post("/v1/default/reserve", b"nonsense"),
    post("/v1/batch", {"ops": [{"op": "accept", "namespace": "default", "key": "b"}, 7]}),
]
"""Nothing here is refused by its head alone: the guard does that before the body came, and then closes."""
_COLD = [
    call("get", key="k"),
    b"GET /v1/default/policy HTTP/1.1\r\nHost: test\r\n\r\n",
    post("/v1/default/accept", b'{"key":"c"}', b"Transfer-Encoding: chunked").replace(b"Content-Length: 11\r\n", b"")[
        :-11
    ]
    + b'b\r\n{"key":"c"}\r\n0\r\n\r\n',
    call("accept", b"Connection: close", key="l"),
    call("accept", b"Content-Length: 5", key="l"),
    call("accept", b"Transfer-Encoding: chunked", key="l"),
    call("accept", b"X: a\nb", key="l"),
    call("accept", key="l").replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"\0\r\n\r\n",
    b"",
]


async def _all_said(pieces: Sequence[bytes], handle: Handler) -> bytes:
    ours, theirs = trio.socket.socketpair()
    client = trio.SocketStream(theirs)
    said = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle, trio.SocketStream(ours))
        with contextlib.suppress(trio.BrokenResourceError):
            for piece in pieces:
                await client.send_all(piece)
                await trio.testing.wait_all_tasks_blocked()
            await client.send_eof()
        while data := await client.receive_some(65_536):
            said += data
        await client.aclose()
    lines = bytes(said).split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))


@pytest.mark.parametrize("seed", range(40))
async def test_pipelines_cut_anywhere(seed: int, mock_clock: MockClock) -> None:
    rng = random.Random(seed)
    rest = b"".join([*rng.choices(_WHOLE, k=rng.randrange(12)), rng.choice(_COLD), *rng.choices(_WHOLE + _COLD, k=2)])
    pieces = []
    while rest:
        size = rng.choice((1, 7, 60, 300, 2_000))
        pieces.append(rest[:size])
        rest = rest[size:]
    said = []
    for fast in (True, False):
        async with running(mock_clock, shards=1) as rig:
            guarded = HttpDoor(build_app(rig.context))
            front = FastDoor(rig.context, guarded)
            async with front.lane():
                said.append(await _all_said(pieces, front.handle if fast else guarded.handle))
    assert said[0] == said[1]
