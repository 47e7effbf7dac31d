"""Where a program traces, its calls say where its trace stands; where it does not, nothing is looked for twice."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, Final

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from idemactor.client import Client, tracing
from idemactor.client.bridge import Bridge
from idemactor.client.errors import TooLarge
from idemactor.client.protocol import encode_body, encode_call
from idemactor.core.limits import FRAME_BYTES_MAX
from idemactor.wire.frames import FrameReader, Request
from tests.client.fake import FakeServer, with_server
from tests.client.loops import both_loops, run

TRACE: Final = 0x0AF7651916CD43DD8448EB211C80319C
PARENT: Final = f"00-{TRACE:032x}-{1:016x}-01"


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    tracing._reader.cache_clear()
    yield
    tracing._reader.cache_clear()


def within(number: int) -> Any:
    """A span of the program, as a context manager."""
    return trace.use_span(NonRecordingSpan(SpanContext(TRACE, number, is_remote=False, trace_flags=TraceFlags(1))))


def parents(server: FakeServer, method: str) -> list[object]:
    return [params.get("traceparent") for name, params in server.log if name == method]


@both_loops
def test_calls_carry_the_span_that_is_active(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "before")
        with within(1):
            await client.reserve("trade", "a")
            await client.batch([])
        async with anyio.create_task_group() as tasks:
            for number in (2, 3):
                with within(number):
                    tasks.start_soon(client.get, "trade", "a")
        await client.reserve("trade", "after")

    server = with_server(backend, body)
    assert parents(server, "reserve") == [None, PARENT, None]
    assert parents(server, "batch") == [PARENT]
    assert set(parents(server, "get")) == {f"00-{TRACE:032x}-{number:016x}-01" for number in (2, 3)}


@both_loops
def test_what_is_sent_again_carries_the_same(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        left = iter(["cut", "IDEMPOTENCY_OVERLOADED: not now"])
        server.fault = lambda _server, _request: next(left, None)
        with within(1):
            await client.reserve("trade", "a")

    assert parents(with_server(backend, body), "reserve") == [PARENT] * 3


@both_loops
def test_a_hold_is_in_the_trace_of_its_holder_and_renewals_are_in_none(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        with within(1):
            async with client.hold("trade", "a", lease_ms=3_000) as hold:
                await anyio.sleep(4)
                hold.set_outcome(body=b"x")

    server = with_server(backend, body)
    assert parents(server, "reserve") == parents(server, "commit") == [PARENT]
    renewals = parents(server, "extend")
    assert renewals
    assert set(renewals) == {None}


@both_loops
def test_a_thread_has_its_own_trace(backend: str) -> None:
    async def asked() -> tuple[str | None, str | None]:
        bridge = Bridge()
        found: list[str | None] = []

        async def look() -> None:
            await anyio.lowlevel.checkpoint()
            found.append(tracing.traceparent())

        def thread() -> None:
            with within(1):
                bridge.call(look)
            bridge.call(look)
            bridge.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, thread)
            await bridge.serve(lambda: None)
        return found[0], found[1]

    # A thread takes real time: virtual time would be over before.
    backend = "trio" if backend == "trio" else "asyncio"
    assert anyio.run(asked, backend=backend) == (PARENT, None)


def test_an_embedded_client_takes_no_offence() -> None:
    async def body() -> None:
        async with Client.in_memory() as client:
            with within(1):
                await client.reserve("trade", "a")
                assert [record.key async for record in client.records("trade")] == ["a"]

    run("trio", body)


def test_a_call_is_never_too_large_for_its_trace_alone() -> None:
    room = FRAME_BYTES_MAX - len(encode_body("reserve", {"payload": b"x" * 100_000})) + 100_000 - 16
    params = {"payload": b"x" * room}
    assert encode_call("reserve", params, PARENT) == encode_body("reserve", params)
    with pytest.raises(TooLarge):
        encode_call("reserve", {"payload": b"x" * (room + 1_000)}, PARENT)
    small = encode_call("reserve", {"key": "k"}, PARENT)
    [request] = FrameReader().feed(b"\x94\x00\xce\x00\x00\x00\x01" + small)
    assert request == Request(1, "reserve", {"key": "k", "traceparent": PARENT})


def test_what_is_not_installed_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, looked = builtins.__import__, []

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            looked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return whole(name, *rest)

    with within(1):
        monkeypatch.setattr(builtins, "__import__", without)
        assert [tracing.traceparent() for _ in range(3)] == [None] * 3
    assert len(looked) == 1
