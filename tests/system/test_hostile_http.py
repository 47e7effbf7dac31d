"""No client takes the HTTP door down: hostile requests on real sockets, each several times.

After each case the server answers a healthy request, has leaked no connection, and shuts down in time. Three of the
cases end hypercorn's own ``serve`` for everybody: bad settings in an h2c upgrade, bytes behind a websocket upgrade,
and a bad chunk header as a response starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import ssl
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from idemactor.server.http_protocol import Phase
from tests.system.http_hostile.apps import BIG_BYTES, make_quart_app, rude_app
from tests.system.http_hostile.harness import (
    CERT,
    KEY,
    LIMITS,
    SHUTDOWN_S,
    Running,
    attack,
    client_context,
    read_all,
    read_until,
    reset,
    running,
)

NOISE: Final = random.Random(20).randbytes(600)  # The same in every run.
GET: Final = b"GET / HTTP/1.1\r\nHost: test\r\n"
POST: Final = b"POST /echo HTTP/1.1\r\nHost: test\r\n"
CLOSE: Final = b"Connection: close\r\n"
WEBSOCKET: Final = (
    GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: bKdPyn3u98cTfZJSh4TNeQ==\r\n\r\n"
)
H2C: Final = GET + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: "
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n"

# What is sent whole, and the status it is answered with.
REQUESTS: Final[dict[str, tuple[bytes, int]]] = {
    "garbage": (bytes(range(256)) * 16 + b"\r\n\r\n", 400),
    "http-0.9": (b"GET /\r\n\r\n", 400),
    "no-host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two-hosts": (GET + b"Host: other\r\n\r\n", 400),
    "nul-in-a-header": (GET + b"X: a\0b\r\n\r\n", 400),
    "space-before-the-colon": (GET + b"X : a\r\n\r\n", 400),
    "bare-cr-in-a-header": (GET + b"X: a\rb\r\n\r\n", 400),
    "non-ascii-target": (b"GET /\xff\xfe HTTP/1.1\r\nHost: test\r\n\r\n", 400),
    "headers-of-20-kb-in-one-packet": (GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    "headers-of-60-kb-in-one-packet": (GET + b"X: " + b"a" * 60_000 + b"\r\n\r\n", 431),
    "headers-of-1-mb": (GET + (b"X: " + b"a" * 1_000 + b"\r\n") * 1_000 + b"\r\n", 431),
    "many-headers": (GET + b"A: b\r\n" * 500 + b"\r\n", 431),
    "long-target": (b"GET /" + b"a" * 30_000 + b" HTTP/1.1\r\nHost: test\r\n\r\n", 431),
    "obs-fold": (GET + CLOSE + b"X: a\r\n b\r\n\r\n", 200),
    "length-and-chunked": (POST + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n0\r\n\r\nGET /x HTTP/1.1\r\n\r\n", 400),
    "chunked-in-http-1.0": (b"POST /echo HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n", 400),
    "two-lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "length-list": (POST + b"Content-Length: 1, 2\r\n\r\nab", 400),
    "negative-length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "length-not-a-number": (POST + b"Content-Length: 0x10\r\n\r\n", 400),
    "unknown-transfer-coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "bad-chunk-size": (POST + CHUNKED + b"\r\nzz\r\nab\r\n0\r\n\r\n", 400),
    "bad-chunk-as-the-response-starts": (GET + CHUNKED + b"\r\nzz\r\n", 400),
    "endless-chunk-size": (POST + CHUNKED + b"\r\n" + b"f" * 64 + b"\r\n", 400),
    "endless-chunk-extension": (POST + CHUNKED + b"\r\n1;" + b"x" * 100_000, 431),
    "chunk-without-its-end": (POST + CHUNKED + b"\r\n2\r\nabXX0\r\n\r\n", 400),
    "http-2-preface": (PREFACE, 505),
    "http-2-preface-and-garbage": (PREFACE + NOISE[:512], 505),
    "http-3.7": (b"GET / HTTP/3.7\r\nHost: test\r\n\r\n", 505),
    "connect": (b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n", 501),
    "h2c-with-bad-settings": (H2C + b"AAAAA\r\n\r\n", 200),
    "h2c-with-no-base64": (H2C + b"\xff!\r\n\r\n", 200),
    "h2c-with-good-settings": (H2C + b"AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 200),
    "h2c-with-a-preface-behind": (H2C + b"AAMAAABk\r\n\r\n" + PREFACE + b"\0" * 64, 200),
    "websocket": (WEBSOCKET, 400),
    "websocket-with-bytes-behind": (WEBSOCKET + b"x\r\n", 400),
    "websocket-with-frames-behind": (WEBSOCKET + b"\x81\x85" + NOISE[:9] + b"\x88\x80" + NOISE[:4], 400),
    "websocket-in-a-list": (GET + b"Connection: upgrade\r\nUpgrade: h2c, WebSocket\r\n\r\n", 400),
    "post-websocket": (POST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n\r\na", 400),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_hostile_request_is_answered_and_forgotten(name: str) -> None:
    request, status = REQUESTS[name]

    async def case(run: Running) -> None:
        answer = await run.exchange(request)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:300]
        if status != 200:
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"content-type: application/problem+json" in head
            problem = json.loads(body)
            assert problem["code"] == "IDEMPOTENCY_INVALID_REQUEST"
            assert (problem["status"], problem["proceed"]) == (status, False)

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert run.seen.refused == ([] if status == 200 else [status] * 4)


async def test_answers_have_a_date_and_no_server() -> None:
    async with running(make_quart_app()) as run:
        for answer in (await run.exchange(GET + CLOSE + b"\r\n"), await run.exchange(b"junk\r\n\r\n")):
            head = answer.partition(b"\r\n\r\n")[0].lower()
            assert head.count(b"\r\ndate: ") == 1
            assert b"\r\nserver:" not in head


async def test_bad_chunk_during_a_response() -> None:
    async def case(run: Running) -> None:
        for bad in (b"zz\r\n", b"5\r\nhello\r\n-1\r\n", b"\r\n\r\n"):
            stream = await run.connect()
            async with stream:
                await stream.send_all(b"POST /stream HTTP/1.1\r\nHost: test\r\n" + CHUNKED + b"\r\n")
                begun = await read_until(stream, b"0123456789")
                assert begun.startswith(b"HTTP/1.1 200 ")
                await stream.send_all(bad)
                rest = await read_all(stream)
                assert b"HTTP/1.1" not in rest, "a second answer inside the first"
                assert not rest.endswith(b"0\r\n\r\n"), "the cut answer claims to be whole"

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_bad_chunk_right_behind_the_headers() -> None:
    async def case(run: Running) -> None:
        for _ in range(10):
            stream = await run.connect()
            async with stream:
                await stream.send_all(GET + CHUNKED + b"\r\n")
                await stream.send_all(b"zz\r\n")
                answer = await read_all(stream)
                assert answer.count(b"HTTP/1.1 ") <= 1, "a second answer inside the first"

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_bad_chunk_while_the_answer_is_written() -> None:
    async def case(run: Running) -> None:
        stream = await run.connect(receive_bytes=4_096)
        async with stream:
            await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n" + CHUNKED + b"\r\n")
            await read_until(stream, b"xxxx")
            await stream.send_all(b"zz\r\n" * 100)
            await trio.sleep(0.05)

    async with running(make_quart_app()) as run:
        await attack(run, case)


@pytest.mark.parametrize("bad", [b"", b"\0", b"GET / HT", GET, POST + b"Content-Length: 9\r\n\r\nabc"])
async def test_half_a_request_and_goodbye(bad: bytes) -> None:
    async def case(run: Running) -> None:
        stream = await run.connect()
        async with stream:
            await stream.send_all(bad)
            await stream.send_eof()
            assert b" 200 " not in await read_all(stream)

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_reset_at_any_point() -> None:
    whole = b"POST /stream HTTP/1.1\r\nHost: test\r\n" + CHUNKED + b"\r\n5\r\nhello\r\n0\r\n\r\n" + GET + b"\r\n"

    async def cut(run: Running, at: int) -> None:
        stream = await run.connect()
        await stream.send_all(whole[:at])
        if at % 2:
            with trio.move_on_after(0.02):
                await stream.receive_some(10)
        await reset(stream)

    async def case(run: Running) -> None:
        async with trio.open_nursery() as nursery:
            for at in range(0, len(whole), 3):
                nursery.start_soon(cut, run, at)

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_slow_headers_are_cut_off() -> None:
    async def case(run: Running) -> None:
        stream = await run.connect()
        started = trio.current_time()
        with contextlib.suppress(trio.BrokenResourceError):
            for byte in GET * 100:
                await stream.send_all(bytes([byte]))
                with trio.move_on_after(0.02):
                    assert (await stream.receive_some(1_000)).startswith(b"HTTP/1.1 408 ")
                    break
        assert 0.2 < trio.current_time() - started < 1.0
        await stream.aclose()

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert run.seen.deadlines == [Phase.HEADERS] * 4


async def test_silence_is_cut_off() -> None:
    async def case(run: Running) -> None:
        stream = await run.connect()
        async with stream:
            await read_all(stream)

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert run.seen.deadlines == [Phase.HEADERS] * 4


async def test_idle_connection_and_slow_second_request_are_cut_off() -> None:
    async def case(run: Running) -> None:
        for second in (b"", b"GET / HT"):
            stream = await run.connect()
            async with stream:
                await stream.send_all(GET + b"\r\n" + second)
                await read_until(stream, b"\r\n\r\nok")
                rest = await read_all(stream)
                assert rest.startswith(b"HTTP/1.1 408 ") if second else rest == b""

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert sorted(run.seen.deadlines, key=str) == [Phase.HEADERS] * 4 + [Phase.IDLE] * 4


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
async def test_slow_body_is_cut_off(expect: bytes) -> None:
    async def case(run: Running) -> None:
        stream = await run.connect()
        async with stream:
            await stream.send_all(POST + expect + b"Content-Length: 1000\r\n\r\n")
            # Who does not wait to be told to go on need not be told any more.
            received = await stream.receive_some(1_000) if expect else b""
            with contextlib.suppress(trio.BrokenResourceError):
                for _ in range(100):
                    await stream.send_all(b"x")
                    with trio.move_on_after(0.02):
                        received += (piece := await stream.receive_some(1_000))
                        if not piece:
                            break
            assert received.startswith(b"HTTP/1.1 100 ") is bool(expect)
            assert b"HTTP/1.1 408 " in received

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert run.seen.deadlines == [Phase.BODY] * 4


async def test_client_that_never_reads_its_answer() -> None:
    async def case(run: Running) -> None:
        stream = await run.connect(receive_bytes=4_096)
        async with stream:
            await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n")
            with trio.fail_after(2):
                await run.seen.let_go.wait()

    async with running(make_quart_app()) as run:
        await attack(run, case)
        assert set(run.seen.deadlines) == {Phase.ANSWER}


async def test_client_that_never_reads_does_not_hold_up_the_shutdown() -> None:
    async with running(make_quart_app(), limits=dataclasses.replace(LIMITS, write_ms=60_000)) as run:
        stream = await run.connect(receive_bytes=4_096)
        async with stream:
            await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n")
            await stream.receive_some(100)
            assert LIMITS.drain_ms / 1_000 * 0.9 < await run.shut_down()


async def test_slow_reader_gets_the_whole_answer() -> None:
    async with running(make_quart_app()) as run:
        stream = await run.connect(receive_bytes=65_536)
        async with stream:
            await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n" + CLOSE + b"\r\n")
            received = bytearray()
            started = trio.current_time()
            while piece := await stream.receive_some(65_536):
                received += piece
                await trio.sleep(0.008)
        assert trio.current_time() - started > 2 * LIMITS.write_ms / 1_000
        assert len(received.partition(b"\r\n\r\n")[2]) == BIG_BYTES


async def test_pipeline_of_100() -> None:
    async def case(run: Running) -> None:
        answer = await run.exchange((GET + b"\r\n") * 99 + GET + CLOSE + b"\r\n")
        assert answer.count(b"HTTP/1.1 200 ") == 100

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_pipeline_whose_client_leaves() -> None:
    async def case(run: Running) -> None:
        stream = await run.connect(receive_bytes=4_096)
        await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n\r\n" * 50)
        await stream.receive_some(100)
        await reset(stream)

    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_200_connections_at_once() -> None:
    async def one(run: Running) -> None:
        await run.check_health()

    async def case(run: Running) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(one, run)

    # They are opened by the loop that serves them: on a busy machine the last may be sent late.
    async with running(make_quart_app(), limits=dataclasses.replace(LIMITS, headers_ms=10_000, idle_ms=10_000)) as run:
        await attack(run, case, rounds=2)


async def test_connections_over_the_limit_are_told_at_once() -> None:
    async with running(make_quart_app(), limits=dataclasses.replace(LIMITS, connections_max=3)) as run:
        held = [await run.connect() for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        answer = await run.exchange(b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"IDEMPOTENCY_OVERLOADED" in answer
        assert b"retry-after: 1" in answer
        assert len(run.seen.turned_away) == 1
        for stream in held:
            await stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await run.check_health()


@pytest.mark.parametrize("path", [b"/", b"/late"])
async def test_early_answer_reaches_a_client_that_still_sends(path: bytes) -> None:
    body = b"x" * 3_000_000

    head = b"POST " + path + b" HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def case(run: Running) -> None:
        stream = await run.connect()
        async with stream:
            # A reset, which takes the answer away from many a client, would raise here.
            await stream.send_all(head + body)
            answer = await read_until(stream, b"ok")
            assert await stream.receive_some(1) == b""
        assert answer.startswith(b"HTTP/1.1 413 "), answer[:100]

    async with running(rude_app) as run:
        await attack(run, case)


async def test_app_that_raises_is_counted_and_answered() -> None:
    async def case(run: Running) -> None:
        answer = await run.exchange(b"GET /boom HTTP/1.1\r\nHost: test\r\n" + CLOSE + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 500 ")

    async with running(rude_app) as run:
        await attack(run, case)
        assert len(run.seen.app_failures) == 4
    async with running(make_quart_app()) as run:
        await attack(run, case)


async def test_drain_lets_the_request_in_flight_end_and_closes_the_idle() -> None:
    async with running(make_quart_app(), limits=dataclasses.replace(LIMITS, idle_ms=60_000)) as run:
        idle, busy = await run.connect(), await run.connect()
        await idle.send_all(GET + b"\r\n")
        await read_until(idle, b"ok")
        await busy.send_all(b"GET /slow HTTP/1.1\r\nHost: test\r\n\r\n")
        await trio.sleep(0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.shut_down)
            started = trio.current_time()
            assert await read_all(idle) == b""
            assert trio.current_time() - started < 0.15
            answer = await read_all(busy)
        assert answer.endswith(b"slow")
        assert b"connection: close" in answer.lower()
        with pytest.raises(OSError, match=r".*"):
            await run.connect()
        await idle.aclose()
        await busy.aclose()


async def test_drain_is_bounded_by_its_deadline() -> None:
    async with running(rude_app) as run:
        stream = await run.connect()
        async with stream:
            await stream.send_all(b"GET /stuck HTTP/1.1\r\nHost: test\r\n\r\n")
            await trio.sleep(0.05)
            assert LIMITS.drain_ms / 1_000 * 0.9 < await run.shut_down() < SHUTDOWN_S
            assert await read_all(stream) == b""


async def test_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"

    async def case(run: Running) -> None:
        assert run.addresses == [f"unix:{path}"]
        await run.check_health()
        for request in (WEBSOCKET + b"x\r\n", H2C + b"AAAAA\r\n\r\n", b"\0" * 100 + b"\r\n\r\n"):
            assert await run.exchange(request)

    async with running(make_quart_app(), addresses=[f"unix:{path}"]) as run:
        await attack(run, case)
    assert not path.exists()


async def test_ipv6() -> None:
    async with running(make_quart_app(), addresses=["[::1]:0"]) as run:
        await attack(run, Running.check_health)


@pytest.mark.parametrize("noise", [GET + b"\r\n", NOISE, b"\x16\x03\x01\x02\x00\x01\x00" + b"\0" * 600, b""])
async def test_noise_on_a_tls_port(noise: bytes) -> None:
    async def case(run: Running) -> None:
        stream = await run.connect()
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(noise)
            assert b"HTTP/1.1" not in await read_all(stream)

    async with running(make_quart_app(), tls=True) as run:
        await attack(run, case)


async def test_tls_speaks_http_1_only_and_survives_the_killers() -> None:
    async def case(run: Running) -> None:
        stream: Any = await run.open()
        async with stream:
            assert stream.selected_alpn_protocol() == "http/1.1"
        for request in (WEBSOCKET + b"x\r\n", H2C + b"AAAAA\r\n\r\n", POST + CHUNKED + b"\r\nzz\r\n"):
            assert (await run.exchange(request)).startswith(b"HTTP/1.1 ")

    async with running(make_quart_app(), tls=True) as run:
        await attack(run, case)


async def test_tls_client_that_never_reads_its_answer() -> None:
    async def case(run: Running) -> None:
        stream = await run.open()
        await stream.send_all(b"GET /big HTTP/1.1\r\nHost: test\r\n" + CHUNKED + b"\r\n")
        await stream.receive_some(100)
        await stream.send_all(b"zz\r\n")
        await trio.sleep(0.5)
        await trio.aclose_forcefully(stream)

    async with running(make_quart_app(), tls=True) as run:
        await attack(run, case, rounds=3)


async def test_client_certificates_are_demanded() -> None:
    async with running(make_quart_app(), tls=True, client_ca=True) as run:
        with contextlib.suppress(trio.BrokenResourceError, ssl.SSLError):
            assert await run.exchange(GET + b"\r\n") == b""
        run.tls = client_context()
        run.tls.load_cert_chain(CERT, KEY)
        await run.check_health()


async def test_connection_handed_over_with_unread_bytes() -> None:
    async with running(make_quart_app()) as run, trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(run.door.handle, theirs, bytearray(GET + CLOSE))
        await ours.send_all(b"\r\n")
        assert (await read_all(ours)).endswith(b"ok")
