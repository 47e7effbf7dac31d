"""The reconciler: what it settles, what it believes, and how often it asks."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from idemactor.core.commands import Postpone, Resolve, Verdict
from idemactor.core.keys import Identity
from idemactor.dispatch import limits
from idemactor.dispatch.destination import Endpoint, StatusPage
from tests.dispatch.rig import HOUR_MS, ORIGIN, Rig, Row, answers, destination, now_ms, running
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
        most = (3_600_000 / limits.PAUSE_MS_MAX + 10) * (limits.RECONCILE_CONCURRENCY + limits.FAILURES_TO_OPEN)
        assert 100 < len(rig.tries) <= most
        rig.upstream.refuses = False
        await rig.until_states("succeeded", most_s=130)


def doubt(rig: Rig, key: str, *, tenant: str = "default", age_ms: int = 0) -> Row:
    """An operation that is in doubt already."""
    row = rig.shards.add(key)
    row.identity = Identity(tenant, "orders", key)
    row.state, row.token, row.reserved_at = "in_doubt", 1, now_ms() - age_ms
    return row


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_few_that_cannot_be_asked_about_do_not_hold_up_the_others(
    autojump_clock: MockClock, *, hangs: bool
) -> None:
    bad: set[str] = set()

    async def fails_for_some(received: Received) -> None:
        if received.target.partition("?")[0].rpartition("/")[2] not in bad:
            await received.answer(200, b"done")
        elif hangs:
            await trio.sleep_forever()
        else:
            await received.stream.aclose()

    async with running(destination(status=PAGE), fails_for_some) as rig:
        rows = [doubt(rig, str(number)) for number in range(28)]
        bad.update(row.operation_id for row in rows[: limits.FAILURES_TO_OPEN - 1])
        await rig.until(lambda: all(row.state == "succeeded" for row in rows[4:]), most_s=41)
        assert [row.state for row in rows[:4]] == ["in_doubt"] * 4
        later = doubt(rig, "later")
        await rig.until(lambda: later.state == "succeeded", most_s=65)
        bad.clear()
        await rig.until_states("succeeded", most_s=130)


@pytest.mark.parametrize("tenant", ["default", "other"])
async def test_however_many_cannot_be_asked_about_the_others_have_their_turn(
    autojump_clock: MockClock, tenant: str
) -> None:
    bad: set[str] = set()

    async def fails_for_most(received: Received) -> None:
        if received.target.partition("?")[0].rpartition("/")[2] in bad:
            await received.stream.aclose()
        else:
            await received.answer(200, b"done")

    count = 40 if tenant == "default" else 4_000
    async with running(destination(status=PAGE), fails_for_most) as rig:
        bad.update(doubt(rig, str(number), age_ms=HOUR_MS).operation_id for number in range(count))
        good = doubt(rig, "good", tenant=tenant, age_ms=HOUR_MS)
        await rig.until(lambda: good.state == "succeeded", most_s=300 if tenant == "default" else 60)
        # Another one of the same tenant comes, while the round through the bad ones is not at its end.
        later = doubt(rig, "later", tenant=tenant)
        await rig.until(lambda: later.state == "succeeded", most_s=300 if tenant == "default" else 120)


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
