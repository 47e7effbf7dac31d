"""Requests over connections that were used before: every answer that is none, and what a connection is good for then.

The same is shown with streams in memory and with sockets, which are written and read directly.
"""

# ruff: noqa: ARG001 - Time is virtual for whoever asks for the clock.

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.dispatch.exchange import BODY_BYTES_MAX, Answer, TimedOut, exchange
from idemactor.gateway.proxy.call import Call, Link, Lost, NotSent, Outgoing
from idemactor.gateway.proxy.limits import ProxyLimits
from idemactor.gateway.proxy.routes import Origin
from idemactor.gateway.proxy.upstream import Upstream

ORIGIN = Origin("http", "upstream.test", 80)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"
WAYS = pytest.mark.parametrize("way", ["memory", "socket"])
Script = Callable[[trio.abc.Stream], Awaitable[None]]


@dataclass(slots=True)
class Far:
    """The other end: each connection answers its requests as its script says, one after the other."""

    nursery: trio.Nursery
    way: str
    scripts: list[list[Script]]
    requests: list[list[bytes]] = field(default_factory=list)
    streams: list[trio.abc.Stream] = field(default_factory=list)
    is_down: bool = False

    async def connect(self, _origin: Origin) -> trio.abc.Stream:
        if self.is_down:
            raise ConnectionRefusedError
        near: trio.abc.Stream
        far: trio.abc.Stream
        if self.way == "memory":
            near, far = trio.testing.memory_stream_pair()
        else:
            one, other = trio.socket.socketpair()
            # A request of some kilobytes does not fit in there at once.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            near, far = trio.SocketStream(one), trio.SocketStream(other)
        self.requests.append([])
        self.streams.append(far)
        await self.nursery.start(self._serve, far, self.scripts[len(self.requests) - 1], self.requests[-1])
        return near

    async def _serve(
        self, far: trio.abc.Stream, scripts: list[Script], seen: list[bytes], *, task_status: trio.TaskStatus[None]
    ) -> None:
        task_status.started()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for script in scripts:
                request = b""
                while not request.endswith(b"|end"):
                    piece = bytes(await far.receive_some(1_000))
                    if not piece:
                        return
                    request += piece
                seen.append(request)
                await script(far)


def says(*pieces: bytes, closes: bool = False) -> Script:
    """These bytes, in pieces, and perhaps the end of the connection."""

    async def script(far: trio.abc.Stream) -> None:
        for piece in pieces:
            await far.send_all(piece)
            await trio.lowlevel.checkpoint()
        if closes:
            await far.aclose()

    return script


@contextlib.asynccontextmanager
async def serving(way: str, *scripts: list[Script], concurrent: int = 1) -> AsyncIterator[tuple[Far, Upstream]]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            far = Far(nursery, way, list(scripts))
            yield far, Upstream(ORIGIN, ProxyLimits(concurrent_max=concurrent), far.connect)
            nursery.cancel_scope.cancel()


async def post(upstream: Upstream, body: bytes = b"", timeout_ms: int = 3_000) -> Answer:
    outgoing = Outgoing("POST", "/orders", (("Host", "upstream.test"),), body + b"|end")
    return await exchange(upstream, outgoing, trio.CancelScope(), timeout_ms)


def plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has an entry for each request that h11 had to do with."""
    found: list[bool] = []
    init = Call.__init__

    def counted(self: Call, link: Link, outgoing: Outgoing, *, reused: bool) -> None:
        found.append(reused)
        init(self, link, outgoing, reused=reused)

    monkeypatch.setattr(Call, "__init__", counted)
    return found


@WAYS
async def test_a_used_connection_needs_no_h11_and_sends_the_same(way: str, calls: list[bool]) -> None:
    async with serving(way, [says(OK)] * 4) as (far, upstream):
        for _ in range(4):
            assert (await post(upstream)).body == b"first"
        assert [len(seen) for seen in far.requests] == [4]
        assert len(set(far.requests[0])) == 1
        assert calls == [False]


@WAYS
@pytest.mark.parametrize(
    ("pieces", "status", "body"),
    [
        ([plain(b"whole")], 200, b"whole"),
        ([plain(b"")], 200, b""),
        (bytewise(plain(b"in bytes")), 200, b"in bytes"),
        ([b"HTTP/1.1 422 No\r\nContent-Length: 3\r\n\r\n", b"n", b"o!"], 422, b"no!"),
        ([plain(b"x" * 200_000)], 200, b"x" * 200_000),
        ([plain(b"x" * (BODY_BYTES_MAX + 1))], 200, None),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"], 200, b"abc"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", b"c\r\n0\r\n", b"\r\n"], 200, b"abc"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", plain(b"after")], 200, b"after"),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" + plain(b"after")], 200, b"after"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
    ],
)
async def test_what_is_a_whole_answer_leaves_the_connection_good(
    way: str, pieces: list[bytes], status: int, body: bytes | None
) -> None:
    async with serving(way, [says(OK), says(*pieces), says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        answer = await post(upstream)
        assert (answer.status, answer.body) == (status, body)
        assert (await post(upstream)).body == b"third"
        assert [len(seen) for seen in far.requests] == [3]


@WAYS
@pytest.mark.parametrize(
    ("pieces", "closes"),
    [
        ([plain(b"right") + b"x"], False),
        ([plain(b"right") + plain(b"wrong")], False),
        ([plain(b"ri"), plain(b"wrong")], False),
        ([plain(b"right").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")], False),
        ([plain(b"right").replace(b"1.1", b"1.0")], False),
        ([b"HTTP/1.1 200 OK\r\n\r\nright"], True),
    ],
)
async def test_an_answer_may_be_the_last_of_its_connection(way: str, pieces: list[bytes], closes: bool) -> None:
    async with serving(way, [says(OK), says(*pieces, closes=closes)], [says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        answer = await post(upstream)
        assert answer.body is not None
        assert answer.body[:2] == b"ri"
        if way == "memory" and len(pieces) > 1:
            # What comes later over a stream in memory nobody can see; over a socket it is.
            return
        # What came behind it is the answer to nothing.
        await trio.testing.wait_all_tasks_blocked()
        if not closes and len(pieces) == 1:
            assert await far.streams[0].receive_some(1) == b"", "it was left open"
        assert (await post(upstream)).body == b"third"
        assert [len(seen) for seen in far.requests] == [2, 1]


@WAYS
@pytest.mark.parametrize(
    ("pieces", "closes"),
    [
        ([], True),
        ([b"HTTP/1.1 200 OK\r\nContent-Le"], True),
        ([plain(b"half")[:-1]], True),
        (bytewise(plain(b"half")[:-1]), True),
        ([plain(b"half").replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n")], False),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"], True),
        ([b"\x00\x01 what?\r\n\r\n"], False),
        ([b"HTTP/1.1 101 Switching\r\n\r\n"], False),
        ([plain(b"half").replace(b"Length: 4", b"Length: -4")], False),
        # What h11 would have mended, in one piece and in several.
        ([plain(b"half").replace(b"\r\n", b"\n")], False),
        (bytewise(plain(b"half").replace(b"\r\n\r\n", b"\r\nX-Folded: a\r\n b\r\n\r\n")), False),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\r\n"], False),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\n\n"], False),
        ([b"HTTP/1.1 200 OK\r\nA: ", b"x" * 65_536, b"\r\nContent-Length: 4\r\n\r\nhalf"], False),
    ],
)
async def test_what_is_no_whole_answer_is_lost_and_not_unsent(way: str, pieces: list[bytes], closes: bool) -> None:
    async with serving(way, [says(OK), says(*pieces, closes=closes)], [says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        with pytest.raises(Lost):
            await post(upstream)
        assert (await post(upstream)).body == b"third"
        assert [len(seen) for seen in far.requests] == [2, 1]


@pytest.mark.parametrize("unasked", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize("is_down", [True, False])
async def test_a_connection_that_ended_between_requests_gets_none(unasked: bytes, is_down: bool) -> None:
    async with serving("socket", [says(OK)] * 2, [says(plain(b"second"))]) as (far, upstream):
        await post(upstream)
        if unasked:
            await far.streams[0].send_all(unasked)
        else:
            await far.streams[0].aclose()
        far.is_down = is_down
        if is_down:
            with pytest.raises(NotSent):
                await post(upstream)
        else:
            assert (await post(upstream)).body == b"second"
        assert [len(seen) for seen in far.requests] == [1] if is_down else [1, 1]


@WAYS
async def test_a_connection_that_ends_with_the_request_is_lost(way: str) -> None:
    async with serving(way, [says(OK), says(closes=True)]) as (far, upstream):
        await post(upstream)
        far.is_down = True
        with pytest.raises(Lost):
            await post(upstream)
        # And now nothing is sent at all.
        with pytest.raises(NotSent):
            await post(upstream)


async def test_a_request_that_does_not_fit_at_once_is_sent_whole() -> None:
    async with serving("socket", [says(OK)] * 2) as (far, upstream):
        await post(upstream)
        await post(upstream, b"y" * 60_000)
        head, _, body = far.requests[0][1].partition(b"\r\n\r\n")
        assert body == b"y" * 60_000 + b"|end"
        assert head.endswith(b"\r\nContent-Length: 60004")


async def test_a_large_request_goes_on_while_its_answer_is_read() -> None:
    async def early(far: trio.abc.Stream) -> None:
        await far.send_all(plain(b"early"))

    async with serving("memory", [says(OK), early], [says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        assert (await post(upstream, b"y" * 900_000)).body == b"early"
        assert far.requests[0][1].endswith(b"y|end")


@pytest.mark.parametrize("pieces", [[], [b"HTTP/1.1 200 OK\r\nContent-"], [plain(b"half")[:-1]]])
async def test_what_takes_too_long_is_given_up_with_its_connection(
    pieces: list[bytes], autojump_clock: MockClock
) -> None:
    async with serving("memory", [says(OK), says(*pieces)], [says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        began = trio.current_time()
        with pytest.raises(TimedOut):
            await post(upstream)
        assert trio.current_time() - began == 3
        # Its place is free, and what it may still say is for nobody.
        assert (await post(upstream)).body == b"third"
        assert [len(seen) for seen in far.requests] == [2, 1]


async def test_whoever_is_cut_off_leaves_its_place(autojump_clock: MockClock) -> None:
    async with serving("memory", [says(OK), says()], [says(plain(b"third"))]) as (far, upstream):
        await post(upstream)
        with trio.move_on_after(1) as scope:
            await post(upstream)
        assert scope.cancelled_caught
        assert (await post(upstream)).body == b"third"
        assert [len(seen) for seen in far.requests] == [2, 1]


async def test_a_place_is_taken_while_a_connection_is_used(autojump_clock: MockClock) -> None:
    async def waits() -> None:
        with pytest.raises(TimedOut):
            await post(upstream)

    async with serving("memory", [says(OK), says()], [says(OK)]) as (far, upstream), trio.open_nursery() as nursery:
        await post(upstream)
        nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotSent):
            await post(upstream, timeout_ms=1_000)
        assert [len(seen) for seen in far.requests] == [2]


async def test_a_connection_that_was_idle_for_too_long_is_not_used(autojump_clock: MockClock) -> None:
    async with serving("memory", [says(OK), says(plain(b"wrong"))], [says(plain(b"second"))]) as (far, upstream):
        await post(upstream)
        await trio.sleep(ProxyLimits().upstream_idle_ms / 1_000)
        assert (await post(upstream)).body == b"second"
        assert [len(seen) for seen in far.requests] == [1, 1]
