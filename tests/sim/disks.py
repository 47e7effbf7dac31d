"""What the shards of the simulator are stored on: memory disks, alone or as the files behind a real journal.

Both outlive every process. With a journal ``storage/journaled.py``, ``journal.py`` and ``overlay.py`` run as they are;
only the two kinds of files below are simulated, and they do what SQLite's can: a transaction is there or it is not, the
caller may not be told which, it takes its time, and the disk may be full. The journal may do worse than SQLite: of a
group that several shards share a part may have reached the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import ClassVar, Final, TypeVar

import apsw
import trio

from idemactor.core.keys import worker_of
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Batch, CommitResult, Opened
from idemactor.storage.journal import Journal
from idemactor.storage.journal_file import Held, JournalFile, Row
from idemactor.storage.journaled import JournaledEngine
from idemactor.storage.memory import Fault, MemoryDisk, MemoryEngine

T = TypeVar("T")

FAULTS: Final = (
    Fault(CommitResult.FAILED),
    Fault(CommitResult.UNKNOWN),
    Fault(CommitResult.UNKNOWN, applied=True),
)
DELAYS_S: Final = (0, 0, 0, 0.001, 0.02)
"""How long a write takes, or its answer; many are quick."""
SLOW_S: Final = 0.2
"""What one of very many takes: a disk that hesitates."""
ROWS: Final = (1, 4, 16)
"""How many rows a shard lets come together before its file is written behind: few, so that much happens in a run."""
BYTES: Final = (600, 1_000_000)
"""And how many bytes."""


class Power:
    """Whether a process lives. Once it does not, nothing it began reaches a disk but what was on its way there."""

    def __init__(self) -> None:
        self.cut_off = trio.Event()

    @property
    def on(self) -> bool:
        """Whether it lives."""
        return not self.cut_off.is_set()

    def cut(self) -> None:
        """It dies, at this moment."""
        self.cut_off.set()

    async def take(self, seconds: float) -> None:
        """Something takes its time, and goes on at once where the process dies meanwhile."""
        if seconds > 0 and self.on:
            with trio.move_on_after(seconds):
                await self.cut_off.wait()


@dataclass(slots=True)
class SimDisk(MemoryDisk):
    """A memory disk that can be full: nothing is written any more, and all of it can be read.

    Attributes:
        journal_seq: The latest journal batch that it includes.
        partings: What was seen to be wrong with what was written behind.
    """

    full: bool = False
    journal_seq: int = 0
    partings: list[str] = field(default_factory=list)

    def apply(self, batch: Batch) -> None:
        """As ever, and what the file knows of its journal."""
        # A zero argument ``super()`` does not work in a dataclass with slots.
        MemoryDisk.apply(self, batch)
        self.journal_seq = max(self.journal_seq, batch.journal_seq)


@dataclass
class SimJournalDisk:
    """The file of one journal.

    Attributes:
        kept: Its rows by number, each with the batch that it is.
        dropped: By shard, up to where it let go.
        faults: What the next transactions come to.
        torn: How many of the next transactions that fail leave a part of what they are.
    """

    kept: dict[int, tuple[Row, Batch]] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    torn: int = 0
    full: bool = False
    failing_opens: int = 0
    failing_reads: int = 0

    def land(self, rows: Iterable[Row], done: Mapping[int, int]) -> None:
        """A transaction reaches the disk."""
        for row in rows:
            self.kept[row.seq] = (row, journal_rows.decode(row.body))
        for shard, seq in done.items():
            self.dropped[shard] = max(seq, self.dropped.get(shard, 0))
            for number in [n for n, (row, _) in self.kept.items() if row.shard == shard and n <= seq]:
                del self.kept[number]

    def of(self, shard: int, after: int = 0) -> list[tuple[Row, Batch]]:
        """What it has of a shard's behind a number, in order."""
        return sorted((each for n, each in self.kept.items() if each[0].shard == shard and n > after), key=_number)


def _number(kept: tuple[Row, Batch]) -> int:
    return kept[0].seq


class SimJournalFile(JournalFile):
    """The connection of one process to a journal."""

    def __init__(self, disk: SimJournalDisk, power: Power, rng: Random) -> None:
        super().__init__(Path("journal.sim"))
        self.disk, self._power, self._rng = disk, power, rng

    def open(self, *, recovering: bool = False) -> int:
        """The highest number that it ever held; what it shows is on disk: nothing has to be recovered."""
        del recovering
        self.broken = True
        if self.disk.failing_opens > 0:
            self.disk.failing_opens -= 1
            raise StorageError("the journal was told to fail")
        self.broken = False
        return max((*self.disk.kept, *self.disk.dropped.values()), default=0)

    def close(self, *, tidy: bool) -> None:
        """There is nothing to let go of."""
        del tidy
        self.broken = True

    def append(self, rows: Sequence[Row], done: Mapping[int, int]) -> CommitResult:
        """One transaction, or what the disk was told to make of it."""
        if self.broken:
            return CommitResult.FAILED
        self.broken = True
        disk = self.disk
        if disk.full:
            self.last_error = apsw.FullError("the journal's disk is full")
            return CommitResult.FAILED
        fault = disk.faults.popleft() if disk.faults else Fault(CommitResult.OK)
        if not self._power.on:
            # Whatever was under way when the process died got there, or it did not.
            fault = self._rng.choice(FAULTS)
        if fault.result is CommitResult.OK or fault.applied:
            disk.land(rows, done)
        elif fault.result is CommitResult.UNKNOWN and disk.torn:
            disk.torn -= 1
            disk.land(rows[: self._rng.randint(0, len(rows))], {})
        self.last_error = None if fault.result is CommitResult.OK else StorageError("the journal was told to fail")
        self.broken = fault.result is not CommitResult.OK
        return fault.result

    def read_batches(self, shard: int) -> Held:
        """What it holds of a shard."""
        if self.disk.failing_reads > 0:
            self.disk.failing_reads -= 1
            self.broken = True
        if self.broken:
            raise StorageError("the journal is not open")
        return Held(self.disk.dropped.get(shard, 0), [row for row, _ in self.disk.of(shard)])

    def wipe(self, done: Mapping[int, int]) -> CommitResult:
        """Drop what the files hold; nothing else of it is anywhere."""
        return self.append([], done) if done else CommitResult.OK

    @property
    def wants_maintenance(self) -> bool:
        """Never: there is no WAL."""
        return False


class SimJournal(Journal):
    """A journal whose writes take their time, before and after they are on disk."""

    def __init__(self, file: SimJournalFile, power: Power, rng: Random) -> None:
        super().__init__(file, "never")
        self._power, self._rng = power, rng

    async def _run(self, work: Callable[[], T], *, thread: bool) -> T:
        await self._power.take(self._rng.choice(DELAYS_S))
        try:
            return await super()._run(work, thread=thread)
        finally:
            await self._power.take(SLOW_S if self._rng.random() < 0.01 else self._rng.choice(DELAYS_S))


class SimEngine(MemoryEngine):
    """A memory disk whose answer takes its time after the write as well: a crash may come in between.

    Args:
        expects: What the disk should hold after a batch that is written behind; None: nobody can say.
    """

    disk: SimDisk

    def __init__(
        self, disk: SimDisk, rng: Random, expects: Callable[[Batch], MemoryDisk | None] = lambda _batch: None
    ) -> None:
        super().__init__(disk)
        self._rng, self._expects = rng, expects

    async def open(self) -> Opened:
        """As ever, and up to where it includes the journal."""
        return replace(await super().open(), journal_seq=self.disk.journal_seq)

    async def commit(self, batch: Batch) -> CommitResult:
        """As ever, with the answer late."""
        result = await super().commit(batch)
        await trio.sleep(self._rng.choice(DELAYS_S))
        return result

    def _apply(self, batch: Batch) -> CommitResult:
        if self.disk.full:
            self.last_error = apsw.FullError("the disk is full")
            return CommitResult.FAILED
        expected = self._expects(batch)
        commits = self.disk.commits
        result = super()._apply(batch)
        self.last_error = None if result is CommitResult.OK else StorageError("the disk was told to fail")
        if expected is not None and self.disk.commits > commits:
            self.disk.partings += apart(expected, self.disk)
        return result

    def pretend_whole(self) -> None:
        """Look as if nothing had failed."""
        self._usable = True


class SimJournaled(JournaledEngine):
    """A real engine behind a journal; once its process is dead it does nothing more."""

    def __init__(self, shard: int, disk: SimDisk, journal: SimJournal, power: Power, rng: Random) -> None:
        self._power = power
        self._file = journal._file
        self.overlaid = True
        inner = SimEngine(disk, rng, self._expected)
        super().__init__(shard, inner, journal, rows=rng.choice(ROWS), bytes_max=rng.choice(BYTES))
        self._disk = disk

    def _expected(self, batch: Batch) -> MemoryDisk | None:
        """The file with each batch of the journal applied by itself."""
        if not self.overlaid:
            return None
        assert isinstance(self._file, SimJournalFile)
        return with_journal(self._disk, self._file.disk, self._shard, batch.journal_seq)

    async def _bypass(self, batch: Batch, size: int) -> CommitResult:
        self.overlaid = False
        try:
            return await super()._bypass(batch, size)
        finally:
            self.overlaid = True

    async def commit(self, batch: Batch) -> CommitResult:
        """As ever; who is dead begins nothing, and hears nothing of what was begun."""
        await self._end_if_dead()
        result = await super().commit(batch)
        await self._end_if_dead()
        return result

    async def _end_if_dead(self) -> None:
        if not self._power.on:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def close(self) -> None:
        """As ever, in good order; a process that was killed closes nothing."""
        if self._power.on:
            await super().close()
        self._broken = True

    def pretend_whole(self) -> None:
        """Look as if nothing had failed."""
        self._broken = self._file.broken = False
        assert isinstance(self._inner, SimEngine)
        self._inner.pretend_whole()


@dataclass
class Storage:
    """All that is stored of a server.

    Attributes:
        disks: One a shard.
        journals: One a process; none: the shards write to their disks at once.
    """

    disks: list[SimDisk]
    rng: Random
    journals: list[SimJournalDisk] = field(default_factory=list)

    engine_type: ClassVar[type[SimJournaled]] = SimJournaled

    def engines(self, shards: Iterable[int], worker: int, power: Power) -> dict[int, SimEngine | SimJournaled]:
        """New engines for the shards of one process."""
        if not self.journals:
            return {shard: SimEngine(self.disks[shard], self.rng) for shard in shards}
        journal = SimJournal(SimJournalFile(self.journals[worker], power, self.rng), power, self.rng)
        return {shard: self.engine_type(shard, self.disks[shard], journal, power, self.rng) for shard in shards}

    def image(self, shard: int) -> MemoryDisk:
        """What a process that started at this moment would find of a shard: its file, and what the journal adds."""
        disk = self.disks[shard]
        if not self.journals:
            return disk
        journal = self.journals[worker_of(shard, len(self.journals))]
        return with_journal(disk, journal, shard) if journal.of(shard, disk.journal_seq) else disk

    async def hand_out(self, workers: int, power: Power) -> None:
        """Another number of workers: bring the journals into the files, then make new ones, as a start does.

        Raises:
            StorageError: A shard could not be opened or written; it is done again from the beginning.
        """
        if len(self.journals) in (0, workers):
            return
        ends = {}
        before = len(self.journals)
        for worker in range(before):
            own = [n for n in range(len(self.disks)) if worker_of(n, before) == worker]
            engines = self.engines(own, worker, power)
            for shard, engine in engines.items():
                ends[shard] = (await engine.open()).journal_seq
                await engine.alarms(1)
            for engine in engines.values():
                await engine.close()
        self.journals = [SimJournalDisk() for _ in range(workers)]
        for shard, end in ends.items():
            self.journals[worker_of(shard, workers)].dropped[shard] = end

    def settle(self) -> None:
        """What journals hold beside the files comes into these, as the next start would bring it.

        Where writing behind failed after the last answer, nobody has asked since, and nothing was due.
        """
        for worker, journal in enumerate(self.journals):
            for shard, disk in enumerate(self.disks):
                if worker_of(shard, len(self.journals)) == worker:
                    for row, batch in journal.of(shard, disk.journal_seq):
                        disk.apply(replace(batch, journal_seq=row.seq))

    def mend(self) -> None:
        """Nothing goes wrong any more."""
        for disk in self.disks:
            disk.faults.clear()
            disk.failing_opens = disk.failing_reads = 0
            disk.before_commit = None
            disk.full = False
        for journal in self.journals:
            journal.faults.clear()
            journal.failing_opens = journal.failing_reads = journal.torn = 0
            journal.full = False


def with_journal(disk: SimDisk, journal: SimJournalDisk, shard: int, until: int | None = None) -> MemoryDisk:
    """A copy of a disk with each batch of the journal applied that it lacks, up to number ``until``."""
    copied = MemoryDisk(
        dict(disk.entries), dict(disk.ids), dict(disk.incidents), dict(disk.tallies), dict(disk.intents),
        dict(disk.events), dict(disk.operations), disk.last_token, disk.latest_ms, disk.last_incident_id,
    )  # fmt: skip
    for row, batch in journal.of(shard, disk.journal_seq):
        if until is None or row.seq <= until:
            copied.apply(batch)
    return copied


def apart(expected: MemoryDisk, disk: MemoryDisk) -> list[str]:
    """Where a file that was written behind is not what the journal made of it."""
    names = ("entries", "ids", "incidents", "tallies", "intents", "events", "last_token", "latest_ms")
    pairs = ((name, getattr(expected, name), getattr(disk, name)) for name in names)
    return [f"written behind, {name} is {there}, and was to be {due}" for name, due, there in pairs if due != there]
