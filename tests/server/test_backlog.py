"""What waits for who does not read is bounded: outcomes are not kept, and what was granted always is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.commands import Watch
from idemactor.core.delivery import OperationState
from idemactor.core.keys import Identity
from idemactor.core.queries import IncidentsPage
from idemactor.core.record import HEADER_BYTES, Outcome, Record, State
from idemactor.core.replies import (
    Accepted,
    Committed,
    Completed,
    Found,
    InFlight,
    Overloaded,
    Reserved,
    Unknown,
    Untold,
    Watched,
)
from idemactor.server import dispatching, sinks
from idemactor.server.backlog import (
    CROWDED_SHARE,
    FULL_SHARE,
    OUTCOME_BYTES_SMALL,
    Backlog,
    Hold,
    outcome_bytes,
    without_outcomes,
)
from idemactor.server.rpc_connection import RpcLimits
from idemactor.server.sinks import Replies
from idemactor.shard.mailbox import OVERLOADED_RETRY_MS, Answer
from idemactor.wire.fields import Dialect
from idemactor.wire.refusals import detail_of
from tests.server import test_http_fast as fast
from tests.server.rig import START_MS, running
from tests.server.test_http_app import Client as HttpClient
from tests.server.test_http_parity import call, post
from tests.server.test_rpc_door import Peer, request, serving

LARGE = Outcome(200, (), bytes(60_000))
OMITTED = Outcome(200, omitted=True)
SMALL = Outcome(200, (), bytes(OUTCOME_BYTES_SMALL))
NOT_KEPT = Overloaded(OVERLOADED_RETRY_MS, Untold.NOT_KEPT)
BATCH_FULL = Overloaded(OVERLOADED_RETRY_MS, Untold.BATCH_FULL)


def completed(outcome: Outcome | None) -> Completed:
    return Completed("op", 1, 2, outcome, rejected=False)


def found(outcome: Outcome | None) -> Found:
    return Found("k", Record(State.COMMITTED, 1, 1, "op", 1, 1, outcome=outcome))


def watched(outcome: Outcome | None) -> Watched:
    return Watched("k", "op", OperationState.SUCCEEDED, outcome=outcome)


GRANTED: list[Answer] = [
    Reserved("k", 1, 1, "op", 1, 2, repeated=False),
    Accepted("op", 1, 2, repeated=False),
    Committed(2, repeated=False),
    InFlight(1, None, 1, 2, 3),
    Unknown(),
]


# ----------------------------------------------------------------------------------------------- what counts, and when


@pytest.mark.parametrize("make", [completed, found, watched])
def test_only_what_carries_more_than_a_small_outcome_counts(make: Any) -> None:
    assert outcome_bytes(make(LARGE)) == 60_000
    assert outcome_bytes(make(SMALL)) == outcome_bytes(make(None)) == 0
    # A header of one letter takes more than its letter.
    headers = tuple(("x", "") for _ in range(100))
    assert outcome_bytes(make(Outcome(200, headers))) == 100 * (HEADER_BYTES + 1)


def test_what_leaves_as_json_counts_as_json_writes_it() -> None:
    assert outcome_bytes(completed(LARGE), Dialect.JSON) == outcome_bytes(found(LARGE), Dialect.JSON) == 360_000
    # How an operation ended stands in its answer twice.
    assert outcome_bytes(watched(LARGE), Dialect.JSON) == 720_000
    assert outcome_bytes(completed(SMALL), Dialect.JSON) == outcome_bytes(completed(None), Dialect.JSON) == 0


def test_a_page_of_incidents_counts_as_it_says_and_is_told_whole_or_not_at_all() -> None:
    backlog = Backlog(waiting_bytes=201, bytes_max=100)
    empty, page = IncidentsPage((), None), IncidentsPage((), None, 60_000)
    assert (outcome_bytes(empty), outcome_bytes(page)) == (0, 60_000)
    assert without_outcomes([(0, page), (1, empty)]) == [(0, NOT_KEPT), (1, empty)]
    # It is as large as many answers: it is given up as soon as batches are.
    for told in (page, empty):
        replies = Replies(1, backlog=backlog)
        replies.deliver([(0, told)])
        assert replies.take() == [NOT_KEPT if told is page else empty]
    assert backlog.held_bytes == 0


def test_what_is_on_its_way_counts_until_it_is_sent_or_given_up() -> None:
    backlog = Backlog()
    replies, hold = Replies(1, backlog=backlog, dialect=Dialect.JSON), Hold(backlog, Dialect.JSON)
    replies.deliver([(0, completed(LARGE))])
    assert (replies.held_bytes, backlog.held_bytes) == (360_000, 360_000)
    assert replies.take(hold) == [completed(LARGE)]
    assert (replies.held_bytes, hold.held_bytes, backlog.held_bytes) == (0, 360_000, 360_000)
    hold.sent(100_000)
    assert (hold.held_bytes, backlog.held_bytes) == (260_000, 260_000)
    hold.sent(300_000)
    assert (hold.held_bytes, backlog.held_bytes) == (0, 0)
    hold.add(5)
    hold.abandon()
    hold.abandon()
    assert (hold.held_bytes, backlog.held_bytes) == (0, 0)


def test_what_is_not_kept_is_counted_and_all_else_is_as_it_was() -> None:
    refused: list[int] = []
    backlog = Backlog(on_refused=refused.append)
    large: list[Answer] = [completed(LARGE), found(LARGE), watched(LARGE)]
    small: list[Answer] = [completed(SMALL), found(SMALL), watched(SMALL), completed(None), *GRANTED]
    kept = backlog.spared(list(enumerate([*small, *large])))
    assert kept == list(enumerate([*small, completed(OMITTED), NOT_KEPT, NOT_KEPT]))
    assert backlog.spared(list(enumerate(small))) == list(enumerate(small))
    assert refused == [3]


def test_what_is_sent_and_what_is_held_count_together() -> None:
    backlog = Backlog(waiting_bytes=60, held_bytes=60, bytes_max=100)
    assert not backlog.crowded
    backlog.held_bytes += 81
    assert (backlog.crowded, backlog.full) == (True, False)
    backlog.waiting_bytes += 200
    assert backlog.full
    assert FULL_SHARE > CROWDED_SHARE > 1


# ------------------------------------------------------------------------------------------- the answers of one request


def test_the_answers_of_a_request_count_until_they_are_taken() -> None:
    backlog = Backlog()
    replies = Replies(3, backlog=backlog)
    replies.deliver([(0, completed(LARGE)), (1, completed(SMALL))])
    assert backlog.held_bytes == 60_000
    replies.deliver([(2, found(LARGE)), (0, found(LARGE))])
    assert backlog.held_bytes == 120_000
    assert replies.take() == [completed(LARGE), completed(SMALL), found(LARGE)]
    assert backlog.held_bytes == 0
    replies.abandon()
    assert backlog.held_bytes == 0


async def test_who_leaves_takes_what_it_waited_for_along() -> None:
    backlog = Backlog()
    replies = Replies(2, backlog=backlog)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.wait)
        await trio.testing.wait_all_tasks_blocked()
        replies.deliver([(0, completed(LARGE))])
        assert backlog.held_bytes == 60_000
        nursery.cancel_scope.cancel()
    replies.deliver([(1, completed(LARGE))])
    assert backlog.held_bytes == 0
    assert replies.answers == [completed(OMITTED), completed(OMITTED)]


def test_a_batch_tells_no_more_outcomes_than_its_answer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "BATCH_ANSWER_BYTES_MAX", 130_000)
    refused: list[int] = []
    backlog = Backlog(on_refused=refused.append)
    replies = Replies(7, backlog=backlog)
    replies.deliver([(4, completed(LARGE)), (0, found(LARGE)), (1, watched(LARGE)), (2, completed(SMALL))])
    replies.deliver([(3, GRANTED[1]), (5, found(Outcome(200, (), bytes(9_000)))), (6, found(LARGE))])
    assert backlog.held_bytes == 129_000
    expected = [found(LARGE), BATCH_FULL, completed(SMALL), GRANTED[1], completed(LARGE)]
    assert replies.take() == [*expected, found(Outcome(200, (), bytes(9_000))), BATCH_FULL]
    assert refused == [1, 1]


def test_a_batch_that_leaves_as_json_holds_what_its_answer_holds_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "BATCH_ANSWER_BYTES_MAX", 360_000)
    for dialect, second in ((Dialect.JSON, BATCH_FULL), (Dialect.MSGPACK, completed(LARGE))):
        replies = Replies(2, backlog=Backlog(), dialect=dialect)
        replies.deliver([(0, completed(LARGE)), (1, completed(LARGE))])
        assert replies.take() == [completed(LARGE), second]


def test_what_came_alone_is_kept_for_longer_than_what_came_in_a_batch() -> None:
    backlog = Backlog(waiting_bytes=201, bytes_max=100)
    alone, two = Replies(1, backlog=backlog), Replies(2, backlog=backlog)
    two.deliver([(0, completed(LARGE)), (1, GRANTED[0])])
    assert two.take() == [completed(OMITTED), GRANTED[0]]
    alone.deliver([(0, completed(LARGE))])
    assert alone.take() == [completed(LARGE)]


def test_where_there_is_no_room_for_anybody_no_outcome_is_collected() -> None:
    backlog = Backlog(waiting_bytes=401, bytes_max=100)
    replies = Replies(1, backlog=backlog)
    replies.deliver([(0, completed(LARGE))])
    assert replies.take() == [completed(OMITTED)]
    replies = Replies(3, backlog=backlog)
    replies.deliver([(0, completed(LARGE)), (1, GRANTED[0]), (2, found(LARGE))])
    assert replies.take() == [completed(OMITTED), GRANTED[0], NOT_KEPT]
    assert backlog.held_bytes == 0


# ------------------------------------------------------------------------------------------------------------ over RPC


def get(msgid: int, key: str = "k") -> bytes:
    return request(msgid, "get", {"namespace": "default", "key": key})


async def accept(peer: Peer, key: str, outcome: Outcome) -> None:
    await peer.call("accept", namespace="default", key=key, outcome={"status": 200, "body": outcome.body})


def kinds(answers: list[tuple[Any, Any]]) -> list[str]:
    """What each answer is: its result, or its error."""
    return [result["result"] if error is None else error for error, result in answers]


LIMITS = RpcLimits(unread_bytes_max=100_000, write_ms=5_000)
REFUSED = f"IDEMPOTENCY_OVERLOADED: {detail_of(NOT_KEPT)}"


async def test_outcomes_that_nobody_reads_are_kept_within_bounds(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, LIMITS) as server:
        backlog, other = server.rig.context.backlog, server.connect()
        backlog.bytes_max = 500_000
        await accept(other, "k", LARGE)
        await accept(other, "small", SMALL)
        peer = server.connect(trio.testing.lockstep_stream_pair())
        new = {"namespace": "default", "key": "new"}
        acquire = request(50, "reserve", new), request(51, "accept", new | {"key": "newer"})
        await peer.send(*map(get, range(50)), *acquire, get(52, "small"), get(53))
        await trio.testing.wait_all_tasks_blocked()
        assert backlog.held_bytes + backlog.waiting_bytes < 500_000 * CROWDED_SHARE + 2 * 61_000
        assert backlog.held_bytes % 60_000 == 0
        # What is granted is told, and what is small; and others that read are served.
        assert (await other.call("get", namespace="default", key="k"))["record"]["outcome"]["body"] == LARGE.body
        told = kinds(await peer.answers(range(54)))
        assert told[50:] == ["reserved", "accepted", "found", REFUSED]
        kept = told[:50].count("found")
        assert told[:50] == ["found"] * kept + [REFUSED] * (50 - kept)
        assert 15 <= kept <= 19
        await trio.testing.wait_all_tasks_blocked()
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)
        assert f"idemactor_overloaded_total {51 - kept}.0" in server.rig.context.metrics.render([], START_MS).decode()
        assert kinds([await peer.try_call("get", namespace="default", key="k")]) == ["found"]


async def test_the_outcomes_of_a_connection_that_ends_count_no_more(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, LIMITS) as server:
        backlog = server.rig.context.backlog
        await accept(server.connect(), "k", LARGE)
        peer = server.connect(trio.testing.lockstep_stream_pair())
        ops = {"ops": [{"op": "get", "namespace": "default", "key": "k"}] * 3}
        await peer.send(*map(get, range(10)), *(request(n, "batch", ops) for n in range(10, 14)))
        await trio.testing.wait_all_tasks_blocked()
        assert backlog.held_bytes >= 15 * 60_000
        await trio.sleep(20)
        assert server.over == 1
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)


async def test_batches_that_nobody_reads_keep_no_outcomes(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, LIMITS) as server:
        backlog, other = server.rig.context.backlog, server.connect()
        backlog.bytes_max = 500_000
        await accept(other, "k", LARGE)
        ops = [{"op": "get", "namespace": "default", "key": "k"}] * 3 + [
            {"op": "reserve", "namespace": "default", "key": "new"}
        ]
        peer = server.connect(trio.testing.lockstep_stream_pair())
        await peer.send(*(request(n, "batch", {"ops": ops}) for n in range(30)))
        await trio.testing.wait_all_tasks_blocked()
        assert backlog.held_bytes + backlog.waiting_bytes < 500_000 * CROWDED_SHARE + 4 * 61_000
        answers = [result["results"] for _, result in await peer.answers(range(30))]
        refused = {"code": "IDEMPOTENCY_OVERLOADED", "detail": detail_of(NOT_KEPT)}
        assert answers[0][0]["record"]["outcome"]["body"] == LARGE.body
        assert answers[0][3]["result"] == "reserved"
        assert [result[:3] for result in answers].count([refused] * 3) >= 20
        assert all(result[3]["result"] in ("reserved", "in_flight") for result in answers)
        await trio.testing.wait_all_tasks_blocked()
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)


async def test_how_operations_ended_is_kept_within_the_same_bounds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(*_: object) -> dispatching.Settled:
        return watched(LARGE), Watch(Identity("default", "default", "k"), "op", 0)

    monkeypatch.setattr(dispatching, "operation", ended)
    async with serving(autojump_clock, LIMITS) as server:
        backlog = server.rig.context.backlog
        backlog.bytes_max = 300_000
        peer = server.connect(trio.testing.lockstep_stream_pair())
        asked = {"namespace": "default", "operation_id": "00000000-0000-7000-8000-000000000000"}
        waiting = asked | {"wait_ms": 1_000}
        await peer.send(*(request(n, "operation", waiting if n % 2 else asked) for n in range(30)))
        await trio.testing.wait_all_tasks_blocked()
        assert 400_000 < backlog.held_bytes + backlog.waiting_bytes < 300_000 * CROWDED_SHARE + 2 * 61_000
        told = kinds(await peer.answers(range(30)))
        assert {*told} == {"found", REFUSED}
        await trio.testing.wait_all_tasks_blocked()
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)
        [connection] = server.door._connections
        assert (connection._calls.in_flight, connection._calls.waiting) == (0, 0)


async def test_where_memory_is_full_nobody_is_told_an_outcome_and_who_acquires_is_served(
    autojump_clock: MockClock,
) -> None:
    async with serving(autojump_clock) as server:
        backlog, peer = server.rig.context.backlog, server.connect()
        await accept(peer, "k", LARGE)
        backlog.bytes_max, backlog.waiting_bytes = 100, 401
        assert await peer.fail("get", namespace="default", key="k") == REFUSED
        omitted = {"status": 200, "headers": [], "omitted": True}
        for op in ("reserve", "accept"):
            told = await peer.call(op, namespace="default", key="k")
            assert (told["result"], told["outcome"]) == ("completed", omitted)
        ops = [{"op": op, "namespace": "default", "key": "k"} for op in ("get", "accept")]
        refused = {"code": "IDEMPOTENCY_OVERLOADED", "detail": detail_of(NOT_KEPT)}
        results = (await peer.call("batch", ops=ops))["results"]
        assert (results[0], results[1]["result"], results[1]["outcome"]) == (refused, "completed", omitted)
        new = {"namespace": "default", "key": "new"}
        token = (await peer.call("reserve", **new))["token"]
        told = await peer.call("commit", **new, token=token, outcome={"status": 200})
        assert told["result"] == "committed"
        backlog.waiting_bytes = 0
        assert (await peer.call("get", namespace="default", key="k"))["record"]["outcome"]["body"] == LARGE.body


async def test_a_batch_whose_outcomes_are_too_many_says_which_to_ask_for_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "BATCH_ANSWER_BYTES_MAX", 130_000)
    async with serving(autojump_clock) as server:
        peer = server.connect()
        await accept(peer, "k", LARGE)
        ops = [{"op": "get", "namespace": "default", "key": "k"}] * 4
        results = (await peer.call("batch", ops=ops))["results"]
        assert [result.get("result") or result["detail"] for result in results] == [
            "found",
            "found",
            *[detail_of(BATCH_FULL)] * 2,
        ]
        assert "fewer keys" in detail_of(BATCH_FULL)
        assert server.rig.context.backlog.held_bytes == 0


async def incidents(peer: Peer, count: int) -> None:
    """So many late commits, each with a large outcome."""
    for number in range(count):
        held = {"namespace": "trade", "key": f"k{number}"}
        token = (await peer.call("reserve", **held, lease_ms=1))["token"]
        await trio.sleep(1)
        assert (await peer.call("reserve", **held))["takeover"]
        late = await peer.call("commit", **held, token=token, outcome={"status": 200, "body": LARGE.body})
        assert late["result"] == "stale"


async def test_listings_that_nobody_reads_are_kept_within_bounds(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, LIMITS) as server:
        backlog, other = server.rig.context.backlog, server.connect()
        backlog.bytes_max = 500_000
        await incidents(other, 4)
        peer = server.connect(trio.testing.lockstep_stream_pair())
        await peer.send(*(request(n, "incidents", {"namespace": "trade"}) for n in range(20)))
        await trio.testing.wait_all_tasks_blocked()
        assert 500_000 < backlog.held_bytes + backlog.waiting_bytes < 500_000 * CROWDED_SHARE + 250_000
        # Others are served, but for those who ask for as much.
        assert (await other.call("reserve", namespace="default", key="new"))["result"] == "reserved"
        assert await other.fail("incidents", namespace="trade") == REFUSED
        assert (await other.call("records", namespace="trade"))["records"]
        answers = await peer.answers(range(20))
        whole = [result for error, result in answers if error is None]
        assert {len(result["incidents"]) for result in whole} == {4}
        assert 2 <= len(whole) <= 5
        assert {error for error, _ in answers} == {None, REFUSED}
        await trio.testing.wait_all_tasks_blocked()
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)
        assert len((await other.call("incidents", namespace="trade"))["incidents"]) == 4


async def test_the_listings_of_a_connection_that_ends_count_no_more(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, LIMITS) as server:
        backlog = server.rig.context.backlog
        await incidents(server.connect(), 2)
        peer = server.connect(trio.testing.lockstep_stream_pair())
        await peer.send(*(request(n, "incidents", {"namespace": "trade"}) for n in range(5)))
        await trio.testing.wait_all_tasks_blocked()
        assert backlog.held_bytes >= 3 * 120_000
        await trio.sleep(20)
        assert server.over == 1
        assert (backlog.held_bytes, backlog.waiting_bytes) == (0, 0)


async def test_a_poll_takes_nothing_that_there_is_no_room_to_tell(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as server:
        backlog, peer = server.rig.context.backlog, server.connect()
        held = {"namespace": "default", "key": "k"}
        token = (await peer.call("reserve", **held))["token"]
        await peer.call("commit", **held, token=token, events=[{"body": b"x"}])
        backlog.bytes_max, backlog.waiting_bytes = 100, 401
        assert await peer.fail("outbox.poll", namespace="default") == REFUSED
        backlog.waiting_bytes = 0
        [entry] = (await peer.call("outbox.poll", namespace="default"))["entries"]
        assert entry["takeover"] is False


# ----------------------------------------------------------------------------------------------------------- over HTTP


async def test_the_fast_door_tells_no_outcome_where_memory_is_full(mock_clock: MockClock) -> None:
    async with fast.serving(mock_clock) as server:
        client = server.connect()
        await client.send(call("accept", key="k", outcome={"status": 200, "body": "x" * 60_000}))
        assert (await client.answer())[0] == 201
        backlog = server.rig.context.backlog
        backlog.bytes_max, backlog.waiting_bytes = 100, 401
        await client.send(call("reserve", key="k"), call("reserve", key="new"))
        status, told = await client.answer()
        assert (status, told["result"], told["proceed"]) == (200, "completed", False)
        assert told["outcome"] == {"status": 200, "headers": [], "omitted": True}
        assert (await client.answer())[0] == 201
        ops = [{"op": "accept", "namespace": "default", "key": key} for key in ("k", "newer")]
        await client.send(post("/v1/batch", json.dumps({"ops": ops}).encode()))
        status, told = await client.answer()
        assert [result["result"] for result in told["results"]] == ["completed", "accepted"]
        assert told["results"][0]["outcome"]["omitted"] is True


async def test_the_guarded_door_tells_no_outcome_where_memory_is_full(autojump_clock: MockClock) -> None:
    async with running(autojump_clock) as rig:
        client = HttpClient(rig)
        await client.post("/v1/default/accept", {"key": "k", "outcome": {"status": 200, "body": "x" * 60_000}})
        rig.context.backlog.bytes_max, rig.context.backlog.waiting_bytes = 100, 401
        told = await client.post("/v1/default/get", {"key": "k"})
        assert (told.status, told.headers["retry-after"], told.json["code"]) == (503, "1", "IDEMPOTENCY_OVERLOADED")
        told = await client.post("/v1/default/reserve", {"key": "k"})
        assert (told.status, told.json["result"], told.json["outcome"]["omitted"]) == (200, "completed", True)
        ops = [{"op": "get", "namespace": "default", "key": "k"}]
        told = await client.post("/v1/batch", {"ops": ops})
        assert told.json["results"][0]["code"] == "IDEMPOTENCY_OVERLOADED"
        rig.context.backlog.waiting_bytes = 0
        told = await client.post("/v1/batch", {"ops": ops})
        assert told.json["results"][0]["record"]["outcome"]["body"] == "x" * 60_000
        assert rig.context.backlog.held_bytes == 0
