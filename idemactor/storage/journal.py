"""One journal for all shards of a process: what they decide at the same moment shares one transaction and one sync.

A sync for every shard is what makes many shards slow: the disk does four where one would do. So a shard's batch is
first appended here, together with those of every other shard that is ready, and is durable once that one sync is
done; the shard's own file is written behind, in large batches (``journaled.py``).

There is no task of the journal's own. The first shard that has a batch leads: it lets everybody who is ready join,
writes for all of them, and hands the lead to one who came meanwhile. Whoever joined stays until it has its answer, also
while it is being cancelled: the lead may come to it, and a write goes on in its thread whatever its caller does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import trio

from idemactor.errors import DamagedError
from idemactor.storage.base import CommitResult
from idemactor.storage.journal_file import Held, JournalFile, Row
from idemactor.storage.pace import Pace, Threads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a shard's own file lacks.

    Attributes:
        rows: The batches, in order.
        damage: What is wrong with the journal, where it is damaged: all of ``rows`` could be read all the same, and
            the shard has to do without a journal from here on; None: nothing.
    """

    rows: list[Row]
    damage: DamagedError | None = None


BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest body that is worth a detour through the journal; a larger batch goes to the shard's file at once."""


@dataclass(slots=True)
class _Slot:
    """A batch that waits for its sync. ``leads`` where its shard has to write for everybody who waits."""

    row: Row
    result: CommitResult = CommitResult.UNKNOWN
    leads: bool = False
    sleeper: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Sleep until ``wake``; being cancelled changes nothing."""
        self.sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(_stay)

    def wake(self) -> None:
        """Let the batch's shard go on. Harmless where it leads, or was woken before."""
        if self.sleeper is not None:
            sleeper, self.sleeper = self.sleeper, None
            trio.lowlevel.reschedule(sleeper)


def _stay(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class Journal:
    """The journal of a process's shards.

    Args:
        file: Its file, not yet open.
        threads: See ``Threads``.
    """

    def __init__(self, file: JournalFile, threads: Threads = "auto") -> None:
        self.sync_s = 0.0
        self._file = file
        self._threads = threads
        self._limiter = trio.CapacityLimiter(1)
        self._pace = Pace()
        # Held by whoever uses the file, which is one connection for all of them.
        self._busy = trio.Lock()
        self._waiting: list[_Slot] = []
        self._led = False
        self._last_seq = 0
        self._done: dict[int, int] = {}
        self._opened_before = False
        self._written_behind = False

    @property
    def last_error(self) -> Exception | None:
        """What failed last in the file, for the logs."""
        return self._file.last_error

    @property
    def broken(self) -> bool:
        """Whether nothing can be appended until somebody opens it anew."""
        return self._file.broken

    async def open(self, shard: int, applied: int) -> Lacking:
        """Open the file where it is not open and whole.

        A journal that is damaged is only read: of a shard of which everything behind ``applied`` can still be read,
        that is all there is, since every page says by its checksum that it is as it was written.

        Args:
            shard: On whose behalf.
            applied: The number of the latest batch that this shard's own file includes.

        Returns:
            The batches that the shard's own file lacks, in order.

        Raises:
            UnfitError: It does not fit the shard's file.
            StorageError: The journal cannot be opened or read.
        """
        damage: DamagedError | None = None
        async with self._busy:
            # Of every shard, not only of the one that opens the file: a number that its file includes already would
            # be taken for something old.
            self._last_seq = max(self._last_seq, applied)
            try:
                held = await self._held(shard)
            except DamagedError as error:
                damage = error
                held = await self._run(lambda: self._file.salvage(shard, applied), thread=True)
        return Lacking(held.missing_from(applied, lossy=self._file.lossy), damage)

    async def _held(self, shard: int) -> Held:
        if self._file.broken:
            recovering, self._opened_before = self._opened_before, True
            latest = await self._run(lambda: self._file.open(recovering=recovering), thread=True)
            self._last_seq = max(self._last_seq, latest)
        return await self._run(lambda: self._file.read_batches(shard), thread=False)

    async def close(self) -> None:
        """Let go of the file. Every shard has closed before, and so has written behind what it had."""
        with trio.CancelScope(shield=True):
            async with self._busy:
                await self._run(self._close, thread=True)

    async def let_go(self) -> None:
        """Another file takes the place of this one, which no shard has open."""
        await self.close()
        self._file.forget()

    async def append(self, shard: int, previous: int, body: bytes) -> tuple[CommitResult, int]:
        """Append a batch and wait until it is durable.

        Args:
            shard: Whose batch.
            previous: The number of the shard's batch before this one, so that a gap would be seen.
            body: What ``journal_rows`` made of it.

        Returns:
            What became of it, and its number.
        """
        self._last_seq += 1
        slot = _Slot(Row(self._last_seq, shard, previous, body))
        self._waiting.append(slot)
        if self._led:
            await slot.wait()
        else:
            self._led = slot.leads = True
        if slot.leads:
            with trio.CancelScope(shield=True):
                await self._lead()
        return slot.result, slot.row.seq

    def applied(self, shard: int, seq: int) -> None:
        """The shard's own file holds everything up to ``seq``, durably: the next write drops it here."""
        self._done[shard] = seq

    def turn_to_write_behind(self) -> bool:
        """Whether no shard's file was written behind since the latest append; the caller writes its own now.

        Shards that are equally busy are due at the same moment, and all of them at once would be one long pause.
        """
        taken, self._written_behind = self._written_behind, True
        return not taken

    async def maintain(self) -> None:
        """Housekeeping that no answer waits for."""
        if self._file.wants_maintenance:
            async with self._busy:
                if self._file.wants_maintenance:
                    await self._run(self._file.maintain, thread=True)

    async def wipe(self) -> bool:
        """Leave nothing in the file of what the shards' own files hold; whether that was possible."""
        return await self._let_go(self._file.wipe, thread=True)

    async def settle(self) -> bool:
        """Say at once, durably, what the shards' own files hold (see ``applied``); whether that was possible."""
        return await self._let_go(partial(self._file.append, []), thread=self._pace.slow)

    async def _let_go(self, write: Callable[[Mapping[int, int]], CommitResult], *, thread: bool) -> bool:
        with trio.CancelScope(shield=True):
            async with self._busy:
                done, self._done = self._done, {}
                result = CommitResult.UNKNOWN
                try:
                    result = await self._run(lambda: write(done), thread=thread)
                finally:
                    if result is not CommitResult.OK:
                        self._done = done | self._done
        return result is CommitResult.OK

    def _close(self) -> None:
        self._file.drop(self._done)
        self._file.close(tidy=True)

    async def _lead(self) -> None:
        group: list[_Slot] = []
        try:
            # Taking the lock lets everybody who can run now append before the one sync.
            async with self._busy:
                group, self._waiting = self._waiting, []
                await self._write(group)
        finally:
            # Also where no thread could be had: nobody waits for an answer that will not come.
            for slot in group:
                slot.wake()
            self._hand_over()
        if len(group) > 1:
            # Those who joined go on in the next round of the loop, and so does the leader: the answers of a group
            # leave together, and what they bring back comes together, instead of in ever smaller groups.
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _write(self, group: list[_Slot]) -> None:
        done, self._done = self._done, {}
        self._written_behind = False
        rows = [slot.row for slot in group]
        result = CommitResult.UNKNOWN
        try:
            result = await self._run(lambda: self._file.append(rows, done), thread=self._pace.slow)
        finally:
            if result is not CommitResult.OK:
                self._done = done | self._done
        for slot in group:
            slot.result = result
        self.sync_s = self._file.sync_s
        self._pace.observe(self.sync_s)

    def _hand_over(self) -> None:
        self._led = bool(self._waiting)
        if self._waiting:
            follower = self._waiting[0]
            follower.leads = True
            follower.wake()

    async def _run(self, work: Callable[[], T], *, thread: bool) -> T:
        if self._threads == "never" or (self._threads == "auto" and not thread):
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._limiter)
