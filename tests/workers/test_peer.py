"""Two workers and what is between them: one hop, every call answered once, and nothing definite about what is lost."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest
import trio
import trio.testing

from idemactor.core.commands import Accept, Command, Commit, Extend, Forget, Get, Release, Reserve
from idemactor.core.keys import identity_hash, shard_of
from idemactor.core.queries import Inspect, Inspected, ListRecords, RecordsPage
from idemactor.core.record import Entry, Outcome
from idemactor.core.replies import Committed, Completed, InFlight, Overloaded, Released, Reserved, Unavailable, Unknown
from idemactor.observability.observer import NOBODY
from idemactor.server.backlog import not_kept
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Router
from idemactor.storage.base import Batch
from idemactor.storage.memory import MemoryEngine
from idemactor.wire.crossing import answer_of
from idemactor.workers import outgoing, peer
from idemactor.workers.incoming import UNREAD_BYTES_MAX, Incoming
from idemactor.workers.messages import Message, unpacker
from idemactor.workers.outgoing import UNAVAILABLE_RETRY_MS
from tests.shard.harness import NAMESPACE, TENANT, Call, identity, key_in, reserve
from tests.workers.rig import SHARDS, Worker, running

HERE, THERE = key_in(0, SHARDS), key_in(1, SHARDS)
"""A key of worker 0's, and one of worker 1's."""


def hold(disk: Any) -> trio.Event:
    """Let every commit of a disk wait until the event is set."""
    opened = trio.Event()

    async def wait(_: Batch) -> None:
        await opened.wait()

    disk.before_commit = wait
    return opened


async def settled() -> None:
    """Let everything run until only time, or the test, could bring anything new."""
    for _ in range(5):
        await trio.testing.wait_all_tasks_blocked(0.002)


def random_command(chance: random.Random, tokens: list[int]) -> Command:
    subject = identity(f"k{chance.randrange(12)}")
    token = chance.choice(tokens[-6:] or [1])
    commands: list[Command] = [
        Reserve(subject, request_id=f"r{chance.randrange(9)}", lease_ms=60_000),
        Reserve(subject, lease_ms=60_000),
        Accept(subject),
        Commit(subject, token),
        Release(subject, token),
        Extend(subject, token, 1_000),
        Get(subject),
        Forget(subject, force=chance.random() < 0.5),
    ]
    return chance.choice(commands)


@pytest.mark.parametrize("count", [2, 3])
async def test_it_does_not_matter_who_is_asked(count: int) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    tokens: list[int] = []
    async with running(1) as alone, running(count) as workers:
        for _ in range(400):
            command = random_command(chance, tokens)
            expected = await alone[0].one(command)
            answer = await chance.choice(workers).one(command)
            assert type(answer) is type(expected), f"seed {seed}: {command}"
            if isinstance(answer, Reserved):
                assert isinstance(expected, Reserved)
                assert answer.token == expected.token, f"seed {seed}: {command}"
                tokens.append(answer.token)


async def test_many_at_once_have_one_winner_and_one_answer_each() -> None:
    async with running(3) as workers:
        for number in range(20):
            calls = [call for worker in workers for call in worker.send(*[reserve(f"k{number}")] * 5)]
            answers = [await call.wait() for call in calls]
            assert [type(answer) for answer in answers].count(Reserved) == 1
            assert [type(answer) for answer in answers].count(InFlight) == 14


async def test_commands_of_one_caller_keep_their_order() -> None:
    async with running(2) as workers:
        [first, *_] = calls = workers[0].send(*[reserve(THERE)] * 100, *[reserve(HERE)] * 100)
        for call in calls:
            await call.wait()
        assert first.got(Reserved).token == 1
        assert calls[100].got(Reserved)


async def test_who_is_lost_with_a_worker_is_told_that_nobody_knows_and_only_that() -> None:
    async with running(2) as workers:
        release = hold(workers[1].disks[1])
        calls = workers[0].send(reserve(THERE), Get(identity(THERE)), reserve(HERE))
        await calls[2].wait()
        await settled()
        assert not calls[0].answered
        connection = workers[0].peers[1]._talk
        assert connection is not None
        connection.scope.cancel()
        assert [await call.wait() for call in calls[:2]] == [Unavailable(UNAVAILABLE_RETRY_MS)] * 2
        assert await workers[0].one(reserve(THERE)) == Unavailable(UNAVAILABLE_RETRY_MS)
        release.set()
        await settled()
        await workers.connect(0, 1)
        # It was carried out, as it happens.
        assert isinstance(await workers[0].one(reserve(THERE)), InFlight)
        assert isinstance(await workers[0].one(reserve(HERE)), InFlight)


async def test_a_new_connection_takes_the_place_of_the_old_one() -> None:
    async with running(2) as workers:
        hold(workers[1].disks[1])
        [lost] = workers[0].send(reserve(THERE))
        await settled()
        await workers.connect(0, 1)
        assert await lost.wait() == Unavailable(UNAVAILABLE_RETRY_MS)
        assert isinstance(await workers[0].one(Get(identity(HERE))), Unknown)


async def test_of_connections_that_wait_for_one_to_end_the_latest_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    close, may_close = trio.aclose_forcefully, trio.Event()

    async def close_late(stream: trio.abc.AsyncResource) -> None:
        with trio.CancelScope(shield=True):
            await may_close.wait()
        await close(stream)

    monkeypatch.setattr(trio, "aclose_forcefully", close_late)
    async with running(2) as workers, trio.open_nursery() as nursery:
        ours, theirs = socket.socketpair()
        theirs.close()
        # That of a worker which died as soon as it had connected, and that of the one that took its place.
        dead = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        nursery.start_soon(workers[0].peers[1].converse, dead, workers[0].router, workers[0].lane)
        await settled()
        nursery.start_soon(workers.connect, 0, 1)
        await settled()
        may_close.set()
        with trio.fail_after(10):
            assert isinstance(await served(workers[0], reserve(THERE)), Reserved)
            assert isinstance(await served(workers[1], reserve(HERE)), Reserved)


async def served(worker: Worker, command: Command) -> object:
    """The first answer that is one: the connection of before may not have ended yet at both of its ends."""
    while isinstance(answer := await worker.one(command), Unavailable):
        await settled()
    return answer


async def test_more_open_calls_than_there_may_be_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "OUTSTANDING_MAX", 3)
    async with running(2) as workers:
        release = hold(workers[1].disks[1])
        calls = workers[0].send(*[reserve(THERE)] * 5)
        assert [call.answered for call in calls] == [False] * 3 + [True] * 2
        assert all(isinstance(call.answer, Overloaded) for call in calls[3:])
        release.set()
        answers = [await call.wait() for call in calls[:3]]
        assert [type(answer) for answer in answers] == [Reserved, InFlight, InFlight]
        assert isinstance(await workers[0].one(reserve(THERE)), InFlight)


async def test_answers_of_one_read_reach_a_caller_together() -> None:

    class Connection:
        closed = False

        def __init__(self) -> None:
            self.deliveries: list[list[object]] = []
            self.done = trio.Event()

        def deliver(self, answers: list[tuple[object, Answer]]) -> None:
            self.deliveries.append([tag for tag, _ in answers])
            self.done.set()

    async with running(2) as workers:
        connection = Connection()
        workers[0].router.route([Envelope(Get(identity(THERE)), connection, tag) for tag in range(9)])
        with trio.fail_after(10):
            await connection.done.wait()
        assert connection.deliveries == [list(range(9))]


async def test_a_waiter_is_granted_through_the_other_worker_and_one_that_left_is_not() -> None:
    async with running(2) as workers:
        held = await workers[1].one(reserve(THERE))
        assert isinstance(held, Reserved)
        gone, waits = workers[0].send(reserve(THERE, wait_ms=60_000), reserve(THERE, wait_ms=60_000))
        await settled()
        gone.closed = True
        workers[0].peers[1].tell_departures()
        await settled()
        assert await workers[1].one(Release(identity(THERE), held.token)) == Released(repeated=False)
        granted = await waits.wait()
        assert isinstance(granted, Reserved)
        assert isinstance(gone.answer, Overloaded)
        assert isinstance(await workers[1].one(Commit(identity(THERE), granted.token)), Committed)


async def test_callers_that_left_take_no_room_of_those_who_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "OUTSTANDING_MAX", 3)
    async with running(2) as workers:
        held = await workers[1].one(reserve(THERE))
        assert isinstance(held, Reserved)
        gone = workers[0].send(*[reserve(THERE, wait_ms=60_000)] * 3)
        await settled()
        for call in gone:
            call.closed = True
        workers[0].peers[1].tell_departures()
        await settled()
        assert await workers[1].one(Release(identity(THERE), held.token)) == Released(repeated=False)
        await settled()
        assert isinstance(await workers[0].one(reserve(THERE)), Reserved)


async def test_what_was_to_be_listed_for_a_caller_that_left_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[object] = []

    async def note(*asked: Any) -> list[Entry]:
        listed.append(asked)
        return []

    monkeypatch.setattr(MemoryEngine, "list_records", note)
    async with running(2) as workers:
        release = hold(workers[1].disks[1])
        [busy] = workers[0].send(reserve(THERE))
        await settled()
        query = ListRecords(TENANT, NAMESPACE, None, None, None, 0, 10)
        calls = [Call(query) for _ in range(5)]
        for call in calls:
            workers[0].router.ask(1, Envelope(query, call, None))
        await settled()
        for call in calls[:-1]:
            call.closed = True
        workers[0].peers[1].tell_departures()
        await settled()
        release.set()
        await busy.wait()
        assert isinstance(await calls[-1].wait(), RecordsPage)
        assert len(listed) == 1
        assert all(isinstance(call.answer, Overloaded) for call in calls[:-1])


async def test_nobody_who_waits_behind_a_dead_connection_is_granted() -> None:
    async with running(2) as workers:
        held = await workers[1].one(reserve(THERE))
        assert isinstance(held, Reserved)
        [waits] = workers[0].send(reserve(THERE, wait_ms=60_000))
        await settled()
        talk = workers[0].peers[1]._talk
        assert talk is not None
        talk.scope.cancel()
        assert isinstance(await waits.wait(), Unavailable)
        await settled()
        await workers[1].one(Release(identity(THERE), held.token))
        fresh = await workers[1].one(reserve(THERE))
        assert isinstance(fresh, Reserved)


async def test_a_worker_that_is_away_is_gone_once_the_server_stops() -> None:
    async with running(2) as workers:
        router = workers[0].router
        assert not router.is_gone(identity(THERE))
        talk = workers[0].peers[1]._talk
        assert talk is not None
        talk.scope.cancel()
        await settled()
        # It may come back.
        assert not router.is_gone(identity(THERE))
        router.settle_only()
        assert router.is_gone(identity(THERE))
        assert not router.is_gone(identity(HERE))
        await workers.connect(0, 1)
        assert not router.is_gone(identity(THERE))


async def test_nobody_waits_for_the_proxy_of_a_worker_that_only_has_a_queue() -> None:
    async with running(2) as workers, trio.open_nursery() as nursery:
        lost = workers[0].peers[1]
        settles = trio.Event()

        async def wait() -> None:
            await lost.settled()
            settles.set()

        nursery.start_soon(wait)
        await settled()
        assert not settles.is_set()
        ours, theirs = socket.socketpair()
        with theirs:
            queued = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            nursery.start_soon(lost.converse, queued, workers[0].router, workers[0].lane)
            with trio.fail_after(10):
                await settles.wait()
                await lost.settled()
            await settled()
            with trio.fail_after(10):
                await lost.settled()


async def test_questions_cross_and_a_shard_says_how_it_stands() -> None:
    async with running(2) as workers:
        await workers[0].one(reserve(THERE))
        remote = workers[0].router.shards[1]
        inspect = Call(Inspect())
        workers[0].router.ask(1, Envelope(inspect.command, inspect, None))
        inspected = await inspect.wait()
        assert isinstance(inspected, Inspected)
        assert sum(tally.pending for _, tally in inspected.tallies) == 1
        assert (remote.in_memory, remote.quarantined, remote.queue_depth) == (True, False, 0)
        listing = Call(ListRecords(TENANT, NAMESPACE, None, None, None, 0, 10))
        workers[0].router.ask(1, Envelope(listing.command, listing, None))
        page = await listing.wait()
        assert isinstance(page, RecordsPage)
        assert [key for _, key, _ in page.rows] == [THERE]
        talk = workers[0].peers[1]._talk
        assert talk is not None
        talk.scope.cancel()
        await settled()
        assert (remote.in_memory, remote.quarantined) == (False, True)


async def test_what_a_slow_worker_has_not_taken_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "UNSENT_BYTES_MAX", -1)
    async with running(2) as workers:
        assert isinstance(await workers[0].one(reserve(THERE)), Overloaded)
        assert isinstance(await workers[0].one(reserve(HERE)), Reserved)


async def test_every_worker_learns_how_many_keys_the_others_have() -> None:
    key = (TENANT, NAMESPACE)
    async with running(2) as workers:
        for number in range(10):
            await workers[0].one(reserve(f"k{number}"))
        await workers.connect(0, 1)
        await settled()
        assert [worker.census.total(key) for worker in workers] == [10, 10]


def test_the_keys_of_these_tests_are_where_they_should_be() -> None:
    assert [shard_of(identity_hash(identity(key)), SHARDS) for key in (HERE, THERE)] == [0, 1]


def test_outcomes_that_the_other_does_not_read_are_not_sent() -> None:
    def deliver(unread: int) -> list[object]:
        sent: list[bytes] = []
        incoming = Incoming(Router([], NOBODY), lambda _: None, sent.append, lambda: unread)
        incoming.deliver([(1, large), (2, Unknown())])
        return [answer_of(data) for _, _, data in told(b"".join(sent))]

    def told(data: bytes) -> list[Message]:
        reader = unpacker()
        reader.feed(data)
        return list(reader)

    large = Completed("op", 1, 2, Outcome(200, (), bytes(10_000)), rejected=False)
    assert deliver(UNREAD_BYTES_MAX) == [large, Unknown()]
    assert deliver(UNREAD_BYTES_MAX + 1) == [not_kept(large), Unknown()]
