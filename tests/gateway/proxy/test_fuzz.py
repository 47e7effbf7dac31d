"""Bytes that nobody would send: no connection breaks for a reason of ours, whoever sends them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final

import trio
from trio.testing import MockClock

from idemactor.core.record import State
from tests.gateway.proxy.rig import Client, Proxy, Received, proxying

CASES: Final = 600
VALID: Final = (
    b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"GET /orders/%d?a=b HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
    b"PATCH /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k%d\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
)
PIECES: Final = (
    *(b"\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b"\xff", b":", b",", b";", b'"', b"%", b"0", b"5", b"-1"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"Host: b\r\n", b"Idempotency-Key: z\r\n"),
    *(b"GET / HTTP/1.1\r\n", b"/../", b"//", b"\r\n\r\n", b"Upgrade: h2c\r\n", b"Connection: close\r\n"),
)


def mutated(rng: random.Random, valid: Sequence[bytes], number: int) -> bytes:
    """A valid message, or two, with a few things done to it."""
    data = bytearray(b"".join(rng.choice(valid) % number for _ in range(rng.randrange(1, 3))))
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                del data[at : at + rng.randrange(1, 8)]
            case _:
                data[at : at + 1] = bytes((rng.randrange(256),))
    return bytes(data)


async def whole(received: Received) -> None:
    """An upstream that would not take what is not plain."""
    assert not received.header("Transfer-Encoding")
    assert [len(received.body)] == [int(value) for value in received.header("Content-Length")] or not received.body
    assert len(received.header("Host")) == 1
    await received.answer(200, b"fine")


async def one(proxy: Proxy, rng: random.Random, data: bytes) -> None:
    """Send ``data`` in a few pieces, and then no more."""
    client: Client = proxy.client()
    cut = rng.randrange(len(data) + 1)
    for piece in (data[:cut], data[cut:]):
        await client.stream.send_all(piece)
        await trio.sleep(0.01)
    await client.stream.send_stream.aclose()
    await client.rest()


def seeded() -> random.Random:
    """A generator whose seed is printed; ``FUZZ_SEED`` replays one."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"replay with FUZZ_SEED={seed}")
    return random.Random(seed)


def broken(proxy: Proxy) -> list[str]:
    """What says that a connection failed for a reason of ours."""
    wanted = 'idemactor_connection_failures_total{door="gateway"}'
    return [line for line in proxy.metrics().splitlines() if line.startswith(wanted) and not line.endswith(" 0.0")]


async def test_mutated_requests(autojump_clock: MockClock) -> None:
    rng = seeded()
    async with proxying(autojump_clock, behaviour=whole) as proxy:
        for number in range(CASES):
            data = mutated(rng, VALID, number)
            with trio.fail_after(600):
                await one(proxy, rng, data)
        assert broken(proxy) == []
        assert proxy.upstream.requests, "none of them was valid any more"
        assert (await proxy.call(key="honest")).body == b"fine"


ANSWERS: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 1%d\r\n\r\n0123456789abcdefghi",
    b"HTTP/1.1 200 OK\r\nX: %d\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: <%d>\r\n\r\nHTTP/1.1 204 No\r\nETag: x\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nX: %d\r\n\r\nall of it",
)


async def test_mutated_answers(autojump_clock: MockClock) -> None:
    """Whatever an upstream sends, the client gets something, and the attempt is committed, released or in doubt."""
    rng = seeded()

    async def strange(received: Received) -> None:
        await received.send(mutated(rng, ANSWERS, rng.randrange(10)))
        await received.stream.aclose()

    async with proxying(autojump_clock, behaviour=strange) as proxy:
        states = set()
        for number in range(CASES):
            client = proxy.client()
            with trio.fail_after(600):
                await client.send(key=f"k{number}", headers=[("Connection", "close")])
                got = await client.rest()
            assert got.startswith(b"HTTP/1.1 ")
            record = await proxy.record(f"k{number}")
            assert record is None or record.state is not State.PENDING
            states.add(record and record.state)
        assert broken(proxy) == []
        assert {State.COMMITTED, State.DOUBTED} <= states
