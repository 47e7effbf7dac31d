"""Whole connections over HTTP, twice: by the fast lane and by the complete implementation alone, which have to agree.

Both servers are alike down to their random numbers and are asked the same, so that they stay so: what one of them read
otherwise shows at once or in a later answer.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Final

import trio
import trio.testing
from trio.testing import MockClock

from idemactor.server.door_observer import DoorObserver
from idemactor.server.http_app import build_app
from idemactor.server.http_fast import FastDoor
from idemactor.server.http_guard import HttpDoor
from idemactor.server.listeners import Handler, guard_connection
from tests.fuzz.harness import CORPUS, SECONDS, _store, mutated, seeded
from tests.fuzz.test_wire import HEAD_WORDS, JSON_WORDS
from tests.server.rig import TOKENS, Rig, running

STEPS: Final = (2, 15, 40, 80, 80)
"""Seconds by which time goes on once nothing happens any more: past each of the limits of a connection."""
QUIET_SECONDS: Final = 0.002
Reply = tuple[bytes, tuple[bytes, ...], bytes]
OUTCOME: Final = {"status": 201, "headers": [["x", "y"]], "body": "ü"}


def post(path: str, body: Any, *fields: bytes) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: test", b"Content-Type: application/json", *fields]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(data)]) + b"\r\n\r\n" + data


AUTH: Final = b"Authorization: Bearer operator-token"
SAMPLES: Final = [
    post("/v1/default/reserve", {"key": "k", "payload": {"a": 1}, "request_id": "r"}, AUTH),
    post("/v1/default/reserve", {"key": "k2"}, AUTH) + post("/v1/default/commit", {"key": "k2", "token": 1}, AUTH),
    post("/v1/default/accept", {"outcome": OUTCOME}, AUTH, b"Idempotency-Key: a"),
    post("/v1/default/release", {"key": "k", "token": 1, "reason": "x"}, AUTH),
    post("/v1/default/extend", {"key": "k", "token": 1, "lease_ms": 500}, b"authorization:bearer  operator-token "),
    post("/v1/batch", {"ops": [{"op": "reserve", "namespace": "trade", "key": "b"}]}, AUTH),
    post("/v1/trade/reserve", {"key": "t"}, b"Authorization: Bearer trade-token", b"Connection: keep-alive"),
    post("/v1/default/reserve", b"{}", AUTH, b'Idempotency-Key: "q";a=1'),
    post("/v1/default/get", {"key": "k"}, AUTH),
    b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n",
]
WORDS: Final = [
    *HEAD_WORDS,
    *JSON_WORDS,
    *SAMPLES,
    AUTH + b"\r\n",
    b"/v1/default/",
    b"Content-Length: 0\r\n",
    b"5\r\n{\r\n0\r\n\r\n",
]


def replies_of(data: bytes) -> list[Reply]:
    """Answers without their dates, fields in order of the alphabet."""
    found = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, "an answer without an end"
        status, *fields = head.split(b"\r\n")
        assert status.startswith(b"HTTP/1.1 "), status
        lengths = [int(field.split(b":")[1]) for field in fields if field.startswith(b"content-length:")]
        size = 0 if status[9:10] == b"1" else lengths[0]
        kept = sorted(field for field in fields if not field.lower().startswith(b"date:"))
        found.append((status, tuple(kept), data[:size]))
        assert len(data) >= size, "an answer that was cut"
        data = data[size:]
    return found


async def exchange(handle: Handler, observer: DoorObserver, data: bytes) -> bytes:
    """All that comes back on a connection on which ``data`` is sent, and then no more, until the server has enough."""
    ours, theirs = trio.socket.socketpair()
    client = trio.SocketStream(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(guard_connection, trio.SocketStream(ours), handle, "here", observer)
        with contextlib.suppress(trio.BrokenResourceError):
            await client.send_all(data)
        got = bytearray()
        with contextlib.suppress(trio.BrokenResourceError):
            async for piece in client:
                got += piece
        await client.aclose()
    return bytes(got)


def failures(rig: Rig) -> list[str]:
    lines = rig.context.metrics.render([], 0).decode().splitlines()
    return [
        line for line in lines if line.startswith("idemactor_connection_failures_total") and not line.endswith(" 0.0")
    ]


async def test_both_ways_agree(mock_clock: MockClock) -> None:
    rng, seed = seeded()
    folder = CORPUS / "http"
    stored = [path.read_bytes() for path in sorted(folder.glob("*.bin"))]
    parents, statuses = [*stored, *SAMPLES], dict[bytes, int]()
    async with (
        running(mock_clock, shards=1, tokens=TOKENS) as fast,
        running(mock_clock, shards=1, tokens=TOKENS) as slow,
    ):
        front = FastDoor(fast.context, HttpDoor(build_app(fast.context)))
        alone = HttpDoor(build_app(slow.context))
        observers = [DoorObserver(rig.context.observer, "http") for rig in (fast, slow)]

        async def both(data: bytes) -> list[bytes]:
            """At the same time: they have one clock."""
            got = [b"", b""]

            async def ask(way: int, handle: Handler) -> None:
                got[way] = await exchange(handle, observers[way], data)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, 0, front.handle)
                nursery.start_soon(ask, 1, alone.handle)
                # Everything that has a limit has come to it in the end.
                for seconds in (0, *STEPS):
                    mock_clock.jump(seconds)
                    await trio.testing.wait_all_tasks_blocked(QUIET_SECONDS)
            return got

        async def compare(data: bytes) -> None:
            with trio.fail_after(1_000):
                one, other = await both(data)
            if replies_of(one) != replies_of(other) or failures(fast) or failures(slow):
                path = _store(folder, data)
                raise AssertionError(
                    f"{path} (FUZZ_SEED={seed}):\n{one!r}\n{other!r}\n{failures(fast)}{failures(slow)}"
                )
            for status, _, _ in replies_of(one):
                statuses[status[9:12]] = statuses.get(status[9:12], 0) + 1

        async with front.lane():
            tries, end = 0, time.monotonic() + 2 * SECONDS
            for data in parents:
                await compare(data)
            while time.monotonic() < end:
                await compare(mutated(rng, parents, WORDS) or b"x")
                tries += 1
    print(f"http: {len(stored)} from the corpus, {tries} mutated, {statuses}")
    assert {b"200", b"201", b"400", b"401"} <= statuses.keys()
