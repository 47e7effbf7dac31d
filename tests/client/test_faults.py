"""Lost answers, dead connections, servers that hang, refuse, restart: what the caller sees of it."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from idemactor.client import (
    Accepted,
    Client,
    ClientClosed,
    Completed,
    Forgotten,
    InvalidRequest,
    KeyRecord,
    LeaseLost,
    NotFound,
    Op,
    Overloaded,
    ProtocolViolation,
    Reserved,
    TooLarge,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from idemactor.client.caller import Caller
from idemactor.client.flight import Answer, Flight
from idemactor.wire.frames import Request, encode_error, encode_result
from tests.client.fake import FakeServer, always, on, state, with_server
from tests.client.loops import SOCKETS, both_loops, run


@both_loops
@pytest.mark.parametrize("what", ["cut", "cut after", "hang", "deaf", "IDEMPOTENCY_OVERLOADED: x"])
@pytest.mark.parametrize("method", ["reserve", "extend", "commit"])
def test_a_lost_answer_is_asked_for_again_and_the_body_notices_nothing(backend: str, method: str, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on(method, what, what)
        async with client.hold("trade", "k", lease_ms=30_000) as hold:
            token = hold.token
            await anyio.sleep(25)
        record = server.record("k")
        assert record is not None
        assert (record["state"], record["attempt"], record["token"]) == ("committed", 1, token)
        names = {params["request_id"] for method, params in server.log if method == "reserve"}
        assert len(names) == 1

    with_server(backend, body)


@both_loops
def test_every_acquisition_has_a_name_of_its_own(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for number in range(20):
            await client.reserve("trade", f"r{number}")
            await client.accept("trade", f"a{number}")
        await client.batch([{"op": "accept", "namespace": "trade", "key": f"b{number}"} for number in range(3)])
        names = [params["request_id"] for _, params in server.log if "request_id" in params]
        names += [op["request_id"] for _, params in server.log for op in params.get("ops", ())]
        assert len(names) == len(set(names)) == 43

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("what", ["cut", "cut after", "hang"])
def test_accept_is_accepted_once_though_its_answer_was_lost(backend: str, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on("accept", what)
        first = await client.accept("trade", "k")
        assert not isinstance(first, Completed)
        assert first.repeated is (what != "cut")
        assert isinstance(await client.accept("trade", "k"), Completed)

    with_server(backend, body)


@both_loops
def test_what_is_in_flight_on_a_connection_that_breaks_is_answered_over_the_next(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        found: list[Any] = []

        async def reserve(number: int) -> None:
            found.append(await client.reserve("trade", f"k{number}"))

        left = iter([None] * 30 + ["cut"])
        server.fault = lambda _server, _request: next(left, None)
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(reserve, number)
        assert len({reserved.key for reserved in found}) == 100
        assert all(isinstance(reserved, Reserved) for reserved in found)
        assert server.connections == 2

    with_server(backend, body)


@both_loops
def test_a_server_that_never_answers_is_unreachable_in_time(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = lambda _server, _request: "deaf"
        began = anyio.current_time()
        with pytest.raises(Unreachable):
            await client.ping()
        assert 4.99 <= anyio.current_time() - began < 5.1
        with pytest.raises(Unreachable):
            await client.ping(timeout_ms=300)
        assert server.connections >= 2

    with_server(backend, body, timeout_ms=5_000)


@both_loops
def test_a_server_that_answers_others_is_not_given_up(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("get", "deaf")

        async def look() -> None:
            with pytest.raises(Unreachable):
                await client.get("trade", "k")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            for _ in range(20):
                await anyio.sleep(0.3)
                await client.ping()
        assert server.connections == 1

    with_server(backend, body, timeout_ms=5_000)


@both_loops
def test_nobody_there_is_unreachable_with_its_cause_and_comes_back_by_itself(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.down = True
        with pytest.raises(Unreachable) as caught:
            await client.ping(timeout_ms=1_000)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)

        async def restart() -> None:
            await anyio.sleep(3)
            server.down = False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restart)
            await client.ping()

    with_server(backend, body)


@both_loops
def test_a_restart_in_the_middle_of_a_hold_is_not_noticed(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k", lease_ms=9_000):
            server.down = True
            server.drop()
            await anyio.sleep(6)
            server.down = False
            await anyio.sleep(20)
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_a_restart_with_nothing_left_cancels_the_body(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(LeaseLost):
            async with client.hold("trade", "k", lease_ms=9_000) as hold:
                hold.begin_effect()
                server.drop()
                server.forget()
                await anyio.sleep(100)
        assert state(server) is None

    with_server(backend, body)


@both_loops
def test_overloaded_and_unavailable_are_tried_again_and_then_raised(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on("ping", *["IDEMPOTENCY_OVERLOADED: x", "IDEMPOTENCY_UNAVAILABLE: x"] * 2)
        await client.ping()
        server.fault = always("reserve", "IDEMPOTENCY_OVERLOADED: too many")
        with pytest.raises(Overloaded, match="too many"):
            await client.reserve("trade", "k")
        server.fault = lambda _server, _request: None
        await anyio.sleep(5)
        # What the server did not take need not be given back.
        assert server.seen["release"] == 0

    with_server(backend, body, timeout_ms=2_000)


@both_loops
def test_what_was_perhaps_done_is_given_back_once_the_server_answers(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("reserve", "hang")
        with pytest.raises(Unreachable):
            await client.reserve("trade", "k")
        assert state(server) == "pending"
        server.fault = lambda _server, _request: None
        await anyio.sleep(5)
        assert state(server) is None

    with_server(backend, body, timeout_ms=3_000)


@both_loops
def test_a_token_is_shown_first_and_a_wrong_one_is_refused_at_once(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.ping()
        server.token = "another"
        server.drop()
        began = anyio.current_time()
        with pytest.raises(Unauthenticated):
            await client.reserve("trade", "k")
        assert anyio.current_time() - began < 1
        server.token = "secret"
        await client.ping()

    with_server(backend, body, FakeServer(token="secret"), token="secret")


@both_loops
def test_a_server_that_breaks_the_protocol_loses_the_connection_and_nobody_an_answer(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.ping()
        for garbage in (b"\xc1", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x94\x01\x07\xc0\xc0", b"\x93\x02\xa1x\x90"):
            await server.streams[-1].send(garbage)
            await anyio.sleep(0.1)
            await client.ping()
        assert server.connections == 5

    with_server(backend, body)


@both_loops
def test_what_did_not_fit_into_the_answer_of_a_batch_is_to_be_asked_for_again(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        ops: list[Op] = [{"op": op, "namespace": "trade", "key": "k"} for op in ("accept", "reserve", "get")]
        one = server._one

        def full(op: dict[str, Any]) -> dict[str, Any]:
            return one(op) if op["op"] == "accept" else {"code": "IDEMPOTENCY_OVERLOADED", "detail": "ask again"}

        server._one = full  # type: ignore[method-assign]
        accepted, *left = await client.batch(ops)
        assert isinstance(accepted, Accepted)
        assert [type(found) for found in left] == [Overloaded, Overloaded]
        # Nothing was granted, and nothing is given back.
        assert server.seen == {"batch": 1}
        server._one = one  # type: ignore[method-assign]
        assert [type(found) for found in await client.batch(ops[1:])] == [Completed, KeyRecord]

    with_server(backend, body)


@both_loops
def test_an_answer_that_makes_no_sense_is_no_success(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        def nonsense(stream: Any, request: Request, _connection: Any) -> list[tuple[Any, bytes]]:
            results: dict[str, Any] = {"get": {"result": "committed"}, "commit": {"result": "committed"}, "batch": {}}
            return [(stream, encode_result(request.msgid, results[request.method]))]

        server._carry_out = nonsense  # type: ignore[method-assign,assignment]
        with pytest.raises(ProtocolViolation):
            await client.get("trade", "k")
        with pytest.raises(ProtocolViolation):
            await client.commit("trade", "k", 1)
        with pytest.raises(ProtocolViolation):
            await client.batch([{"op": "get", "namespace": "trade", "key": "k"}])

    with_server(backend, body)


@both_loops
def test_no_more_is_on_its_way_than_is_allowed_and_waiting_has_a_place_of_its_own(backend: str) -> None:
    most = 0
    pending: Counter[str] = Counter()

    async def body(server: FakeServer, client: Client) -> None:
        send = server._send

        async def slowly(stream: Any, frame: bytes) -> None:
            await anyio.sleep(0.01)
            pending["on"] -= 1
            await send(stream, frame)

        def counting(_server: FakeServer, _request: Request) -> None:
            nonlocal most
            pending["on"] += 1
            most = max(most, pending["on"])

        server.fault = counting
        server._send = slowly  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(client.reserve, "trade", f"k{number}")
        assert most <= 4
        server.fault = lambda _server, _request: None

        async def wait() -> None:
            async with client.hold("trade", "hot", wait=True):
                pass

        async with anyio.create_task_group() as tasks, client.hold("trade", "hot"):
            for _ in range(20):
                tasks.start_soon(wait)
            await anyio.sleep(1)
        assert state(server, "hot") == "committed"

    with_server(backend, body, in_flight_max=4)


@both_loops
def test_a_thousand_holds_at_once_on_one_connection(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        inside = most = 0

        async def hold(number: int) -> None:
            nonlocal inside, most
            async with client.hold("trade", f"k{number}", lease_ms=3_000) as held:
                inside += 1
                most = max(most, inside)
                held.begin_effect()
                await anyio.sleep(5)
                inside -= 1

        async with anyio.create_task_group() as tasks:
            for number in range(1_000):
                tasks.start_soon(hold, number)
        assert most == 1_000
        assert server.connections == 1
        assert server.seen["commit"] == 1_000
        assert server.seen["extend"] >= 3_000
        assert {state(server, f"k{number}") for number in range(1_000)} == {"committed"}

    with_server(backend, body)


@both_loops
def test_what_cannot_be_sent_hurts_nobody_else(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(InvalidRequest):
            await client.reserve("trade", "k", payload=object())
        with pytest.raises(InvalidRequest):
            await client.reserve("trade", "k", payload=2**70)
        with pytest.raises(TooLarge):
            await client.reserve("trade", "k", payload="x" * 3_000_000)
        await client.ping()
        assert server.connections == 1

    with_server(backend, body)


@both_loops
def test_forgetting_and_acknowledging_are_done_though_the_answer_was_lost(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.accept("trade", "k")
        server.fault = on("forget", "cut after")
        assert await client.forget("trade", "k") == Forgotten()
        server.fault = on("acknowledge", "cut", "IDEMPOTENCY_NOT_FOUND: none")
        await client.acknowledge("trade", "0-1")
        server.fault = on("acknowledge", "IDEMPOTENCY_NOT_FOUND: none")
        with pytest.raises(NotFound):
            await client.acknowledge("trade", "0-1")

    with_server(backend, body)


@both_loops
def test_a_client_that_is_not_open_says_so_and_the_body_of_an_open_one_raises_what_it_raises(backend: str) -> None:
    async def body(server: FakeServer, _client: Client) -> None:
        another = server.client()
        with pytest.raises(ClientClosed):
            await another.ping()
        with pytest.raises(ClientClosed):
            async with another.hold("trade", "k"):
                pass
        with pytest.raises(ValueError, match="mine") as caught:
            async with another:
                await another.ping()
                raise ValueError("mine")
        assert type(caught.value) is ValueError
        with pytest.raises(ClientClosed):
            await another.ping()
        async with another:
            await another.ping()

    with_server(backend, body)


@both_loops
def test_a_server_that_cannot_say_yet_who_may_call_is_asked_again(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        authenticated = server._authenticated
        busy = iter([b"IDEMPOTENCY_OVERLOADED: x", b"IDEMPOTENCY_UNAVAILABLE: x"])

        def answer(request: Request, may_call: bool) -> bytes:
            error = next(busy, None)
            return authenticated(request, may_call) if error is None else encode_error(request.msgid, error.decode())

        server._authenticated = answer  # type: ignore[method-assign]
        await client.ping()
        assert server.connections == 3

    with_server(backend, body, FakeServer(token="secret"), token="secret")


@both_loops
def test_what_goes_out_again_goes_out_in_the_same_order(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        left = iter(["deaf"] * 9 + ["cut"])
        server.fault = lambda _server, _request: next(left, None)
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(client.reserve, "trade", f"k{number}")
        keys = [params["key"] for _, params in server.log]
        assert len(keys) == 20
        assert keys[:10] == keys[10:]

    with_server(backend, body)


@both_loops
def test_calls_that_are_on_their_way_when_the_client_closes_are_told_so(backend: str) -> None:
    server = FakeServer(sockets=backend == SOCKETS, fault=lambda _server, _request: "deaf")

    async def main() -> None:
        told: list[str] = []

        async def call(method: str) -> None:
            with pytest.raises(ClientClosed):
                await getattr(client, method)("trade", "k")
            told.append(method)

        async with anyio.create_task_group() as tasks:
            server.tasks = tasks
            async with server.client() as client:
                for method in ("reserve", "get"):
                    tasks.start_soon(call, method)
                await anyio.sleep(0.5)
            await anyio.sleep(1)
            assert sorted(told) == ["get", "reserve"]
            tasks.cancel_scope.cancel()

    run(backend, main)


@both_loops
def test_closing_while_cancelled_lets_the_bodys_exception_out(backend: str) -> None:
    async def body(server: FakeServer, _client: Client) -> None:
        with pytest.raises(ValueError, match="mine"), anyio.CancelScope() as scope:
            async with server.client() as another:
                await another.ping()
                scope.cancel()
                raise ValueError("mine")

    with_server(backend, body)


@both_loops
def test_what_always_answers_is_not_asked_for_ever(backend: str) -> None:
    class Away:
        """Shards in this program that cannot answer."""

        local = True
        where = "here"
        trouble = None

        async def exchange(self, _flight: Flight) -> Answer:
            return Answer(Unavailable("not now"))

        async def adopt(self, _flight: Flight) -> Answer | None:
            return None

        async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
            task_status.started()

    async def main() -> None:
        began = anyio.current_time()
        with pytest.raises(Unavailable):
            await Caller(Away()).ask(Flight("ping", {}), 2_000)
        assert 1.99 <= anyio.current_time() - began <= 3.1

    run(backend, main)
