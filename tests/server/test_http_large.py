"""Large answers over HTTP: the same bytes as small ones, in steps between which others are served, and counted."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.server import http_large
from idemactor.server.backlog import CROWDED_SHARE
from idemactor.server.http_answers import Told, told
from tests.server import test_http_fast as fast
from tests.server.test_http_app import Client, Exchange, serving
from tests.server.test_http_parity import call, post, read_reply

BODY = "\x01" * 50_000
JSON_BYTES = 6 * len(BODY)
KEYS = [f"k{number}" for number in range(4)]


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than a small outcome is encoded in steps."""
    monkeypatch.setattr(http_large, "ENCODED_AT_ONCE_BYTES", 1)
    monkeypatch.setattr(http_large, "STEP_BYTES", 1)


def batch() -> dict[str, object]:
    """Repeats of what was done, a key that is new, and a mistake."""
    ops: list[dict[str, object]] = [{"op": "get", "namespace": "default", "key": key} for key in KEYS]
    return {"ops": [*ops, {"op": "get", "namespace": "default", "key": "none"}, {"op": "get"}]}


# ------------------------------------------------------------------------------------------------------------- pieces


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("items", [[], [{"a": "€"}], [{"a": 1}, {"b": None}, {"c": [1, 2]}]])
@pytest.mark.parametrize("rest", [{}, {"next": None}, {"next": "x", "more": True}])
async def test_pieces_are_what_the_whole_would_be(items: list[object], rest: dict[str, object]) -> None:
    answer, pieces = await http_large.listed("found", items, rest, trio.Lock())
    whole = told({"found": items, **rest})
    assert b"".join(pieces) == whole.body
    assert (answer.status, answer.media_type, answer.headers) == (whole.status, whole.media_type, whole.headers)
    assert await http_large.whole(lambda: whole, trio.Lock()) == (answer, [whole.body])


@pytest.mark.usefixtures("in_steps")
async def test_others_have_their_turn_between_steps_but_none_that_is_as_large() -> None:
    seen: list[str] = []
    encoding = trio.Lock()

    def items(name: str) -> Iterator[object]:
        for number in range(3):
            seen.append(f"{name}{number}")
            yield number

    async def encode(name: str) -> None:
        await http_large.listed("found", items(name), {}, encoding)

    def one() -> Told:
        seen.append("one")
        return told({})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(encode, "a")
        nursery.start_soon(encode, "b")
        nursery.start_soon(http_large.whole, one, encoding)
        while len([name for name in seen if name != "other"]) < 7:
            seen.append("other")
            await trio.lowlevel.checkpoint()
    large = [name for name in seen if name != "other"]
    assert sorted(large) == ["a0", "a1", "a2", "b0", "b1", "b2", "one"]
    # Nobody else begins before one is done.
    for name in ("a", "b"):
        assert large[large.index(f"{name}0") :][:3] == [f"{name}{number}" for number in range(3)]
        assert "other" in seen[seen.index(f"{name}0") : seen.index(f"{name}2")]


# ------------------------------------------------------------------------------------------------------- the fast door


async def filled(client: fast.Client) -> None:
    for key in KEYS:
        await client.send(call("accept", key=key, outcome={"status": 200, "body": BODY}))
        assert (await client.answer())[0] == 201


async def test_the_fast_door_gives_the_same_answers_in_steps(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fast.serving(mock_clock) as server:
        client, backlog = server.connect(), server.rig.context.backlog
        await filled(client)
        asked = [call("reserve", key="k1"), post("/v1/batch", batch())]
        had = bytearray()
        await client.send(*asked)
        at_once = [await read_reply(client.stream, had) for _ in asked]
        # What waits its turn is counted as it will be sent, and others are served meanwhile.
        monkeypatch.setattr(http_large, "ENCODED_AT_ONCE_BYTES", 1)
        monkeypatch.setattr(http_large, "STEP_BYTES", 1)
        await backlog.encoding.acquire()
        await client.send(*asked)
        await fast.settled()
        assert backlog.held_bytes == JSON_BYTES
        other = server.connect()
        await other.send(call("reserve", key="new"))
        assert (await other.answer())[1]["result"] == "reserved"
        backlog.encoding.release()
        assert [await read_reply(client.stream, had) for _ in asked] == at_once
        assert backlog.held_bytes == 0
        assert len(at_once[1][2]) > len(KEYS) * JSON_BYTES


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("asked", [call("reserve", key="k1"), post("/v1/batch", batch())])
async def test_a_client_of_the_fast_door_that_leaves_meanwhile_counts_no_more(
    asked: bytes, mock_clock: MockClock
) -> None:
    async with fast.serving(mock_clock) as server:
        client, backlog = server.connect(), server.rig.context.backlog
        await filled(client)
        await backlog.encoding.acquire()
        await client.send(asked)
        await fast.settled()
        assert backlog.held_bytes >= JSON_BYTES
        await client.reset()
        await fast.later(mock_clock, fast.LIMITS.write_ms + fast.LIMITS.linger_ms)
        assert (server.over, backlog.held_bytes, backlog.waiting_bytes) == (1, 0, 0)
        backlog.encoding.release()


@pytest.mark.usefixtures("in_steps")
async def test_an_answer_that_cannot_be_encoded_closes_its_connection_alone(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fast.serving(mock_clock) as server:
        client, backlog = server.connect(), server.rig.context.backlog
        await filled(client)

        async def fail(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(http_large, "whole", fail)
        await client.send(call("reserve", key="k1"))
        assert await client.is_over()
        other = server.connect()
        await other.send(call("reserve", key="new"))
        assert (await other.answer())[1]["result"] == "reserved"
        assert backlog.held_bytes == 0


# ---------------------------------------------------------------------------------------------------- the guarded door


async def late(client: Client) -> None:
    """An incident of each key, with a large outcome."""
    for key in KEYS:
        token = (await client.post("/v1/trade/reserve", {"key": key, "lease_ms": 1})).json["token"]
        await trio.sleep(1)
        assert (await client.post("/v1/trade/reserve", {"key": key})).json["takeover"]
        outcome = {"status": 200, "body": BODY}
        answer = await client.post("/v1/trade/commit", {"key": key, "token": token, "outcome": outcome})
        assert answer.status == 409
        await client.post("/v1/default/accept", {"key": key, "outcome": outcome})


async def test_the_guarded_door_gives_the_same_answers_in_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(autojump_clock) as client:
        backlog = client.rig.context.backlog
        await late(client)
        asked: tuple[tuple[str, str, dict[str, object] | None], ...] = (
            ("POST", "/v1/default/get", {"key": "k1"}),
            ("POST", "/v1/default/reserve", {"key": "k1"}),
            ("POST", "/v1/batch", batch()),
            ("GET", "/v1/trade/incidents", None),
        )
        at_once = [await client.call(*one) for one in asked]
        monkeypatch.setattr(http_large, "ENCODED_AT_ONCE_BYTES", 1)
        monkeypatch.setattr(http_large, "STEP_BYTES", 1)
        for one, before in zip(asked, at_once, strict=True):
            answer = await client.call(*one)
            assert (answer.status, answer.body, answer.headers) == (before.status, before.body, before.headers)
            assert int(answer.headers["content-length"]) == len(answer.body) > JSON_BYTES
            assert backlog.held_bytes == 0


@pytest.mark.usefixtures("in_steps")
async def test_an_exchange_of_the_guarded_door_that_ends_meanwhile_counts_no_more(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        backlog = client.rig.context.backlog
        await late(client)
        await backlog.encoding.acquire()
        exchange = Exchange(client.app, "GET", "/v1/trade/incidents", [])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            exchange.send(b"")
            await trio.testing.wait_all_tasks_blocked()
            assert backlog.held_bytes == len(KEYS) * JSON_BYTES
            nursery.cancel_scope.cancel()
        assert backlog.held_bytes == 0
        backlog.encoding.release()


async def test_a_listing_that_there_is_no_room_for_is_refused(autojump_clock: MockClock) -> None:
    async with serving(autojump_clock) as client:
        backlog = client.rig.context.backlog
        await late(client)
        # Where batches are told no outcomes, and single calls are.
        backlog.waiting_bytes = backlog.bytes_max * CROWDED_SHARE + 1
        answer = await client.get("/v1/trade/incidents")
        assert answer.problem(503, "OVERLOADED")
        assert answer.headers["retry-after"] == "1"
        assert backlog.held_bytes == 0
        assert (await client.get("/v1/trade/records")).status == 200
        backlog.waiting_bytes = 0
        page = await client.get("/v1/trade/incidents")
        assert [incident["outcome"]["body"] for incident in json.loads(page.body)["incidents"]] == [BODY] * len(KEYS)
