"""Several shards behind one journal, and everything goes wrong: power, processes, syncs, space, on either file.

What was acknowledged is there afterwards, exactly and in whole batches, whichever of the files it was in.
``POWER_ROUNDS`` says how many rounds (120); ``POWER_SEED`` replays one.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

import apsw
import pytest
import trio

from idemactor.core.census import Census
from idemactor.core.commands import Accept, Command, Commit, Doubt, Extend, Forget, Release, Reserve
from idemactor.core.ids import ENTROPY_BITS
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.ledger import Ledger
from idemactor.core.policy import Policy
from idemactor.errors import StorageError
from idemactor.storage import directory, journaled, sqlite_wal, watermark
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal import BODY_BYTES_MAX, Journal, Lacking
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import Held, JournalFile, Row
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.layout import shard_name
from idemactor.storage.memory import MemoryDisk
from idemactor.storage.sqlite import SqliteEngine
from tests.storage.lossy_vfs import LossyDisk
from tests.storage.samples import Picture, Writer, name, outcome, picture
from tests.storage.test_power_loss import Lost, applied, shown

ROUNDS: Final = int(os.environ.get("POWER_ROUNDS", "40"))
LIVES: Final = 3
"""Power losses in a round, one after the other on what the last one left."""
MOMENTS: Final = 12
"""At each, several shards have a batch at once."""
STEPS: Final = 500
"""The power goes within so many changes to the disk."""
PLANTED_ROUNDS: Final = 80
"""In how many rounds a planted fault has to be found; it takes a handful."""
SHARDS_MAX: Final = 4
LARGE_BYTES: Final = 400
"""Of a batch: about a third of them are larger."""

INVENTED: Final = (
    "entries",
    "records",
    "incidents",
    "tombstones",
    "tokens",
    "the counts",
    "outcomes",
    "keys",
    "times",
    "events that belong",
    "queued deliveries",
)
"""What the check says of the keys and counts of ``samples.Writer``, which belong to no shard and count nothing."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How often what goes wrong, before each moment."""

    failing_sync: float = 0.10
    full_disk: float = 0.05
    kill: float = 0.05
    restart: float = 0.05
    evict: float = 0.15
    cut_after_failure: float = 0.3
    """How often the power goes soon after a failed commit, while shards are being brought back."""


POLICIES: Final = {"trade": Policy(lease_ms=1_000, ttl_ms=4_000, unresolved_ttl_ms=9_000)}


@dataclass(frozen=True, slots=True)
class Asker:
    """Who gave a command; nobody hangs up here."""

    closed: bool = False


@dataclass(slots=True)
class Clerk(Writer):
    """Batches as the ledger of a shard makes them, so that the check must find nothing at all."""

    shard: int = 0
    shards: int = 1

    def batch(self) -> Batch:
        rng, disk = self.rng, self.disk
        self.now += rng.randrange(700)
        tallies = {key: replace(tally) for key, tally in disk.tallies.items()}
        last_token = max(self.token, disk.last_token)
        entropy = functools.partial(rng.getrandbits, ENTROPY_BITS)
        ledger: Ledger[Asker] = Ledger(self.shard, POLICIES, Census(), entropy, last_token, tallies)
        ledger.begin(self.now)
        ledger.absorb({entry.identity: entry for entry in disk.entries.values()})
        for entry in list(disk.entries.values()):
            if entry.alarm_at is not None and entry.alarm_at <= self.now and rng.random() < 0.5:
                ledger.sweep(entry.identity)
        for _ in range(rng.randrange(1, 7)):
            ledger.apply(Asker(), self._command())
        work = ledger.finish()
        self.token = ledger.last_token
        acknowledged = [incident_id for incident_id in disk.incidents if rng.random() < 0.2]
        for incident_id in acknowledged:
            ledger.acknowledge(disk.incidents[incident_id].incident.identity[:2])
        changes = (list(work.puts.values()), list(work.deletes.values()), work.incidents, acknowledged, work.tallies)
        return Batch(self.now, self.token, *changes)

    def _command(self) -> Command:
        rng = self.rng
        identity = self._identity()
        self.used.add(identity)
        entry = self.disk.entries.get(self.disk.ids.get(identity, 0))
        tokens = [1, entry.record.token if entry and entry.record else 1]
        if entry is not None and entry.record is not None:
            # Also one that was given up: what its commit leaves is an incident.
            tokens += [earlier.token for earlier in entry.record.earlier]
        if entry is not None and entry.tombstone is not None:
            tokens.append(entry.tombstone.token)
        token = rng.choice(tokens)
        done = outcome(rng) if rng.random() < 0.5 else None
        return rng.choice(
            (
                Reserve(identity, lease_ms=rng.randrange(1, 900)),
                Reserve(identity, request_id="r"),
                Accept(identity, outcome=done),
                Commit(identity, token, done),
                Commit(identity, token, done, ttl_ms=rng.randrange(1, 900)),
                Release(identity, token),
                Extend(identity, token, rng.randrange(1, 900)),
                Doubt(identity, token, "lost"),
                Forget(identity, force=True),
            )
        )

    def _identity(self) -> Identity:
        while True:
            identity = name(f"k{self.rng.randrange(20 * self.shards)}")
            if shard_of(identity_hash(identity), self.shards) == self.shard:
                return identity


@dataclass(slots=True)
class Keeper:
    """One shard: what was written to it, and what its files may hold, at least one of them."""

    shard: int
    writer: Writer
    possible: list[MemoryDisk]
    engine: JournaledEngine | None = None

    def account(self, batch: Batch, result: CommitResult, lossy: bool) -> None:
        after = applied(self.writer.disk, batch)
        match result:
            case CommitResult.OK:
                # Without a sync, a power loss may take the latest batches, and only those.
                self.possible = [*self.possible, after] if lossy else [after]
                self.writer.disk = after
            case CommitResult.UNKNOWN:
                self.possible = [*self.possible, after]
            case _:
                assert result is CommitResult.FAILED

    async def compare(self, seen: Picture, allowed: list[MemoryDisk]) -> None:
        for state in reversed(allowed):
            if await shown(state, self.writer.used) == seen:
                # What was seen may be answered: from here on it must stay.
                self.possible = [state]
                self.writer.disk = state
                return
        raise Lost(f"shard {self.shard} holds what it should not: token {seen.last_token}, time {seen.latest_ms}")


@dataclass(slots=True)
class Round:
    """One directory through several power losses."""

    directory: Path
    rng: Random
    odds: Odds
    durability: sqlite_wal.Durability
    disk: LossyDisk
    keepers: list[Keeper]
    rows: int
    lossy_from: int = LIVES
    """From which life on commits do not sync."""
    journal: Journal = field(init=False)
    file: JournalFile = field(init=False)

    async def run(self) -> None:
        for life in range(LIVES):
            if life == self.lossy_from:
                self.durability = "process"
            await self.live()
            self.lose_power()
        self.disk.power_lost_at = None
        self.start()
        for keeper in self.keepers:
            await self.come_back(keeper)
        await self.stop()
        self.check(self.directory)

    def start(self) -> None:
        """The objects of a new process."""
        vfs = self.disk.name
        self.file = JournalFile(self.directory / JOURNAL_NAME, self.durability, vfs)
        self.journal = Journal(self.file, "never")
        for keeper in self.keepers:
            path = self.directory / shard_name(keeper.shard)
            inner = SqliteEngine(path, threads="never", vfs=vfs, shard=keeper.shard, shards=len(self.keepers))
            keeper.engine = JournaledEngine(keeper.shard, inner, self.journal, rows=self.rows)

    async def live(self) -> None:
        """Work until the power goes."""
        self.disk.power_lost_at = self.rng.randrange(1, STEPS)
        self.start()
        alive = await self.come_back_all(self.keepers)
        for _ in range(MOMENTS):
            if not alive:
                return
            self.prepare()
            alive = await self.moment()
        self.disk.power_lost_at = self.disk.steps
        await self.stop()

    def prepare(self) -> None:
        disk, rng, odds = self.disk, self.rng, self.odds
        disk.afflicted = rng.choice(("journal.db", "shard-", "shard-0001", ""))
        disk.failing_syncs = int(rng.random() < odds.failing_sync)
        disk.free_bytes = rng.randrange(40_000) if rng.random() < odds.full_disk else None

    async def moment(self) -> bool:
        """What several shards do at once, and what goes wrong around it; False once the power is gone."""
        rng, odds = self.rng, self.odds
        chance = rng.random()
        if chance < odds.kill:
            self.kill()
        elif chance < odds.kill + odds.restart:
            await self.stop()
        if chance < odds.kill + odds.restart:
            self.start()
            return await self.come_back_all(self.keepers, killed=True)
        busy = rng.sample(self.keepers, rng.randrange(1, len(self.keepers) + 1))
        results: dict[int, CommitResult] = {}
        async with trio.open_nursery() as nursery:
            for keeper in busy:
                nursery.start_soon(self.commit, keeper, keeper.writer.batch(), results)
        failed = [keeper for keeper in busy if results[keeper.shard] is not CommitResult.OK]
        if failed and rng.random() < odds.cut_after_failure:
            disk = self.disk
            disk.power_lost_at = min(disk.power_lost_at or disk.steps, disk.steps + rng.randrange(1, 60))
        evicted = [keeper for keeper in busy if keeper not in failed and rng.random() < odds.evict]
        for keeper in evicted:
            assert keeper.engine is not None
            await keeper.engine.close()
        return await self.come_back_all([*failed, *evicted])

    async def commit(self, keeper: Keeper, batch: Batch, results: dict[int, CommitResult]) -> None:
        engine = keeper.engine
        assert engine is not None
        result = results[keeper.shard] = await engine.commit(batch)
        keeper.account(batch, result, self.durability == "process")
        if result is not CommitResult.OK:
            return
        if self.rng.random() < 0.5:
            await engine.maintain()
        try:
            found = await engine.load(sorted(keeper.writer.used))
        except StorageError:
            return  # Writing behind failed.
        state = keeper.writer.disk
        if found != {identity: state.entries[entry_id] for identity, entry_id in state.ids.items()}:
            raise Lost(f"shard {keeper.shard} answers from something else than what was committed")

    def kill(self) -> None:
        """End the process: its files are closed, and nothing that it would have done is done."""
        self.file.close(tidy=False)
        for keeper in self.keepers:
            assert keeper.engine is not None
            assert isinstance(keeper.engine._inner, SqliteEngine)
            keeper.engine._inner._file.close(tidy=False)

    async def stop(self) -> None:
        for keeper in self.keepers:
            assert keeper.engine is not None
            await keeper.engine.close()
        await self.journal.close()

    async def come_back_all(self, keepers: list[Keeper], killed: bool = False) -> bool:
        """Bring several shards back at once; False once the power is gone."""
        alive: list[bool] = []

        async def come_back(keeper: Keeper) -> None:
            alive.append(await self.come_back(keeper, killed))

        async with trio.open_nursery() as nursery:
            for keeper in keepers:
                nursery.start_soon(come_back, keeper)
        return all(alive)

    async def come_back(self, keeper: Keeper, killed: bool = False) -> bool:
        """Open until it works, and compare."""
        engine = keeper.engine
        assert engine is not None
        while True:
            try:
                opened: Opened = await engine.reopen()
                seen = await picture(engine, opened, keeper.writer.used)
                break
            except StorageError as error:
                if self.disk.dead:
                    return False
                self.judge(error)
                # The fault passes: the next try finds room and a disk that syncs.
                self.disk.free_bytes = None
        # A killed process loses nothing that was acknowledged, whatever the durability.
        latest = keeper.possible.index(keeper.writer.disk)
        await keeper.compare(seen, keeper.possible[latest:] if killed else keeper.possible)
        return True

    def judge(self, error: StorageError) -> None:
        """An error of the disk's making is no broken promise."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, apsw.IOError | apsw.FullError):
            cause = cause.__cause__
        if cause is None and "cannot be written" not in str(error) and "is not open" not in str(error):
            raise Lost(f"it cannot be opened: {error}") from error

    def lose_power(self) -> None:
        """Carry on in a new directory, on what the disk's surface holds."""
        self.kill()
        left = self.directory.with_name(f"{self.directory.name}+")
        left.mkdir()
        for file in self.directory.iterdir():
            # What nobody has opened in this life is as it was.
            if str(file) not in self.disk.inodes and not file.name.endswith(("-shm", watermark.SUFFIX)):
                shutil.copyfile(file, left / file.name)
        self.disk.leave(left)
        self.disk.close()
        shutil.rmtree(self.directory)
        self.directory = left
        self.disk = LossyDisk(self.rng)
        self.check(left)

    def check(self, directory: Path) -> None:
        """What the check finds must be nothing that is wrong."""
        # The check cannot know whether the journal may have lost its end; starting can.
        lossy = self.durability == "process"
        expected = "start once more with" if lossy else "nothing"
        invented = () if isinstance(self.keepers[0].writer, Clerk) else INVENTED
        wrong = [
            finding.what
            for finding in check_directory(directory).findings
            if not finding.what.startswith(invented) and expected not in finding.what
        ]
        if wrong:
            raise Lost(f"the check finds: {wrong}")


async def play(
    seed: int, templates: Path, odds: Odds, durability: sqlite_wal.Durability = "full", lossy_from: int = LIVES
) -> None:
    """One round; raises ``Lost`` where the promise is broken."""
    rng = Random(seed)
    shards = rng.randrange(2, SHARDS_MAX + 1)
    # In every third round larger batches do not go by the journal.
    large = LARGE_BYTES if seed % 3 == 0 else BODY_BYTES_MAX
    home = templates / f"seed-{seed}"
    shutil.copytree(template(templates, shards), home)
    keepers = []
    like_a_shard = rng.random() < 0.5
    for shard in range(shards):
        writer = Clerk(rng, shard=shard, shards=shards) if like_a_shard else Writer(rng)
        keepers.append(Keeper(shard, writer, [writer.disk]))
    game = Round(home, rng, odds, durability, LossyDisk(rng), keepers, rng.choice((1, 3, 20)), lossy_from)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(journaled, "BODY_BYTES_MAX", large)
            await game.run()
    except BaseExceptionGroup as group:
        lost = group.subgroup(Lost)
        raise (lost.exceptions[0] if lost is not None else group) from None
    finally:
        game.disk.close()
        shutil.rmtree(game.directory, ignore_errors=True)


def template(templates: Path, shards: int) -> Path:
    """A new directory to copy: making one is slow, and is tested elsewhere."""
    path = templates / f"template-{shards}"
    if not path.exists():
        DataDirectory.open(path, shards).close()
        for lock in path.glob("*[kK]"):
            lock.unlink()
    return path


@pytest.fixture(autouse=True)
def _small_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints in the middle of everything, as on a busy shard."""
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(sqlite_wal, "CHECKPOINT_LIMIT_PAGES", 60)
    # Numbers of another size would make other pages, and a seed would replay something else.
    monkeypatch.setattr(directory, "new_first_seq", lambda: 1_000_000)
    monkeypatch.setattr(journaled, "WRITE_BEHIND_BATCHES", 1)


def seeds() -> range | list[int]:
    chosen = os.environ.get("POWER_SEED")
    return range(ROUNDS) if chosen is None else [int(chosen)]


@contextmanager
def replayable(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"replay with: POWER_SEED={seed} python -m pytest tests/storage/test_journal_power_loss.py")
        raise


async def test_what_was_acknowledged_survives_a_power_loss(tmp_path: Path) -> None:
    for seed in seeds():
        with replayable(seed):
            await play(seed, tmp_path, Odds())
    print(f"{len(seeds())} rounds of {LIVES} power losses: nothing acknowledged was lost")


async def test_without_syncs_a_power_loss_takes_only_the_latest(tmp_path: Path) -> None:
    for seed in list(seeds())[: max(1, ROUNDS // 3)]:
        with replayable(seed):
            await play(seed, tmp_path, Odds(failing_sync=0.0, full_disk=0.0), "process")


async def test_what_was_synced_once_stays_true_where_later_commits_do_not_sync(tmp_path: Path) -> None:
    for seed in list(seeds())[: max(1, ROUNDS // 3)]:
        with replayable(seed):
            await play(seed, tmp_path, Odds(failing_sync=0.0, full_disk=0.0), lossy_from=1 + seed % 2)


# ------------------------------------------------------------------------------------------------------- planted faults


async def found_out(tmp_path: Path, odds: Odds, durability: sqlite_wal.Durability = "full") -> bool:
    for seed in range(PLANTED_ROUNDS):
        try:
            await play(seed, tmp_path, odds, durability)
        except Lost:
            return True
    return False


async def test_a_journal_that_is_not_synced_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalFile._set_up

    def unsynced(file: JournalFile, connection: apsw.Connection) -> None:
        real(file, connection)
        connection.pragma("synchronous", "OFF")

    monkeypatch.setattr(JournalFile, "_set_up", unsynced)
    assert await found_out(tmp_path, Odds(failing_sync=0.0))


async def test_a_file_that_does_not_say_what_it_includes_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteEngine.commit

    async def commit(engine: SqliteEngine, batch: Batch) -> CommitResult:
        batch.journal_seq = 0
        return await real(engine, batch)

    monkeypatch.setattr(SqliteEngine, "commit", commit)
    assert await found_out(tmp_path, Odds())


async def test_batches_dropped_before_the_file_has_them_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JournaledEngine._append

    async def hasty(engine: JournaledEngine, batch: Batch, body: bytes) -> CommitResult:
        result = await real(engine, batch, body)
        engine._journal.applied(engine._shard, engine._seq)
        return result

    monkeypatch.setattr(JournaledEngine, "_append", hasty)
    assert await found_out(tmp_path, Odds())


async def test_files_that_are_not_synced_before_batches_are_dropped_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteEngine.__init__

    def unsynced(engine: SqliteEngine, path: Path, **options: object) -> None:
        real(engine, path, durability="process", **options)  # type: ignore[arg-type]

    monkeypatch.setattr(SqliteEngine, "__init__", unsynced)
    assert await found_out(tmp_path, Odds(failing_sync=0.0))


async def test_a_replay_that_overlooks_gaps_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournaledEngine._append

    async def hasty(engine: JournaledEngine, batch: Batch, body: bytes) -> CommitResult:
        result = await real(engine, batch, body)
        engine._journal.applied(engine._shard, engine._seq)
        return result

    def unchecked(held: Held, seq: int, *, lossy: bool = False) -> list[Row]:
        assert lossy is False
        return [row for row in held.rows if row.seq > seq]

    monkeypatch.setattr(JournaledEngine, "_append", hasty)
    monkeypatch.setattr(Held, "missing_from", unchecked)
    assert await found_out(tmp_path, Odds())


async def test_an_overlay_that_is_lost_when_the_file_cannot_be_written_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JournaledEngine._write

    async def forgetful(engine: JournaledEngine) -> CommitResult:
        result = await real(engine)
        engine._forget_overlay()
        engine._broken = False
        engine._inner._file.broken = False  # type: ignore[attr-defined]
        return result

    monkeypatch.setattr(JournaledEngine, "_write", forgetful)
    assert await found_out(tmp_path, Odds(full_disk=0.3))


async def test_numbers_that_are_given_again_are_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JournalFile, "_read_state", lambda *_: 0)
    real = Journal.open

    async def forgetful(journal: Journal, shard: int, applied: int) -> Lacking:
        latest = journal._last_seq
        lacking = await real(journal, shard, applied)
        journal._last_seq = max(latest, applied if not latest else 0)
        return lacking

    monkeypatch.setattr(Journal, "open", forgetful)
    assert await found_out(tmp_path, Odds(restart=0.3))


async def test_an_answer_that_waits_for_another_shards_batch_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JournalFile.append

    def in_two(file: JournalFile, rows: list[Row], done: dict[int, int]) -> CommitResult:
        result = real(file, rows[:1], done)
        real(file, rows[1:], {})
        return result

    monkeypatch.setattr(JournalFile, "append", in_two)
    assert await found_out(tmp_path, Odds())


async def test_a_watermark_that_is_written_before_the_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = JournalFile.append

    def hasty(file: JournalFile, rows: list[Row], done: dict[int, int]) -> CommitResult:
        if rows:
            file._note_synced(rows[-1].seq)
        return real(file, rows, done)

    monkeypatch.setattr(JournalFile, "append", hasty)
    assert await found_out(tmp_path, Odds())


async def test_a_watermark_where_commits_do_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalFile, "_note_synced", lambda file, number: file._watermark.note(number))
    assert await found_out(tmp_path, Odds(failing_sync=0.0, full_disk=0.0), "process")


async def test_a_large_batch_of_which_the_journal_knows_nothing_until_the_file_has_it_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gives it its number only afterwards leaves a file that is ahead of its journal."""

    async def hasty(engine: JournaledEngine, batch: Batch, size: int) -> CommitResult:
        engine._seq += 1
        engine._journal._last_seq += 1
        engine._lay_over(batch, size)
        return await engine._write()

    monkeypatch.setattr(JournaledEngine, "_bypass", hasty)
    assert await found_out(tmp_path, Odds())
