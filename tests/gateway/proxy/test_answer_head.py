"""Answers are read as strictly as requests: what two parties could read differently commits nothing."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from idemactor.core.record import State
from idemactor.gateway.proxy.answer_head import AnswerHeads, Ending, Unreadable
from idemactor.gateway.proxy.limits import ANSWER_HEADER_BYTES_MAX
from tests.gateway.proxy.rig import Received, proxying

START = b"HTTP/1.1 200 OK\r\n"
AMBIGUOUS = [
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    START + b"X-Echo: a\nContent-Length: 2\r\n\r\n{}",
    START + b'X-Echo: a\n\n{"success":true}\r\nContent-Length: 2\r\n\r\n{}',
    START + b"X-Echo: a\rContent-Length: 0\r\nContent-Length: 2\r\n\r\n{}",
    START + b"X-Folded: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    START + b"X-Folded: a\r\n\tContent-Length: 5\r\nContent-Length: 2\r\n\r\n{}",
    START + b" X-Folded: a\r\nContent-Length: 2\r\n\r\n{}",
    START + b"Content-Length : 2\r\n\r\n{}",
    START + b"X-Echo: a\x00\r\nContent-Length: 2\r\n\r\n{}",
    START + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    START + b"transfer-encoding: chunked\r\nCONTENT-LENGTH: 12\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"\r\n" + START + b"Content-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 103 Early\nLink: <a>\n\n" + START + b"Content-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 103 Early\r\nLink: <a>,\r\n <b>\r\n\r\n" + START + b"Content-Length: 2\r\n\r\n{}",
]
IN_CHUNKS = START + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
AMBIGUOUS_ENDS = [b"0\r\n\n", b"0\r\nX: a\n\n", b"0\r\nX: a\n\r\n", b"0\r\n\n\r\n", b"0\n\r\n", b"0\n\n"]


def heads_of(data: bytes, *, step: int, max_bytes: int = 1_000) -> tuple[list[bytes], bytes]:
    """The heads at the beginning of what comes in pieces of ``step`` bytes, and what is left behind the last."""
    heads, found = AnswerHeads(max_bytes), []
    for start in range(0, len(data), step):
        heads.add(data[start : start + step])
        while (head := heads.next()) is not None:
            found.append(head)
            if not head.startswith(b"HTTP/1.1 1"):
                return found, heads.rest() + data[start + step :]
    return found, heads.rest()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1_000])
def test_heads_are_taken_off_however_they_come(step: int) -> None:
    early, last = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n", START + b"X-A: caf\xe9\t b\r\nX-B:\r\n\r\n"
    assert heads_of(early + last + b"body\n", step=step) == ([early, last], b"body\n")
    assert heads_of(b"HTTP/1.1 404\r\n\r\n", step=step) == ([b"HTTP/1.1 404\r\n\r\n"], b"")
    assert heads_of(last[:-1], step=step)[0] == []


@pytest.mark.parametrize("step", [1, 2, 1_000])
@pytest.mark.parametrize("data", AMBIGUOUS)
def test_a_head_that_can_be_read_in_two_ways_is_none(data: bytes, step: int) -> None:
    with pytest.raises(Unreadable):
        heads_of(data, step=step)


@pytest.mark.parametrize("step", [1, 64, 1_000])
@pytest.mark.parametrize("behind", [b"", b"x" * 5])
def test_the_length_of_a_head_is_bounded_to_the_byte(step: int, behind: bytes) -> None:
    head = START + b"A: " + b"x" * 80
    assert len(head) == 100
    data = head + b"\r\n\r\n"
    assert heads_of(data + behind, step=step, max_bytes=100) == ([data], behind)
    for too_long in (data + behind, data[:-1]):
        with pytest.raises(Unreadable, match="its header has more than 99 bytes"):
            heads_of(too_long, step=step, max_bytes=99)


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize("behind", [b"", b"\r\n\r\n", b"more"])
def test_how_an_answer_in_chunks_ends(step: int, behind: bytes) -> None:
    for data, plain in (
        (b"0\r\n\r\n", True),
        (b"0\r\nX: a\r\n\r\n", True),
        *((end, False) for end in AMBIGUOUS_ENDS[:3]),
    ):
        ending, whole = Ending(), b"2\r\n{}\r\n" + data
        pieces = [whole[start : start + step] for start in range(0, len(whole), step)]
        for piece in (*pieces[:-1], pieces[-1] + behind):
            ending.add(piece)
        assert ending.is_plain(len(behind)) is plain


@pytest.mark.parametrize("data", [*AMBIGUOUS, *(IN_CHUNKS + end for end in AMBIGUOUS_ENDS)])
async def test_what_can_be_read_in_two_ways_is_in_doubt(autojump_clock: MockClock, data: bytes) -> None:
    async def answer(received: Received) -> None:
        await received.send(data)
        await received.stream.aclose()

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        client = proxy.client()
        await client.send()
        got = await client.rest()
        # What began before that was seen is cut.
        assert b"in_doubt" in got if data in AMBIGUOUS else not got.endswith(b"0\r\n\r\n")
        record = await proxy.record()
        assert record is not None
        assert record.state is State.DOUBTED
        assert len(proxy.upstream.requests) == 1


@pytest.mark.parametrize("size", [65_536, 65_537, 70_000, 100_000, 125_000, 200_000])
async def test_an_answers_header_has_its_limit(autojump_clock: MockClock, size: int) -> None:
    assert ANSWER_HEADER_BYTES_MAX == 65_536
    start = START + b"Content-Length: 2\r\nA: "

    async def answer(received: Received) -> None:
        await received.send(start + b"x" * (size - len(start)) + b"\r\n\r\n{}")

    async with proxying(autojump_clock, behaviour=answer) as proxy:
        client = proxy.client()
        await client.send(headers=[("Connection", "close")])
        got = await client.rest()
        record = await proxy.record()
        assert record is not None
        if size <= ANSWER_HEADER_BYTES_MAX:
            assert (record.state, got.count(b"x"), got[-2:]) == (State.COMMITTED, size - len(start), b"{}")
        else:
            assert (record.state, got[:12]) == (State.DOUBTED, b"HTTP/1.1 409")
            assert record.reason == "the upstream's answer cannot be relied on: its header has more than 65536 bytes"


async def test_what_everybody_reads_alike_is_taken(autojump_clock: MockClock) -> None:
    """However it comes: in chunks with a trailer, byte by byte, and with a length that is said twice."""
    for key, data in (
        ("trailer", IN_CHUNKS + b"0\r\nX-Sum: 1\r\n\r\n"),
        ("plain", IN_CHUNKS + b"0\r\n\r\n"),
        ("twice", START + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
        ("old", b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
    ):

        async def answer(received: Received, data: bytes = data) -> None:
            for at in range(len(data)):
                await received.send(data[at : at + 1])

        async with proxying(autojump_clock, behaviour=answer) as proxy:
            client = proxy.client()
            assert (await client.call(key=key)).body == b"{}"
            assert (await client.call(key=key)).header("Idempotent-Replayed") == ["true"]
            await client.call(key="next")
            # HTTP/1.0 keeps no connection; all the others are good for another request.
            assert proxy.upstream.connections == (2 if key == "old" else 1)
