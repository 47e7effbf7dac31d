"""A mistake in an argument shows at the call that makes it, by its name, and never when the effect has happened."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import functools
import math
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from idemactor.client import Client, EntryRef, InvalidRequest, Outcome, ProtocolViolation, Unreachable, sync
from idemactor.client.causes import cause_of
from tests.client.fake import FakeServer, Pipe, state, with_server
from tests.client.loops import both_loops

WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"on_lost": "kill"}, ValueError),
    ({"on_lost": None}, ValueError),
    ({"not_executed": "ValueError"}, TypeError),
    ({"not_executed": (ValueError, 7)}, TypeError),
    ({"not_executed": [ValueError()]}, TypeError),
    ({"not_executed": int}, TypeError),
    ({"not_executed": None}, TypeError),
    ({"wait": None}, TypeError),
    ({"wait": 1.5}, TypeError),
    ({"wait": "1"}, TypeError),
    ({"wait": -1}, ValueError),
    ({"unavailable_after_ms": 0.5}, TypeError),
    ({"unavailable_after_ms": True}, TypeError),
    ({"unavailable_after_ms": -1}, ValueError),
    ({"on_unavailable": "OPEN"}, ValueError),
    ({"on_unavailable": True}, ValueError),
    ({"timeout_ms": "1"}, TypeError),
    ({"timeout_ms": math.nan}, ValueError),
    ({"timeout_ms": -1}, ValueError),
    ({"lease_ms": "1"}, TypeError),
    ({"ttl_ms": 1.5}, TypeError),
    ({"window_ms": True}, TypeError),
    ({"holder": 7}, TypeError),
    ({"key": None}, TypeError),
    ({"key": b"k"}, TypeError),
    ({"namespace": None}, TypeError),
]


@pytest.mark.parametrize(("given", "kind"), WRONG, ids=str)
def test_a_hold_looks_at_its_arguments_at_the_call(given: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"^{next(iter(given))} is "):
        Client("fake:1").hold(**({"namespace": "trade", "key": "k"} | given))


@pytest.mark.parametrize("key", ["", " ", "a\x00b", "a\nb", "\x9f", "\ud800", "x" * 257])
def test_a_key_that_no_record_can_have_never_runs_unprotected(key: str) -> None:
    with pytest.raises(InvalidRequest, match="a key") as caught:
        Client("fake:1", on_unavailable="open").hold("trade", key)
    assert caught.value.field == "key"


@pytest.mark.parametrize("namespace", ["", "Trade", "a b", "x" * 64])
def test_a_namespace_that_cannot_be_never_runs_unprotected(namespace: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Client("fake:1", on_unavailable="open").hold(namespace, "k")
    assert caught.value.field == "namespace"


@both_loops
@pytest.mark.parametrize("kinds", [ValueError, (KeyError, ValueError), [KeyError, ValueError]])
def test_kinds_of_not_executed_come_alone_or_together(backend: str, kinds: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(ValueError, match="x"):
            async with client.hold("trade", "k", not_executed=kinds) as hold:
                hold.begin_effect()
                raise ValueError("x")
        assert state(server) is None

    with_server(backend, body)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"address": None}, TypeError),
        ({"token": b"t"}, TypeError),
        ({"in_flight_max": 0}, ValueError),
        ({"in_flight_max": 1.0}, TypeError),
        ({"connect_ms": 0}, ValueError),
        ({"connect_ms": None}, TypeError),
        ({"silence_ms": -1}, ValueError),
        ({"cleanup_ms": None}, TypeError),
        ({"cleanup_ms": -1}, ValueError),
        ({"timeout_ms": "1"}, TypeError),
        ({"holder": 7}, TypeError),
        ({"on_unavailable": "maybe"}, ValueError),
        ({"unavailable_after_ms": 1.5}, TypeError),
        ({"token": ""}, ValueError),
        ({"tls": "x"}, TypeError),
        ({"tls": 1}, TypeError),
        ({"direct": "yes"}, TypeError),
        ({"on_report": "x"}, TypeError),
        ({"holder": "x" * 300}, ValueError),
        ({"holder": "a\nb"}, ValueError),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [Client, sync.Client])
def test_a_client_looks_at_its_arguments(make: Any, given: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"^{next(iter(given))} is "):
        make(**({"address": "fake:1"} | given))


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"data_dir": ""}, ValueError),
        ({"data_dir": None}, TypeError),
        ({"shards": 0}, ValueError),
        ({"shards": "1"}, TypeError),
        ({"durability": "none"}, ValueError),
        ({"holder": "x" * 300}, ValueError),
        ({"namespaces": {"trade": {}}}, TypeError),
        ({"namespaces": ["trade"]}, TypeError),
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [Client.embedded, sync.Client.embedded])
def test_an_embedded_client_looks_at_its_arguments_and_makes_nothing(
    make: Any, given: dict[str, Any], kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind):
        make(**({"data_dir": "here"} | given))
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------- the members of a call

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("reserve", {"lease_ms": 0}, "lease_ms"),
    ("reserve", {"lease_ms": -1}, "lease_ms"),
    ("reserve", {"lease_ms": "1"}, "lease_ms"),
    ("reserve", {"on_duplicate": "no"}, "on_duplicate"),
    ("reserve", {"holder": "x" * 300}, "holder"),
    ("reserve", {"payload": 1, "fingerprint": "f"}, "payload"),
    ("reserve", {"ttl_ms": 1_000, "window_ms": 1_000}, "window_ms"),
    ("reserve", {"request_id": ""}, ""),
    ("reserve", {"wait_ms": "1"}, "wait_ms"),
    ("reserve", {"wait_ms": -1}, "wait_ms"),
    ("reserve", {"key": ""}, "key"),
    ("reserve", {"key": None}, "key"),
    ("accept", {"outcome": Outcome(99, (), b"")}, "outcome"),
    ("accept", {"outcome": "done"}, "outcome"),
    ("commit", {"token": 0}, "token"),
    ("commit", {"token": None}, "token"),
    ("release", {"token": 1, "reason": "x" * 5_000}, "reason"),
    ("extend", {"token": 1, "lease_ms": 0}, "lease_ms"),
    ("doubt", {"token": 1.0}, "token"),
    ("resolve", {"token": 1, "verdict": "perhaps"}, "verdict"),
    ("dispatch", {"body": b"", "expires_in_ms": 0}, "expires_in_ms"),
]
"""Calls of a key, what is wrong in each, and the member that is named."""


@both_loops
def test_what_the_server_would_refuse_is_never_sent(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for method, given, field in REFUSED:
            with pytest.raises(InvalidRequest) as caught:
                await getattr(client, method)(**({"namespace": "trade", "key": "k"} | given))
            assert caught.value.field == (field or next(iter(given))), (method, given)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("poll", {"max_entries": 0}),
            ("poll", {"wait_ms": -1}),
            ("operation", {"operation_id": ""}),
            ("operation", {"operation_id": "o", "wait_ms": "1"}),
            ("cancel", {"operation_id": "x" * 100}),
            ("acknowledge", {"incident_id": "x" * 100}),
            ("ack", {"entry": EntryRef("i", "k", 0)}),
            ("nack", {"entry": EntryRef("i", "k", 1), "delay_ms": -1}),
        ]
        for method, given in calls:
            with pytest.raises(InvalidRequest):
                await getattr(client, method)("trade", **given)
        with pytest.raises(InvalidRequest):
            await client.stuck(limit=0)
        for pages in (client.records("trade", page_size=0), client.incidents("trade", page_size=0)):
            with pytest.raises(InvalidRequest):
                await anext(pages)
        assert not server.seen

    with_server(backend, body)


@both_loops
def test_what_is_of_another_kind_altogether_is_a_type_error(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        calls: list[tuple[str, list[object], dict[str, object]]] = [
            ("batch", ["x"], {}),
            ("batch", [7], {}),
            ("batch", [{"op": "reserve"}], {}),
            ("batch", [["reserve"]], {}),
            ("ack", ["trade", "nope"], {}),
            ("nack", ["trade", {"id": "i"}], {}),
            ("commit", ["trade", "k", 1], {"events": ["filled"]}),
            ("reserve", [None, "k"], {}),
            ("policy", [b"trade"], {}),
            ("ping", [], {"timeout_ms": "1"}),
        ]
        for method, arguments, named in calls:
            with pytest.raises(TypeError):
                await getattr(client, method)(*arguments, **named)
        assert not server.seen

    with_server(backend, body)


@pytest.mark.parametrize(
    "given",
    [
        {"lease_ms": 0},
        {"lease_ms": -1},
        {"ttl_ms": 1_000, "window_ms": 1_000},
        {"payload": 1, "fingerprint": "f"},
        {"on_duplicate": "no"},
        {"holder": "x" * 300},
    ],
    ids=str,
)
def test_a_hold_that_the_server_would_refuse_never_runs_unprotected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Client("fake:1", on_unavailable="open").hold("trade", "k", **given)
    assert caught.value.field in given
    assert "at least 0" not in caught.value.detail


# ------------------------------------------------------------------------------------------------- functions for once


def plain() -> None:
    """Returns."""


def yielding() -> Iterator[int]:
    yield 1


async def asynchronous() -> None:
    """Returns when it is awaited."""


async def asynchronously_yielding() -> AsyncIterator[int]:
    yield 1


class Plain:
    def __call__(self) -> None:
        """Returns."""


class Asynchronous:
    async def __call__(self) -> None:
        """Returns when it is awaited."""


PLAIN = [plain, functools.partial(plain), Plain()]
ASYNCHRONOUS = [asynchronous, functools.partial(asynchronous), Asynchronous()]
NEITHER = [yielding, asynchronously_yielding, None]


def test_once_refuses_the_wrong_kind_of_function_at_the_decoration() -> None:
    client: Any = Client("fake:1")
    threads: Any = sync.Client("fake:1")
    for right, wrong, decorate in (
        (ASYNCHRONOUS, PLAIN, client.once("trade", key=lambda: "k")),
        (PLAIN, ASYNCHRONOUS, threads.once("trade", key=lambda: "k")),
    ):
        for function in right:
            assert callable(decorate(function))
        for function in [*wrong, *NEITHER]:
            with pytest.raises(TypeError, match=r"once|yields"):
                decorate(function)


# ------------------------------------------------------------------------------------------------ outside of the body


@both_loops
def test_what_is_for_the_body_is_for_inside_the_body(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        hold = client.hold("trade", "k")
        for_the_body: list[tuple[str, dict[str, Any]]] = [
            ("begin_effect", {}),
            ("check", {}),
            ("set_outcome", {"body": "x"}),
            ("rule_out_earlier", {}),
            ("give_back", {}),
            ("leave_in_doubt", {}),
        ]

        def all_refused() -> None:
            for name, given in for_the_body:
                with pytest.raises(RuntimeError, match="hold is not entered, or was left"):
                    getattr(hold, name)(**given)

        all_refused()
        with pytest.raises(RuntimeError, match="not entered"):
            _ = hold.operation_id
        async with hold:
            hold.set_outcome(body="kept")
        all_refused()
        assert hold.outcome is not None
        assert (hold.outcome.body, hold.effect_begun, len(hold.operation_id)) == (b"kept", False, 36)
        assert state(server) == "committed"

    with_server(backend, body)


# --------------------------------------------------------------------------------------------------------- unreachable


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (None, "connected, but no answer came"),
        (chained(OSError("all attempts failed"), ConnectionRefusedError(111, "Connection refused")), "refused"),
        (chained(OSError("x"), ExceptionGroup("many", [ConnectionRefusedError(), TimeoutError()])), "refused"),
        (FileNotFoundError(2, "No such file or directory"), "no such socket"),
        (TimeoutError(), "timed out"),
        (chained(anyio.BrokenResourceError(), ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong")), "TLS failed"),
        (chained(ProtocolViolation("x"), ValueError("y")), "no idemactor RPC"),
        (anyio.EndOfStream(), "closed"),
        (ConnectionResetError(), "closed"),
        (OSError(113, "No route to host"), "No route to host"),
    ],
    ids=repr,
)
def test_a_cause_is_told_in_words(trouble: BaseException | None, said: str) -> None:
    assert said in cause_of(trouble)


@both_loops
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("down", "connection refused"),
        ("slow", "connected, but no answer came"),
        ("cut", "the connection was closed"),
        ("another port", "speaks no idemactor RPC"),
    ],
)
def test_unreachable_says_why(backend: str, what: str, said: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.down = what == "down"
        server.fault = lambda _server, _request: "deaf" if what == "slow" else what
        if what == "another port":
            server._handle = answer_in_http  # type: ignore[method-assign,assignment]
        budget_ms = 300 if what == "slow" else 2_600
        with pytest.raises(Unreachable, match=f"fake:1 within {budget_ms} ms: .*{said}"):
            await client.ping(timeout_ms=budget_ms)
        server.down = False

    with_server(backend, body)


async def answer_in_http(stream: Pipe, _request: object, _connection: object) -> bool:
    await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    return False
