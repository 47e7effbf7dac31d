"""Waiting for a key: only a server that is there has anybody wait, and who left never had anything to settle."""

from __future__ import annotations

import logging

import anyio
import pytest

from idemactor.client import Client, InFlightError, OutOfService, Overloaded, Unavailable, Unreachable
from tests.client.fake import FakeServer, always, on, state, with_server
from tests.client.loops import SOCKETS, both_loops, run

SILENCE_S = 2.0
"""The fake server's clients give up a connection on which nothing comes for so long."""

GONE = {
    "down": Unreachable,
    "deaf": Unreachable,
    "IDEMPOTENCY_UNAVAILABLE: x": Unavailable,
    "IDEMPOTENCY_OVERLOADED: x": Overloaded,
}


def go(server: FakeServer, what: str) -> None:
    """The server is no longer of use."""
    server.down = what == "down"
    if server.down:
        server.drop()
    server.fault = lambda _server, _request: what


@both_loops
@pytest.mark.parametrize("what", list(GONE))
@pytest.mark.parametrize("wait", [True, 30_000])
def test_a_server_that_is_not_there_has_nobody_wait(backend: str, what: str, wait: bool | int) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        go(server, what)
        began = anyio.current_time()
        with pytest.raises(GONE[what]):
            async with client.hold("trade", "k", wait=wait, timeout_ms=1_000):
                pytest.fail("nobody was asked")
        # Whether a server that took the question is there, only its silence tells.
        until_s = 1 + (3 * SILENCE_S if what == "deaf" else 0.1)
        assert 0.9 <= anyio.current_time() - began <= until_s
        with pytest.raises(GONE[what]):
            await client.reserve("trade", "k", wait_ms=30_000, timeout_ms=1_000)
        assert anyio.current_time() - began <= 2 * until_s
        server.down = False
        server.fault = lambda _server, _request: None

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("what", list(GONE))
def test_open_goes_on_as_soon_as_without_waiting(backend: str, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        go(server, what)
        began = anyio.current_time()
        async with client.hold("trade", "k", wait=True, on_unavailable="open", unavailable_after_ms=500) as hold:
            assert not hold.protected
            assert anyio.current_time() - began <= 0.5 + (3 * SILENCE_S if what == "deaf" else 0.1)
        server.down = False
        server.fault = lambda _server, _request: None

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("what", list(GONE))
def test_a_server_that_goes_while_it_has_somebody_wait(backend: str, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "k")
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:

            async def leave() -> None:
                await anyio.sleep(20)
                server.drop()
                go(server, what)

            tasks.start_soon(leave)
            with pytest.raises(OutOfService):
                async with client.hold("trade", "k", wait=True, timeout_ms=1_000):
                    pytest.fail("somebody else holds it")
        assert 20.9 <= anyio.current_time() - began <= 21.2 + (3 * SILENCE_S if what == "deaf" else 0)
        server.down = False
        server.fault = lambda _server, _request: None

    with_server(backend, body)


@both_loops
def test_a_restart_while_somebody_waits_is_not_noticed(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first = await client.reserve("trade", "k")

        async def restart() -> None:
            await anyio.sleep(20)
            server.down = True
            server.drop()
            await anyio.sleep(0.8)
            server.down = False
            await anyio.sleep(15)
            await client.release("trade", "k", first.token)  # type: ignore[union-attr]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            async with client.hold("trade", "k", wait=True, timeout_ms=2_000) as hold:
                assert hold.attempt == 1
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_a_quiet_server_that_is_there_is_not_given_up(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "k")
        began = anyio.current_time()
        with pytest.raises(InFlightError):
            async with client.hold("trade", "k", wait=50_000, timeout_ms=1_000):
                pytest.fail("somebody else holds it")
        assert anyio.current_time() - began >= 50
        assert server.connections == 1
        assert 10 <= server.seen["ping"] <= 30

    with_server(backend, body)


@both_loops
def test_who_waits_for_a_place_among_the_waiting_is_not_out_of_service(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idemactor.client.pipeline.WAITING_MAX", 1)

    async def body(_server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "k")

        async def wait() -> None:
            with pytest.raises(InFlightError):
                await client.reserve("trade", "k", wait_ms=5_000, timeout_ms=1_000)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.sleep(0.1)
            await client.reserve("trade", "free", wait_ms=10_000, timeout_ms=1_000)

    with_server(backend, body)


# ----------------------------------------------------------------------------------------------------------- leaving


@both_loops
@pytest.mark.parametrize("held", [False, True])
def test_who_waited_in_vain_has_nothing_to_settle(backend: str, held: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = FakeServer(sockets=backend == SOCKETS)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client() as owner:
                mine = await owner.reserve("trade", "k")
                async with server.client() as client:
                    with anyio.move_on_after(3):
                        if held:
                            async with client.hold("trade", "k", wait=True):
                                pytest.fail("somebody else holds it")
                        else:
                            await client.reserve("trade", "k", wait_ms=50_000)
                    began = anyio.current_time()
                assert anyio.current_time() - began < 0.1
                await anyio.sleep(1)
                # Nobody waits any more: the key is free.
                await owner.release("trade", "k", mine.token)  # type: ignore[union-attr]
                await anyio.sleep(1)
                assert state(server) is None
            tasks.cancel_scope.cancel()

    with caplog.at_level(logging.DEBUG):
        run(backend, main)
    assert "not settled" not in caplog.text


@both_loops
def test_what_was_granted_to_who_left_while_waiting_is_given_back_before_closing(backend: str) -> None:
    server = FakeServer(sockets=backend == SOCKETS)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client() as client:
                # The key is free: this is no waiting, only an answer that takes its time.
                server.fault = on("reserve", "late:0.5")
                with anyio.move_on_after(0.2):
                    await client.reserve("trade", "k", wait_ms=50_000)
                assert state(server) == "pending"
            assert state(server) is None
            tasks.cancel_scope.cancel()

    run(backend, main)


@both_loops
def test_what_is_granted_later_to_who_left_while_waiting_is_given_back(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first = await client.reserve("trade", "k")
        with anyio.move_on_after(1):
            await client.reserve("trade", "k", wait_ms=50_000)
        await anyio.sleep(5)
        await client.release("trade", "k", first.token)  # type: ignore[union-attr]
        await anyio.sleep(1)
        assert state(server) is None

    with_server(backend, body)


@both_loops
def test_who_left_while_waiting_for_a_server_that_is_gone_says_so(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "k")
        server.fault = always("reserve", "deaf")
        with anyio.move_on_after(1):
            await client.reserve("trade", "other", wait_ms=50_000)

    with_server(backend, body)
    assert "1 operations not settled" in caplog.text
