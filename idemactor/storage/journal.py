"""One journal for all shards of a process: what they decide at the same moment shares one transaction and one sync.

A sync for every shard is what makes many shards slow: the disk does four where one would do. So a shard's batch is
first appended here, together with those of every other shard that is ready, and is durable once that one sync is
done; the shard's own file is written behind, in large batches (``journaled.py``).

There is no task of the journal's own. The first shard that has a batch leads: it lets everybody who is ready join,
writes for all of them, and hands the lead to one who came meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, Literal, TypeVar

import trio

from idemactor.storage.base import CommitResult
from idemactor.storage.journal_file import JournalFile, Row
from idemactor.storage.pace import Pace

T = TypeVar("T")

Threads = Literal["auto", "never", "always"]
"""Where work runs: as the disk's speed has it; on the event loop (tests with a mock clock); in a thread."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""The largest body that is worth a detour through the journal; a larger batch goes to the shard's file at once."""


@dataclass(slots=True)
class _Slot:
    """A batch that waits for its sync. ``leads`` where its shard has to write for everybody who waits."""

    row: Row
    result: CommitResult = CommitResult.FAILED
    leads: bool = False
    ready: trio.Event = field(default_factory=trio.Event)


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
        self._waiting: list[_Slot] = []
        self._led = False
        self._opening = trio.Lock()
        self._last_seq = 0
        self._done: dict[int, int] = {}

    async def open(self, applied: Mapping[int, int]) -> None:
        """Open the file.

        Args:
            applied: By shard, the number of the latest batch that the shard's own file holds.

        Raises:
            StorageError: It cannot be opened or read.
        """
        async with self._opening:
            if self._file.broken:
                latest = await self._run(self._file.open, thread=True)
                self._last_seq = max(self._last_seq, latest, *applied.values())

    async def close(self) -> None:
        """Let go of the file. Every shard has closed before, and so has written behind what it had."""
        with trio.CancelScope(shield=True):
            await self._run(self._close, thread=True)

    async def read(self, shard: int) -> list[Row]:
        """The batches of a shard, in order.

        Raises:
            StorageError: The file cannot be read.
        """
        return await self._run(lambda: self._file.read_batches(shard), thread=False)

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
            await slot.ready.wait()
        else:
            self._led = slot.leads = True
        if slot.leads:
            await self._lead()
        return slot.result, slot.row.seq

    def applied(self, shard: int, seq: int) -> None:
        """The shard's own file holds everything up to ``seq``, durably: the next write drops it here."""
        self._done[shard] = seq

    def _close(self) -> None:
        self._file.drop(self._done)
        self._file.close(tidy=True)

    async def _lead(self) -> None:
        # Shielded: whoever joined must get an answer, and a write in a thread goes on whatever its caller does.
        with trio.CancelScope(shield=True):
            # Everybody who can run now gets to append before the one sync.
            await trio.lowlevel.checkpoint()
            group, self._waiting = self._waiting, []
            done, self._done = self._done, {}
            started = perf_counter()
            result = await self._run(lambda: self._file.append([s.row for s in group], done), thread=self._pace.slow)
            self.sync_s = self._file.sync_s
            self._pace.observe(perf_counter() - started)
        for slot in group:
            slot.result = result
            slot.ready.set()
        if self._waiting:
            follower = self._waiting[0]
            follower.leads = True
            follower.ready.set()
        else:
            self._led = False

    async def _run(self, work: Callable[[], T], *, thread: bool) -> T:
        if self._threads == "never" or (self._threads == "auto" and not thread):
            return work()
        return await trio.to_thread.run_sync(work, limiter=self._limiter)
