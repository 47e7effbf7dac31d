"""The guarded connection on memory streams and a mock clock: every deadline at its named time, and nothing hangs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11
import pytest
import trio
import trio.testing

from idemactor.server.backlog import Backlog
from idemactor.server.http_guard import HttpDoor, HttpLimits, HttpObserver, hypercorn_config
from idemactor.server.http_protocol import Phase, Refusal, objection, render

LIMITS: Final = HttpLimits()
GET: Final = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"
POST: Final = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n"

App = Callable[[Any, Any, Any], Awaitable[None]]


class Seen(HttpObserver):
    """What the observer was told."""

    def __init__(self) -> None:
        self.deadlines: list[Phase] = []
        self.failures: list[BaseException] = []

    def deadline_passed(self, phase: Phase) -> None:
        self.deadlines.append(phase)

    def connection_failed(self, listener: str, error: BaseException) -> None:
        self.failures += [error, RuntimeError(listener)]


async def echo(_scope: Any, receive: Any, send: Any) -> None:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@dataclasses.dataclass
class Talk:
    """One connection to a door: what the client holds, and what the door's side told."""

    client: Any
    door: HttpDoor
    seen: Seen
    clock: trio.testing.MockClock
    ended_at: float | None = None

    async def hear(self) -> bytes:
        """Everything until the door closes."""
        received = b""
        while piece := await self.client.receive_some(65_536):
            received += bytes(piece)
        return received


async def talk(
    app: App,
    clock: trio.testing.MockClock,
    body: Callable[[Talk], Awaitable[None]],
    *,
    preread: bytes = b"",
    lockstep: bool = False,
    limits: HttpLimits = LIMITS,
) -> Talk:
    """Runs ``body`` as the client of one connection, and waits for the door to be done with it."""
    client, server = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
    seen = Seen()
    it = Talk(client, HttpDoor(app, limits=limits, observer=seen), seen, clock)

    async def serve() -> None:
        await it.door.handle(server, bytearray(preread))
        it.ended_at = clock.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await body(it)
    assert seen.failures == []
    return it


async def nothing(_: Talk) -> None:
    await trio.lowlevel.checkpoint()


async def test_silent_connection_ends_at_headers_ms(autojump_clock: trio.testing.MockClock) -> None:
    it = await talk(echo, autojump_clock, nothing)
    assert it.ended_at == pytest.approx(LIMITS.headers_ms / 1_000, abs=LIMITS.linger_ms / 1_000)
    assert it.seen.deadlines == [Phase.HEADERS]


async def test_one_byte_a_second_does_not_move_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async def client(it: Talk) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            for byte in GET:
                await it.client.send_all(bytes([byte]))
                await trio.sleep(1)

    it = await talk(echo, autojump_clock, client)
    assert it.ended_at is not None
    assert LIMITS.headers_ms <= it.ended_at * 1_000 <= LIMITS.headers_ms + LIMITS.linger_ms
    assert (await it.hear()).startswith(b"HTTP/1.1 408 ")


async def test_idle_connection_ends_at_idle_ms(autojump_clock: trio.testing.MockClock) -> None:
    async def client(it: Talk) -> None:
        await it.client.send_all(GET)

    it = await talk(echo, autojump_clock, client)
    assert it.ended_at == pytest.approx(LIMITS.idle_ms / 1_000)
    assert it.seen.deadlines == [Phase.IDLE]


async def test_each_request_has_its_own_time_for_headers(autojump_clock: trio.testing.MockClock) -> None:
    async def client(it: Talk) -> None:
        for _ in range(3):
            await trio.sleep(LIMITS.headers_ms / 1_000 * 0.9)
            await it.client.send_all(GET)
            await it.client.receive_some(1_000)

    it = await talk(echo, autojump_clock, client)
    assert it.seen.deadlines == [Phase.IDLE]


async def test_slow_body_ends_at_body_ms(autojump_clock: trio.testing.MockClock) -> None:
    async def client(it: Talk) -> None:
        await it.client.send_all(POST)
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await trio.sleep(LIMITS.body_ms / 1_000 / 4)
                await it.client.send_all(b"x")

    it = await talk(echo, autojump_clock, client)
    assert it.ended_at is not None
    assert LIMITS.body_ms <= it.ended_at * 1_000 <= LIMITS.body_ms + LIMITS.linger_ms
    assert (await it.hear()).startswith(b"HTTP/1.1 408 ")


async def test_app_may_take_its_time_also_with_a_pipeline_behind(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(60)
        await echo(scope, receive, send)

    async def client(it: Talk) -> None:
        await it.client.send_all(POST + b"hello" + GET)
        assert (await it.client.receive_some(1_000)).startswith(b"HTTP/1.1 200 ")
        await trio.sleep(60.5)
        await it.client.aclose()

    it = await talk(slow, autojump_clock, client)
    assert it.seen.deadlines == []


async def test_answer_that_is_not_read_ends_at_write_ms(autojump_clock: trio.testing.MockClock) -> None:
    told: list[str] = []

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 1_000_000})
        told.append((await receive())["type"])

    async def client(it: Talk) -> None:
        await it.client.send_all(GET)

    it = await talk(app, autojump_clock, client, lockstep=True)
    assert it.ended_at is not None
    assert it.ended_at * 1_000 == pytest.approx(LIMITS.write_ms, abs=1 + LIMITS.linger_ms)
    assert it.seen.deadlines == [Phase.ANSWER]
    assert told == ["http.disconnect"]


@pytest.mark.usefixtures("autojump_clock")
async def test_what_a_client_has_yet_to_read_counts_for_all_doors() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000000")]})
        await send({"type": "http.response.body", "body": b"x" * 1_000_000})

    backlog = Backlog()
    client, server = trio.testing.lockstep_stream_pair()
    door = HttpDoor(app, backlog=backlog)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.handle, server)
        await client.send_all(GET)
        read = 0
        while read < 500_000:
            read += len(await client.receive_some(65_536))
        await trio.testing.wait_all_tasks_blocked()
        assert 400_000 < backlog.waiting_bytes <= 500_000 + 65_536
        # And no more once it is let go, for it reads no further.
    assert backlog.waiting_bytes == 0


async def test_app_that_answers_without_reading_never_hangs(autojump_clock: trio.testing.MockClock) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await trio.sleep(1)
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def client(it: Talk) -> None:
        await it.client.send_all(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9000000\r\n\r\n")
        for _ in range(40):
            await it.client.send_all(b"x" * 65_536)

    it = await talk(app, autojump_clock, client)
    assert it.ended_at is not None
    assert it.ended_at <= 1.1 + LIMITS.linger_ms / 1_000
    assert (await it.hear()).startswith(b"HTTP/1.1 413 ")


async def test_client_that_leaves_is_told_to_the_app_and_the_whole_request_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[dict[str, Any]] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        await trio.sleep(1)
        for _ in range(4):
            heard.append(await receive())

    async def client(it: Talk) -> None:
        await it.client.send_all(POST + b"hello")
        await it.client.aclose()

    await talk(app, autojump_clock, client)
    assert [message.get("body") for message in heard] == [b"hello", b"", None, None]
    assert heard[-1]["type"] == heard[-2]["type"] == "http.disconnect"


async def test_write_that_is_cancelled_by_the_app_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        with trio.move_on_after(1):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"y" * 100})

    async def client(it: Talk) -> None:
        await it.client.send_all(GET)
        await trio.sleep(2)
        assert b"y" not in await it.hear()

    it = await talk(app, autojump_clock, client, lockstep=True)
    assert it.ended_at is not None
    assert it.ended_at < 2


@pytest.mark.parametrize("cut", range(0, len(POST) + 6, 7))
async def test_preread_bytes_come_first(cut: int, autojump_clock: trio.testing.MockClock) -> None:
    whole = POST + b"hello"

    async def client(it: Talk) -> None:
        await it.client.send_all(whole[cut:] + GET)
        await trio.sleep(1)
        await it.client.send_eof()

    it = await talk(echo, autojump_clock, client, preread=whole[:cut])
    answers = await it.hear()
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\nhello" in answers


async def test_drain_before_and_after_the_headers(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(5)
        await echo(scope, receive, send)

    for sent, expected_end, expected in ((b"GET / HT", 0.0, b""), (GET, 5.0, b"HTTP/1.1 200 ")):
        started = autojump_clock.current_time()

        async def client(it: Talk, sent: bytes = sent) -> None:
            await it.client.send_all(sent)
            await trio.testing.wait_all_tasks_blocked()
            it.door.drain()

        it = await talk(slow, autojump_clock, client)
        assert it.ended_at is not None
        assert it.ended_at - started == pytest.approx(expected_end)
        answer = await it.hear()
        assert answer.startswith(expected)
        assert (b"connection: close" in answer.lower()) is bool(expected)


async def test_drain_cuts_off_at_drain_ms(autojump_clock: trio.testing.MockClock) -> None:
    async def stuck(_scope: Any, _receive: Any, _send: Any) -> None:
        await trio.sleep_forever()

    async def client(it: Talk) -> None:
        await it.client.send_all(GET)
        await trio.sleep(100)
        it.door.drain()

    it = await talk(stuck, autojump_clock, client)
    assert it.ended_at == pytest.approx(100 + LIMITS.drain_ms / 1_000)


async def test_connection_that_comes_while_draining_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    client, server = trio.testing.memory_stream_pair()
    door = HttpDoor(echo)
    door.drain()
    door.drain()
    await door.handle(server, bytearray(GET))
    assert autojump_clock.current_time() == 0
    assert await client.receive_some(1) == b""


async def test_last_request_of_a_connection_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async def client(it: Talk) -> None:
        await it.client.send_all(GET * 3)

    it = await talk(echo, autojump_clock, client, limits=dataclasses.replace(LIMITS, requests_max=2))
    answers = await it.hear()
    assert answers.count(b"HTTP/1.1 200 ") == 2
    assert answers.lower().count(b"connection: close") == 1


@pytest.mark.parametrize("seed", range(40))
async def test_mutated_requests_never_break_the_connection(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    chunked = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n"
    upgrade = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n"
    whole = bytearray(rng.choice([GET * 3, POST + b"hello" + GET, chunked + GET, upgrade]))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(whole))
        whole[at : at + rng.randint(0, 3)] = rng.choice([b"", b"\r\n", b"\0", b":", b" ", rng.randbytes(3)])

    async def client(it: Talk) -> None:
        rest = bytes(whole)
        while rest:
            size = rng.randint(1, len(rest))
            try:
                await it.client.send_all(rest[:size])
            except trio.BrokenResourceError:
                return
            rest = rest[size:]
            if rng.random() < 0.3:
                await trio.sleep(rng.random())
        if rng.random() < 0.5:
            await it.client.aclose()

    it = await talk(echo, autojump_clock, client)
    assert it.ended_at is not None


def request(*headers: tuple[bytes, bytes], version: bytes = b"1.1", method: bytes = b"GET") -> h11.Request:
    return h11.Request(method=method, target=b"/", headers=[(b"host", b"test"), *headers], http_version=version)


def test_objections() -> None:
    assert objection(request(), 100, 10) is None
    assert objection(request((b"upgrade", b"h2c")), 100, 10) is None
    refused = {
        431: [request((b"x", b"a" * 100)), request(*[(b"x", b"")] * 10)],
        505: [request(version=b"2.0")],
        400: [
            request((b"transfer-encoding", b"chunked"), version=b"1.0"),
            request((b"transfer-encoding", b"chunked"), (b"content-length", b"1")),
            request((b"upgrade", b"WebSocket")),
        ],
        501: [request(method=b"CONNECT"), request(method=b"get")],
    }
    for status, requests in refused.items():
        for case in requests:
            refusal = objection(case, 100, 10)
            assert refusal is not None
            assert refusal.status == status


def test_refusal_is_a_whole_answer() -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=b"POST", target=b"/", headers=[(b"host", b"test")]))
    client.send(h11.EndOfMessage())
    client.receive_data(render(Refusal(408, "Too slow."), [(b"date", b"today")]))
    response, data, end = client.next_event(), client.next_event(), client.next_event()
    assert isinstance(response, h11.Response)
    assert isinstance(data, h11.Data)
    assert isinstance(end, h11.EndOfMessage)
    assert (b"content-type", b"application/problem+json") in list(response.headers)
    assert json.loads(data.data) == {
        "type": "about:blank",
        "title": "Request Timeout",
        "status": 408,
        "detail": "Too slow.",
        "code": "IDEMPOTENCY_INVALID_REQUEST",
        "proceed": False,
    }


def test_hypercorn_is_configured_in_code() -> None:
    config = hypercorn_config(LIMITS)
    assert config.accesslog is None
    assert [name for name, _ in config.response_headers("h11")] == [b"date"]
    assert config.h11_max_incomplete_size == LIMITS.header_bytes_max
