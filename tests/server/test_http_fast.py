"""A connection of the fast HTTP lane from its first byte to its last, on real sockets and a clock that a test moves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from idemactor.core.replies import Overloaded
from idemactor.observability.observer import NOBODY
from idemactor.server import http_fast_connection, operations
from idemactor.server.context import ServerContext
from idemactor.server.http_app import build_app
from idemactor.server.http_fast import FastDoor, FastLimits
from idemactor.server.http_guard import HttpDoor
from idemactor.server.listeners import guard_connection
from idemactor.server.rpc_door import RpcDoor, RpcLimits
from idemactor.shard.mailbox import Envelope
from idemactor.shard.router import Router
from idemactor.wire.http_head import HEAD_BYTES_MAX
from tests.server.rig import START_MS, TOKENS, Rig, leaves_nothing_behind, running
from tests.server.test_http_parity import call, post, read_reply
from tests.server.test_rpc_door import Failures
from tests.server.test_rpc_door import reserve as rpc_reserve

LIMITS = FastLimits()
GET = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n"
SMALL_BUFFER = 4_096


class Recording(HttpDoor):
    """A guard that only remembers what it was given, and what came after that."""

    def __init__(self) -> None:
        super().__init__(build_app(cast("ServerContext", SimpleNamespace(tracing=None))))
        self.given: list[bytes] = []
        self.got: list[bytes] = []

    async def handle(self, stream: trio.abc.Stream, preread: bytearray | None = None) -> None:
        got = bytes(preread or b"")
        self.given.append(got)
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await stream.receive_some(65_536):
                got += data
        self.got.append(got)
        await stream.aclose()


class Client:
    """The other end of a connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._had = bytearray()

    async def send(self, *requests: bytes) -> None:
        await self.stream.send_all(b"".join(requests))

    async def answer(self) -> tuple[int, Any]:
        status, fields, body = await read_reply(self.stream, self._had)
        self.closing = b"connection: close" in fields
        return int(status.split()[1]), json.loads(body)

    async def is_over(self) -> bool:
        """Whether nothing but the end comes."""
        return not self._had and not await self.stream.receive_some(65_536)

    async def reset(self) -> None:
        """With a linger of 0 seconds, closing sends a reset."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.stream.aclose()


class Server:
    """A fast door in front of a guarded one."""

    def __init__(self, rig: Rig, nursery: trio.Nursery, limits: FastLimits, guarded: HttpDoor) -> None:
        self.rig = rig
        self.guarded = guarded
        self.door = FastDoor(rig.context, guarded, limits)
        self.failures = Failures()
        self.begun = self.over = 0
        self._nursery = nursery

    def connect(self) -> Client:
        ours, theirs = trio.socket.socketpair()
        return self.attend(trio.SocketStream(ours), trio.SocketStream(theirs))

    async def connect_tcp(self) -> Client:
        with trio.socket.socket() as listening:
            await listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            theirs = trio.socket.socket()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
            await theirs.connect(listening.getsockname())
            ours, _ = await listening.accept()
        return self.attend(trio.SocketStream(ours), trio.SocketStream(theirs))

    def attend(self, ours: trio.abc.Stream, theirs: trio.SocketStream) -> Client:
        self._nursery.start_soon(self._serve, ours)
        return Client(theirs)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        self.begun += 1
        await guard_connection(stream, self.door.handle, "here", self.failures)
        self.over += 1

    def counted(self, name: str) -> float:
        lines = self.rig.context.metrics.render([], START_MS).decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@contextlib.asynccontextmanager
async def serving(
    clock: MockClock, limits: FastLimits = LIMITS, *, guarded: HttpDoor | None = None, **options: Any
) -> AsyncIterator[Server]:
    async with running(clock, **{"shards": 1, **options}) as rig, trio.open_nursery() as nursery:
        server = Server(rig, nursery, limits, guarded or HttpDoor(build_app(rig.context)))
        async with server.door.lane():
            yield server
            nursery.cancel_scope.cancel()
        assert server.failures.seen == []


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked(0.001)


async def later(clock: MockClock, ms: float) -> None:
    await settled()
    clock.jump(ms / 1_000)
    await settled()


# ------------------------------------------------------------------------------------------------------- handed over

UNUSUAL = [
    GET,
    call("reserve", b"Transfer-Encoding: chunked", key="k"),
    call("reserve", b"Content-Length: 1", key="k"),
    call("reserve", b"X: a\r\n b", key="k"),
    call("reserve", b"X: a\0b", key="k"),
    call("reserve", b"X: a\nb", key="k"),
    call("reserve", b"X: a\rb", key="k"),
    call("reserve", b"Expect: 100-continue", key="k"),
    call("reserve", b"Connection: upgrade", b"Upgrade: h2c", b"HTTP2-Settings: AAMA", key="k"),
    call("reserve", b"X: " + b"a" * HEAD_BYTES_MAX, key="k"),
    call("reserve", *[b"X: a"] * 98, key="k"),
    call("get", key="k"),
    b"\r\n" + call("reserve", key="k"),
    b"\r\n\r\n" + call("reserve", key="k"),
    call("reserve", key="k").replace(b"POST ", b"POST  "),
    call("reserve", key="k").replace(b"POST", b"post"),
    call("reserve", key="k").replace(b"HTTP/1.1", b"HTTP/1.0"),
    call("reserve", key="k").replace(b"/v1", b"http://test/v1"),
    post("/v1/default/reserve", b""),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"a" * (HEAD_BYTES_MAX + 1),
    bytes(range(256)) + b"\r\n\r\n",
]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("number", range(len(UNUSUAL)))
async def test_what_is_unusual_is_handed_over_whole(number: int, before: int, mock_clock: MockClock) -> None:
    guarded = Recording()
    rest = UNUSUAL[number] + call("reserve", key="behind it")
    async with serving(mock_clock, guarded=guarded) as server:
        client = server.connect()
        await client.send(*[call("reserve", key=str(n)) for n in range(before)], rest)
        assert [(await client.answer())[0] for _ in range(before)] == [201] * before
        await client.stream.send_eof()
        assert await client.is_over()
        assert guarded.got == [rest]


@pytest.mark.parametrize("number", range(len(UNUSUAL)))
async def test_what_is_unusual_is_handed_over_whole_however_it_comes(number: int, mock_clock: MockClock) -> None:
    guarded = Recording()
    first, rest = call("reserve", key="k"), UNUSUAL[number] + call("reserve", key="behind it")
    rng = random.Random(number)
    async with serving(mock_clock, guarded=guarded) as server:
        for _ in range(4):
            client, whole = server.connect(), first + rest
            while whole:
                size = rng.choice((1, 5, 40, 200, 20_000))
                await client.send(whole[:size])
                whole = whole[size:]
                await trio.testing.wait_all_tasks_blocked()
            assert (await client.answer())[0] in (201, 409)
            await client.stream.send_eof()
            assert await client.is_over()
            assert guarded.got.pop() == rest


async def test_a_request_cut_anywhere_is_one_request(mock_clock: MockClock) -> None:
    async with serving(mock_clock, guarded=Recording()) as server:
        client = server.connect()
        whole = call("accept", key="k", request_id="r", outcome={"status": 200, "body": "\r\n\r\nPOST "})
        for cut in range(1, len(whole)):
            await client.send(whole[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await client.send(whole[cut:])
            assert (await client.answer())[0] == 201
        for byte in whole:
            await client.send(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.answer())[0] == 201


async def test_who_sends_slowly_is_handed_over_after_whole_ms(mock_clock: MockClock) -> None:
    guarded = Recording()
    request = call("reserve", key="k")
    async with serving(mock_clock, guarded=guarded) as server:
        for cut in (1, 20, len(request) - 1):
            client = server.connect()
            await client.send(request, request[:cut])
            await client.answer()
            await later(mock_clock, LIMITS.whole_ms - 1)
            assert guarded.given == []
            await later(mock_clock, 2)
            assert guarded.given == [request[:cut]]
            await client.send(request[cut:])
            await client.stream.send_eof()
            assert await client.is_over()
            assert guarded.got == [request]
            guarded.given, guarded.got = [], []


async def test_each_request_has_its_own_time(mock_clock: MockClock) -> None:
    request = call("reserve", key="k")
    async with serving(mock_clock, guarded=Recording()) as server:
        client = server.connect()
        await client.send(request[:9])
        for _ in range(4):
            await later(mock_clock, LIMITS.whole_ms * 0.9)
            await client.send(request[9:], request[:9])
            assert (await client.answer())[0] in (201, 409)


async def test_all_answers_arrive_before_a_slow_reader_is_handed_over(mock_clock: MockClock) -> None:
    guarded = Recording()
    body = "x" * 60_000
    async with serving(mock_clock, guarded=guarded) as server:
        client = await server.connect_tcp()
        await client.send(call("accept", key="k", outcome={"status": 200, "body": body}))
        await client.answer()
        await client.send(*[call("reserve", key="k")] * 100, GET)
        for _ in range(100):
            # Slower than one write_ms for everything, faster than one for each piece.
            await later(mock_clock, LIMITS.write_ms / 4)
            assert (await client.answer())[1]["outcome"]["body"] == body
        await client.stream.send_eof()
        assert await client.is_over()
        assert guarded.got == [GET]


async def test_who_does_not_read_is_not_handed_over_behind_half_an_answer(mock_clock: MockClock) -> None:
    guarded = Recording()
    async with serving(mock_clock, guarded=guarded) as server:
        client = await server.connect_tcp()
        await client.send(call("accept", key="k", outcome={"status": 200, "body": "x" * 60_000}))
        await client.send(*[call("reserve", key="k")] * 3, GET)
        await later(mock_clock, 10)
        await client.send(*[call("reserve", key="k")] * 200)
        for _ in range(5):
            await later(mock_clock, LIMITS.write_ms)
        assert (server.over, guarded.given) == (1, [])


async def test_the_guard_goes_on_where_the_fast_lane_ended(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        client = server.connect()
        await client.send(call("reserve", key="k"), call("get", key="k"), call("reserve", key="k"))
        assert [(await client.answer())[0] for _ in range(3)] == [201, 200, 409]
        assert server.begun - server.over == 1
        await client.stream.aclose()
        await settled()
        assert server.over == 1


async def test_other_streams_go_to_the_guard_at_once(mock_clock: MockClock) -> None:
    guarded = Recording()
    async with serving(mock_clock, guarded=guarded) as server:
        ours, theirs = trio.testing.memory_stream_pair()
        server.attend(ours, cast("trio.SocketStream", None))
        await theirs.send_all(call("reserve", key="k"))
        await settled()
        assert guarded.given == [b""]
        await theirs.send_eof()
        await settled()
        assert guarded.got == [call("reserve", key="k")]


async def test_tls_goes_to_the_guard_at_once(mock_clock: MockClock) -> None:
    guarded = Recording()
    async with serving(mock_clock, guarded=guarded) as server:
        ours, theirs = trio.socket.socketpair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.attend(trio.SSLStream(trio.SocketStream(ours), context, server_side=True), trio.SocketStream(theirs))
        await settled()
        assert guarded.given == [b""]
        theirs.close()


# ---------------------------------------------------------------------------------------------------------- pipelines


async def test_a_pipeline_keeps_its_order(mock_clock: MockClock) -> None:
    async with serving(mock_clock, shards=3) as server:
        client = server.connect()
        await client.send(*(call("reserve", key=str(n)) for n in range(100)))
        assert [(await client.answer())[1]["key"] for _ in range(100)] == [str(n) for n in range(100)]


@pytest.mark.parametrize("options", [{"mailbox_max": 0}, {"tokens": TOKENS}])
async def test_a_long_pipeline_of_refusals(options: dict[str, Any], autojump_clock: MockClock) -> None:
    async with serving(autojump_clock, **options) as server, trio.open_nursery() as nursery:
        client = server.connect()
        nursery.start_soon(client.send, call("reserve", key="k") * 5_000)
        status = 401 if "tokens" in options else 503
        for _ in range(5_000):
            assert (await client.answer())[0] == status
        if status == 401:
            assert server.counted("idemactor_refused_total") == 5_000


async def test_a_pipeline_is_not_read_ahead_without_bound(mock_clock: MockClock) -> None:
    async with serving(mock_clock, run=False) as server:
        client = server.connect()
        sent = 0
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:

                async def flood() -> None:
                    nonlocal sent
                    while True:
                        await client.send(call("reserve", key="k") * 100)
                        sent += 100 * len(call("reserve", key="k"))

                nursery.start_soon(flood)
                await later(mock_clock, 61_000)
        assert scope.cancelled_caught
        # What the sockets hold comes on top.
        assert sent < 1_000_000


async def send_what_it_takes(client: Client, data: bytes) -> None:
    """Until the server closes the connection."""
    with contextlib.suppress(trio.BrokenResourceError):
        await client.send(data)


async def test_no_more_is_answered_than_the_client_reads(mock_clock: MockClock) -> None:
    routed = 0
    async with serving(mock_clock) as server:
        client = await server.connect_tcp()
        await client.send(call("accept", key="k", outcome={"status": 200, "body": "x" * 60_000}))
        await client.answer()
        route = server.rig.context.router.route

        def count(envelopes: Sequence[Envelope]) -> Mapping[str, int]:
            nonlocal routed
            routed += len(envelopes)
            return route(envelopes)

        server.door._lane._route = count
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_what_it_takes, client, call("reserve", key="k") * 5_000)
                await settled()
                before = routed
                assert 3 < before < 200
                # Room for some more makes some more.
                for _ in range(20):
                    assert (await client.answer())[0] == 200
                await settled()
                assert before < routed < before + 40
                for _ in range(4):
                    await later(mock_clock, LIMITS.write_ms)
                assert server.over == 1
                nursery.cancel_scope.cancel()
        assert server.counted("idemactor_connection_failures_total") == 1


# ------------------------------------------------------------------------------------------------------------ the end


async def test_an_idle_connection_is_closed_and_one_that_waits_is_not(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        silent, idle, waiting = server.connect(), server.connect(), server.connect()
        await idle.send(call("reserve", key="k"))
        await idle.answer()
        await later(mock_clock, LIMITS.idle_ms - 10_000)
        await idle.send(call("reserve", key="k"))
        await waiting.send(call("reserve", key="k", wait_ms=60_000))
        await idle.answer()
        await later(mock_clock, 20_000)
        assert await silent.is_over()
        await later(mock_clock, 45_000)
        assert (await waiting.answer())[0] == 409
        await silent.stream.aclose()
        await settled()
        assert server.over == 1
        await later(mock_clock, LIMITS.idle_ms)
        await later(mock_clock, LIMITS.idle_ms)
        assert await idle.is_over()
        assert await waiting.is_over()
        await later(mock_clock, LIMITS.linger_ms)
        assert server.over == 3


async def test_half_closing_after_the_last_request_costs_no_answer(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        client = server.connect()
        await client.send(*(call("accept", key=str(n)) for n in range(20)), call("accept", key="cut")[:-1])
        await client.stream.send_eof()
        assert [(await client.answer())[0] for _ in range(20)] == [201] * 20
        assert await client.is_over()
        other = server.connect()
        await other.send(call("commit", key="cut", token=1))
        assert (await other.answer())[0] == 404


@pytest.mark.parametrize("behind", [b"", call("accept", key="behind")])
async def test_who_hangs_up_while_waiting_is_never_granted(behind: bytes, mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        holder, gone = server.connect(), server.connect()
        await holder.send(call("reserve", key="k"))
        token = (await holder.answer())[1]["token"]
        await gone.send(call("reserve", key="k", wait_ms=50_000), behind)
        await settled()
        await gone.stream.aclose()
        await settled()
        await holder.send(call("release", key="k", token=token), call("reserve", key="k"))
        assert (await holder.answer())[0] == 200
        assert (await holder.answer())[1]["attempt"] == 1


@pytest.mark.parametrize("reset", [False, True])
async def test_what_was_read_whole_is_carried_out_though_the_caller_hangs_up(
    reset: bool, mock_clock: MockClock
) -> None:
    async with serving(mock_clock, run=False) as server, trio.open_nursery() as nursery:
        gone = await server.connect_tcp()
        await gone.send(call("reserve", key="k"))
        await settled()
        await (gone.reset() if reset else gone.stream.aclose())
        await settled()
        await later(mock_clock, LIMITS.linger_ms)
        assert server.over == 1
        await nursery.start(server.rig.context.router.run)
        other = server.connect()
        await other.send(call("reserve", key="k"))
        assert (await other.answer())[1]["result"] == "in_flight"
        nursery.cancel_scope.cancel()


async def test_clients_that_vanish_at_every_point(mock_clock: MockClock) -> None:
    whole = call("accept", key="k") + call("reserve", key="k") + GET
    async with serving(mock_clock) as server:
        for at in range(0, len(whole), 3):
            client = await server.connect_tcp()
            await client.send(whole[:at])
            if at % 2:
                await settled()
            await (client.reset() if at % 4 < 2 else client.stream.aclose())
        await later(mock_clock, LIMITS.whole_ms + 1)
        await later(mock_clock, 20_000)
        assert server.begun == server.over > 80
        healthy = server.connect()
        await healthy.send(call("reserve", key="k"))
        assert (await healthy.answer())[0] == 200


async def test_draining(mock_clock: MockClock) -> None:
    async with serving(mock_clock, run=False) as server, trio.open_nursery() as nursery:
        idle, half, busy = server.connect(), server.connect(), server.connect()
        await half.send(call("reserve", key="half")[:-1])
        await busy.send(call("reserve", key="taken"), call("reserve", key="not taken"))
        await settled()
        server.door.drain()
        for client in (idle, half):
            assert await client.is_over()
        await nursery.start(server.rig.context.router.run)
        server.rig.context.router.close()
        assert (await busy.answer())[1]["key"] == "taken"
        assert busy.closing
        assert await busy.is_over()
        late = server.connect()
        assert await late.is_over()
        for client in (idle, half, busy):
            await client.stream.aclose()
        await settled()
        assert server.over == 4


async def test_draining_does_not_wait_for_good(mock_clock: MockClock) -> None:
    async with serving(mock_clock, run=False) as server:
        client = server.connect()
        await client.send(call("reserve", key="k"))
        await settled()
        server.door.drain()
        await later(mock_clock, LIMITS.write_ms + 1)
        assert await client.is_over()
        await later(mock_clock, LIMITS.linger_ms + 1)
        assert server.over == 1


async def test_the_end_of_a_connection_whose_answers_are_not_read(mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        client = await server.connect_tcp()
        await client.send(call("accept", key="k", outcome={"status": 200, "body": "x" * 60_000}))
        await client.answer()
        await client.send(*[call("reserve", key="k")] * 100)
        await settled()
        await client.stream.send_eof()
        await settled()
        server.door.drain()
        # Writing is still under way then, and nothing else may touch the sending side.
        for _ in range(2):
            await later(mock_clock, LIMITS.linger_ms + 1)
        assert server.over == 1


# ---------------------------------------------------------------------------------------------------------- our bugs


@pytest.mark.parametrize("name", ["command_from", "answered"])
@pytest.mark.parametrize("pipelined", [False, True])
async def test_a_bug_closes_one_connection_and_leaves_shards_and_lane_alone(
    name: str, pipelined: bool, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = getattr(http_fast_connection, name)

    def rude(*args: Any, **kwargs: Any) -> Any:
        if "boom" in repr(args):
            raise KeyError("boom")
        return original(*args, **kwargs)

    monkeypatch.setattr(http_fast_connection, name, rude)
    async with serving(mock_clock) as server:
        client, other = server.connect(), server.connect()
        # Behind another request it is the shard that comes upon it, while it hands out answers.
        await client.send(*[call("reserve", key="first")] * pipelined, call("reserve", key="boom"))
        if pipelined:
            assert (await client.answer())[0] == 201
        assert await client.is_over()
        await other.send(call("reserve", key="k"))
        assert (await other.answer())[0] == 201
        await settled()
        assert server.over == 1
        assert server.counted("idemactor_connection_failures_total") == 1


async def test_a_bug_in_a_batch(mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def rude(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(operations.Batch, "body", rude)
    async with serving(mock_clock) as server:
        client, other = server.connect(), server.connect()
        await client.send(post("/v1/batch", {"ops": [{"op": "accept", "namespace": "default", "key": "k"}]}))
        assert await client.is_over()
        await other.send(call("reserve", key="k"))
        assert (await other.answer())[0] == 200


# ---------------------------------------------------------------------------------- descriptors that are used again


class Holding(Router):
    """A router that keeps everything for later."""

    def __init__(self) -> None:
        super().__init__((), NOBODY)
        self.held: list[Envelope] = []

    def route(self, envelopes: Sequence[Envelope]) -> Mapping[str, int]:
        self.held += envelopes
        return {}

    def answer(self) -> None:
        held, self.held = self.held, []
        for envelope in held:
            envelope.sink.deliver([(envelope.tag, Overloaded(1_000))])


class Reuse:
    """Sees to it that a socket's number is another connection's the very moment it is closed, and lets answers come."""

    def __init__(self, stream: trio.SocketStream, router: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
        self._number = stream.socket.fileno()
        self._close = stream.aclose
        self._router = router
        self._strangers: tuple[socket.socket, socket.socket] | None = None
        monkeypatch.setattr(stream, "aclose", self._aclose)

    async def _aclose(self) -> None:
        try:
            await self._close()
        finally:
            if self._strangers is None:
                self._strangers = socket.socketpair()
                assert self._number in [one.fileno() for one in self._strangers]
                self._router.answer()

    def strangers_got(self) -> bytes:
        got = b""
        assert self._strangers is not None
        for one in self._strangers:
            with one, contextlib.suppress(BlockingIOError):
                got += one.recv(1_000, socket.MSG_DONTWAIT)
        return got


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("door", ["http", "rpc"])
async def test_a_late_answer_never_reaches_another_connection(
    door: str, reset: bool, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(mock_clock, shards=1) as rig, trio.open_nursery() as nursery:
        router = Holding()
        context = dataclasses.replace(rig.context, router=router)
        fast = FastDoor(context, HttpDoor(build_app(context)))
        rpc = RpcDoor(context, RpcLimits())
        ours, theirs = trio.socket.socketpair()
        stream, client = trio.SocketStream(ours), Client(trio.SocketStream(theirs))
        reuse = Reuse(stream, router, monkeypatch)
        async with fast.lane(), rpc.lane():
            handle = fast.handle if door == "http" else rpc.handle
            nursery.start_soon(guard_connection, stream, handle, "here", Failures())
            await client.send(call("reserve", key="k") if door == "http" else rpc_reserve(1))
            await settled()
            assert len(router.held) == 1
            if reset:
                await client.stream.aclose()
            else:
                fast.drain()
                rpc.drain()
            for _ in range(3):
                await later(mock_clock, 20_000)
            assert reuse.strangers_got() == b""


async def test_a_paused_rpc_connection_that_is_drained_takes_its_late_answers(mock_clock: MockClock) -> None:
    async with running(mock_clock, shards=1) as rig, trio.open_nursery() as nursery:
        router = Holding()
        context = dataclasses.replace(rig.context, router=router)
        rpc = RpcDoor(context, RpcLimits(in_flight_max=1))
        ours, theirs = trio.socket.socketpair()
        async with rpc.lane():
            nursery.start_soon(rpc.handle, trio.SocketStream(ours))
            await trio.SocketStream(theirs).send_all(rpc_reserve(1) + rpc_reserve(2, "other"))
            await settled()
            rpc.drain()
            await settled()
            # A sink that raises would end the shard that has the answers.
            router.answer()
            await settled()
            assert b"IDEMPOTENCY_OVERLOADED" in await theirs.recv(1_000)
            theirs.close()
            nursery.cancel_scope.cancel()


async def test_thousands_of_connections(mock_clock: MockClock) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8_192)), hard))
    try:
        async with serving(mock_clock) as server:
            clients = [server.connect() for _ in range(1_500)]
            await settled()
            for n, client in enumerate(clients):
                await client.send(call("reserve", key=str(n)))
            for client in clients:
                assert (await client.answer())[0] == 201
            for client in clients:
                await client.stream.aclose()
            await settled()
            assert server.over == len(clients)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "last",
    [
        b"POST /v1/default/commit HTTP/1.1\r\n",
        GET,
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + bytes(50_000),
        b"\x00\r\n\r\n",
    ],
    ids=["half a head", "answered", "half a body", "garbage"],
)
async def test_nothing_of_a_closed_connection_waits_for_the_collector(last: bytes, mock_clock: MockClock) -> None:
    async with serving(mock_clock) as server:
        client = server.connect()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await leaves_nothing_behind(server, client, last)
