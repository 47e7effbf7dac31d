"""The task that reads for all plain connections of a door, on real sockets that nothing else is read from."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

from idemactor.server.lane import (
    GLANCE_AFTER_S,
    LOOK_MS_MAX,
    READ_BYTES,
    REST,
    REST_S_MAX,
    SHARED_LOOK_MS_MAX,
    SHARED_READ_BYTES,
    WORKER_READ_BYTES,
    YOUNG_COMMANDS_MAX,
    Lane,
)
from idemactor.shard.company import Company
from idemactor.shard.mailbox import Envelope

CONNECTIONS = 74
ENVELOPE = cast("Envelope", object())


class Reader:
    """Remembers what it was told."""

    whose: str | None = ""

    def __init__(self, lane: Lane, *, envelopes: int = 0) -> None:
        self.got = b""
        self.reads = 0
        self.ends = 0
        self.leaves = 0
        self._lane = lane
        self._envelopes = envelopes

    def received(self, data: bytes) -> None:
        self.reads += 1
        self.got += data
        if self._envelopes:
            self._lane.route([ENVELOPE] * self._envelopes)

    def left(self) -> None:
        self.leaves += 1

    def ended(self) -> None:
        self.ends += 1


class Rude(Reader):
    """Has a bug."""

    def received(self, data: bytes) -> None:
        raise KeyError(data)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@contextlib.contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@contextlib.asynccontextmanager
async def reading(lane: Lane) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(lane.run)
        yield
        nursery.cancel_scope.cancel()


def nowhere(_: Sequence[Envelope]) -> Mapping[str, int]:
    raise AssertionError("nothing is routed here")


def taking(routed: list[int], *refused: str) -> Callable[[Sequence[Envelope]], Mapping[str, int]]:
    """Notes how many envelopes came together; one of each tenant of ``refused`` finds no room."""

    def route(envelopes: Sequence[Envelope]) -> Mapping[str, int]:
        routed.append(len(envelopes))
        return dict.fromkeys(refused, 1)

    return route


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked(0.001)


async def test_what_one_look_brings_goes_to_the_shards_together() -> None:
    routed: list[int] = []
    lane = Lane(taking(routed))
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(pair()) for _ in range(5)]
        async with reading(lane):
            for ours, theirs in pairs:
                lane.watch(ours.fileno(), Reader(lane, envelopes=2))
                theirs.send(b"x")
            await settled()
            assert routed == [10]
            # Outside of a look nothing waits for one.
            lane.route([ENVELOPE])
            assert routed == [10, 1]


async def test_python_looks_for_cycles_after_so_many_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[int] = []
    monkeypatch.setattr("idemactor.server.lane.gc.collect", generations.append)
    lane = Lane(taking([]))
    with pair() as (ours, theirs):
        lane.watch(ours.fileno(), Reader(lane, envelopes=YOUNG_COMMANDS_MAX // 2))
        async with reading(lane):
            for _ in range(6):
                theirs.send(b"x")
                await settled()
    assert generations == [0] * 3


async def test_the_end_is_told_once_and_after_everything_that_was_sent() -> None:
    lane = Lane(nowhere)
    with pair() as (ours, theirs):
        reader = Reader(lane)
        async with reading(lane):
            theirs.sendall(b"x" * 100_000)
            theirs.close()
            lane.watch(ours.fileno(), reader)
            await settled()
            assert (len(reader.got), reader.ends) == (100_000, 1)
            lane.leave(ours.fileno())


async def test_a_reset_is_an_end() -> None:
    lane = Lane(nowhere)
    with tcp_pair() as (ours, theirs):
        reader = Reader(lane)
        lane.watch(ours.fileno(), reader)
        async with reading(lane):
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            await settled()
            assert (reader.got, reader.ends) == (b"", 1)


async def test_pause_and_resume() -> None:
    lane = Lane(nowhere)
    with pair() as (ours, theirs):
        reader = Reader(lane)
        async with reading(lane):
            lane.watch(ours.fileno(), reader)
            lane.pause(ours.fileno())
            theirs.send(b"x")
            await settled()
            assert reader.got == b""
            lane.resume(ours.fileno())
            await settled()
            assert reader.got == b"x"


@pytest.mark.parametrize("pairs", [pair, tcp_pair])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_paused_client_that_hangs_up_does_not_keep_the_lane_awake(pairs: Any, reset: bool) -> None:
    lane = Lane(nowhere)
    with pairs() as (ours, theirs):
        reader = Reader(lane)
        async with reading(lane):
            lane.watch(ours.fileno(), reader)
            lane.pause(ours.fileno())
            theirs.send(b"x" * 1_000)
            if reset:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()
            # With a hang-up that is reported again and again there would always be a task to run.
            with trio.fail_after(10):
                await settled()
            assert reader.reads <= 1
            lane.resume(ours.fileno())
            await settled()
            assert reader.ends == 1


async def test_who_left_is_never_read_and_late_words_harm_nobody() -> None:
    lane = Lane(nowhere)
    with pair() as (ours, theirs):
        reader, fd = Reader(lane), ours.fileno()
        async with reading(lane):
            for _ in range(2):
                lane.pause(fd)
                lane.resume(fd)
                lane.leave(fd)
                lane.watch(fd, reader)
                lane.leave(fd)
            theirs.send(b"x")
            await settled()
            assert (reader.reads, reader.ends) == (0, 0)
            assert ours.recv(10) == b"x"


async def test_a_number_that_is_used_again_is_another_connection() -> None:
    lane = Lane(nowhere)
    async with reading(lane):
        first, second = Reader(lane), Reader(lane)
        with pair() as (ours, _):
            number = ours.fileno()
            lane.watch(number, first)
            lane.leave(number)
        with pair() as (ours, theirs):
            assert ours.fileno() == number
            lane.watch(number, second)
            theirs.send(b"x")
            await settled()
            lane.leave(number)
        assert (first.got, second.got) == (b"", b"x")


async def test_a_bug_in_one_reader_ends_that_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    routed: list[int] = []
    lane = Lane(taking(routed))
    with pair() as (ours, theirs), pair() as (others, far):
        rude, reader = Rude(lane), Reader(lane, envelopes=1)
        async with reading(lane):
            lane.watch(ours.fileno(), rude)
            lane.watch(others.fileno(), reader)
            theirs.send(b"x")
            far.send(b"x")
            await settled()
            assert (rude.ends, reader.got, routed) == (1, b"x", [1])
            theirs.send(b"x")
            far.send(b"y")
            await settled()
            assert (rude.ends, reader.got, routed) == (1, b"xy", [1, 1])
    assert "could not be handled" in caplog.text


async def test_the_busiest_do_not_keep_others_from_being_read() -> None:
    lane = Lane(nowhere)
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(pair()) for _ in range(CONNECTIONS)]
        readers = [Reader(lane) for _ in busy]
        for (ours, theirs), reader in zip(busy, readers, strict=True):
            theirs.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    theirs.send(b"x" * READ_BYTES)
            lane.watch(ours.fileno(), reader)
        async with reading(lane):
            while not all(reader.reads for reader in readers):
                await trio.lowlevel.checkpoint()
                assert max(reader.reads for reader in readers) <= 2 + max(1, min(reader.reads for reader in readers))


async def test_tenants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many connections one of them has, the other's is read next."""
    now, lane, turns = 0.0, Lane(nowhere), list[str | None]()
    monkeypatch.setattr("idemactor.server.lane.time.monotonic", lambda: now)

    class Slow(Reader):
        def received(self, data: bytes) -> None:
            nonlocal now
            super().received(data)
            now += LOOK_MS_MAX / 1_000
            turns.append(self.whose)

    with contextlib.ExitStack() as stack:
        for number in range(20):
            ours, theirs = stack.enter_context(pair())
            theirs.send(b"x" * 3 * READ_BYTES)
            reader = Slow(lane)
            reader.whose = "quiet" if number == 19 else "loud"
            lane.watch(ours.fileno(), reader)
        async with reading(lane):
            await settled()
    assert turns[:6] in (["loud", "quiet"] * 3, ["quiet", "loud"] * 3)
    assert len(turns) == 60


async def test_it_rests_when_it_reads_more_than_there_is_room_for(mock_clock: trio.testing.MockClock) -> None:
    routed: list[int] = []
    lane = Lane(taking(routed, ""))

    class Slow(Reader):
        def received(self, data: bytes) -> None:
            super().received(data)
            end = time.monotonic() + 0.002
            while time.monotonic() < end:
                pass

    with pair() as (ours, theirs):
        lane.watch(ours.fileno(), Slow(lane, envelopes=1))
        async with reading(lane):
            for number in range(1, 4):
                theirs.send(b"x")
                await settled()
                assert len(routed) == number
                theirs.send(b"y")
                await settled()
                assert len(routed) == number, "it did not rest"
                mock_clock.jump(REST * 0.0019)
                await settled()
                assert len(routed) == number, "it rested too little"
                mock_clock.jump(60)
                await settled()
                routed.pop()
                mock_clock.jump(60)
                await settled()


async def test_who_is_refused_rests_alone(mock_clock: trio.testing.MockClock) -> None:
    lane = Lane(taking([], "loud"))
    with pair() as (ours, theirs), pair() as (others, far):
        loud, quiet = Reader(lane, envelopes=1), Reader(lane)
        loud.whose, quiet.whose = "loud", "quiet"
        lane.watch(ours.fileno(), loud)
        lane.watch(others.fileno(), quiet)
        async with reading(lane):
            theirs.send(b"x")
            await settled()
            theirs.send(b"y")
            far.send(b"a")
            await settled()
            assert (loud.got, quiet.got) == (b"x", b"a")
            mock_clock.jump(60)
            await settled()
            assert loud.got == b"xy"
            # Whom it does not read from may leave, and its number be another's.
            theirs.send(b"z")
            far.send(b"b")
            await settled()
            assert (loud.got, quiet.got) == (b"xy", b"ab")
            lane.leave(ours.fileno())
            lane.watch(ours.fileno(), loud)
            await settled()
            assert loud.got == b"xyz"


@pytest.mark.parametrize("spent_s", [0.001, 10.0])
async def test_a_rest_is_as_long_as_its_share_of_what_was_read_in_vain(
    mock_clock: trio.testing.MockClock, spent_s: float
) -> None:
    now, lane = 0.0, Lane(taking([], "loud"))
    with pair() as (ours, theirs), pytest.MonkeyPatch.context() as patch:
        patch.setattr("idemactor.server.lane.time.monotonic", lambda: now)

        class Slow(Reader):
            def received(self, data: bytes) -> None:
                nonlocal now
                super().received(data)
                now += spent_s

        reader = Slow(lane, envelopes=4)
        reader.whose = "loud"
        lane.watch(ours.fileno(), reader)
        async with reading(lane):
            theirs.send(b"x")
            await settled()
            theirs.send(b"y")
            await settled()
            # One of four was refused.
            mock_clock.jump(min(REST * spent_s / 4, REST_S_MAX) - 0.0001)
            await settled()
            assert reader.got == b"x"
            mock_clock.jump(0.0002)
            await settled()
            assert reader.got == b"xy"


async def test_a_connection_that_speaks_for_somebody_else_stands_in_the_others_line(
    mock_clock: trio.testing.MockClock,
) -> None:
    lane = Lane(taking([], "loud"))

    class Changing(Reader):
        def received(self, data: bytes) -> None:
            super().received(data)
            self.whose = {b"l": "loud", b"q": "quiet"}.get(data[-1:], self.whose)

    with pair() as (ours, theirs), pair() as (others, far):
        changing, loud = Changing(lane), Reader(lane, envelopes=1)
        loud.whose = "loud"
        lane.watch(ours.fileno(), changing)
        lane.watch(others.fileno(), loud)
        async with reading(lane):
            theirs.send(b"l")
            await settled()
            far.send(b"x")
            await settled()
            theirs.send(b"q")
            await settled()
            assert changing.got == b"l", "it does not rest with its tenant"
            mock_clock.jump(60)
            await settled()
            assert changing.got == b"lq"
            far.send(b"y")
            await settled()
            theirs.send(b"z")
            await settled()
            assert changing.got == b"lqz", "it rests with somebody else"
            lane.pause(ours.fileno())
            theirs.send(b"l")
            await settled()
            assert changing.got == b"lqz"


class Watched(Lane):
    """A lane that counts what each look brings."""

    def __init__(self, company: Company) -> None:
        super().__init__(nowhere, company)
        self.looked: list[list[object]] = []

    def _look(self, started: float) -> Mapping[str, float]:
        self.looked.append([])
        return super()._look(started)


async def test_where_tenants_share_reads_and_looks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    now, company = 0.0, Company()
    monkeypatch.setattr("idemactor.server.lane.time.monotonic", lambda: now)
    lane = Watched(company)

    class Slow(Reader):
        def received(self, data: bytes) -> None:
            nonlocal now
            lane.looked[-1].append(len(data))
            now += SHARED_LOOK_MS_MAX / 1_000

    with contextlib.ExitStack() as stack:
        far = []
        for _ in range(8):
            ours, theirs = stack.enter_context(pair())
            lane.watch(ours.fileno(), Slow(lane))
            far.append(theirs)
        async with reading(lane):
            for shared, most in ((False, READ_BYTES), (True, SHARED_READ_BYTES)):
                if shared:
                    company.heard("a")
                    company.heard("b")
                for theirs in far:
                    theirs.send(b"x" * most)
                lane.looked.clear()
                while sum(map(len, lane.looked)) < len(far):
                    await trio.lowlevel.checkpoint()
                looks = [found for found in lane.looked if found]
                assert [size for found in looks for size in found] == [most] * len(far)
                assert max(map(len, looks)) == (1 if shared else LOOK_MS_MAX)


async def test_who_asks_for_little_is_read_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now, company, routed = 100.0, Company(), list[int]()
    monkeypatch.setattr("idemactor.server.lane.time.monotonic", lambda: now)
    lane = Lane(taking(routed), company)
    with pair() as (ours, theirs), pair() as (our_quiet, their_quiet):
        readers = [Reader(lane, envelopes=1) for _ in range(2)]
        for reader, whose, sock in zip(readers, ("loud", "quiet"), (ours, our_quiet), strict=True):
            reader.whose = whose
            lane.watch(sock.fileno(), reader)
        async with reading(lane):
            theirs.send(b"a")
            await settled()
            for sock in (theirs, their_quiet):
                sock.send(b"b")
            now += GLANCE_AFTER_S / 2
            company.glance()
            assert [reader.got for reader in readers] == [b"a", b""], "nobody is in a hurry"
            company.press(0)
            company.glance()
            assert [reader.got for reader in readers] == [b"a", b"b"]
            assert routed == [1, 1], "what was read went on at once"
            their_quiet.send(b"c")
            company.glance()
            assert [reader.got for reader in readers] == [b"a", b"b"], "both were read a moment ago"
            await settled()
            assert [reader.got for reader in readers] == [b"ab", b"bc"]
            # Its line ends in the middle of a glance.
            now += 2 * GLANCE_AFTER_S
            their_quiet.close()
            company.glance()
            assert [reader.ends for reader in readers] == [0, 1]
            company.glance()
        # The lane is gone.
        company.glance()


async def test_another_worker_is_read_in_large_pieces_whoever_is_served() -> None:
    company = Company()
    company.heard("a")
    company.heard("b")
    company.press(0)
    lane = Watched(company)

    class Heard(Reader):
        def received(self, data: bytes) -> None:
            lane.looked[-1].append((self.whose, len(data)))

    with contextlib.ExitStack() as stack:
        for whose in ("loud", None):
            ours, theirs = stack.enter_context(pair())
            reader = Heard(lane)
            reader.whose = whose
            lane.watch(ours.fileno(), reader)
            theirs.send(b"x" * WORKER_READ_BYTES)
        async with reading(lane):
            await settled()
        first = next(filter(None, lane.looked))
        assert first == [("loud", SHARED_READ_BYTES), (None, WORKER_READ_BYTES)]


async def test_while_a_shard_is_pressed_each_tenant_is_read_once_in_a_look() -> None:
    company = Company()
    lane = Watched(company)

    class Heard(Reader):
        def received(self, data: bytes) -> None:
            super().received(data)
            lane.looked[-1].append(self.whose)

    with contextlib.ExitStack() as stack:
        far = []
        for tenant in ["loud"] * 8 + ["quiet"]:
            ours, theirs = stack.enter_context(pair())
            reader = Heard(lane)
            reader.whose = tenant
            lane.watch(ours.fileno(), reader)
            far.append(theirs)
        async with reading(lane):
            for pressed in (False, True):
                if pressed:
                    company.press(0)
                lane.looked.clear()
                for theirs in far:
                    theirs.send(b"x")
                while sum(map(len, lane.looked)) < len(far):
                    await trio.lowlevel.checkpoint()
                first = next(filter(None, lane.looked))
                assert sorted(map(str, first)) == (["loud", "quiet"] if pressed else ["loud"] * 8 + ["quiet"])


async def test_a_look_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(nowhere)
    now = 0.0
    monkeypatch.setattr("idemactor.server.lane.time.monotonic", lambda: now)
    looks: list[int] = []

    class Slow(Reader):
        def received(self, data: bytes) -> None:
            nonlocal now
            super().received(data)
            now += 0.001
            looks[-1] += 1

    async def count() -> None:
        while True:
            looks.append(0)
            await trio.lowlevel.checkpoint()

    with contextlib.ExitStack() as stack:
        readers = []
        for _ in range(3 * CONNECTIONS):
            ours, theirs = stack.enter_context(pair())
            theirs.send(b"x")
            readers.append(Slow(lane))
            lane.watch(ours.fileno(), readers[-1])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            async with reading(lane):
                while not all(reader.reads for reader in readers):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    # Between two turns of another task there may be two looks.
    assert max(looks) <= 2 * (LOOK_MS_MAX + 1)


async def test_a_thousand_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    routed: list[int] = []
    lane = Lane(taking(routed))
    try:
        with contextlib.ExitStack() as stack:
            pairs = [stack.enter_context(pair()) for _ in range(1_000)]
            readers = [Reader(lane, envelopes=1) for _ in pairs]
            async with reading(lane):
                for (ours, theirs), reader in zip(pairs, readers, strict=True):
                    lane.watch(ours.fileno(), reader)
                    theirs.send(b"x")
                while not all(reader.reads for reader in readers):
                    await trio.lowlevel.checkpoint()
                assert sum(routed) == 1_000
                for ours, theirs in pairs[::2]:
                    lane.leave(ours.fileno())
                    theirs.close()
                for _, theirs in pairs[1::2]:
                    theirs.close()
                while sum(reader.ends for reader in readers) < 500:
                    await trio.lowlevel.checkpoint()
                assert all(reader.ends == number % 2 for number, reader in enumerate(readers))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lane_that_is_over_harms_nobody() -> None:
    lane = Lane(nowhere)
    with pair() as (ours, _):
        async with reading(lane):
            lane.watch(ours.fileno(), Reader(lane))
        lane.pause(ours.fileno())
        lane.resume(ours.fileno())
        lane.leave(ours.fileno())
