"""Real shards on real engines over a disk that fails, a caller that goes through everything they do, and its notes.

The caller notes what was acknowledged. A change that was answered with ``unavailable`` may have happened or not; every
other answer, and every later look at a key, has to be one of those that its notes allow.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import trio
from trio.testing import MockClock

from idemactor.core.census import Census
from idemactor.core.clock import Clock
from idemactor.core.commands import Command, Commit, Dispatch, Forget, Get, Release, Watch
from idemactor.core.delivery import Intent
from idemactor.core.keys import identity_hash, shard_of
from idemactor.core.policy import Policy
from idemactor.core.record import Outcome, State
from idemactor.core.replies import (
    Committed,
    Dispatched,
    Forgotten,
    Found,
    Released,
    Reserved,
    Unavailable,
    Unknown,
    Watched,
)
from idemactor.errors import StorageError, UnfitError
from idemactor.shard.actor import Shard, ShardSettings
from idemactor.shard.mailbox import Answer
from idemactor.shard.router import Router
from idemactor.shard.start import FoundShards, opening
from idemactor.storage.base import Engine, Opened
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import JournalFile
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.sqlite import SqliteEngine
from tests.faults.disk import FaultyDisk
from tests.shard.harness import NAMESPACE, START_MS, Rig, identity, reserve
from tests.shard.harness import Watch as ShardWatch

SHARDS: Final = 2
EVICT_AFTER_MS: Final = 5_000
BACK_WITHIN_S: Final = 120.0
"""How long after the disk has healed every shard serves again, at the latest; the longest back-off is half of it."""
KEEP_MS: Final = 86_400_000
INTENT: Final = Intent("application/json", b'{"amount": 1}', (("x-trace", "1"),))
POLICY: Final = Policy(lease_ms=3_600_000, ttl_ms=KEEP_MS)

Standing: TypeAlias = tuple[str, object]
"""How a key stands, by a caller's notes: free, pending with its token, committed with its outcome, lapsed, queued."""

FREE: Final[Standing] = ("free", None)


class Notes(ShardWatch):
    """Also remembers what was said of it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def batch_failed(self, shard: int, commands: int, error: BaseException | None) -> None:
        super().batch_failed(shard, commands, error)
        self.said.append(f"shard {shard}: {error} {error.__cause__ if error else ''}")

    def quarantined(self, shard: int, error: BaseException, retry_ms: int) -> None:
        super().quarantined(shard, error, retry_ms)
        self.said.append(f"shard {shard}: {error} {error.__cause__}")


class Broken(AssertionError):
    """The disk's fault became a wrong answer."""


class Silent(Broken):
    """A shard does not come back."""


@dataclass
class Caller:
    """Gives commands and keeps notes."""

    rig: Rig
    allowed: dict[str, set[Standing]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    refused: int = 0

    async def ask(self, command: Command) -> Answer:
        (call,) = await self.rig.all(command)
        if isinstance(call.answer, Unavailable):
            self.refused += 1
        return call.answer

    def note(self, key: str, answer: Answer, expected: type, then: Standing, perhaps: Standing | None = None) -> bool:
        """Whether the change is known to have happened; ``perhaps`` is how the key stands if nobody was told."""
        if isinstance(answer, Unavailable):
            self.allowed[key] = self.allowed.get(key, {FREE}) | {perhaps or then}
            return False
        if not isinstance(answer, expected):
            raise Broken(f"{key}: {answer} instead of {expected.__name__}")
        self.allowed[key] = {then}
        return True

    async def reserve(self, key: str, lease_ms: int | None = None) -> int | None:
        answer = await self.ask(reserve(key, lease_ms=lease_ms))
        token = answer.token if isinstance(answer, Reserved) else None
        if not self.note(key, answer, Reserved, ("pending", token), ("pending", None)):
            return None
        assert token is not None
        shard = shard_of(identity_hash(identity(key)), SHARDS)
        if token <= self.tokens.get(shard, 0):
            raise Broken(f"token {token} was issued again")
        self.tokens[shard] = token
        return token

    async def commit(self, key: str, token: int | None, body: bytes = b"done") -> None:
        if token is not None:
            outcome = Outcome(200, (("content-type", "text/plain"),), body)
            answer = await self.ask(Commit(identity(key), token, outcome))
            self.note(key, answer, Committed, ("committed", outcome))

    async def release(self, key: str, token: int | None) -> None:
        if token is not None:
            self.note(key, await self.ask(Release(identity(key), token)), Released, FREE)

    async def forget(self, key: str) -> None:
        """Of a key that is committed, if all went well."""
        if {what for what, _ in self.allowed[key]} == {"committed"}:
            self.note(key, await self.ask(Forget(identity(key))), Forgotten, FREE)

    async def dispatch(self, key: str) -> None:
        answer = await self.ask(Dispatch(identity(key), INTENT))
        known = answer.operation_id if isinstance(answer, Dispatched) else None
        self.note(key, answer, Dispatched, ("queued", known), ("queued", None))

    async def look(self, *, must_answer: bool = False) -> None:
        """Every key stands as the notes allow; what is seen is known from then on."""
        for key, allowed in self.allowed.items():
            answer = await self.ask(Get(identity(key)))
            if isinstance(answer, Unavailable):
                if must_answer:
                    raise Silent(f"{key}: still unavailable")
                continue
            seen = _standing(answer)
            if not any(_fits(each, seen) for each in allowed):
                raise Broken(f"{key}: {seen} is none of {allowed}")
            self.allowed[key] = {seen}
            if seen[0] == "queued" and must_answer:
                await self._look_at_operation(key, str(seen[1]))

    async def _look_at_operation(self, key: str, operation_id: str) -> None:
        answer = await self.ask(Watch(identity(key), operation_id))
        if not isinstance(answer, Watched) or answer.operation_id != operation_id:
            raise Broken(f"{key}: its operation is lost: {answer}")


def _standing(answer: Answer) -> Standing:
    if isinstance(answer, Unknown):
        return FREE
    if not isinstance(answer, Found):
        raise Broken(f"a look was answered with {answer}")
    record = answer.record
    if record.delivery is not None:
        return ("queued", record.operation_id)
    if record.state is State.COMMITTED:
        return ("committed", record.outcome)
    return ("pending", record.token)


def _fits(allowed: Standing, seen: Standing) -> bool:
    return allowed[0] == seen[0] and allowed[1] in (None, seen[1])


@dataclass
class Life:
    """A data directory on a disk that fails, and what its caller knows, over several starts.

    ``vfs``: where the files really are; None: on the disk that fails.
    """

    path: Path
    disk: FaultyDisk
    vfs: str | None = None
    notes: Notes = field(default_factory=Notes)
    allowed: dict[str, set[Standing]] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    latest_ms: int = START_MS
    refused: int = 0
    refused_starts: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Caller]:
        """Shards that serve, as the composition root starts them.

        Raises:
            StorageError: They could not be started.
        """
        with DataDirectory.open(self.path, SHARDS, whole=False) as directory:
            path = directory.journal_path(0)
            checksums = None if self.vfs is None else directory.checksums
            journal = Journal(JournalFile(path, vfs=self._vfs, checksums=checksums), "never")
            engines: dict[int, Engine] = {n: self._engine(directory, n, journal, checksums) for n in range(SHARDS)}
            async with opening(directory, engines, {path: journal}) as found:
                self._refuse(found)
                stand: dict[int, Opened | StorageError] = {**found.damaged, **found.opened}
                opened = found.opened.values()
                clock = Clock(max(self.latest_ms, *(each.latest_ms for each in opened)), trio.current_time)
                settings, census = ShardSettings(evict_after_ms=EVICT_AFTER_MS), Census()
                shards = [
                    Shard(n, engine, {NAMESPACE: POLICY}, census, clock, lambda: 1, self.notes, settings, stand[n])
                    for n, engine in engines.items()
                ]
                rig = Rig([], shards, Router(shards, self.notes), self.notes, clock, census)
                caller = Caller(rig, self.allowed, self.tokens)
                async with trio.open_nursery() as nursery:
                    await nursery.start(rig.router.run)
                    yield caller
                    rig.router.close()
                    nursery.cancel_scope.deadline = trio.current_time() + 60
                assert not nursery.cancel_scope.cancelled_caught, "the shards did not come to an end"
                self.latest_ms = clock.now_ms()
                self.refused += caller.refused

    def _refuse(self, found: FoundShards) -> None:
        """As ``open_shards`` does."""
        for error in found.damaged.values():
            if not found.opened or isinstance(error, UnfitError):
                raise error

    @property
    def _vfs(self) -> str:
        return self.disk.name if self.vfs is None else self.vfs

    def _engine(
        self, directory: DataDirectory, shard: int, journal: Journal, checksums: bool | None
    ) -> JournaledEngine:
        path = directory.engine_path(shard)
        file = SqliteEngine(path, threads="never", shard=shard, shards=SHARDS, vfs=self._vfs, checksums=checksums)
        return JournaledEngine(shard, file, journal, rows=6)

    async def start_again(self) -> None:
        """Start, look at every key, stop. A start that the fault stops says so; the disk heals, and the next works."""
        for tries in range(3):
            try:
                async with self.running() as caller:
                    await self.come_back(caller)
                return
            except StorageError:
                self.refused_starts += 1
                if tries:
                    self.disk.strikes.fault = None
        raise Broken("it does not start on a disk that is well")

    async def come_back(self, caller: Caller) -> None:
        """The disk heals; soon every key is answered for again, as it has to be. Without power, it never is."""
        await caller.look()
        if self.disk.dead:
            return
        self.disk.strikes.fault = None
        end = trio.current_time() + BACK_WITHIN_S
        while trio.current_time() < end:
            await trio.sleep(1)
            probes = [await caller.ask(Get(identity(f"probe-{n}"))) for n in range(8)]
            if not any(isinstance(answer, Unavailable) for answer in probes):
                break
        try:
            await caller.look(must_answer=True)
        except Silent:
            if not self.disk.dead:
                raise

    def lose_power(self) -> None:
        """The machine goes off; what the disk kept is found in another directory."""
        left = self.path.with_name(f"{self.path.name}-after")
        left.mkdir()
        self.disk.leave(left)
        # What no start came to open is as it was.
        untouched = [file for file in self.path.glob("*.db") if str(file) not in self.disk.inodes]
        for file in (self.path / "idemactor.json", self.path / "LOCK", *untouched):
            shutil.copy(file, left / file.name)
        self.disk.close()
        self.path = left
        self.disk = FaultyDisk(self.disk.rng)


async def work(caller: Caller) -> None:
    """Everything that a shard does, so that every kind of write of it happens at least once."""
    await _round(caller, "first", dispatches=False)
    # A lease runs out: alarm work, and its note on the disk.
    await caller.reserve("lapsing", lease_ms=1_000)
    await trio.sleep(2)
    await caller.look()
    # Nobody needs the shards: they write behind, checkpoint, and leave memory; and come back.
    await trio.sleep(2 * EVICT_AFTER_MS / 1_000)
    await caller.look()
    await _round(caller, "second")


async def _round(caller: Caller, name: str, *, dispatches: bool = True) -> None:
    for number in range(3):
        token = await caller.reserve(f"{name}-done-{number}")
        await caller.commit(f"{name}-done-{number}", token, bytes([number]) * (6_000 if number == 2 else 20))
    await caller.release(f"{name}-freed", await caller.reserve(f"{name}-freed"))
    await caller.reserve(f"{name}-held")
    if dispatches:
        # What waits to be delivered keeps a shard in memory.
        await caller.dispatch(f"{name}-sent")
    await caller.forget(f"{name}-done-0")


async def whole_story(life: Life, *, power: bool) -> None:
    """Work, a restart, more work, and the end: in good order, or as ``power`` goes."""
    for number in range(2):
        try:
            async with life.running() as caller:
                if number == 0:
                    await work(caller)
                else:
                    await _round(caller, "restarted")
                    await life.come_back(caller)
                    if power and not life.disk.dead:
                        # Now: nothing that an end in good order would do is done any more.
                        life.disk.power_lost_at = life.disk.steps
        except StorageError:
            life.refused_starts += 1
            life.disk.strikes.fault = None
    if power:
        life.lose_power()
    await life.start_again()


def run_on_mock_time(life: Life, *, power: bool) -> None:
    """Tell the whole story without waiting for anything."""
    trio.run(functools.partial(whole_story, life, power=power), clock=MockClock(autojump_threshold=0))
