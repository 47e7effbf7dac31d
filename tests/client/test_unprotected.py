"""What a caller does when nobody can be asked is its own choice, written down; and it is told afterwards."""

# ruff: noqa: PT012 - What is raised comes out of the context manager, whatever its body does.

from __future__ import annotations

import anyio
import pytest

from idemactor.client import (
    Client,
    ClientClosed,
    InDoubtError,
    InFlightError,
    MismatchError,
    OutOfService,
    QuotaExceeded,
    Report,
    Unauthenticated,
    settle,
)
from idemactor.core.policy import OnUnavailable, Policy
from tests.client.fake import FakeServer, always, state, with_server
from tests.client.loops import both_loops

UNAVAILABLE = "IDEMPOTENCY_UNAVAILABLE: the shard is away"


@both_loops
@pytest.mark.parametrize("what", ["down", UNAVAILABLE, "IDEMPOTENCY_OVERLOADED: x", "deaf"])
def test_closed_is_the_default(backend: str, what: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.down = what == "down"
        server.fault = always("reserve", what)
        with pytest.raises(OutOfService):
            async with client.hold("trade", "k"):
                pytest.fail("nobody was asked")
        assert client.unprotected == 0

    with_server(backend, body, timeout_ms=3_000)


@both_loops
@pytest.mark.parametrize("what", ["down", UNAVAILABLE, "IDEMPOTENCY_OVERLOADED: x", "deaf", "hang"])
def test_open_goes_on_after_a_while_and_tells_the_server_later(backend: str, what: str) -> None:
    reports: list[Report] = []

    async def body(server: FakeServer, client: Client) -> None:
        server.down = what == "down"
        server.fault = always("reserve", what)
        began = anyio.current_time()
        async with client.hold("trade", "k", payload=[1]) as hold:
            assert 0.49 <= anyio.current_time() - began <= 0.6
            assert not hold.protected
            assert (hold.token, hold.attempt, hold.takeover) == (None, None, False)
            assert len(hold.operation_id) == 36
            hold.begin_effect()
            hold.set_outcome(body=b"x")
        assert client.unprotected == 1
        assert state(server) == ("pending" if what == "hang" else None)
        assert reports == []
        server.down = False
        server.fault = lambda _server, _request: None
        await anyio.sleep(10)
        record = server.record("k")
        assert record is not None
        assert (record["state"], record["attempt"], record["outcome"]["body"]) == ("committed", 1, b"x")
        [report] = reports
        assert (report.operation_id, report.delivered, report.possible_double) == (hold.operation_id, True, False)

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=500, on_report=reports.append)


@both_loops
def test_a_hold_says_for_itself_what_to_do(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.down = True
        async with client.hold("trade", "k", on_unavailable="open", unavailable_after_ms=100) as hold:
            assert not hold.protected
        with pytest.raises(OutOfService):
            async with client.hold("trade", "k", timeout_ms=100):
                pytest.fail("closed")
        server.down = False

    with_server(backend, body)


@both_loops
def test_the_policy_that_was_fetched_last_decides_where_the_caller_says_nothing(backend: str) -> None:
    policy = Policy(on_unavailable=OnUnavailable.OPEN, unavailable_after_ms=700)

    async def body(server: FakeServer, client: Client) -> None:
        server.down = True
        with pytest.raises(OutOfService):
            # Nothing was ever fetched: closed.
            async with client.hold("trade", "first"):
                pytest.fail("closed")
        server.down = False
        async with client.hold("trade", "second"):
            await anyio.sleep(1)
        assert server.seen["policy"] == 1
        server.down = True
        server.drop()
        began = anyio.current_time()
        async with client.hold("trade", "third") as hold:
            assert not hold.protected
            assert 0.69 <= anyio.current_time() - began <= 0.8
        with pytest.raises(OutOfService):
            async with client.hold("trade", "fourth", on_unavailable="closed", timeout_ms=100):
                pytest.fail("the caller's own setting comes first")
        server.down = False

    with_server(backend, body, FakeServer(policy), timeout_ms=2_000)


@both_loops
def test_open_is_for_nothing_but_being_out_of_service(backend: str) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.reserve("trade", "held")
        await client.accept("trade", "paid", payload=[1])
        doubted = await client.reserve("trade", "doubted")
        await client.doubt("trade", "doubted", doubted.token)  # type: ignore[union-attr]
        cases: dict[str, type[Exception]] = {
            "held": InFlightError,
            "paid": MismatchError,
            "doubted": InDoubtError,
        }
        for key, error in cases.items():
            with pytest.raises(error):
                async with client.hold("trade", key, payload=[2]):
                    pytest.fail("refused")
        for code, refusal in (("QUOTA_EXCEEDED", QuotaExceeded), ("UNAUTHENTICATED", Unauthenticated)):
            server.fault = always("reserve", f"IDEMPOTENCY_{code}: no")
            with pytest.raises(refusal):
                async with client.hold("trade", "new"):
                    pytest.fail("refused")
        assert client.unprotected == 0

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100)


@both_loops
def test_a_wrong_token_never_goes_on_unprotected(backend: str) -> None:
    async def body(_server: FakeServer, client: Client) -> None:
        with pytest.raises(Unauthenticated):
            async with client.hold("trade", "k"):
                pytest.fail("authentication fails closed")

    with_server(backend, body, FakeServer(token="secret"), token="wrong", on_unavailable="open")


@both_loops
@pytest.mark.parametrize("other", ["committed", "pending", "in_doubt", "mismatch", "lapsed"])
def test_somebody_else_may_have_done_the_same(backend: str, other: str) -> None:
    reports: list[Report] = []

    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("reserve", UNAVAILABLE)
        async with client.hold("trade", "k", payload=[1]) as hold:
            hold.begin_effect()
            async with server.client() as somebody:
                server.fault = lambda _server, _request: None
                lease_ms = 100 if other == "lapsed" else None
                payload = [2] if other == "mismatch" else None
                theirs = await somebody.reserve("trade", "k", payload=payload, lease_ms=lease_ms)
                if other in ("committed", "mismatch"):
                    await somebody.commit("trade", "k", theirs.token)  # type: ignore[union-attr]
                elif other == "in_doubt":
                    await somebody.doubt("trade", "k", theirs.token)  # type: ignore[union-attr]
                await anyio.sleep(1)
        await anyio.sleep(5)
        [report] = reports
        assert (report.delivered, report.possible_double) == (True, True)
        assert state(server) == ("committed" if other in ("lapsed", "mismatch") else other)

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100, on_report=reports.append)


@both_loops
@pytest.mark.parametrize(("begun", "left"), [(False, None), (True, "in_doubt")])
def test_an_unprotected_body_that_fails(backend: str, begun: bool, left: str | None) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("reserve", "hang")
        with pytest.raises(ValueError, match="x"):
            async with client.hold("trade", "k") as hold:
                if begun:
                    hold.begin_effect()
                raise ValueError("x")
        server.fault = lambda _server, _request: None
        await anyio.sleep(10)
        assert state(server) == left

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100)


@both_loops
def test_a_report_that_cannot_be_made_is_said_so(backend: str) -> None:
    reports: list[Report] = []

    async def body(server: FakeServer, client: Client) -> None:
        server.fault = always("reserve", UNAVAILABLE)
        async with client.hold("trade", "k"):
            pass
        server.fault = always("reserve", "IDEMPOTENCY_QUOTA_EXCEEDED: full")
        await anyio.sleep(5)
        [report] = reports
        assert not report.delivered
        assert isinstance(report.found, QuotaExceeded)

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100, on_report=reports.append)


@both_loops
def test_closing_before_the_server_came_back_is_said_so(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    reports: list[Report] = []

    def report(found: Report) -> None:
        reports.append(found)
        raise RuntimeError("a mistake of the caller's")

    async def body(server: FakeServer, client: Client) -> None:
        server.down = True
        async with client.hold("trade", "k") as hold:
            hold.begin_effect()
        await anyio.sleep(3_000)
        assert reports == []

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100, on_report=report)
    [found] = reports
    assert not found.delivered
    assert isinstance(found.found, ClientClosed)
    assert "on_report failed" in caplog.text


@both_loops
def test_an_outage_does_not_fill_the_memory(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[Report] = []
    monkeypatch.setattr(settle, "OPEN_MAX", 3)

    async def body(server: FakeServer, client: Client) -> None:
        server.down = True
        for number in range(5):
            async with client.hold("trade", f"k{number}"):
                pass
        assert [report.key for report in reports] == ["k3", "k4"]
        assert not any(report.delivered for report in reports)
        server.down = False
        await anyio.sleep(5)
        assert sorted(report.key for report in reports if report.delivered) == ["k0", "k1", "k2"]

    with_server(backend, body, on_unavailable="open", unavailable_after_ms=100, on_report=reports.append)
