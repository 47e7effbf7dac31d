"""The reconciler: what it settles, what it believes, and how often it asks."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import trio
from trio.testing import MockClock

from idemactor.core.commands import Postpone, Resolve, Verdict
from idemactor.dispatch import limits
from idemactor.dispatch.destination import Endpoint, StatusPage
from tests.dispatch.rig import ORIGIN, Rig, answers, destination, now_ms, running
from tests.gateway.proxy.rig import Received

PAGE = StatusPage(Endpoint(ORIGIN, "/orders/{operation_id}?full=1"))
BELIEVES = StatusPage(Endpoint(ORIGIN, "/orders/{operation_id}"), released=frozenset({404}), after_ms=60_000)


def questions(rig: Rig) -> list[Received]:
    return [received for received in rig.requests if received.method == "GET"]


async def test_what_was_executed_is_found_out(autojump_clock: MockClock) -> None:
    executed: list[str] = []

    async def executes_and_dies(received: Received) -> None:
        if received.method == "POST":
            executed.append(received.header("idempotency-key")[0])
            await received.stream.aclose()
        else:
            await received.answer(200, b'{"state": "filled"}', [("Content-Type", "application/json"), ("Date", "x")])

    async with running(destination(status=PAGE, secrets=(b"k" * 24,)), executes_and_dies) as rig:
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=5)
        assert executed == [row.operation_id]
        assert row.outcome is not None
        assert (row.outcome.status, row.outcome.body) == (200, b'{"state": "filled"}')
        assert row.outcome.headers == (("Content-Type", "application/json"),)
        asked = questions(rig)[-1]
        assert (asked.target, asked.body) == (f"/orders/{row.operation_id}?full=1", b"")
        assert asked.header("webhook-id") == [row.operation_id]
        assert rig.seen.reconcilings[-1] == "committed"


async def loses(received: Received) -> None:
    """It never executes anything, and nobody learns of that."""
    if received.method == "POST":
        await received.stream.aclose()
    else:
        await received.answer(404)


async def test_that_it_is_not_found_settles_nothing_unless_the_policy_says_so(autojump_clock: MockClock) -> None:
    async with running(destination(status=PAGE), loses) as rig:
        row = rig.shards.add("a")
        await trio.sleep(3_600)
        assert row.state == "in_doubt"
        assert rig.sent() == [row.operation_id]
        assert set(rig.seen.reconcilings) == {"unknown"}
        # 0.2 s, 0.4 s, ... 51.2 s, 102.4 s, and once a minute from there on.
        assert 55 <= len(questions(rig)) <= 75


async def test_absence_is_believed_once_nothing_can_arrive_any_more(autojump_clock: MockClock) -> None:
    async def loses_once(received: Received) -> None:
        if received.method == "POST" and len(rig.sent()) > 1:
            await received.answer(201)
        else:
            await loses(received)

    async with running(destination(status=BELIEVES), loses_once) as rig:
        row = rig.shards.add("a")
        await rig.until(lambda: row.state == "in_doubt")
        safe_at = row.lease_until + BELIEVES.after_ms
        await rig.until_states("succeeded", most_s=400)
        assert rig.sent() == [row.operation_id] * 2
        assert row.reserved_at >= safe_at, "it was sent again too early"
        [postponed] = [one for one in rig.shards.told if isinstance(one, Postpone)]
        assert not postponed.perhaps_sent
        assert rig.requests[-1].header("idempotency-takeover") == []


async def test_a_plain_record_is_released_then(autojump_clock: MockClock) -> None:
    async with running(destination(status=BELIEVES), loses) as rig:
        row = rig.shards.add("a")
        row.plain, row.state, row.token, row.attempt = True, "in_doubt", 77, 1
        row.reserved_at, row.lease_until = now_ms(), now_ms() + 30_000
        began = trio.current_time()
        await rig.until_states("released", most_s=400)
        assert trio.current_time() - began >= 90
        told = rig.shards.told[-1]
        assert isinstance(told, Resolve)
        assert (told.token, told.verdict) == (77, Verdict.RELEASED)


async def test_after_a_restart_what_is_old_is_asked_about_at_once(autojump_clock: MockClock) -> None:
    async with running(destination(status=PAGE), answers(200, b"done"), shards=2) as rig:
        for number in range(50):
            row = rig.shards.add(str(number), shard=number % 2)
            row.state, row.token, row.reserved_at = "in_doubt", 1, now_ms() - 86_400_000 - number
        await rig.until_states("succeeded", most_s=5)
        assert len(questions(rig)) == 50


async def test_a_destination_that_is_down_is_asked_ever_more_rarely(autojump_clock: MockClock) -> None:
    async with running(destination(status=PAGE), answers(200), refuses=True) as rig:
        for number in range(100):
            row = rig.shards.add(str(number))
            row.state, row.token, row.reserved_at = "in_doubt", 1, now_ms()
        await trio.sleep(3_600)
        most = (3_600_000 / limits.PAUSE_MS_MAX + 10) * (limits.RECONCILE_CONCURRENCY + 1)
        assert 100 < len(rig.tries) <= most
        rig.upstream.refuses = False
        await rig.until_states("succeeded", most_s=130)


async def test_the_token_decides_between_a_late_holder_and_the_reconciler(autojump_clock: MockClock) -> None:
    async def is_settled_meanwhile(received: Received) -> None:
        row.state, row.token = "queued", row.token + 1
        row.due_at = now_ms() + 3_600_000
        await received.answer(200, b"late")

    async with running(destination(status=PAGE), is_settled_meanwhile) as rig:
        row = rig.shards.add("a")
        row.state, row.token, row.reserved_at = "in_doubt", 1, now_ms()
        await trio.sleep(10)
        assert row.state == "queued"
        assert row.outcome is None
        assert rig.seen.reconcilings == ["too_late"]
