"""Bodies that are not whole yet: whose head is refused is not read, and those of all together have a bound."""

from __future__ import annotations

import json
from typing import Any, cast

import msgpack
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.limits import OUTCOME_BODY_BYTES_MAX
from idemactor.errors import Code, RequestError
from idemactor.server import lane
from idemactor.server.arrivals import SMALL_BODY_BYTES, STRANGERS_SHARE, Arrivals
from idemactor.server.http_app import build_app
from idemactor.server.http_connection import READ_BYTES
from idemactor.server.http_guard import HttpDoor
from idemactor.server.rpc_connection import FRAME_COPIES
from tests.gateway.proxy.rig import proxying
from tests.server import test_http_app as app
from tests.server import test_http_fast as fast
from tests.server import test_rpc_door as rpc
from tests.server.rig import TOKENS, running
from tests.server.test_http_fast import later, settled
from tests.server.test_http_parity import agree, call, read_reply

LARGE = 100_000
WAITS = {"namespace": "default", "key": "k", "wait_ms": 10_000}


def head(op: str, *fields: bytes, namespace: str = "default", length: int = OUTCOME_BODY_BYTES_MAX) -> bytes:
    """The head of a call whose body is still to come."""
    path = "/v1/batch" if op == "batch" else f"/v1/{namespace}/{op}"
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", b"Content-Type: application/json", *fields]
    return b"\r\n".join([*lines, b"Content-Length: %d" % length, b"", b""])


def bearer(token: str) -> bytes:
    return f"Authorization: Bearer {token}".encode()


def large(key: str) -> bytes:
    """A call that does not fit in one read."""
    return call("accept", key=key, outcome={"status": 200, "body": "x" * LARGE})


def connect(server: fast.Server, by: str) -> fast.Client:
    """A client of the fast lane, or of the guard."""
    if by == "fast":
        return server.connect()
    # What is no plain socket is the guard's from the start, as TLS is.
    ours, theirs = trio.testing.memory_stream_pair()
    return server.attend(ours, cast("trio.SocketStream", theirs))


# ------------------------------------------------------------------------------------------------------------ the sum


def test_what_counts() -> None:
    arrivals = Arrivals(bytes_max=20_000)
    one, other = arrivals.begin(), arrivals.begin()
    one.holds(SMALL_BODY_BYTES, SMALL_BODY_BYTES)
    assert arrivals.held_bytes == 0
    one.holds(100, 15_000)
    one.holds(12_000, 15_000)
    assert arrivals.held_bytes == one.held_bytes == 12_000
    other.holds(0, 8_000)
    with pytest.raises(RequestError) as refused:
        other.holds(0, 8_001)
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.OVERLOADED, 1_000)
    other.holds(8_000)
    assert arrivals.held_bytes == 20_000
    with pytest.raises(RequestError):
        other.holds(8_001)
    assert (arrivals.held_bytes, other.held_bytes) == (12_000, 0)
    one.holds(SMALL_BODY_BYTES)
    assert arrivals.held_bytes == 0
    one.holds(5_000)
    other.holds(5_000, known=False)
    with pytest.raises(RequestError):
        other.holds(5_001, known=False)
    other.holds(5_001)
    one.done()
    with other:
        other.holds(9_000)
    assert arrivals.held_bytes == 0


# -------------------------------------------------------------------------------------------------------- who is asked


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (head("commit"), 401),
        (head("commit", bearer("nobody's")), 401),
        (head("commit", bearer("caller-token"), bearer("caller-token")), 401),
        (head("batch", length=1_000_000), 401),
        (head("reserve", bearer("trade-token"), length=1_000_000), 403),
        (head("reserve", bearer("metrics-token"), length=1_000_000), 403),
        (head("commit", bearer("caller-token"), namespace="gone"), 404),
        (head("batch", bearer("caller-token"), b"Idempotency-Key: k", length=1_000_000), 400),
    ],
)
async def test_a_head_that_is_refused_needs_no_body(asked: bytes, status: int, mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock, tokens=TOKENS) as server:
        await server.connect().send(asked)
        await settled()
        assert server.counted("idemactor_refused_total") == 1
    lanes = await agree(mock_clock, asked, status=status, tokens=TOKENS)
    assert b"connection: close" in lanes.fast[0][1]
    # Nor is any of it kept that came along.
    with_some = asked + bytes(20_000)
    assert (await agree(mock_clock, with_some, status=status, tokens=TOKENS)).fast == lanes.fast


async def test_a_refused_client_reads_its_answer_while_it_sends_on(mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock, tokens=TOKENS) as server:
        client = server.connect()
        with trio.fail_after(30):
            await client.send(head("commit"), bytes(OUTCOME_BODY_BYTES_MAX))
            assert (await client.answer())[0] == 401
            assert client.closing
            assert await client.is_over()
            await client.stream.aclose()
            while not server.over:
                await settled()


async def test_the_head_may_come_in_pieces(mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock, tokens=TOKENS) as server:
        client = server.connect()
        whole = head("commit") + b"{"
        await client.send(whole[:30])
        await settled()
        await client.send(whole[30:])
        await settled()
        assert server.counted('idemactor_refused_total{code="IDEMPOTENCY_UNAUTHENTICATED",door="http"}') == 1
        assert (await client.answer())[0] == 401


async def test_a_small_body_is_waited_for(mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock, tokens=TOKENS) as server:
        client = server.connect()
        asked = call("reserve", key="k")
        await client.send(asked[:-5])
        await settled()
        await client.send(asked[-5:])
        assert (await client.answer())[0] == 401
        assert not client.closing


async def test_the_app_takes_nothing_before_it_knows_who_asks(autojump_clock: MockClock) -> None:
    async with app.serving(autojump_clock, tokens=TOKENS) as client:
        for path, fields, status in (
            ("/v1/default/commit", [], 401),
            ("/v1/default/commit", app.bearer("metrics-token"), 403),
            ("/v1/default/resolve", app.bearer("caller-token"), 403),
            ("/v1/default/authorize", [], 401),
            ("/v1/nowhere/commit", app.bearer("caller-token"), 404),
            ("/v1/nothing", app.bearer("caller-token"), 404),
        ):
            fields = [*fields, ("content-type", "application/json"), ("content-length", "100")]
            exchange = app.Exchange(client.app, "POST", path, fields)
            exchange.send(bytes(60), more=True)
            with trio.fail_after(10):
                await exchange.run()
            assert exchange.answer().status == status
            assert exchange._take.statistics().current_buffer_used == 1


async def test_a_client_that_leaves_ends_a_wait_though_its_body_is_for_nobody(autojump_clock: MockClock) -> None:
    async with app.serving(autojump_clock) as client:
        asked = {"key": "k", "intent": {"body": ""}}
        told = (await client.post("/v1/default/dispatch", asked)).json
        path = f"/v1/default/operations/{told['operation_id']}?wait_ms=60000"
        exchange = app.Exchange(client.app, "GET", path, [("content-length", "5")])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            exchange.send(bytes(5))
            await trio.sleep(1)
            exchange.hang_up()
            await trio.sleep(2)
            assert exchange.done.is_set()


@pytest.mark.usefixtures("autojump_clock")
async def test_the_guard_hands_an_app_that_does_not_ask_hardly_anything() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await trio.sleep(5)
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    client, server = trio.testing.lockstep_stream_pair()
    sent = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HttpDoor(app).handle, server)
        await client.send_all(head("commit"))
        with trio.move_on_after(4):
            while True:
                await client.send_all(bytes(READ_BYTES))
                sent += READ_BYTES
        nursery.cancel_scope.cancel()
    assert sent <= 4 * READ_BYTES


@pytest.mark.parametrize("token", ["caller-token", "nobody's"])
async def test_who_asks_first_is_told_to_go_on_only_where_the_body_is_wanted(
    token: str, autojump_clock: MockClock
) -> None:
    async with running(autojump_clock, tokens=TOKENS) as rig, trio.open_nursery() as nursery:
        client, server = trio.testing.memory_stream_pair()
        nursery.start_soon(HttpDoor(build_app(rig.context)).handle, server)
        body = json.dumps({"key": "k"}).encode()
        await client.send_all(head("reserve", bearer(token), b"Expect: 100-continue", length=len(body)))
        await trio.sleep(1)
        answer = bytes(await client.receive_some())
        if token == "nobody's":
            assert answer.startswith(b"HTTP/1.1 401 ")
        else:
            assert answer == b"HTTP/1.1 100 \r\n\r\n"
            await client.send_all(body)
            assert bytes(await client.receive_some()).startswith(b"HTTP/1.1 201 ")
        nursery.cancel_scope.cancel()


# --------------------------------------------------------------------------------------------------- how much together


@pytest.mark.parametrize("first_by", ["fast", "guarded"])
@pytest.mark.parametrize("second_by", ["fast", "guarded", "chunked"])
async def test_bodies_in_arrival_share_a_room(first_by: str, second_by: str, mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock) as server:
        server.rig.context.arrivals.bytes_max = LARGE + 20_000
        first, second, asked = connect(server, first_by), connect(server, second_by), large("first")
        await first.send(asked[:60_000])
        await settled()
        assert 55_000 < server.rig.context.arrivals.held_bytes <= 60_000
        other = large("second")
        if second_by == "chunked":
            start = other.partition(b"\r\n\r\n")[0].split(b"\r\n")
            lines = [line for line in start if not line.startswith(b"Content-Length")]
            await second.send(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b"186a0", b""]), bytes(70_000))
        else:
            # Its head says how much there will be: none of that is waited for.
            await second.send(other[: other.index(b"{")])
        await settled()
        assert server.counted('idemactor_refused_total{code="IDEMPOTENCY_OVERLOADED",door="http"}') == 1
        assert server.counted("idemactor_overloaded_total") == 1
        status, told = await second.answer()
        assert (status, told["code"]) == (503, "IDEMPOTENCY_OVERLOADED")
        assert second.closing
        await first.send(asked[60_000:])
        assert (await first.answer())[0] == 201
        assert server.rig.context.arrivals.held_bytes == 0
        third = server.connect()
        await third.send(other[:60_000])
        await settled()
        await third.send(other[60_000:])
        assert (await third.answer())[0] == 201


async def test_a_refusal_for_want_of_room_says_when_to_come_again(mock_clock: MockClock) -> None:
    asked = large("k")[:5_000]

    async with fast.serving(mock_clock) as server:
        server.rig.context.arrivals.bytes_max = LARGE
        client = server.connect()
        await client.send(asked)
        status, fields, _ = await read_reply(client.stream, bytearray())
        assert (status, b"retry-after: 1" in fields) == (b"HTTP/1.1 503 ", True)


@pytest.mark.parametrize("hands_over", [False, True])
async def test_what_a_client_leaves_behind_is_given_back(hands_over: bool, mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock) as server:
        client = server.connect()
        await client.send(large("k")[:60_000])
        await settled()
        if hands_over:
            await later(mock_clock, fast.LIMITS.whole_ms)
        held = server.rig.context.arrivals.held_bytes
        assert 59_000 < held <= 60_000
        await client.stream.aclose()
        await settled()
        for _ in range(5):
            await later(mock_clock, 1_000)
        assert server.rig.context.arrivals.held_bytes == 0
        assert server.over == 1


async def test_a_body_that_does_not_end_gives_its_room_back_at_the_deadline(mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock) as server:
        client = server.connect()
        await client.send(large("k")[:60_000])
        for _ in range(35):
            await later(mock_clock, 1_000)
        assert (await client.answer())[0] == 408
        assert server.rig.context.arrivals.held_bytes == 0


# -------------------------------------------------------------------------------------------------------------- frames


def frame(msgid: int, key: str, body: bytes) -> bytes:
    return rpc.request(msgid, "accept", {"namespace": "default", "key": key, "outcome": {"status": 200, "body": body}})


@pytest.mark.parametrize("on_socket", [False, True])
async def test_frames_in_arrival_share_the_room_with_bodies(on_socket: bool, autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock, shards=1) as server:
        arrivals = server.rig.context.arrivals
        arrivals.bytes_max = 60_000

        def connect() -> rpc.Peer:
            if not on_socket:
                return server.connect()
            ours, theirs = trio.socket.socketpair()
            return server.connect((trio.SocketStream(ours), trio.SocketStream(theirs)))

        first, second = connect(), connect()
        hidden = rpc.reserve(9, "hidden")
        asked = frame(1, "first", bytes(40_000))
        await first.send(asked[:25_000])
        await second.send(rpc.reserve(2, "second"))
        await second.answers([2])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert arrivals.held_bytes == FRAME_COPIES * 25_000
        refused = frame(3, "third", bytes(8_000) + hidden * 3)
        await second.send(rpc.request(4, "ping"), refused[:8_050])
        [(error, _)] = await second.answers([3])
        assert error.startswith("IDEMPOTENCY_OVERLOADED: ")
        # What is left of it is no request of its own, though it looks like one.
        await second.send(hidden * 3)
        assert list(await second.rest()) == [4]
        await first.send(asked[25_000:])
        [(error, result)] = await first.answers([1])
        assert (error, result["result"]) == (None, "accepted")
        assert arrivals.held_bytes == 0
        assert (await first.call("get", namespace="default", key="hidden"))["result"] == "unknown"
        await first.send(asked[:25_000])
        await first.stream.aclose()
        await trio.sleep(40)
        assert arrivals.held_bytes == 0


async def test_what_is_left_of_a_refused_frame_is_never_read_as_another(autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock, shards=1) as server:
        server.rig.context.arrivals.bytes_max = FRAME_COPIES * SMALL_BODY_BYTES
        ours, theirs = trio.socket.socketpair()
        peer, other = server.connect((trio.SocketStream(ours), trio.SocketStream(theirs))), server.connect()
        hidden = rpc.reserve(9, "hidden")
        # The second read begins with a request, and is there as soon as the first.
        start = frame(1, "k", bytes(100_000)).index(bytes(100))
        padding = bytes((lane.READ_BYTES - start) % len(hidden))
        await peer.send(frame(1, "k", padding + hidden * (100_000 // len(hidden))))
        told = await peer.rest()
        assert list(told) == [1]
        assert told[1][0].startswith("IDEMPOTENCY_OVERLOADED: ")
        assert (await other.call("get", namespace="default", key="hidden"))["result"] == "unknown"


async def test_a_frame_that_is_not_even_told_by_its_id_closes_its_connection(autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock) as server:
        server.rig.context.arrivals.bytes_max = 5_000
        peer = server.connect()
        notification = msgpack.packb([2, "reserve", [bytes(9_000)]])
        await peer.send(notification[:5_000])
        assert await peer.rest() == {}


async def test_strangers_leave_room_to_whoever_has_a_token(autojump_clock: MockClock) -> None:
    async with rpc.serving(autojump_clock, tokens=TOKENS) as server:
        server.rig.context.arrivals.bytes_max = 60_000
        asked = frame(1, "k", bytes(20_000))
        stranger, other, known = server.connect(), server.connect(), server.connect()
        assert (await known.call("auth", token="caller-token"))["result"] == "authenticated"
        await stranger.send(asked[:14_000])
        await trio.sleep(1)
        await other.send(asked[:8_000])
        assert list(await other.rest()) == [1]
        await known.send(asked[:14_000])
        await trio.sleep(1)
        assert server.rig.context.arrivals.held_bytes == FRAME_COPIES * 28_000
        await known.send(asked[14_000:])
        assert (await known.answers([1]))[0][0] is None
        # However little there is left, what says who it is finds room.
        late = server.connect()
        assert (await late.call("auth", token="caller-token"))["result"] == "authenticated"


# --------------------------------------------------------------------------------------------------------------- proxy


async def test_bodies_at_the_proxy_share_the_room(autojump_clock: MockClock) -> None:
    def asked(key: str, body: bytes) -> bytes:
        lines = [b"POST /orders HTTP/1.1", b"Host: shop.test", b"Idempotency-Key: " + key.encode()]
        return b"\r\n".join([*lines, b"Content-Length: %d" % LARGE, b"", body])

    async with proxying(autojump_clock) as proxy:
        arrivals = proxy.rig.context.arrivals
        arrivals.bytes_max = STRANGERS_SHARE * (LARGE + 20_000)
        first, second = proxy.client(), proxy.client()
        await first.stream.send_all(asked("first", bytes(60_000)))
        await trio.sleep(1)
        assert arrivals.held_bytes == 60_000
        answer = await second.raw(asked("second", b"x"))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"IDEMPOTENCY_OVERLOADED" in answer
        assert b"Retry-After: 1\r\n" in answer
        assert b"Connection: close\r\n" in answer
        await first.stream.send_all(bytes(LARGE - 60_000))
        await trio.sleep(1)
        assert arrivals.held_bytes == 0
        assert [len(received.body) for received in proxy.upstream.requests] == [LARGE]
        assert 'idemactor_refused_total{code="IDEMPOTENCY_OVERLOADED",door="gateway"} 1.0' in proxy.metrics()
