"""An ending that the body asks for is told, or its caller is: never lost without a word."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import anyio
import pytest

from idemactor.client import (
    AlreadyCommittedError,
    Client,
    CommitUnacknowledged,
    EndingUnacknowledged,
    Forbidden,
    StaleTokenError,
    UnknownKeyError,
)
from tests.client.fake import FakeServer, always, state, with_server
from tests.client.loops import both_loops


@both_loops
@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("x" * 513, "x" * 512),
        ("a\x00b\x1b[31m\x9fc", "a b [31m c"),
        ("lone \ud800 surrogate", "lone   surrogate"),
        ("two\r\n\tlines", "two\r\n\tlines"),
        ("\x00", None),
        ("", None),
        (None, None),
    ],
)
def test_no_reason_loses_the_doubt(backend: str, reason: str | None, kept: str | None) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k") as hold:
            hold.begin_effect()
            hold.leave_in_doubt(reason)
        record = server.record("k")
        assert record is not None
        assert (record["state"], record["reason"]) == ("in_doubt", kept)
        async with client.hold("trade", "back") as hold:
            hold.give_back(reason)
        assert state(server, "back") is None

    with_server(backend, body)


@both_loops
def test_a_reason_that_is_no_text_shows_at_once(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for number, wrong in enumerate((ValueError("x"), 7, b"bytes")):
            with pytest.raises(TypeError, match="reason"):
                async with client.hold("trade", f"doubt{number}") as hold:
                    hold.begin_effect()
                    hold.leave_in_doubt(wrong)  # type: ignore[arg-type]
            assert state(server, f"doubt{number}") == "in_doubt"
            with pytest.raises(TypeError, match="reason"):
                async with client.hold("trade", f"back{number}") as hold:
                    hold.give_back(wrong)  # type: ignore[arg-type]
            assert state(server, f"back{number}") is None

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("ending", ["leave_in_doubt", "give_back"])
def test_somebody_who_took_over_is_told_of(backend: str, ending: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        with pytest.raises(StaleTokenError) as caught:
            async with client.hold("trade", "k", on_lost="tell") as hold:
                await client.forget("trade", "k", force=True)
                await client.reserve("trade", "k")
                getattr(hold, ending)("x")
        assert caught.value.attempt == 1

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("ending", ["leave_in_doubt", "give_back"])
def test_what_the_server_refuses_is_raised(backend: str, ending: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(AlreadyCommittedError):
            async with client.hold("trade", "k") as hold:
                assert hold.token is not None
                await client.commit("trade", "k", hold.token)
                getattr(hold, ending)()
        server.fault = always("doubt" if ending == "leave_in_doubt" else "release", "IDEMPOTENCY_FORBIDDEN: no")
        with pytest.raises(Forbidden):
            async with client.hold("trade", "other") as hold:
                getattr(hold, ending)()

    with_server(backend, body)


@both_loops
def test_a_key_that_was_forgotten_is_free_but_not_in_doubt(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k") as hold:
            await client.forget("trade", "k", force=True)
            hold.give_back()
        with pytest.raises(UnknownKeyError):
            async with client.hold("trade", "k") as hold:
                await client.forget("trade", "k", force=True)
                hold.leave_in_doubt()

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize(("ending", "left"), [("leave_in_doubt", "in_doubt"), ("give_back", None)])
@pytest.mark.parametrize("what", ["down", "deaf"])
def test_nobody_told_is_raised_and_goes_on_being_sent(backend: str, ending: str, left: str | None, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        began = anyio.current_time()
        with pytest.raises(EndingUnacknowledged) as caught:
            async with client.hold("trade", "k") as hold:
                hold.begin_effect()
                getattr(hold, ending)("x")
                server.down = what == "down"
                server.fault = lambda _server, _request: "deaf"
                if what == "down":
                    server.drop()
        assert not isinstance(caught.value, CommitUnacknowledged)
        assert (caught.value.token, caught.value.operation_id) == (hold.token, hold.operation_id)
        assert 2.9 <= anyio.current_time() - began <= 3.2
        assert state(server) == "pending"
        server.down = False
        server.fault = lambda _server, _request: None
        await anyio.sleep(5)
        assert state(server) == left

    with_server(backend, body, timeout_ms=3_000)


@both_loops
def test_an_exception_says_what_could_not_be_told(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("doubt", "IDEMPOTENCY_UNAVAILABLE: not now")
        with pytest.raises(ValueError, match="x") as caught:
            async with client.hold("trade", "k") as hold:
                hold.begin_effect()
                raise ValueError("x")
        assert "goes on trying" in caught.value.__notes__[0]
        server.fault = lambda _server, _request: None
        await anyio.sleep(5)
        assert state(server) == "in_doubt"

    with_server(backend, body)


@both_loops
def test_a_cancellation_while_an_ending_is_told_does_not_undo_it(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("doubt", "late:0.5")
        with anyio.move_on_after(0.2) as scope:
            async with client.hold("trade", "k") as hold:
                hold.leave_in_doubt("x")
        assert scope.cancelled_caught
        assert state(server) == "in_doubt"

    with_server(backend, body)
