"""A drain that is cut off: upstreams that hang are given up, and everybody is told what is known."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.record import State
from idemactor.gateway.proxy.cut import Cut
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Origin
from idemactor.storage.base import Batch
from tests.gateway.proxy.rig import ORIGIN, ROUTE, Client, Proxy, Received, proxying

PATIENT = replace(ROUTE, require_key=False)
CUT_MS = 2_400
TELL_MS = 2_700
HANGS = pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
STREAMS = pytest.mark.parametrize(
    "begun", [b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\nx", b"HTTP/1.1 200 OK\r\n\r\nx"]
)


async def hang(received: Received, begun: bytes = b"") -> None:
    """Begins an answer, or does not, and never ends it."""
    await received.send(begun)
    await trio.sleep_forever()


def drain(proxy: Proxy) -> None:
    """As a server does."""
    proxy.door.drain(CUT_MS, TELL_MS)
    proxy.rig.context.router.settle_only()


async def drained(proxy: Proxy, *request: Any, **options: Any) -> tuple[Client, float]:
    """A client whose request is under way, and when the drain began."""
    client = proxy.client()
    await client.send(*request, **options)
    await trio.sleep(1)
    began = trio.current_time()
    drain(proxy)
    return client, began


async def ended(proxy: Proxy, began: float, *streams: trio.abc.Stream) -> None:
    """It ends when it was cut off, and clients have closed their connections: there is nothing else to wait for."""
    for stream in streams:
        await stream.aclose()
    with trio.fail_after(TELL_MS / 1_000):
        await proxy.door.finished.wait()
    assert CUT_MS / 1_000 <= trio.current_time() - began < TELL_MS / 1_000


@HANGS
async def test_a_protected_request_is_told_in_doubt(autojump_clock: MockClock, begun: bytes) -> None:
    async with proxying(autojump_clock, behaviour=partial(hang, begun=begun)) as proxy:
        client, began = await drained(proxy)
        told = await client.read()
        record = await proxy.record()
        assert record is not None
        assert record.state is State.DOUBTED
        members = json.loads(told.body)
        assert (told.status, members["result"], members["operation_id"]) == (409, "in_doubt", record.operation_id)
        assert told.header("Connection") == ["close"]
        await ended(proxy, began, client.stream)


@HANGS
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unprotected_request_is_told_that_the_upstream_was_too_slow(
    autojump_clock: MockClock, method: str, begun: bytes
) -> None:
    async with proxying(autojump_clock, PATIENT, behaviour=partial(hang, begun=begun)) as proxy:
        client, began = await drained(proxy, method, key=None)
        told = await client.read()
        assert (told.status, json.loads(told.body)["code"]) == (504, "IDEMPOTENCY_UPSTREAM_FAILED")
        # What may be sent twice is not sent again by a server that stops.
        assert len(proxy.upstream.requests) == 1
        await ended(proxy, began, client.stream)


async def test_what_went_on_without_a_shard_is_told_in_doubt(autojump_clock: MockClock) -> None:
    route = replace(ROUTE, namespace="open")
    async with proxying(autojump_clock, route, behaviour=hang, run=False) as proxy:
        client = proxy.client()
        await client.send()
        await trio.sleep(5)
        assert len(proxy.upstream.requests) == 1
        drain(proxy)
        told = await client.read()
        assert (told.status, json.loads(told.body)["result"]) == (409, "in_doubt")


@STREAMS
async def test_an_answer_that_began_is_cut(autojump_clock: MockClock, begun: bytes) -> None:
    async with proxying(autojump_clock, behaviour=partial(hang, begun=begun)) as proxy:
        client, began = await drained(proxy)
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 200 ")
        # Neither an end of its own nor a second answer.
        assert not got.endswith(b"0\r\n\r\n")
        assert got.count(b"HTTP/1.1") == 1
        record = await proxy.record()
        assert record is not None
        assert record.state is State.DOUBTED
        await ended(proxy, began, client.stream)


async def test_a_client_that_does_not_read_is_cut_off_as_well(autojump_clock: MockClock) -> None:
    async def large(received: Received) -> None:
        await received.answer(200, b"x" * 500_000)

    async with proxying(autojump_clock, behaviour=large, limits=ProxyLimits(write_ms=100_000)) as proxy:
        near, far = trio.testing.lockstep_stream_pair()
        proxy.listener.take(far)
        await near.send_all(b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        drain(proxy)
        await ended(proxy, began)
        record = await proxy.record()
        assert record is not None
        assert record.state is State.DOUBTED


async def test_what_waits_for_its_turn_is_not_sent(autojump_clock: MockClock) -> None:
    route = replace(PATIENT, connect_ms=20_000)
    async with proxying(autojump_clock, route, behaviour=hang, limits=ProxyLimits(concurrent_max=1)) as proxy:
        first, second = proxy.client(), proxy.client()
        await first.send(key="first")
        await trio.sleep(0.1)
        await second.send(key="second")
        await trio.sleep(0.1)
        began = trio.current_time()
        drain(proxy)
        assert (await first.read()).status == 409
        told = await second.read()
        assert (told.status, json.loads(told.body)["code"]) == (502, "IDEMPOTENCY_UPSTREAM_FAILED")
        # The first one's place was free then.
        await ended(proxy, began, first.stream, second.stream)
        assert len(proxy.upstream.requests) == 1
        assert await proxy.record("second") is None


@pytest.mark.parametrize("used", [True, False])
async def test_what_is_granted_too_late_is_not_sent(autojump_clock: MockClock, used: bool) -> None:
    async def slow(_batch: Batch) -> None:
        await trio.sleep(1)

    async with proxying(autojump_clock) as proxy:
        if used:
            # Its connection is there for the next.
            await proxy.call(key="before")
        before = len(proxy.upstream.requests)
        for disk in proxy.rig.disks:
            disk.before_commit = slow
        client = proxy.client()
        await client.send()
        await trio.sleep(0.1)
        proxy.door.drain(500)
        assert (await client.read()).status == 502
        await trio.sleep(5)
        assert len(proxy.upstream.requests) == before
        assert await proxy.record() is None


async def test_a_shard_that_does_not_take_the_end_holds_up_no_answer(autojump_clock: MockClock) -> None:
    async def stuck(_batch: Batch) -> None:
        await trio.sleep(60)

    async with proxying(autojump_clock, behaviour=hang) as proxy:
        client = proxy.client()
        await client.send()
        await trio.sleep(1)
        for disk in proxy.rig.disks:
            disk.before_commit = stuck
        began = trio.current_time()
        drain(proxy)
        told = await client.read()
        assert (told.status, json.loads(told.body)["result"]) == (409, "in_doubt")
        assert trio.current_time() - began == pytest.approx(TELL_MS / 1_000)


async def test_an_answer_that_comes_in_time_is_whole(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(CUT_MS / 1_000 - 0.1)
        await received.answer(200, b"done", [("Connection", "close")])

    async with proxying(autojump_clock, behaviour=slow) as proxy:
        client = proxy.client()
        await client.send()
        await trio.testing.wait_all_tasks_blocked()
        drain(proxy)
        assert (await client.read()).body == b"done"
        record = await proxy.record()
        assert record is not None
        assert record.state is State.COMMITTED


class SlowToEnd(trio.abc.Stream):
    """A stream that takes its time to be closed."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(CUT_MS / 1_000 + 1)
        await self._stream.aclose()


async def test_an_answer_is_whole_though_its_connection_did_not_end_in_time(autojump_clock: MockClock) -> None:
    async def once(received: Received) -> None:
        await received.answer(200, b"done", [("Connection", "close")])

    async with proxying(autojump_clock, behaviour=once) as proxy:

        async def connect(_origin: Origin) -> trio.abc.Stream:
            return SlowToEnd(await proxy.upstream.connect(ORIGIN))

        for upstream in proxy.door._upstreams.values():
            upstream._connect = connect
        client = proxy.client()
        await client.send()
        await trio.testing.wait_all_tasks_blocked()
        drain(proxy)
        assert (await client.read()).body == b"done"
        record = await proxy.record()
        assert record is not None
        assert record.state is State.COMMITTED


async def test_a_request_that_just_came_whole_is_told_that_its_connection_ends(autojump_clock: MockClock) -> None:
    async with proxying(autojump_clock) as proxy:
        client = proxy.client()
        await client.stream.send_all(b"PUT /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx")
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.send_all(b"y")
        proxy.door.drain()
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nConnection: close\r\n" in got


async def test_of_two_moments_the_earlier_counts(mock_clock: MockClock) -> None:
    cut = Cut()
    scopes = [cut.begin()]
    cut.after(2_000)
    scopes.append(cut.begin())
    cut.after(3_000)
    scopes.append(cut.begin())
    assert {scope.deadline for scope in scopes} == {mock_clock.current_time() + 2}
    cut.ended(scopes[0])
    cut.after(1_000)
    assert [scope.deadline - mock_clock.current_time() for scope in scopes] == [2, 1, 1]
