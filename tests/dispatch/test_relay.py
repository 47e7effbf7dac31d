"""The relay: what is sent, how often, and how each kind of answer or silence ends."""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import trio
from opentelemetry.trace import SpanKind, StatusCode
from trio.testing import MockClock

from idemactor.core.commands import Doubt, Postpone
from idemactor.core.policy import OnFailure
from idemactor.core.queries import TakenIntent
from idemactor.dispatch import limits
from idemactor.dispatch.destination import Retry
from idemactor.gateway.proxy.routes import SuccessRule
from tests.dispatch.rig import EPOCH_MS, HOUR_MS, Row, answers, destination, now_ms, running
from tests.gateway.proxy.rig import Behaviour, Received
from tests.server.seen import PARENT, TRACE, Seen, about, trace_of

SOFT = SuccessRule("/success", True)


async def test_an_intent_is_delivered_with_its_marks(autojump_clock: MockClock) -> None:
    headers = (("Content-Type", "text/plain"), ("Set-Cookie", "no"), ("Date", "no"))
    async with running(destination(secrets=(b"k" * 24,)), answers(201, b"done", *headers)) as rig:
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=0.5)
        [received] = rig.requests
        assert (received.method, received.target, received.body) == ("POST", "/orders", row.intent.body)
        assert received.header("host") == ["upstream.test"]
        assert received.header("content-type") == ["application/json"]
        assert received.header("x-own") == ["1"]
        assert received.header("idempotency-key") == received.header("webhook-id") == [row.operation_id]
        assert received.header("idempotency-attempt") == ["1"]
        assert received.header("idempotency-takeover") == []
        assert received.header("webhook-timestamp") == [str(now_ms() // 1000)]
        assert received.header("webhook-signature")[0].startswith("v1,")
        assert row.outcome is not None
        assert (row.outcome.status, row.outcome.body) == (201, b"done")
        assert row.outcome.headers == (("Content-Type", "text/plain"),)
        assert rig.seen.results == ["succeeded"]


async def test_what_was_there_at_the_start_is_found_without_a_bell(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(), shards=3) as rig:
        rig.bell.is_broken = True
        for number in range(6):
            rig.shards.add(str(number), shard=number % 3)
        await rig.until_states("succeeded", most_s=limits.SCAN_MS / 1000 + 0.5)


@pytest.mark.parametrize(
    ("status", "body", "changes", "state", "result"),
    [
        (200, b'{"success": true}', {"success": SOFT}, "succeeded", "succeeded"),
        (200, b'{"success": false}', {"success": SOFT}, "failed", "failed"),
        (200, b'{"success": false}', {"success": SOFT, "on_failure": OnFailure.RELEASE}, "released", "released"),
        (200, b"<html>", {"success": SOFT}, "in_doubt", "in_doubt"),
        (422, b"no", {}, "failed", "failed"),
        (422, b"no", {"on_failure": OnFailure.RELEASE}, "released", "released"),
        (500, b"", {}, "in_doubt", "in_doubt"),
        (302, b"", {}, "in_doubt", "in_doubt"),
        (409, b"", {}, "in_doubt", "in_doubt"),
        (409, b"", {"definite_failure": frozenset({409})}, "failed", "failed"),
    ],
)
async def test_an_answer_ends_an_attempt(
    status: int, body: bytes, changes: dict[str, object], state: str, result: str, autojump_clock: MockClock
) -> None:
    async with running(destination(**changes), answers(status, body)) as rig:
        row = rig.shards.add("a")
        await rig.until_states(state, most_s=1)
        assert rig.seen.results == [result]
        if state in ("succeeded", "failed"):
            assert row.outcome is not None
            assert (row.outcome.status, row.outcome.body) == (status, body)
        # Nothing about it is tried again by itself.
        await trio.sleep(600)
        assert len(rig.requests) == 1


async def closes_half_way(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await received.stream.aclose()


async def says_garbage(received: Received) -> None:
    await received.send(b"\x00\x01 what?\r\n\r\n")


async def hangs(_received: Received) -> None:
    await trio.sleep_forever()


async def hangs_in_its_answer(received: Received) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await trio.sleep_forever()


AMBIGUOUS = [closes_half_way, says_garbage, hangs, hangs_in_its_answer, answers(500), answers(502)]


@pytest.mark.parametrize("behaviour", AMBIGUOUS)
async def test_what_may_have_happened_is_never_sent_again_blindly(
    behaviour: Behaviour, autojump_clock: MockClock
) -> None:
    async with running(destination(), behaviour) as rig:
        row = rig.shards.add("a")
        await rig.until_states("in_doubt", most_s=3.5)
        assert row.reasons[0]
        # It was told as such, and not left to its lease.
        assert isinstance(rig.shards.told[0], Doubt)
        await trio.sleep(900)
        assert rig.sent() == [row.operation_id]


@pytest.mark.parametrize("behaviour", AMBIGUOUS)
async def test_a_destination_that_recognises_the_id_gets_it_again(
    behaviour: Behaviour, autojump_clock: MockClock
) -> None:
    async def at_first(received: Received) -> None:
        await (behaviour(received) if len(rig.requests) < 3 else received.answer(200, b"ok"))

    async with running(destination(downstream_dedups=True), at_first) as rig:
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=20)
        assert rig.sent() == [row.operation_id] * 3
        assert [one.header("idempotency-attempt") for one in rig.requests] == [["1"], ["2"], ["3"]]
        assert [one.header("idempotency-takeover") for one in rig.requests] == [[], ["true"], ["true"]]


async def test_a_request_ends_before_its_lease(autojump_clock: MockClock) -> None:
    async with running(destination(timeout_ms=60_000), hangs) as rig:
        row = rig.shards.add("a")
        await rig.until(lambda: row.state == "in_doubt")
        assert now_ms() <= row.lease_until - limits.SETTLE_MS_MIN


async def test_a_destination_that_is_down_for_an_hour_is_probed_by_one_at_a_time(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(), shards=2, refuses=True) as rig:
        for number in range(60):
            rig.shards.add(str(number), shard=number % 2)
        await trio.sleep(3_600)
        down = list(rig.tries)
        gaps = [after - before for before, after in itertools.pairwise(down[20:])]
        assert 3_600 / 30 * 0.8 <= len(down) <= 300, "it is neither flooded nor forgotten"
        assert all(gap >= limits.PAUSE_MS_MAX / 2_000 - 1 for gap in gaps)
        assert set(rig.shards.states().values()) == {"queued"}
        rig.upstream.refuses = False
        await rig.until_states("succeeded", most_s=limits.PAUSE_MS_MAX / 1000 + 90)
        assert len(rig.requests) == 60
        # What failed while it was down kept its place, but for those that failed before it counted as down.
        first = [rig.shards.row(str(number)).operation_id for number in range(destination().concurrency)]
        assert rig.sent()[0] in first
        assert rig.seen.breaker[-1] == "closed"
        assert rig.seen.in_flight_max <= destination().concurrency


async def test_a_backlog_is_drained_in_order_by_few_at_a_time(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(0.01)
        await received.answer(200)

    async with running(destination(concurrency=4), slow, refuses=True) as rig:
        rows = [rig.shards.add(str(number)) for number in range(400)]
        await trio.sleep(600)
        assert not rig.requests
        rig.upstream.refuses = False
        await rig.until_states("succeeded", most_s=120)
        places = {row.operation_id: number for number, row in enumerate(rows)}
        order = [places[one] for one in rig.sent()]
        assert sorted(order) == list(range(400))
        # Four at a time, of which the first few failures before it counted as down wait for their backoff.
        late = {place for place in order[:350] if place > 360}
        assert not late
        assert rig.seen.in_flight_max <= 4


async def test_a_destination_that_asks_to_wait_is_left_alone_as_a_whole(autojump_clock: MockClock) -> None:
    at: list[float] = []

    async def busy(received: Received) -> None:
        at.append(trio.current_time())
        if len(at) == 1:
            await received.answer(429, b"", [("Retry-After", "120")])
        else:
            await received.answer(200)

    async with running(destination(concurrency=1), busy) as rig:
        for number in range(5):
            rig.shards.add(str(number))
        await rig.until_states("succeeded", most_s=200)
        assert len(at) == 6
        assert at[1] - at[0] >= 120


async def test_a_destination_that_says_too_many_without_a_time_is_not_flooded(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(429)) as rig:
        for number in range(100):
            rig.shards.add(str(number))
        await trio.sleep(60)
        assert 5 <= len(rig.requests) < 40
        assert set(rig.shards.states().values()) == {"queued"}
        assert rig.seen.results.count("in_doubt") == 0


async def test_a_refusal_is_spread_over_a_growing_time(autojump_clock: MockClock) -> None:
    at: list[float] = []

    async def busy(received: Received) -> None:
        at.append(trio.current_time())
        await received.answer(503)

    async with running(destination(retry=Retry(first_ms=1_000, factor=2.0, longest_ms=8_000)), busy) as rig:
        row = rig.shards.add("a", expires_in_ms=HOUR_MS)
        await rig.until_states("expired", most_s=3_700)
        assert 60 < row.attempt < 800
        assert max(after - before for before, after in itertools.pairwise(at)) < 45


async def test_flapping_executes_everything_once(autojump_clock: MockClock) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def flaps(received: Received) -> None:
        if chance.random() < 0.3:
            await received.answer(503)
        else:
            executed.append(received.header("idempotency-key")[0])
            await received.answer(200)

    executed: list[str] = []
    async with running(destination(), flaps, shards=3, seed=seed) as rig:

        async def flap() -> None:
            while True:
                rig.upstream.refuses = not rig.upstream.refuses
                await trio.sleep(chance.random() * 5)

        rig.upstream.nursery.start_soon(flap)
        rows = [rig.shards.add(str(n), shard=n % 3, order_key=chance.choice(["x", "y", None])) for n in range(80)]
        await rig.until_states("succeeded", most_s=36_000)
        assert sorted(executed) == sorted(row.operation_id for row in rows)
        for lane in ("x", "y"):
            ordered = [row.operation_id for row in rows if row.order_key == lane]
            assert [one for one in executed if one in ordered] == ordered


async def test_lanes_are_strictly_one_after_the_other(autojump_clock: MockClock) -> None:
    under_way: set[str] = set()

    async def slow(received: Received) -> None:
        lane = received.header("x-lane")[0]
        assert lane not in under_way
        under_way.add(lane)
        await trio.sleep(0.5)
        under_way.remove(lane)
        await received.answer(200)

    async with running(destination(), slow, shards=4) as rig:
        for number in range(40):
            row = rig.shards.add(str(number), shard=(number * 7) % 4, order_key=f"lane{number % 2}")
            row.intent = type(row.intent)("", b"", (("X-Lane", f"lane{number % 2}"),))
        began = trio.current_time()
        await rig.until_states("succeeded", most_s=60)
        assert 10 <= trio.current_time() - began < 14
        assert rig.seen.in_flight_max == 2


async def test_a_doubt_blocks_its_lane_and_nothing_else(autojump_clock: MockClock) -> None:
    async def loses_one(received: Received) -> None:
        if b'"b"' in received.body:
            await received.stream.aclose()
        else:
            await received.answer(200)

    async with running(destination(), loses_one, shards=2) as rig:
        for number, key in enumerate("abcd"):
            rig.shards.add(key, shard=number % 2, order_key="x")
        rig.shards.add("other", order_key="y")
        rig.shards.add("free", shard=1)
        await trio.sleep(3_600)
        expected = {"a": "succeeded", "b": "in_doubt", "c": "queued", "d": "queued"}
        assert rig.shards.states() == {**expected, "other": "succeeded", "free": "succeeded"}


async def test_a_shard_that_cannot_answer_holds_up_lanes_and_no_more(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(), shards=3) as rig:
        rig.shards.silent = {2}
        rig.shards.add("before", shard=2, order_key="x")
        rig.shards.add("behind", shard=0, order_key="x")
        rig.shards.add("free", shard=1)
        await trio.sleep(60)
        assert rig.shards.states() == {"before": "queued", "behind": "queued", "free": "succeeded"}
        rig.shards.silent = set()
        await rig.until_states("succeeded", most_s=10)
        assert rig.sent()[1:] == [rig.shards.row("before").operation_id, rig.shards.row("behind").operation_id]


async def test_the_end_is_told_until_the_shard_takes_it(autojump_clock: MockClock) -> None:
    async def answers_late(received: Received) -> None:
        rig.shards.silent = {0}
        await received.answer(200, b"stored")

    async with running(destination(), answers_late) as rig:
        row = rig.shards.add("a")
        await trio.sleep(4)
        assert row.state == "delivering"
        rig.shards.silent = set()
        await rig.until_states("succeeded", most_s=2)
        assert row.outcome is not None
        assert row.outcome.body == b"stored"


@pytest.mark.parametrize("recognised", [True, False])
async def test_what_could_not_be_told_is_left_to_the_lease(recognised: bool, autojump_clock: MockClock) -> None:
    async def answers_into_the_void(received: Received) -> None:
        if len(rig.requests) == 1:
            rig.shards.silent = {0}
        await received.answer(200)

    async with running(destination(downstream_dedups=recognised), answers_into_the_void) as rig:
        row = rig.shards.add("a")
        await trio.sleep(30)
        rig.shards.silent = set()
        await rig.until_states("succeeded" if recognised else "in_doubt", most_s=60)
        await trio.sleep(600)
        assert rig.sent() == [row.operation_id] * (2 if recognised else 1)


async def test_what_was_claimed_too_long_ago_is_given_back(autojump_clock: MockClock) -> None:
    async with running(destination(), answers()) as rig:
        claim = rig.shards.claim

        def late(row: Row, lease_ms: int) -> TakenIntent:
            rig.shards.claim = claim  # type: ignore[method-assign]
            return claim(row, lease_ms - limits.LEASE_MARGIN_MS)

        rig.shards.claim = late  # type: ignore[method-assign]
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=10)
        assert rig.seen.results == ["given_back", "succeeded"]
        back = rig.shards.told[0]
        assert isinstance(back, Postpone)
        assert (back.perhaps_sent, back.due_at) == (False, row.accepted_at)
        assert rig.sent() == [row.operation_id]


async def test_a_body_that_is_too_large_is_read_and_not_kept(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(200, b"x" * 1_048_577)) as rig:
        row = rig.shards.add("a")
        await rig.until_states("succeeded", most_s=2)
        assert row.outcome is not None
        assert row.outcome.omitted


async def test_a_large_intent_and_an_early_answer(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(200)) as rig:
        row = rig.shards.add("a")
        row.intent = type(row.intent)("", b"y" * 900_000)
        await rig.until_states("succeeded", most_s=2)
        assert rig.requests[0].body == b"y" * 900_000
        assert rig.requests[0].header("content-type") == []


async def test_a_request_that_is_none_of_http_does_not_count_against_the_destination(autojump_clock: MockClock) -> None:
    async with running(destination(), answers()) as rig:
        for number in range(10):
            row = rig.shards.add(f"bad{number}", expires_in_ms=60_000)
            row.intent = type(row.intent)("", b"", (("X", "a\r\nb"),))
        rig.shards.add("good")
        await trio.sleep(120)
        assert rig.shards.states()["good"] == "succeeded"
        assert set(rig.shards.states().values()) == {"succeeded", "expired"}
        assert rig.seen.breaker == []


async def test_draining_lets_end_what_is_under_way(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(2)
        await received.answer(200)

    async with running(destination(concurrency=2), slow) as rig:
        for number in range(6):
            rig.shards.add(str(number))
        await trio.sleep(1)
        rig.office.drain()
        with trio.fail_after(3):
            await rig.office.finished.wait()
        assert sorted(rig.shards.states().values()) == ["queued"] * 4 + ["succeeded"] * 2


async def test_draining_cuts_off_what_takes_too_long(autojump_clock: MockClock) -> None:
    async with running(destination(timeout_ms=600_000), hangs) as rig:
        rig.shards.add("a")
        await trio.sleep(1)
        rig.office.drain()
        with trio.fail_after(limits.DRAIN_MS / 1000 + 1):
            await rig.office.finished.wait()
        assert rig.shards.states() == {"a": "in_doubt"}


async def test_draining_cuts_off_within_the_time_that_is_given(autojump_clock: MockClock) -> None:
    async with running(destination(timeout_ms=600_000), hangs) as rig:
        rig.shards.add("a")
        await trio.sleep(1)
        rig.office.drain(500)
        with trio.fail_after(0.6):
            await rig.office.finished.wait()
        assert rig.shards.states() == {"a": "in_doubt"}


async def test_a_relay_that_is_cut_off_tells_what_it_knows(autojump_clock: MockClock) -> None:
    async with running(destination(), hangs) as rig:
        rig.shards.add("a")
        await trio.sleep(1)
    assert rig.shards.states() == {"a": "in_doubt"}
    assert now_ms() < EPOCH_MS + 3_000


@pytest.mark.parametrize("ordered", [True, False])
async def test_as_many_are_under_way_as_may_be(ordered: bool, autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(0.005)
        await received.answer(200)

    async with running(destination(), slow, shards=4) as rig:
        # Claiming, delivering and settling take as long: 15 ms for each of 8 places.
        rig.shards.latency_s = 0.005
        began = trio.current_time()
        for number in range(400):
            rig.shards.add(str(number), shard=number % 4, order_key=f"o{number % 50}" if ordered else None)
        await rig.until_states("succeeded", most_s=10)
        assert trio.current_time() - began < 1.5 * 400 * 0.015 / 8


async def test_a_line_has_its_turn_beside_a_backlog_without_order(autojump_clock: MockClock) -> None:
    async def slow(received: Received) -> None:
        await trio.sleep(0.1)
        await received.answer(200)

    async with running(destination(concurrency=2), slow, shards=2) as rig:
        rows = []
        for number in range(100):
            order_key = "x" if number in (10, 20) else None
            rows.append(rig.shards.add(str(number), shard=number % 2, order_key=order_key))
            # Each was accepted a moment after the one before it.
            await trio.sleep(0.002)
        await rig.until_states("succeeded", most_s=60)
        places = {operation_id: place for place, operation_id in enumerate(rig.sent())}
        assert places[rows[10].operation_id] < 40
        assert places[rows[20].operation_id] < 60


async def test_a_shard_that_is_slow_holds_up_no_other(autojump_clock: MockClock) -> None:
    async with running(destination(), answers(), shards=2) as rig:
        rig.shards.slow = {1}
        for number in range(20):
            rig.shards.add(str(number), shard=0)
        rig.shards.add("slow", shard=1)
        await trio.sleep(0.5)
        assert list(rig.shards.states().values()) == ["succeeded"] * 20 + ["queued"]
        await rig.until_states("succeeded", most_s=10)


# ------------------------------------------------------------------------------------------------------------- tracing


async def test_each_attempt_is_a_span_that_the_destination_is_told_of(autojump_clock: MockClock) -> None:
    seen = Seen()
    statuses = iter([503, 200])

    async def behave(received: Received) -> None:
        await received.answer(next(statuses), b"{}")

    async with running(destination(), behave, tracing=seen.telemetry) as rig:
        row = rig.shards.add("secret-key")
        await rig.until_states("succeeded")
        told = [received.header("traceparent") for received in rig.requests]
    first, second = seen.spans
    for number, span in enumerate((first, second), 1):
        assert (span.name, span.kind, span.parent) == ("POST", SpanKind.CLIENT, None)
        assert (
            about(span).items()
            >= {
                "http.request.method": "POST",
                "server.address": "upstream.test",
                "server.port": 80,
                "url.full": "http://upstream.test/orders",
                "http.response.status_code": (503, 200)[number - 1],
                "idemactor.namespace": "orders",
                "idemactor.operation_id": row.operation_id,
                "idemactor.attempt": number,
            }.items()
        )
        assert span.context is not None
        assert told[number - 1] == [f"00-{trace_of(span)}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"]
    assert (about(first)["error.type"], first.status.status_code) == ("503", StatusCode.ERROR)
    assert "error.type" not in about(second)
    assert "secret-key" not in "".join(span.to_json() for span in seen.spans)


async def test_an_attempt_belongs_to_the_trace_that_its_intent_brought(autojump_clock: MockClock) -> None:
    seen = Seen()
    for tracing, expected in ((seen.telemetry, 1), (None, 1)):
        async with running(destination(), answers(), tracing=tracing) as rig:
            row = rig.shards.add("a")
            row.intent = replace(row.intent, headers=(("TraceParent", PARENT), ("tracestate", "a=1")))
            await rig.until_states("succeeded")
            [received] = rig.requests
            [told] = received.header("traceparent")
            assert len(received.header("tracestate")) == expected
            assert (told == PARENT) is (tracing is None)
            assert told.split("-")[1] == TRACE
    [span] = seen.spans
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]


async def test_an_attempt_that_nobody_answers_is_a_span_that_failed(autojump_clock: MockClock) -> None:
    seen = Seen()

    async def silent(received: Received) -> None:
        await trio.sleep_forever()

    async with running(destination(), silent, tracing=seen.telemetry) as rig:
        rig.shards.add("a")
        await rig.until_states("in_doubt")
    [span] = seen.spans
    assert (about(span)["error.type"], span.status.status_code) == ("TimedOut", StatusCode.ERROR)


async def test_without_tracing_nothing_is_told(autojump_clock: MockClock) -> None:
    async with running(destination(), answers()) as rig:
        rig.shards.add("a")
        await rig.until_states("succeeded")
        assert rig.requests[0].header("traceparent") == []
