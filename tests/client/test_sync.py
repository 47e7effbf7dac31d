"""The client for threads: the same methods, from any number of threads, across a fork."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator

import pytest

from idemactor.client import Client as AsyncClient
from idemactor.client import (
    ClientClosed,
    Completed,
    ForkedError,
    InDoubtError,
    InFlightError,
    LeaseLost,
    Reserved,
    UnknownKeyError,
    current_hold,
)
from idemactor.client.sync import Client

NOT_FOR_CALLERS = {
    "ask",
    "check",
    "start_task",
    "known_policy",
    "count_unprotected",
    "wait_shortly",
    "renewals",
    "end_here",
}


@pytest.fixture
def client() -> Iterator[Client]:
    with Client.in_memory() as opened:
        yield opened


def test_every_method_is_there_with_the_same_signature() -> None:
    names = {name for name in dir(AsyncClient) if not name.startswith("_")} - NOT_FOR_CALLERS
    assert names - {"lease_clock"} <= set(dir(Client))
    for name in names - {"clock", "unprotected", "once", "embedded", "in_memory"}:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (Client, AsyncClient))
        assert list(ours.parameters) == list(theirs.parameters), name
    ours, theirs = (inspect.signature(kind.once) for kind in (Client, AsyncClient))
    assert list(ours.parameters) == list(theirs.parameters)
    assert list(inspect.signature(Client).parameters) == list(inspect.signature(AsyncClient).parameters)


def test_wrong_arguments_show_at_once() -> None:
    with pytest.raises(ValueError, match="no address"):
        Client("nowhere")


def test_commands_holds_and_listings(client: Client) -> None:
    with client.hold("trade", "k", payload=[1]) as hold:
        assert client.get("trade", "k").state == "pending"
        with pytest.raises(InFlightError), client.hold("trade", "k"):
            pytest.fail("two holders")
        hold.begin_effect()
        hold.set_outcome(body=b"x")
    with client.hold("trade", "k") as again:
        assert again.completed
        assert again.outcome is not None
        assert again.outcome.body == b"x"
    with pytest.raises(KeyError), client.hold("trade", "released"):
        raise KeyError
    with pytest.raises(UnknownKeyError):
        client.get("trade", "released")
    with pytest.raises(KeyError), client.hold("trade", "doubted") as hold:
        hold.begin_effect()
        raise KeyError
    assert [(record.key, record.state) for record in client.records("trade", page_size=1)] == [
        ("k", "committed"),
        ("doubted", "in_doubt"),
    ]
    assert client.unprotected == 0


def test_a_lost_lease_tells_the_thread(client: Client) -> None:
    with pytest.raises(LeaseLost), client.hold("trade", "k", lease_ms=1_000) as hold:
        client.clock.advance(1_000)
        hold.begin_effect()
    with client.hold("trade", "k") as hold:
        hold.check()


def test_once(client: Client) -> None:
    ran: list[str] = []

    @client.once("trade")
    def order(symbol: str) -> dict[str, str]:
        ran.append(current_hold().operation_id)
        return {"symbol": symbol}

    assert order("BTC") == order("BTC") == {"symbol": "BTC"}
    assert len(ran) == 1

    @client.once("trade", key=lambda: "failing")
    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises(InDoubtError):
        fail()


def test_eight_threads(client: Client) -> None:
    won: list[str] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for number in range(40):
            try:
                with client.hold("trade", f"k{number}", wait=True) as hold:
                    if not hold.completed:
                        hold.begin_effect()
                        won.append(f"k{number}")
            except InFlightError:
                pytest.fail("it was to wait")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(f"k{number}" for number in range(40))


def test_closing_ends_the_thread_and_a_later_use_opens_again() -> None:
    before = threading.active_count()
    client = Client.in_memory()
    client.ping()
    client.close()
    client.close()
    assert threading.active_count() == before
    client.ping()
    client.close()
    assert threading.active_count() == before


def test_closing_does_not_wait_for_a_hold_that_nobody_leaves() -> None:
    client = Client.in_memory()
    holding = client.hold("trade", "k")
    holding.__enter__()
    client.close()
    with pytest.raises(ClientClosed):
        holding.__exit__(None, None, None)


def in_child(work: object) -> int:
    """Run ``work`` in a forked child; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_opens_a_client_of_its_own(client: Client) -> None:
    first = client.reserve("trade", "k")
    assert isinstance(first, Reserved)

    def child() -> None:
        # In memory, so that a client of the child's own knows nothing of the parent's keys.
        assert isinstance(client.reserve("trade", "k"), Reserved)
        client.close()

    assert in_child(child) == 0
    client.commit("trade", "k", first.token)
    assert isinstance(client.reserve("trade", "k"), Completed)


async def test_the_async_client_refuses_in_a_forked_child() -> None:
    async with AsyncClient.in_memory() as client:
        await client.ping()

        def child() -> None:
            with pytest.raises(ForkedError):
                client.check()
            call = client.reserve("trade", "k")
            with pytest.raises(ForkedError):
                call.send(None)
            entering = client.hold("trade", "k").__aenter__()
            with pytest.raises(ForkedError):
                entering.send(None)

        assert in_child(child) == 0
        await client.ping()
