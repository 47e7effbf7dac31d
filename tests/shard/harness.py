"""Shards on memory disks, and callers that note every answer and the moment it came.

Time is trio's: tests with ``on_mock_time`` never sleep for real.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

import trio
from trio.testing import MockClock

from idemactor.core.census import Census
from idemactor.core.clock import Clock
from idemactor.core.commands import Command, Commit, Reserve
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.policy import Policy
from idemactor.core.queries import Query
from idemactor.core.record import Outcome
from idemactor.errors import StorageError
from idemactor.observability.observer import Observer
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.company import Company
from idemactor.shard.mailbox import Answer, Envelope
from idemactor.shard.router import Router
from idemactor.storage.base import Batch, Opened
from idemactor.storage.memory import Hook, MemoryDisk, MemoryEngine

START_MS: Final = 1_700_000_000_000
"""The wall clock when a node of these tests starts."""

TENANT: Final = "acme"
NAMESPACE: Final = "trade"
OK: Final = Outcome(200, (("content-type", "text/plain"),), b"done \x00\xff")

A = TypeVar("A")
P = ParamSpec("P")


def on_mock_time(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a clock that jumps to the next deadline as soon as every task sleeps."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        trio.run(functools.partial(test, *args, **kwargs), clock=MockClock(autojump_threshold=0))

    return run


def identity(key: str) -> Identity:
    """A key of the tests' tenant and namespace."""
    return Identity(TENANT, NAMESPACE, key)


def reserve(key: str, request_id: str | None = None, *, lease_ms: int | None = None, wait_ms: int = 0) -> Reserve:
    """A reserve of the tests' tenant."""
    return Reserve(identity(key), request_id=request_id, lease_ms=lease_ms, wait_ms=wait_ms)


def commit(key: str, token: int) -> Commit:
    """A commit with the usual outcome."""
    return Commit(identity(key), token, OK)


def key_in(shard: int, shards: int, name: str = "key") -> str:
    """A key that lives in ``shard``."""
    names = (f"{name}-{number}" for number in range(10_000))
    return next(key for key in names if shard_of(identity_hash(identity(key)), shards) == shard)


@dataclass(eq=False)
class Call:
    """One command on its way, and its own sink: an answer that comes twice fails the test."""

    command: Command | Query
    closed: bool = False
    answers: list[Answer] = field(default_factory=list)
    answered_at: float | None = None
    _done: trio.Event = field(default_factory=trio.Event)

    def deliver(self, answers: list[tuple[object, Answer]]) -> None:
        """Note the answer."""
        self.answers.extend(answer for _, answer in answers)
        self.answered_at = trio.current_time()
        self._done.set()
        assert len(self.answers) == 1, f"answered twice: {self.answers}"

    @property
    def answered(self) -> bool:
        """Whether the answer is there."""
        return bool(self.answers)

    @property
    def answer(self) -> Answer:
        """The answer, which has to be there."""
        assert len(self.answers) == 1, f"not answered once: {self.command} {self.answers}"
        return self.answers[0]

    def got(self, kind: type[A]) -> A:
        """The answer, which has to be there and of this kind."""
        assert isinstance(self.answer, kind), f"{self.command}: {self.answer}"
        return self.answer

    async def wait(self) -> Answer:
        """The answer, once it is there; a minute of silence fails the test."""
        with trio.fail_after(60):
            await self._done.wait()
        return self.answer


class Watch(Observer):
    """Remembers what the shards reported, by name."""

    def __init__(self) -> None:
        self.failed_batches: list[tuple[int, BaseException | None]] = []
        self.batches: list[int] = []
        self.sweeps: list[int] = []
        self.alarm_waits: list[int] = []
        self.quarantines: list[tuple[int, int, float]] = []
        self.happened: list[str] = []
        self.refused_commands = 0

    def batch_written(self, shard: int, commands: int, commit_s: float, sync_s: float) -> None:
        assert shard >= 0
        assert commit_s >= 0
        assert sync_s >= 0
        self.batches.append(commands)

    def swept(self, shard: int, alarms: int, seconds: float) -> None:
        assert shard >= 0
        assert seconds >= 0
        self.sweeps.append(alarms)

    def alarm_failed(self, shard: int, error: BaseException, retry_ms: int) -> None:
        assert shard >= 0
        assert error
        self.alarm_waits.append(retry_ms)

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:
        assert shard >= 0
        self.failed_batches.append((commands, error))

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:
        assert error
        self.quarantines.append((shard, retry_ms, trio.current_time()))

    def recovered(self, shard: int) -> None:
        self.happened.append(f"recovered {shard}")

    def fenced(self, shard: int) -> None:
        self.happened.append(f"fenced {shard}")

    def evicted(self, shard: int) -> None:
        self.happened.append(f"evicted {shard}")

    def opened(self, shard: int) -> None:
        self.happened.append(f"opened {shard}")

    def overloaded(self, commands: int) -> None:
        self.refused_commands += commands


@dataclass
class Rig:
    """A node's shards on their disks; ``running`` gives one."""

    disks: list[MemoryDisk]
    shards: list[Shard]
    router: Router
    watch: Watch
    clock: Clock
    census: Census

    @property
    def disk(self) -> MemoryDisk:
        """The disk of the first shard."""
        return self.disks[0]

    @property
    def shard(self) -> Shard:
        """The first shard."""
        return self.shards[0]

    def send(self, *commands: Command) -> list[Call]:
        """Send commands together; their answers come when they come."""
        calls = [Call(command) for command in commands]
        self.router.route([Envelope(call.command, call, None) for call in calls])
        return calls

    async def all(self, *commands: Command) -> list[Call]:
        """Send commands together and wait for every answer."""
        calls = self.send(*commands)
        for call in calls:
            await call.wait()
        return calls

    async def one(self, command: Command, kind: type[A]) -> A:
        """Send a command and wait for its answer, which has to be of this kind."""
        (call,) = await self.all(command)
        return call.got(kind)

    def query(self, query: Query, shard: int = 0) -> Call:
        """Ask a shard beside the state table."""
        call = Call(query)
        self.router.ask(shard, Envelope(query, call, None))
        return call

    async def found(self, query: Query, kind: type[A]) -> A:
        """Ask the first shard and wait for its answer, which has to be of this kind."""
        call = self.query(query)
        await call.wait()
        return call.got(kind)


async def open_rig(
    disks: Sequence[MemoryDisk],
    policies: Mapping[str, Policy],
    settings: ShardSettings,
    *,
    start_ms: int = START_MS,
    make: Callable[..., Shard] = Shard,
) -> Rig:
    """Open the shards of a node, as its composition root does."""
    watch, census = Watch(), Census()
    engines = [MemoryEngine(disk) for disk in disks]
    opened: list[Opened | StorageError] = []
    for engine in engines:
        try:
            opened.append(await engine.open())
        except StorageError as error:
            opened.append(error)
    latest_ms = [each.latest_ms for each in opened if not isinstance(each, StorageError)]
    clock = Clock(max(start_ms, *latest_ms), trio.current_time)
    company = Company()
    make = functools.partial(make, company=company)
    shards = [
        make(number, engine, policies, census, clock, lambda: 1, watch, settings, opened[number])
        for number, engine in enumerate(engines)
    ]
    return Rig(list(disks), shards, Router(shards, watch, company), watch, clock, census)


@asynccontextmanager
async def running(
    *disks: MemoryDisk,
    policy: Policy | None = None,
    settings: ShardSettings | None = None,
    start_ms: int = START_MS,
    make: Callable[..., Shard] = Shard,
) -> AsyncIterator[Rig]:
    """Shards that serve; at the end they are closed and have to come to an end within a minute."""
    policies = {NAMESPACE: policy or Policy()}
    given = disks or (MemoryDisk(),)
    rig = await open_rig(given, policies, settings or ShardSettings(), start_ms=start_ms, make=make)
    async with trio.open_nursery() as nursery:
        await nursery.start(rig.router.run)
        yield rig
        rig.router.close()
        nursery.cancel_scope.deadline = trio.current_time() + 60
    assert not nursery.cancel_scope.cancelled_caught, "the shards did not come to an end"


def slow(seconds: float) -> Hook:
    """A hook for ``MemoryDisk.before_commit``: every write takes this long."""

    async def hook(_batch: Batch) -> None:
        await trio.sleep(seconds)

    return hook
