"""A hold that is cancelled at any point whatever leaves no reservation behind without an owner."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from idemactor.client import Client, Reserved
from tests.client.fake import FakeServer, Fault, always, on, state, with_server
from tests.client.loops import SOCKETS, both_loops, run

STEPS_MAX = 200


@types.coroutine
def cancelling_at(
    number: int, inner: Coroutine[Any, Any, None], cancel: Callable[[], None]
) -> Generator[Any, Any, int]:
    """Run ``inner`` and cancel it while it waits for the ``number``-th time; returns how often it waited."""
    waits = 0
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            asked = inner.send(value) if error is None else inner.throw(error)
        except StopIteration:
            return waits
        waits += 1
        if waits == number:
            cancel()
        value = error = None
        try:
            value = yield asked
        except BaseException as raised:
            error = raised


def sweep(backend: str, fault: Callable[[], Fault], *, begin: bool, turns: int) -> list[str | None]:
    """The state in which the key is left, for a cancellation at every wait there is.

    ``turns`` is how often everybody else may have a turn before the cancellation comes: at once, nothing that the
    hold just asked for has even been sent; later it is on its way, was carried out, or its answer is here.
    """
    found: list[str | None] = []

    def later(helpers: TaskGroup, scope: anyio.CancelScope) -> None:
        async def cancel() -> None:
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scope.cancel()

        if turns:
            helpers.start_soon(cancel)
        else:
            scope.cancel()

    async def body(server: FakeServer, client: Client) -> None:
        for number in range(1, STEPS_MAX):
            key, begun, ended = f"k{number}", False, False
            server.fault = fault()

            async def holding() -> None:
                nonlocal begun, ended
                async with client.hold("trade", key, lease_ms=60_000) as hold:  # noqa: B023
                    await anyio.sleep(0.01)
                    if begin:
                        hold.begin_effect()
                        begun = True
                    await anyio.sleep(0.01)
                    hold.set_outcome(body=b"x")
                    ended = True

            waits = 0
            async with anyio.create_task_group() as helpers:
                with anyio.CancelScope() as scope:
                    waits = await cancelling_at(number, holding(), lambda: later(helpers, scope))
                helpers.cancel_scope.cancel()
            await anyio.sleep(8)
            left = state(server, key)
            assert left != "pending", f"cancelled at wait {number}: nobody owns the reservation"
            expected = "committed" if ended else "in_doubt" if begun else None
            assert left == expected, f"cancelled at wait {number}: {begun=}, {ended=}"
            found.append(left)
            if waits and waits < number:
                return
        pytest.fail("there is no end to it")

    with_server(backend, body)
    return found


@both_loops
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 6, 8, 10])
@pytest.mark.parametrize("begin", [False, True])
def test_cancelled_at_every_wait(backend: str, begin: bool, turns: int) -> None:
    found = sweep(backend, lambda: lambda _server, _request: None, begin=begin, turns=turns)
    assert {None, "committed"} <= set(found)
    assert ("in_doubt" in found) is begin


@both_loops
@pytest.mark.parametrize("method", ["reserve", "commit", "release", "doubt"])
@pytest.mark.parametrize("what", ["cut", "cut after", "hang", "deaf", "late:0.5", "IDEMPOTENCY_UNAVAILABLE: x"])
@pytest.mark.parametrize("turns", [0, 3, 6])
def test_cancelled_at_every_wait_while_an_answer_is_missing(backend: str, method: str, what: str, turns: int) -> None:
    sweep(backend, lambda: on(method, what), begin=True, turns=turns)


@both_loops
def test_a_cancelled_call_of_its_own_gives_back_what_it_was_granted(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on("reserve", "hang")
        with anyio.move_on_after(0.5) as scope:
            await client.reserve("trade", "k")
        assert scope.cancelled_caught
        assert state(server) == "pending"
        await anyio.sleep(10)
        assert state(server) is None
        server.fault = on("reserve", "hang")
        with anyio.move_on_after(0.5):
            await client.reserve("trade", "mine", request_id="r1")
        await anyio.sleep(10)
        assert state(server, "mine") == "pending"
        again = await client.reserve("trade", "mine", request_id="r1")
        assert isinstance(again, Reserved)
        assert again.repeated

    with_server(backend, body)


@both_loops
def test_who_was_cancelled_while_waiting_gives_the_key_on(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        order: list[str] = []

        async def third() -> None:
            async with client.hold("trade", "k", wait=True):
                order.append("third")

        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            with pytest.raises(ValueError, match="x"):
                async with client.hold("trade", "k"):
                    with anyio.move_on_after(1):
                        async with client.hold("trade", "k", wait=True):
                            order.append("second")
                    tasks.start_soon(third)
                    await anyio.sleep(1)
                    raise ValueError("x")
        assert order == ["third"]
        assert anyio.current_time() - began < 4
        await anyio.sleep(1)
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_a_batch_that_is_cancelled_gives_back_what_it_reserved(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on("batch", "hang")
        with anyio.move_on_after(0.5):
            await client.batch([{"op": "reserve", "namespace": "trade", "key": key} for key in "ab"])
        assert state(server, "a") == state(server, "b") == "pending"
        await anyio.sleep(10)
        assert state(server, "a") is state(server, "b") is None

    with_server(backend, body)


def test_a_cancellation_of_asyncio_itself() -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for key, begun, left in (("a", False, None), ("b", True, "in_doubt")):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1), client.hold("trade", key) as hold:
                    if begun:
                        hold.begin_effect()
                    await asyncio.sleep(100)
            assert state(server, key) == left
        server.fault = on("reserve", "late:0.5")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reserve("trade", "c"), 0.2)
        await asyncio.sleep(2)
        assert state(server, "c") is None

    with_server("asyncio", body)


@both_loops
def test_closing_the_client_waits_for_what_is_to_be_told(backend: str) -> None:
    server = FakeServer(sockets=backend == SOCKETS)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client() as client:
                server.fault = on("reserve", "late:0.5")
                with anyio.move_on_after(0.2):
                    await client.reserve("trade", "k")
                assert state(server) == "pending"
            assert state(server) is None
            tasks.cancel_scope.cancel()

    run(backend, main)


@both_loops
def test_closing_the_client_does_not_wait_for_ever(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(sockets=backend == SOCKETS)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client(cleanup_ms=700) as client:
                server.fault = always("reserve", "hang")
                with anyio.move_on_after(0.2):
                    await client.reserve("trade", "k")
                began = anyio.current_time()
            assert anyio.current_time() - began < 0.8
            tasks.cancel_scope.cancel()

    run(backend, main)
    assert "1 operations not settled" in caplog.text
