"""What becomes of the key, over a connection that works."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest

from idemactor.client import (
    Client,
    CommitUnacknowledged,
    DuplicateError,
    InDoubtError,
    InFlightError,
    InvalidRequest,
    LeaseLost,
    MismatchError,
    StaleTokenError,
    UnknownKeyError,
)
from idemactor.core.limits import OUTCOME_BYTES_MAX
from idemactor.core.policy import OnLeaseExpiry, Policy
from tests.client.fake import FakeServer, always, on, state, with_server
from tests.client.loops import both_loops


@both_loops
def test_a_body_that_ends_commits_its_outcome(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k", payload={"qty": 1}) as hold:
            assert not hold.completed
            assert hold.protected
            assert (hold.attempt, hold.takeover) == (1, False)
            assert hold.token is not None
            assert state(server) == "pending"
            hold.begin_effect()
            hold.set_outcome(status=201, body={"id": 7}, headers=[("x-a", "b")])
            operation = hold.operation_id
        async with client.hold("trade", "k", payload={"qty": 1.0}) as again:
            assert again.completed
            assert again.operation_id == operation
            assert again.token is None
            assert again.outcome is not None
            assert (again.outcome.status, again.outcome.body) == (201, b'{"id":7}')
            assert again.outcome.headers == (("x-a", "b"),)
            with pytest.raises(DuplicateError):
                again.begin_effect()

    with_server(backend, body)


@both_loops
def test_before_the_effect_an_exception_releases_and_comes_out_as_it_is(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(ValueError, match="no") as caught:
            async with client.hold("trade", "k"):
                raise ValueError("no")
        assert type(caught.value) is ValueError
        assert state(server) is None
        assert server.seen["release"] == 1

    with_server(backend, body)


@both_loops
def test_after_the_effect_began_an_exception_leaves_it_in_doubt_and_tells_only_its_type(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(RuntimeError):
            async with client.hold("trade", "k") as hold:
                hold.begin_effect()
                raise RuntimeError("the password is swordfish")
        record = server.record("k")
        assert record is not None
        assert (record["state"], record["reason"]) == ("in_doubt", "RuntimeError")
        with pytest.raises(InDoubtError) as caught:
            async with client.hold("trade", "k"):
                pytest.fail("nobody may go on")
        assert caught.value.operation_id == record["operation_id"]

    with_server(backend, body)


@both_loops
def test_exceptions_that_prove_that_nothing_happened_release(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        for error in (ConnectionRefusedError("x"), ExceptionGroup("all", [ConnectionRefusedError("x")])):
            with pytest.raises(type(error)):
                async with client.hold("trade", "k", not_executed=(ConnectionRefusedError,)) as hold:
                    hold.begin_effect()
                    raise error
            assert state(server) is None
        mixed = ExceptionGroup("some", [ConnectionRefusedError("x"), TimeoutError("y")])
        with pytest.raises(ExceptionGroup):
            async with client.hold("trade", "k", not_executed=ConnectionRefusedError) as hold:
                hold.begin_effect()
                raise mixed
        assert state(server) == "in_doubt"

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize(("begun", "left"), [(False, None), (True, "in_doubt")])
def test_cancellation_gives_back_or_leaves_in_doubt(backend: str, begun: bool, left: str | None) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with anyio.move_on_after(1) as scope:
            async with client.hold("trade", "k") as hold:
                if begun:
                    hold.begin_effect()
                await anyio.sleep(10)
        assert scope.cancelled_caught
        assert state(server) == left

    with_server(backend, body)


@both_loops
def test_the_lease_is_renewed_for_as_long_as_the_body_runs(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k", lease_ms=3_000):
            await anyio.sleep(20)
            assert state(server) == "pending"
            assert 19 <= server.seen["extend"] <= 21

    server = with_server(backend, body)
    assert server.seen["commit"] == 1


@both_loops
def test_a_lost_lease_cancels_the_body(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with client.hold("trade", "k", lease_ms=3_000) as hold:
                server.forget()
                await anyio.sleep(100)
                pytest.fail("the body goes on")
        assert not caught.value.effect_begun
        assert caught.value.token == hold.token
        assert hold.lost.is_set()

    with_server(backend, body)


@both_loops
def test_a_lease_that_cannot_be_renewed_is_lost_when_it_is_over_by_our_clock(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        began = anyio.current_time()
        with pytest.raises(LeaseLost) as caught:
            async with client.hold("trade", "k", lease_ms=3_000) as hold:
                hold.begin_effect()
                server.fault = always("extend", "IDEMPOTENCY_UNAVAILABLE: not now")
                await anyio.sleep(100)
        assert caught.value.effect_begun
        assert anyio.current_time() - began <= 3.1
        assert state(server) == "in_doubt"
        assert server.record("k")["reason"] == "LeaseLost"  # type: ignore[index]

    with_server(backend, body)


@both_loops
def test_a_lost_lease_can_be_told_instead_and_a_late_commit_still_counts(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k", lease_ms=3_000, on_lost="tell") as hold:
            hold.begin_effect()
            server.fault = always("extend", "IDEMPOTENCY_UNAVAILABLE: not now")
            await hold.lost.wait()
            with pytest.raises(LeaseLost):
                hold.check()
            await anyio.sleep(5)
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_begin_effect_refuses_once_the_lease_is_over_by_our_clock(backend: str) -> None:
    class Sleepless:
        """A clock that the keeper never wakes by: the body looks before the keeper does."""

        now = 0.0

        def now_s(self) -> float:
            return self.now

        async def sleep_until(self, when_s: float) -> None:  # noqa: ARG002
            await anyio.sleep_forever()

    async def body(server: FakeServer, client: Client) -> None:
        clock = Sleepless()
        client.lease_clock = clock
        with pytest.raises(LeaseLost):
            async with client.hold("trade", "k", lease_ms=3_000) as hold:
                clock.now = 3.0
                hold.begin_effect()
        assert state(server) is None

    with_server(backend, body)


@both_loops
def test_somebody_took_over_meanwhile(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(StaleTokenError) as caught:
            async with client.hold("trade", "k", lease_ms=1_000, on_lost="tell") as hold:
                hold.begin_effect()
                server.fault = always("extend", "IDEMPOTENCY_UNAVAILABLE: not now")
                await hold.lost.wait()
                await anyio.sleep(0.01)
                second = await client.reserve("trade", "k")
                assert second.operation_id == hold.operation_id
        assert caught.value.attempt == 2
        assert server.record("k")["contested"] is True  # type: ignore[index]

    with_server(backend, body)


@both_loops
def test_a_takeover_that_is_given_back_stays_a_takeover_for_the_next(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        first = await client.reserve("trade", "k", lease_ms=1_000)
        await anyio.sleep(1.5)
        with pytest.raises(ValueError, match="x"):
            async with client.hold("trade", "k") as hold:
                assert hold.takeover
                raise ValueError("x")
        await anyio.sleep(0.01)
        assert server.seen["release"] == 0
        with pytest.raises(KeyError):
            async with client.hold("trade", "k") as hold:
                assert hold.takeover
                assert (hold.attempt, hold.operation_id) == (3, first.operation_id)
                hold.rule_out_earlier()
                raise KeyError("x")
        assert state(server) is None

    with_server(backend, body)


@both_loops
def test_endings_that_the_body_asks_for(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k") as hold:
            hold.begin_effect()
            hold.give_back("nothing to do")
        assert state(server) is None
        async with client.hold("trade", "k") as hold:
            hold.leave_in_doubt("exit 75")
        assert server.record("k")["reason"] == "exit 75"  # type: ignore[index]

    with_server(backend, body)


@both_loops
def test_in_flight_says_who_and_waiting_waits(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def second() -> None:
            async with client.hold("trade", "k", wait=True) as hold:
                assert hold.completed
                assert hold.outcome is not None
                assert hold.outcome.body == b"done"

        async with anyio.create_task_group() as tasks, client.hold("trade", "k", holder="me") as hold:
            with pytest.raises(InFlightError) as caught:
                async with client.hold("trade", "k"):
                    pytest.fail("two holders")
            assert (caught.value.attempt, caught.value.holder) == (1, "me")
            began = anyio.current_time()
            with pytest.raises(InFlightError):
                async with client.hold("trade", "k", wait=2_000):
                    pytest.fail("two holders")
            assert 1.9 <= anyio.current_time() - began <= 2.5
            tasks.start_soon(second)
            await anyio.sleep(200)
            hold.set_outcome(body="done")
        assert server.seen["commit"] == 1

    with_server(backend, body)


@both_loops
def test_who_waited_long_gets_a_lease_that_is_fresh(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async def second() -> None:
            async with client.hold("trade", "k", wait=True, lease_ms=3_000) as hold:
                assert hold.attempt == 1
                await anyio.sleep(2.5)
                hold.check()

        async with anyio.create_task_group() as tasks:
            with pytest.raises(ValueError, match="x"):
                async with client.hold("trade", "k"):
                    tasks.start_soon(second)
                    await anyio.sleep(10)
                    raise ValueError("x")
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_mismatch_and_duplicates(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k", payload=[1]):
            pass
        with pytest.raises(MismatchError):
            async with client.hold("trade", "k", payload=[2]):
                pytest.fail("another payload")
        with pytest.raises(DuplicateError) as caught:
            async with client.hold("trade", "k", on_duplicate="reject"):
                pytest.fail("a duplicate")
        assert caught.value.committed_at is not None
        assert state(server) == "committed"

    with_server(backend, body)


@both_loops
def test_a_hold_inside_a_hold(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(ValueError, match="inner"):
            async with client.hold("trade", "outer") as outer:
                async with client.hold("trade", "done") as inner:
                    assert inner.operation_id != outer.operation_id
                async with client.hold("trade", "inner") as inner:
                    inner.begin_effect()
                    raise ValueError("inner")
        assert [state(server, key) for key in ("outer", "done", "inner")] == [None, "committed", "in_doubt"]

    with_server(backend, body)


@both_loops
def test_the_inner_hold_is_cancelled_when_the_outer_lease_is_lost(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(LeaseLost) as caught:
            async with client.hold("trade", "outer", lease_ms=900) as outer, client.hold("trade", "inner") as inner:
                inner.begin_effect()
                await client.forget("trade", "outer", force=True)
                await anyio.sleep(100)
        assert caught.value.token == outer.token
        assert state(server, "inner") == "in_doubt"

    with_server(backend, body)


@both_loops
def test_a_hold_is_entered_once_and_wrong_outcomes_show_at_once(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k") as hold:
            for wrong in (
                {"status": 99},
                {"status": True},
                {"headers": [("a", "b\r\nc: d")]},
                {"headers": [("", "b")]},
                {"headers": [("a", "b", "c")]},
                {"body": "\ud800"},
                {"headers": ["ab"]},
                {"headers": "ab"},
                {"headers": {"ab": 1}},
                {"headers": [1]},
                {"headers": 7},
            ):
                with pytest.raises(InvalidRequest):
                    hold.set_outcome(**wrong)
            with pytest.raises(TypeError):
                hold.set_outcome(body=object())
            for impossible in (math.inf, -math.inf, [{"a": math.nan}]):
                with pytest.raises(ValueError, match="JSON"):
                    hold.set_outcome(body=impossible)
            given: list[Any] = [{"ab": "cd"}, [("ab", "cd")], (["ab", "cd"],), iter([("ab", "cd")])]
            for headers in given:
                hold.set_outcome(headers=headers)
                assert hold.outcome is not None
                assert hold.outcome.headers == (("ab", "cd"),)
        with pytest.raises(RuntimeError):
            await hold.__aenter__()

    with_server(backend, body)


@both_loops
@pytest.mark.parametrize("large", [{"body": b"x" * 3_000_000}, {"headers": [("a", "x" * 3_000_000)]}])
def test_an_outcome_that_is_too_large_for_the_server_is_omitted(backend: str, large: dict[str, Any]) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.hold("trade", "k") as hold:
            hold.set_outcome(status=202, **large)
        record = server.record("k")
        assert record is not None
        assert (record["state"], record["outcome"]) == ("committed", {"status": 202, "headers": [], "omitted": True})
        async with client.hold("trade", "k") as again:
            assert again.outcome is not None
            assert again.outcome.omitted

    largest = Policy(outcome_max_bytes=OUTCOME_BYTES_MAX)
    with_server(backend, body, FakeServer(largest))


@both_loops
def test_a_commit_that_is_refused_for_itself_leaves_the_key_in_doubt(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("commit", "IDEMPOTENCY_FORBIDDEN: not any more")
        with pytest.raises(Exception, match="FORBIDDEN"):
            async with client.hold("trade", "k"):
                pass
        assert state(server) == "in_doubt"

    with_server(backend, body)


@both_loops
def test_a_server_that_lost_the_key_says_so_at_the_commit(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        with pytest.raises(UnknownKeyError):
            async with client.hold("trade", "k") as hold:
                hold.begin_effect()
                server.forget()

    with_server(backend, body)


@both_loops
def test_a_commit_that_nobody_answers_ends_in_an_exception_and_goes_on_being_sent(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("commit", "IDEMPOTENCY_UNAVAILABLE: not now")
        with pytest.raises(CommitUnacknowledged) as caught:
            async with client.hold("trade", "k") as hold:
                hold.set_outcome(body=b"x")
        assert caught.value.token == hold.token
        assert state(server) == "pending"
        assert server.seen["release"] == server.seen["doubt"] == 0
        server.fault = lambda _server, _request: None
        await anyio.sleep(2)
        assert state(server) == "committed"

    with_server(backend, body, timeout_ms=3_000)


@both_loops
def test_a_held_record_waits_for_a_person_and_a_hold_says_so(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "k", lease_ms=100)
        await anyio.sleep(1)
        with pytest.raises(InDoubtError):
            async with client.hold("trade", "k", wait=True):
                pytest.fail("held")

    with_server(backend, body, FakeServer(Policy(on_lease_expiry=OnLeaseExpiry.HOLD)))


@both_loops
def test_the_lease_counts_from_the_question(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        began = anyio.current_time()
        server.fault = on("reserve", "late:0.9")
        with pytest.raises(LeaseLost):
            async with client.hold("trade", "k", lease_ms=3_000):
                assert anyio.current_time() - began >= 0.89
                server.fault = always("extend", "IDEMPOTENCY_UNAVAILABLE: not now")
                await anyio.sleep(100)
        assert anyio.current_time() - began <= 3.1

    with_server(backend, body)


@both_loops
def test_an_answer_that_comes_late_is_renewed_before_it_is_used(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = on("reserve", "late:2")
        async with client.hold("trade", "k", lease_ms=3_000):
            assert server.seen["extend"] == 1
        server.fault = on("reserve", "late:3.5")
        async with client.hold("trade", "k2", lease_ms=3_000) as hold:
            # That connection was given up meanwhile, and the repeat got the first answer.
            assert hold.reserved is not None
            assert hold.reserved.repeated
            assert server.seen["extend"] == 2

    with_server(backend, body)


@both_loops
def test_a_lease_that_was_over_before_it_could_be_renewed_is_never_used(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = lambda _server, request: {"reserve": "late:1.5", "extend": "deaf"}.get(request.method)
        with pytest.raises(LeaseLost):
            async with client.hold("trade", "k", lease_ms=2_000):
                pytest.fail("the lease is over")
        server.fault = lambda _server, _request: None
        await anyio.sleep(5)
        assert state(server) is None

    with_server(backend, body, timeout_ms=3_000)


@both_loops
def test_a_lease_without_a_keeper_is_lost(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        """A clock that fails its keeper."""

        def now_s(self) -> float:
            return anyio.current_time()

        async def sleep_until(self, when_s: float) -> None:
            raise ZeroDivisionError(when_s)

    async def body(server: FakeServer, client: Client) -> None:
        client.lease_clock = Broken()
        with pytest.raises(LeaseLost, match="keeper"):
            async with client.hold("trade", "k"):
                await anyio.sleep(100)
        await client.ping()
        assert state(server) is None

    with_server(backend, body)
    assert "ZeroDivisionError" in caplog.text
