"""What is replayed, whoever stored it: nothing that only the proxy may say, and no content where there is none."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from idemactor.core.commands import Commit, Reserve
from idemactor.core.keys import Identity
from idemactor.core.record import Outcome
from idemactor.core.replies import Completed, Reserved
from idemactor.gateway.proxy.answers import replay
from idemactor.gateway.source import Answers
from tests.gateway.proxy.rig import Proxy, Received, proxying

ONLY_WE_SAY = (
    *("X-Idemactor-Result", "x_idemactor_result", "X.Idemactor.Owner"),
    *("Idempotency-Unprotected", "idempotency_unprotected", "Idempotent_Replayed", "idempotent-replayed"),
)


async def store(proxy: Proxy, outcome: Outcome) -> None:
    """Commit ``outcome`` under the key ``k``, as another door does."""
    identity = Identity("default", "default", "k")
    granted = await proxy.ask(Reserve(identity))
    assert isinstance(granted, Reserved)
    await proxy.ask(Commit(identity, granted.token, outcome))


async def test_a_replay_says_nothing_that_only_the_proxy_may(autojump_clock: MockClock) -> None:
    belongs_to_one = (("Connection", "X-Hop"), ("X_Hop", "1"), ("Set_Cookie", "a=1"), ("content_length", "5"))
    pairs = (*((name, "accepted") for name in ONLY_WE_SAY), *belongs_to_one, ("X-Own", "1"))
    async with proxying(autojump_clock) as proxy:
        await store(proxy, Outcome(201, pairs, b"x"))
        told = await proxy.call()
        assert (told.status, told.body) == (201, b"x")
        assert told.headers[:2] == [("X-Own", "1"), ("Idempotent-Replayed", "true")]
        assert [name for name, _ in told.headers[2:]] == ["Date", "Content-Length"]


@pytest.mark.parametrize("completed", [204, 205])
def test_what_a_source_wants_to_hear_may_have_no_content(completed: int) -> None:
    assert replay(Completed("op", 1, 2, None, rejected=False), Answers(completed=completed)).content == b""


async def test_a_reset_has_no_content_the_first_time_nor_any_other(autojump_clock: MockClock) -> None:
    async def answer(received: Received) -> None:
        await received.answer(205, b"four", [("ETag", "x")])

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        client = proxy.client()
        for replayed in ([], ["true"], ["true"]):
            told = await client.call()
            assert (told.status, told.body, told.header("ETag")) == (205, b"", ["x"])
            assert (told.header("Content-Length"), told.header("Idempotent-Replayed")) == (["0"], replayed)
        assert len(proxy.upstream.requests) == 1


async def test_a_reset_in_chunks_has_no_content_either(autojump_clock: MockClock) -> None:
    async def answer(received: Received) -> None:
        await received.send(b"HTTP/1.1 205 X\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n")

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        got = await proxy.client().raw(
            b"POST /orders HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nConnection: close\r\n\r\n"
        )
        assert got == b"HTTP/1.1 205 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
