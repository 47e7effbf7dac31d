"""The MessagePack-RPC door over real shards, on streams in memory and on real sockets."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import msgpack
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.limits import BATCH_OPS_MAX, FRAME_BYTES_MAX
from idemactor.server.listeners import AcceptObserver, guard_connection
from idemactor.server.outbox import Outbox
from idemactor.server.rpc_door import RpcDoor, RpcLimits
from idemactor.storage.base import CommitResult
from idemactor.storage.memory import Fault
from tests.server.rig import START_MS, TOKENS, Rig, leaves_nothing_behind, running
from tests.server.test_http_app import Client as HttpClient


def request(msgid: int, method: Any, *params: Any) -> bytes:
    packed: bytes = msgpack.packb([0, msgid, method, list(params)])
    return packed


def reserve(msgid: int, key: str = "k", **members: Any) -> bytes:
    return request(msgid, "reserve", {"namespace": "default", "key": key, **members})


class Peer:
    """A client of the door."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._unpacker = msgpack.Unpacker()
        self._got: dict[int, tuple[Any, Any]] = {}
        self._msgid = 0

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def call(self, method: Any, **members: Any) -> Any:
        """The result; an error is an ``AssertionError``."""
        error, result = await self.try_call(method, **members)
        assert error is None, error
        return result

    async def fail(self, method: Any, **members: Any) -> str:
        """The error; a result is an ``AssertionError``."""
        error, result = await self.try_call(method, **members)
        assert result is None, result
        assert isinstance(error, str)
        return error

    async def try_call(self, method: Any, **members: Any) -> tuple[Any, Any]:
        self._msgid += 1
        await self.send(request(self._msgid, method, members))
        [answer] = await self.answers([self._msgid])
        return answer

    async def answers(self, msgids: Iterable[int]) -> list[tuple[Any, Any]]:
        """The (error, result) of each, in this order."""
        wanted = list(msgids)
        while not all(msgid in self._got for msgid in wanted):
            assert await self._receive(), "the connection was closed"
        return [self._got.pop(msgid) for msgid in wanted]

    async def rest(self) -> dict[int, tuple[Any, Any]]:
        """What still comes until the connection is closed."""
        while await self._receive():
            pass
        return self._got

    async def _receive(self) -> bool:
        data = await self.stream.receive_some()
        self._unpacker.feed(data)
        for kind, msgid, error, result in self._unpacker:
            assert kind == 1
            assert msgid not in self._got
            self._got[msgid] = error, result
        return bool(data)


class Failures(AcceptObserver):
    """What ended a connection that was no fault of its client's."""

    def __init__(self) -> None:
        self.seen: list[BaseException] = []

    def connection_failed(self, listener: str, error: BaseException) -> None:  # noqa: ARG002
        self.seen.append(error)


class Server:
    """A door, and as many clients as a test wants."""

    def __init__(self, rig: Rig, nursery: trio.Nursery, limits: RpcLimits | None) -> None:
        self.rig = rig
        self.door = RpcDoor(rig.context, limits)
        self._nursery = nursery
        self.over = 0
        self.failures = Failures()

    def connect(self, pair: tuple[trio.abc.Stream, trio.abc.Stream] | None = None) -> Peer:
        ours, theirs = pair or trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, ours)
        return Peer(theirs)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        await guard_connection(stream, self.door.handle, "here", self.failures)
        self.over += 1


@contextlib.asynccontextmanager
async def serving(clock: trio.abc.Clock, limits: RpcLimits | None = None, **options: Any) -> AsyncIterator[Server]:
    async with running(clock, **options) as rig, trio.open_nursery() as nursery:
        server = Server(rig, nursery, limits)
        async with server.door.lane():
            yield server
        nursery.cancel_scope.cancel()
    assert server.failures.seen == []


# ------------------------------------------------------------------------------------------------------------- calls


async def test_an_operation_from_reserve_to_replay(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        granted = await peer.call("reserve", namespace="default", key="k", payload={"a": b"\x00"}, request_id="r")
        assert granted == {
            "result": "reserved",
            "proceed": True,
            "key": "k",
            "token": granted["token"],
            "attempt": 1,
            "operation_id": granted["operation_id"],
            "reserved_at": START_MS,
            "lease_expires_at": START_MS + 300_000,
            "takeover": False,
            "repeated": False,
        }
        busy = await peer.call("reserve", namespace="default", key="k")
        assert (busy["result"], busy["code"], busy["proceed"]) == ("in_flight", "IDEMPOTENCY_IN_FLIGHT", False)
        mismatch = await peer.call("reserve", namespace="default", key="k", payload=1)
        assert (mismatch["result"], mismatch["code"]) == ("mismatch", "IDEMPOTENCY_MISMATCH")
        stale = await peer.call("commit", namespace="default", key="k", token=granted["token"] + 1)
        assert (stale["result"], stale["code"], stale["attempt"]) == ("stale", "IDEMPOTENCY_STALE_TOKEN", 1)
        outcome = {"status": 200, "headers": [["a", "b"]], "body": b"\xff\x00"}
        committed = await peer.call("commit", namespace="default", key="k", token=granted["token"], outcome=outcome)
        assert (committed["result"], committed["repeated"]) == ("committed", False)
        replayed = await peer.call("reserve", namespace="default", key="k")
        assert (replayed["result"], replayed["outcome"]) == ("completed", outcome)
        unknown = await peer.call("get", namespace="default", key="none")
        assert (unknown["result"], unknown["code"]) == ("unknown", "IDEMPOTENCY_UNKNOWN_KEY")


async def test_method_and_text_may_come_as_bin(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        await peer.send(request(9, b"reserve", {b"namespace": b"default", b"key": b"k"}))
        [(error, result)] = await peer.answers([9])
        assert (error, result["key"]) == (None, "k")


async def test_ping_needs_no_rights_and_no_params(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as server:
        peer = server.connect()
        assert await peer.call("ping") == {"result": "pong"}
        await peer.send(request(7, "ping"))
        assert await peer.answers([7]) == [(None, {"result": "pong"})]


@pytest.mark.parametrize(
    ("method", "members", "code"),
    [
        ("nonsense", {}, "INVALID_REQUEST"),
        ("ping", {"x": 1}, "INVALID_REQUEST"),
        ("auth", {}, "INVALID_REQUEST"),
        ("auth", {"token": 5}, "INVALID_REQUEST"),
        ("auth", {"token": "t", "x": 1}, "INVALID_REQUEST"),
        ("reserve", {"namespace": "default"}, "INVALID_REQUEST"),
        ("reserve", {"key": "k"}, "INVALID_REQUEST"),
        ("reserve", {"namespace": 5, "key": "k"}, "INVALID_REQUEST"),
        ("reserve", {"namespace": "Bad Name", "key": "k"}, "INVALID_REQUEST"),
        ("reserve", {"namespace": "nowhere", "key": "k"}, "UNKNOWN_NAMESPACE"),
        ("reserve", {"namespace": "default", "key": "k", "nonsense": 1}, "INVALID_REQUEST"),
        ("reserve", {"namespace": "default", "key": "k", "lease_ms": 0}, "INVALID_REQUEST"),
        ("reserve", {"namespace": "default", "key": "k", "fingerprint": "f", "payload_json": "1"}, "INVALID_REQUEST"),
        ("commit", {"namespace": "default", "key": "k", "token": 0}, "INVALID_REQUEST"),
        ("records", {"namespace": "default", "limit": 0}, "INVALID_REQUEST"),
        ("records", {"namespace": "nowhere"}, "UNKNOWN_NAMESPACE"),
        ("incidents", {"namespace": "default", "state": "pending"}, "INVALID_REQUEST"),
        ("acknowledge", {"namespace": "default"}, "INVALID_REQUEST"),
        ("acknowledge", {"namespace": "default", "id": "0-1"}, "NOT_FOUND"),
        ("policy", {"namespace": "default", "x": 1}, "INVALID_REQUEST"),
        ("shards", {"namespace": "default"}, "INVALID_REQUEST"),
        ("batch", {}, "INVALID_REQUEST"),
        ("batch", {"ops": {}}, "INVALID_REQUEST"),
        ("batch", {"ops": [], "namespace": "default"}, "INVALID_REQUEST"),
        ("batch", {"ops": [{}] * (BATCH_OPS_MAX + 1)}, "INVALID_REQUEST"),
    ],
)
async def test_errors_are_strings(method: str, members: dict[str, Any], code: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        error = await peer.fail(method, **members)
        assert error.startswith(f"IDEMPOTENCY_{code}: ")
        # The connection is none the worse for it.
        assert await peer.call("ping") == {"result": "pong"}


ENTRY = {"id": "0190a0b1-0000-7000-8000-000000000000", "key": "k", "token": 1}
EVENT = {**ENTRY, "id": "0190a0b1-0000-7000-8000-000000000000.1"}
BOTH = {"key": "k", "ttl_ms": 1, "window_ms": 1}


@pytest.mark.parametrize(
    ("method", "path", "members", "named"),
    [
        ("outbox.nack", "outbox/nack", {**ENTRY, "failed": True, "delay_ms": 1}, "delay_ms: what failed is not tried"),
        ("outbox.nack", "outbox/nack", {**ENTRY, "outcome": {"status": 200}}, "has no outcome yet"),
        ("outbox.nack", "outbox/nack", {**EVENT, "failed": True}, "failed: no event takes it"),
        ("outbox.ack", "outbox/ack", {**EVENT, "ttl_ms": 1}, "ttl_ms: no event takes it"),
        ("outbox.poll", "outbox/poll", {"max": 0}, "max "),
        ("reserve", "reserve", {"key": "k", "lease_ms": 0}, "lease_ms "),
        ("reserve", "reserve", {"key": "a\0b"}, "a key holds no control"),
        ("reserve", "reserve", BOTH, "ttl_ms and window_ms exclude each other"),
        ("reserve", "reserve", {"key": "k", "nonsense": 1}, "there is no member 'nonsense' here"),
        ("reserve", "reserve", {"source": "none", "request": {}}, ""),
        ("commit", "commit", {"key": "k", "token": 0}, "token "),
        ("commit", "commit", {"key": "k", "token": 1, "outcome": {}}, ""),
        ("dispatch", "dispatch", {"key": "k", "intent": {"headers": [["Host", "x"]]}}, ""),
        ("key", "key", {"source": "none", "request": {}}, "request: "),
    ],
)
async def test_an_error_names_the_member_at_fault_as_a_problem_does(
    method: str, path: str, members: dict[str, Any], named: str, autojump_clock: MockClock
) -> None:
    async with serving(autojump_clock) as server:
        problem = (await HttpClient(server.rig).post(f"/v1/default/{path}", members)).json
        error = await server.connect().fail(method, namespace="default", **members)
        assert error.startswith(f"{problem['code']}: ")
        assert problem["field"] in error
        assert named in error


@pytest.mark.parametrize("method", ["ping", "shards", "policy"])
async def test_a_member_that_nobody_knows_is_named(method: str, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        members = {"namespace": "default"} if method == "policy" else {}
        assert "'nonsense'" in await server.connect().fail(method, **members, nonsense=1)


async def test_a_full_namespace_and_an_unsettled_key_are_errors(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        for key in ("a", "b"):
            await peer.call("reserve", namespace="small", key=key)
        assert (await peer.fail("reserve", namespace="small", key="c")).startswith("IDEMPOTENCY_QUOTA_EXCEEDED: ")
        assert (await peer.fail("forget", namespace="small", key="a")).startswith("IDEMPOTENCY_UNSETTLED: ")
        assert await peer.call("forget", namespace="small", key="a", force=True) == {"result": "forgotten"}


async def test_a_write_that_fails_is_an_error(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=1) as server:
        peer = server.connect()
        server.rig.disks[0].faults.append(Fault(CommitResult.FAILED))
        assert (await peer.fail("accept", namespace="default", key="k")).startswith("IDEMPOTENCY_UNAVAILABLE: ")
        assert (await peer.call("accept", namespace="default", key="k"))["result"] == "accepted"


async def test_a_full_mailbox_is_an_error(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=1, mailbox_max=2) as server:
        peer = server.connect()
        await peer.send(*(reserve(n, str(n)) for n in range(5)))
        answers = await peer.answers(range(5))
        assert [error is None for error, _ in answers] == [True, True, False, False, False]
        assert all(error.startswith("IDEMPOTENCY_OVERLOADED: ") for error, _ in answers[2:])


async def test_a_batch(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        ops = [
            {"op": "reserve", "namespace": "default", "key": "a"},
            {b"op": b"reserve", b"namespace": b"trade", b"key": b"a"},
            {"op": "reserve", "namespace": "default", "key": "a"},
            {"op": "reserve", "namespace": "default", "key": "b", "wait_ms": 5},
            {"op": "reserve", "namespace": "nowhere", "key": "b"},
            {"op": "ping"},
            "nonsense",
        ]
        results = (await peer.call("batch", ops=ops))["results"]
        assert [result.get("result") for result in results[:3]] == ["reserved", "reserved", "in_flight"]
        assert (results[2]["code"], results[2]["proceed"]) == ("IDEMPOTENCY_IN_FLIGHT", False)
        assert [result["code"].removeprefix("IDEMPOTENCY_") for result in results[3:]] == [
            "INVALID_REQUEST",
            "UNKNOWN_NAMESPACE",
            "INVALID_REQUEST",
            "INVALID_REQUEST",
        ]
        assert [result.get("field") for result in results[3:]] == ["wait_ms", None, "namespace", "ops"]
        assert all(result.keys() - {"field"} == {"code", "detail"} for result in results[3:])
        assert await peer.call("batch", ops=[]) == {"results": []}
        detail = "op is missing, or no text"
        assert await peer.call("batch", ops=[{}]) == {"results": [results[5] | {"detail": detail, "field": "op"}]}


async def test_what_operators_ask(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        first = await peer.call("reserve", namespace="trade", key="k")
        await trio.sleep(6)
        await peer.call("reserve", namespace="trade", key="k")
        assert (await peer.call("commit", namespace="trade", key="k", token=first["token"]))["result"] == "stale"
        [record] = (await peer.call("records", namespace="trade", contested=True))["records"]
        assert (record["key"], record["contested"], record["attempt"]) == ("k", True, 2)
        [incident] = (await peer.call("incidents", namespace="trade"))["incidents"]
        acknowledged = await peer.call("acknowledge", namespace="trade", id=incident["id"])
        assert acknowledged == {"result": "acknowledged"}
        assert await peer.call("incidents", namespace="trade") == {"incidents": [], "next": None}
        assert (await peer.call("policy", namespace="trade"))["lease_ms"] == 5_000


async def test_a_listing_spans_shards(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, shards=4) as server:
        peer = server.connect()
        ops = [{"op": "reserve", "namespace": "default", "key": f"k{n}"} for n in range(30)]
        await peer.call("batch", ops=ops)
        seen: list[str] = []
        page = await peer.call("records", namespace="default", limit=7)
        while True:
            seen += [record["key"] for record in page["records"]]
            if page["next"] is None:
                break
            page = await peer.call("records", namespace="default", limit=7, cursor=page["next"])
        assert sorted(seen) == sorted(f"k{n}" for n in range(30))


# ------------------------------------------------------------------------------------------------------------ rights


async def test_nothing_goes_before_auth(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as server:
        peer = server.connect()
        for method in ("reserve", "batch", "records", "policy", "shards"):
            error = await peer.fail(method, namespace="Not A Name", ops=5)
            assert error.startswith("IDEMPOTENCY_UNAUTHENTICATED: ")
        authenticated = await peer.call("auth", token="caller-token")
        assert authenticated == {"result": "authenticated", "tenant": "acme", "role": "caller"}
        assert (await peer.call("reserve", namespace="default", key="k"))["result"] == "reserved"
        for method in ("forget", "resolve", "records", "incidents", "acknowledge"):
            assert (await peer.fail(method, namespace="default", key="k")).startswith("IDEMPOTENCY_FORBIDDEN: ")


async def test_auth_counts_for_what_is_behind_it(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as server:
        peer = server.connect()
        await peer.send(
            reserve(1),
            request(2, "auth", {"token": b"caller-token"}),
            reserve(3),
            request(4, "auth", {"token": "other-token"}),
            reserve(5),
            request(6, "auth", {"token": "nobody"}),
            reserve(7),
            request(8, "auth", {"token": "caller-token"}),
            request(9, "auth", {"token": "caller-token", "x": 1}),
            reserve(10),
        )
        answers = await peer.answers(range(1, 11))
        told = [error.partition(":")[0] if error else result["result"] for error, result in answers]
        unauthenticated = "IDEMPOTENCY_UNAUTHENTICATED"
        assert told == [
            unauthenticated,
            "authenticated",
            "reserved",
            "authenticated",
            "reserved",
            unauthenticated,
            unauthenticated,
            "authenticated",
            "IDEMPOTENCY_INVALID_REQUEST",
            unauthenticated,
        ]


async def test_rights_belong_to_a_connection(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, tokens=TOKENS) as server:
        first, second = server.connect(), server.connect()
        await first.call("auth", token="operator-token")
        assert (await second.fail("get", namespace="default", key="k")).startswith("IDEMPOTENCY_UNAUTHENTICATED: ")
        await second.call("auth", token="caller-token")
        token = (await second.call("reserve", namespace="default", key="k"))["token"]
        assert (await second.call("get", namespace="default", key="k"))["record"]["token"] is None
        assert (await first.call("get", namespace="default", key="k"))["record"]["token"] == token


async def test_without_tokens_auth_takes_any(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        answer = await peer.call("auth", token="whatever")
        assert answer == {"result": "authenticated", "tenant": "default", "role": "operator"}


# ---------------------------------------------------------------------------------------------------- many at a time


async def test_requests_of_one_key_are_applied_in_the_order_sent(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        token = (await peer.call("reserve", namespace="default", key="k"))["token"]
        await peer.send(
            reserve(11),
            request(12, "batch", {"ops": [{"op": "release", "namespace": "default", "key": "k", "token": token}]}),
            request(13, "accept", {"namespace": "default", "key": "k"}),
            reserve(14),
        )
        answers = [result for _, result in await peer.answers(range(11, 15))]
        assert answers[1]["results"][0]["result"] == "released"
        assert [answers[n]["result"] for n in (0, 2, 3)] == ["in_flight", "accepted", "completed"]


async def test_a_long_pipeline(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        count = 3_000
        await peer.send(*(request(n, "accept", {"namespace": "default", "key": f"k{n}"}) for n in range(count)))
        answers = await peer.answers(range(count))
        assert {result["result"] for _, result in answers} == {"accepted"}


async def test_byte_by_byte(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        for byte in reserve(1) + request(2, "ping"):
            await peer.send(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        [(_, granted), (_, pong)] = await peer.answers([1, 2])
        assert (granted["result"], pong["result"]) == ("reserved", "pong")


async def test_of_64_concurrent_reserves_one_is_granted_over_both_doors(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        http = HttpClient(server.rig)
        granted: list[bool] = []

        async def by_rpc() -> None:
            granted.append((await server.connect().call("reserve", namespace="default", key="k"))["proceed"])

        async def by_http() -> None:
            granted.append((await http.post("/v1/default/reserve", {"key": "k"})).json["proceed"])

        async with trio.open_nursery() as nursery:
            for n in range(64):
                nursery.start_soon(by_rpc if n % 2 else by_http)
        assert sorted(granted) == [False] * 63 + [True]


async def test_notifications_are_counted_and_not_answered(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        note = msgpack.packb([2, "reserve", [{"namespace": "default", "key": "k"}]])
        await peer.send(note, request(1, "ping"), note)
        await peer.answers([1])
        assert (await peer.call("get", namespace="default", key="k"))["result"] == "unknown"
        exposition = server.rig.context.metrics.render([], START_MS).decode()
        assert "idemactor_rpc_notifications_ignored_total 2.0" in exposition


# --------------------------------------------------------------------------------------------- what breaks a connection


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xc1",
        msgpack.packb([1, 1, None, {}]),
        msgpack.packb([0, 1, "ping"]),
        msgpack.packb([0, -1, "ping", []]),
        msgpack.packb({"a": 1}),
        b"\x94\x00\x01\xa4ping" + b"\x91" * 100 + b"\xc0",
        b"\x94\x00\x01\xa4ping\xc6" + (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"x" * (FRAME_BYTES_MAX + 1),
    ],
)
async def test_garbage_closes_its_connection_after_the_answers_before_it(
    garbage: bytes, autojump_clock: MockClock
) -> None:
    async with serving(autojump_clock) as server:
        peer, other = server.connect(), server.connect()
        await peer.send(reserve(1), reserve(2, "other", wait_ms=9), request(3, "nonsense"), garbage, reserve(4, "late"))
        answers = await peer.rest()
        assert answers.keys() == {1, 2, 3}
        assert (answers[1][1]["result"], answers[2][1]["result"]) == ("reserved", "reserved")
        assert (await other.call("get", namespace="default", key="late"))["result"] == "unknown"
        await trio.sleep(1.1)
        assert server.over == 1


async def test_a_request_that_can_be_read_is_answered_whatever_is_in_it(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        twice = b"\x94\x00\x05\xa7reserve\x91\x82\xa3key\xa1a\xa3key\xa1b"
        await peer.send(twice, request(6, 5, {}), request(7, "reserve", 1), request(8, "ping"))
        answers = await peer.answers([5, 6, 7, 8])
        assert [str(error).partition(":")[0] for error, _ in answers] == ["IDEMPOTENCY_INVALID_REQUEST"] * 3 + ["None"]


OPERATION: Final = {"namespace": "default", "operation_id": "01990000-0000-7000-8000-000000000000"}
SLOW_CALLS: Final = {
    "operation": OPERATION | {"wait_ms": 50},
    "cancel": OPERATION,
    "outbox.poll": {"namespace": "default", "wait_ms": 50},
    "records": {"namespace": "default"},
    "incidents": {"namespace": "default"},
    "acknowledge": {"namespace": "default", "id": "1"},
}
"""What takes more than one step, and so overlaps with whatever else a connection asks."""


async def test_calls_that_overlap_on_one_connection_are_each_answered(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        calls = [(method, params) for method, params in SLOW_CALLS.items() for _ in range(3)]
        calls += [("ping", {}), ("get", {"namespace": "default", "key": ""}), ("nonsense", {})]
        random.Random(1).shuffle(calls)
        with trio.fail_after(5):
            await peer.send(*(request(number, *call) for number, call in enumerate(calls)))
            assert len(await peer.answers(list(range(len(calls))))) == len(calls)


async def test_a_bug_closes_one_connection_and_the_shard_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        with monkeypatch.context() as patched:

            def broken(*_args: object, **_options: object) -> dict[str, object]:
                raise ZeroDivisionError

            patched.setattr("idemactor.server.rpc_calls.reserved_body", broken)
            await peer.send(reserve(1))
            assert await peer.rest() == {}
        assert (await server.connect().call("reserve", namespace="default", key="k"))["result"] == "in_flight"


# ------------------------------------------------------------------------------------------- clients that go or hang


async def test_what_was_read_is_answered_after_the_client_sends_no_more(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        ours, theirs = trio.testing.memory_stream_pair()
        peer = server.connect((ours, theirs))
        await peer.send(reserve(1), request(2, "records", {"namespace": "default"}))
        await theirs.send_eof()
        answers = await peer.rest()
        assert answers[1][1]["result"] == "reserved"
        assert answers[2][1]["next"] is None


async def test_a_waiter_that_left_is_not_granted(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        holder, gone, waiting = server.connect(), server.connect(), server.connect()
        token = (await holder.call("reserve", namespace="default", key="k"))["token"]
        await gone.send(reserve(1, wait_ms=50_000))
        await trio.testing.wait_all_tasks_blocked()
        await waiting.send(reserve(1, wait_ms=50_000))
        await trio.testing.wait_all_tasks_blocked()
        await gone.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await holder.call("release", namespace="default", key="k", token=token)
        [(_, granted)] = await waiting.answers([1])
        assert (granted["result"], granted["attempt"]) == ("reserved", 1)


async def test_a_waiter_on_the_connection_of_its_holder(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(in_flight_max=1)) as server:
        peer = server.connect()
        token = (await peer.call("reserve", namespace="default", key="k"))["token"]
        await peer.send(reserve(100, wait_ms=50_000), reserve(101, wait_ms=50_000))
        await trio.testing.wait_all_tasks_blocked()
        assert (await peer.call("release", namespace="default", key="k", token=token))["result"] == "released"
        [(_, granted)] = await peer.answers([100])
        assert granted["result"] == "reserved"


async def test_too_many_waiters(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(waiting_max=2)) as server:
        peer = server.connect()
        await peer.call("reserve", namespace="default", key="k")
        await peer.send(*(reserve(100 + n, wait_ms=1_000) for n in range(3)))
        [(error, _)] = await peer.answers([102])
        assert error.startswith("IDEMPOTENCY_OVERLOADED: ")
        answers = await peer.answers([100, 101])
        assert [result["result"] for _, result in answers] == ["in_flight"] * 2
        # Their places are free again.
        await peer.send(reserve(103, "other", wait_ms=1_000))
        assert (await peer.answers([103]))[0][1]["result"] == "reserved"


async def test_reading_stops_at_the_limit_of_requests_in_flight(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(in_flight_max=2), run=False) as server:
        peer = server.connect(trio.testing.lockstep_stream_pair())
        with trio.move_on_after(60) as scope:
            for n in range(10):
                await peer.send(reserve(n, str(n)))
        assert scope.cancelled_caught
        assert n == 2


async def test_a_client_that_does_not_read_is_not_read_from_and_then_closed(autojump_clock: MockClock) -> None:
    limits = RpcLimits(unread_bytes_max=1_000, write_ms=5_000)
    async with serving(autojump_clock, limits) as server:
        peer = server.connect(trio.testing.lockstep_stream_pair())
        started, sent = trio.current_time(), 0
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await peer.send(request(sent, "ping"))
                sent += 1
                await trio.testing.wait_all_tasks_blocked()
        assert 10 < sent < 100
        assert trio.current_time() - started == pytest.approx(5.0, abs=0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert server.over == 1
        exposition = server.rig.context.metrics.render([], START_MS).decode()
        assert 'idemactor_connection_failures_total{door="rpc"} 1.0' in exposition


async def test_a_frame_that_never_ends(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(frame_ms=5_000, linger_ms=0)) as server:
        peer = server.connect()
        frame = reserve(1)
        started = trio.current_time()
        with contextlib.suppress(trio.BrokenResourceError):
            for byte in frame[:-1]:
                await peer.send(bytes([byte]))
                await trio.sleep(1)
        assert trio.current_time() - started == pytest.approx(5.0, abs=1.1)
        assert server.over == 1


async def test_each_frame_has_its_own_time(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(frame_ms=5_000)) as server:
        peer = server.connect()
        note = msgpack.packb([2, "x", []])
        # Every piece ends one frame and begins the next.
        stream = b"".join(reserve(n, str(n)) + note for n in range(4))
        for start in range(0, len(stream), 9):
            await peer.send(stream[start : start + 9])
            await trio.sleep(0.9)
        await trio.sleep(1_000)
        assert [result["result"] for _, result in await peer.answers(range(4))] == ["reserved"] * 4
        assert await peer.call("ping") == {"result": "pong"}


async def test_a_client_that_reads_slowly_gets_everything(autojump_clock: MockClock) -> None:
    limits = RpcLimits(unread_bytes_max=1_000, write_ms=5_000)
    async with serving(autojump_clock, limits) as server:
        peer = server.connect(trio.testing.lockstep_stream_pair())
        got = 0

        async def read() -> None:
            nonlocal got
            for n in range(50):
                await trio.sleep(3)
                got += len(await peer.answers([n]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for n in range(50):
                await peer.send(request(n, "ping"))
        assert got == 50


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_tls_handshake_that_does_not_come(said: bytes, autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(handshake_ms=2_000)) as server:
        ours, theirs = trio.testing.memory_stream_pair()
        tls = trio.SSLStream(ours, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True)
        server.connect((tls, theirs))
        if said:
            await theirs.send_all(said)
            await trio.testing.wait_all_tasks_blocked()
            assert server.over == 1
            return
        await trio.sleep(1.9)
        assert server.over == 0
        await trio.sleep(0.2)
        assert server.over == 1


# ------------------------------------------------------------------------------------------------------------ the end


async def test_draining_answers_what_was_read_and_closes(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer, idle = server.connect(), server.connect()
        await peer.call("reserve", namespace="default", key="k")
        await peer.send(reserve(100, wait_ms=50_000))
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        server.door.drain()
        server.rig.context.router.close()
        answers = await peer.rest()
        assert answers[100][1]["result"] == "in_flight"
        assert await idle.rest() == {}
        assert trio.current_time() == started
        late = server.connect()
        assert await late.rest() == {}


async def test_draining_ends_though_a_client_does_not_read(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(drain_ms=3_000, write_ms=60_000)) as server:
        peer = server.connect(trio.testing.lockstep_stream_pair())
        await peer.send(request(1, "ping"))
        await trio.testing.wait_all_tasks_blocked()
        server.door.drain()
        await trio.sleep(2.9)
        assert server.over == 0
        # It is not lingered for a client that has not taken all it was sent.
        await trio.sleep(0.2)
        assert server.over == 1


async def test_shutting_down_is_an_error(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        peer = server.connect()
        server.rig.context.router.close()
        for method in ("reserve", "get"):
            assert (await peer.fail(method, namespace="default", key="k")).startswith("IDEMPOTENCY_OVERLOADED: ")
        assert (await peer.fail("records", namespace="default")).startswith("IDEMPOTENCY_OVERLOADED: ")


# ----------------------------------------------------------------------------------------------------- on real sockets


def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def test_answers_larger_than_a_socket_takes_at_once() -> None:
    async with serving(trio.lowlevel.current_clock()) as server:
        peer = server.connect(sockets())
        body = bytes(range(256)) * 200
        await peer.call("accept", namespace="default", key="k", outcome={"status": 200, "body": body})
        with trio.fail_after(30):
            await peer.send(*(reserve(100 + n) for n in range(100)))
            answers = await peer.answers(range(100, 200))
        assert all(result["outcome"]["body"] == body for _, result in answers)


async def test_a_client_that_vanishes_from_a_socket() -> None:
    async with serving(trio.lowlevel.current_clock()) as server:
        holder, peer = server.connect(sockets()), server.connect(sockets())
        token = (await holder.call("reserve", namespace="default", key="k"))["token"]
        await peer.send(reserve(1, wait_ms=50_000), *(reserve(n, f"k{n}") for n in range(2, 50)))
        await peer.stream.aclose()
        with trio.fail_after(30):
            while server.over == 0:
                await trio.testing.wait_all_tasks_blocked(0.01)
            await holder.call("release", namespace="default", key="k", token=token)
            assert (await holder.call("get", namespace="default", key="k"))["result"] == "unknown"
            assert (await holder.call("get", namespace="default", key="k9"))["record"]["state"] == "pending"


async def test_a_connection_that_is_reset() -> None:
    async with serving(trio.lowlevel.current_clock()) as server:
        with trio.socket.socket() as listening:
            await listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            theirs = await trio.open_tcp_stream(*listening.getsockname())
            ours, _ = await listening.accept()
        peer = server.connect((trio.SocketStream(ours), theirs))
        assert await peer.call("ping") == {"result": "pong"}
        # With a linger of 0 seconds, closing sends a reset.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await theirs.aclose()
        with trio.fail_after(30):
            while server.over == 0:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_socket_that_is_full_to_the_brim() -> None:
    ours, theirs = sockets()
    outbox = Outbox(ours, 10_000, lambda: None)
    stuffed = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            stuffed += os.write(ours.socket.fileno(), b"x" * 4_096)
    with contextlib.suppress(BlockingIOError):
        while True:
            stuffed += os.write(ours.socket.fileno(), b"x")
    outbox.put(b"last")
    assert (outbox.broken, outbox.waiting_bytes) == (False, 4)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            got = b""
            while len(got) < stuffed + 4:
                got += await theirs.receive_some()
            nursery.cancel_scope.cancel()
    assert got.endswith(b"xlast")


async def test_garbage_on_a_socket_leaves_the_answers_before_it() -> None:
    async with serving(trio.lowlevel.current_clock()) as server:
        peer = server.connect(sockets())
        await peer.send(reserve(1), b"\xc1" + b"x" * 100_000)
        with trio.fail_after(30):
            answers = await peer.rest()
        assert answers[1][1]["result"] == "reserved"


async def test_answers_are_made_no_sooner_than_there_is_room_for_them(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(unread_bytes_max=100_000, write_ms=5_000)) as server:
        body = bytes(60_000)
        await server.connect().call("accept", namespace="default", key="k", outcome={"status": 200, "body": body})
        peer = server.connect(trio.testing.lockstep_stream_pair())
        await peer.send(*(request(n, "get", {"namespace": "default", "key": "k"}) for n in range(100)))
        await trio.testing.wait_all_tasks_blocked()
        assert 60_000 < server.rig.context.backlog.waiting_bytes < 100_000 + 61_000
        answers = await peer.answers(range(100))
        assert all(result["record"]["outcome"]["body"] == body for _, result in answers)
        await trio.testing.wait_all_tasks_blocked()
        assert server.rig.context.backlog.waiting_bytes == 0


async def test_batches_wait_for_room_too(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(unread_bytes_max=100_000, write_ms=5_000)) as server:
        outcome = {"status": 200, "body": bytes(60_000)}
        await server.connect().call("accept", namespace="default", key="k", outcome=outcome)
        peer = server.connect(trio.testing.lockstep_stream_pair())
        ops = {"ops": [{"op": "get", "namespace": "default", "key": "k"}]}
        await peer.send(*(request(n, "batch", ops) for n in range(50)))
        await trio.testing.wait_all_tasks_blocked()
        assert 60_000 < server.rig.context.backlog.waiting_bytes < 100_000 + 61_000
        assert len(await peer.answers(range(50))) == 50


async def test_what_waits_for_all_clients_together_is_bounded_and_who_reads_is_served(
    autojump_clock: MockClock,
) -> None:
    async with serving(autojump_clock, RpcLimits(write_ms=5_000)) as server:
        server.rig.context.backlog.bytes_max = 100_000
        reading = server.connect()
        outcome = {"status": 200, "body": bytes(60_000)}
        await reading.call("accept", namespace="default", key="k", outcome=outcome)
        silent = [server.connect(trio.testing.lockstep_stream_pair()) for _ in range(5)]
        gets = [request(n, "get", {"namespace": "default", "key": "k"}) for n in range(100)]
        for peer in silent:
            await peer.send(*gets)
            await trio.testing.wait_all_tasks_blocked()
        # The first came while there was room, and each of the others has one answer.
        assert server.rig.context.backlog.waiting_bytes < 100 * 61_000 + 4 * 61_000
        await reading.send(*gets)
        assert len(await reading.answers(range(100))) == 100
        await trio.sleep(10)
        assert server.over == 5
        assert server.rig.context.backlog.waiting_bytes == 0


@pytest.mark.parametrize("on_socket", [False, True])
async def test_a_stranger_has_so_long_for_its_auth(on_socket: bool, autojump_clock: MockClock) -> None:
    limits = RpcLimits(auth_ms=5_000, linger_ms=0)
    async with serving(autojump_clock, limits, tokens=TOKENS) as server:
        known, stranger, silent = (server.connect(sockets() if on_socket else None) for _ in range(3))
        assert (await known.call("auth", token="caller-token"))["result"] == "authenticated"
        for _ in range(4):
            await trio.sleep(1)
            assert await stranger.call("ping") == {"result": "pong"}
            assert "UNAUTHENTICATED" in await stranger.fail("auth", token="wrong")
        assert server.over == 0
        await trio.sleep(1.1)
        await trio.testing.wait_all_tasks_blocked()
        assert server.over == 2
        assert await stranger.rest() == await silent.rest() == {}
        await trio.sleep(100)
        assert await known.call("ping") == {"result": "pong"}


async def test_without_tokens_nobody_has_to_say_who_it_is(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, RpcLimits(auth_ms=5_000)) as server:
        peer = server.connect()
        await trio.sleep(100)
        assert await peer.call("ping") == {"result": "pong"}


@pytest.mark.parametrize("last", [b"", reserve(1)[:-1], b"\xc1", b"ab"])
async def test_nothing_of_a_closed_connection_waits_for_the_collector(last: bytes) -> None:
    async with serving(trio.lowlevel.current_clock()) as server:
        peer = server.connect(sockets())
        await peer.call("accept", namespace="default", key="k")
        await leaves_nothing_behind(server, peer, last)
