"""The embedded engine: one SQLite file a shard. What blocks is in ``sqlite_file.py``; this decides where it runs.

A fast disk is waited for on the event loop, since a hop to a thread costs as much as the write. A disk that turns out
to be slow is waited for in a thread, so that the other shards go on. Opening, closing and checkpoints, which sync more
than once and happen seldom, always go to a thread under ``auto``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import trio

from idemactor.core.delivery import Event, Intent
from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.storage import sqlite_reads
from idemactor.storage.base import Batch, CommitResult, Open, Opened, RecordQuery, StoredIncident
from idemactor.storage.pace import Pace, Threads, waited_s
from idemactor.storage.sealing import Keyring
from idemactor.storage.sqlite_file import Place, ShardFile
from idemactor.storage.sqlite_wal import Durability

T = TypeVar("T")

LOOK_S: Final = 1.0
"""How long a file that is in use and not written may be gone before that is noticed, seconds."""

THREADS_PER_SHARD: Final = 1
"""A shard does one thing at a time. A limiter of its own keeps it from waiting behind other users of threads."""


class SqliteEngine:
    """The storage of one shard in an SQLite file (see ``storage/base.py`` for the methods).

    Args:
        path: The database file.
        durability: ``full``: an OK survives a power loss. ``process``: it survives the end of the process only.
        shard: The number the file must carry.
        shards: The number of shards it must name.
        create: Make the file where there is none. Off, a missing file is an error: ``DataDirectory`` makes them.
        threads: See ``Threads``.
        vfs: The name of an apsw VFS, for tests that lose what was not synced.
        keys: What callers stored is sealed with them; None: it is kept as it is.
        checksums: Whether the file must have checksums; None: as it has them.

    Attributes:
        last_sync_s: How long the COMMIT of the latest batch took, seconds: nearly all of it is the sync.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "full",
        shard: int = 0,
        shards: int = 1,
        create: bool = False,
        threads: Threads = "auto",
        vfs: str | None = None,
        keys: Keyring | None = None,
        checksums: bool | None = None,
    ) -> None:
        self.last_sync_s = 0.0
        self._file = ShardFile(Place(path, shard, shards, create, durability, vfs, keys, checksums=checksums))
        self._keys = keys
        self._forgets = False
        self._look_at = -math.inf
        self._threads = threads
        self._limiter = trio.CapacityLimiter(THREADS_PER_SHARD)
        self._writes = Pace()
        self._reads = Pace()

    @property
    def wal_pages(self) -> int:
        """Pages in the WAL that are not in the file yet, as far as the latest commit or checkpoint knew."""
        return self._file.wal_pages

    @property
    def last_error(self) -> Exception | None:
        """What failed last, for the logs."""
        return self._file.last_error

    @property
    def threaded(self) -> bool:
        """Whether the next commit goes to a thread."""
        return self._in_thread(self._writes.slow)

    async def open(self) -> Opened:
        """Open the file; ``StorageError`` where that is not safe."""
        return await self._run(self._file.open, thread=True)

    async def reopen(self) -> Opened:
        """Open the file anew after a failure, everything in it written and synced once more."""
        return await self._run(lambda: self._file.open(recovering=True), thread=True)

    async def close(self) -> None:
        """Let go of the file; what is in its WAL is moved into it first."""
        # Also on behalf of a caller that is being cancelled: what was opened is closed.
        with trio.CancelScope(shield=True):
            await self._run(lambda: self._file.close(tidy=True), thread=True)

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """The entries of those identities that have one."""
        if self._in_thread(self._reads.slow):
            return await self._read(lambda: self._file.read(sqlite_reads.load, identities, self._keys))
        started = waited_s()
        found = self._file.read(sqlite_reads.load, identities, self._keys)
        self._reads.observe(waited_s() - started)
        return found

    async def commit(self, batch: Batch) -> CommitResult:
        """Write a batch as one transaction."""
        result = await self._run(lambda: self._file.write(batch), thread=self._writes.slow)
        self._forgets = self._forgets or batch.forgets
        self.last_sync_s = self._file.sync_s
        self._writes.observe(self.last_sync_s)
        return result

    async def confirm(self) -> CommitResult:
        """OK while the file is whole: the lock on the directory keeps every other owner out."""
        return CommitResult.FAILED if self._file.broken else CommitResult.OK

    async def maintain(self, *, small: bool = False) -> None:  # noqa: ARG002
        """Housekeeping that no answer needs to wait for: call it after the answers of a batch have left."""
        if trio.current_time() >= self._look_at:
            self._look_at = trio.current_time() + LOOK_S
            self._file.look()
        if self._forgets:
            self._forgets = not await self.wipe()
        if self._file.wants_maintenance:
            await self._run(self._file.maintain, thread=True)

    async def wipe(self) -> bool:
        """Leave nothing in the WAL; what is free in the file is overwritten when it becomes free."""
        return await self._run(self._file.empty_wal, thread=True)

    async def alarms(self, limit: int) -> list[tuple[int, Identity]]:
        """The earliest ``limit`` alarms, (alarm_at, identity) in order of time."""
        return await self._read(lambda: self._file.read(sqlite_reads.alarms, limit))

    async def list_records(self, query: RecordQuery, after_id: int, limit: int) -> list[Entry]:
        """Matching entries with an id above ``after_id``, in order of id, their outcomes left out."""
        return await self._read(lambda: self._file.read(sqlite_reads.list_records, query, after_id, limit))

    async def list_incidents(self, tenant: str, namespace: str, after_id: int, limit: int) -> list[StoredIncident]:
        """Incidents with an id above ``after_id``, in order of id."""
        return await self._read(
            lambda: self._file.read(sqlite_reads.list_incidents, tenant, namespace, after_id, limit, self._keys)
        )

    async def find_incident(self, incident_id: int) -> StoredIncident | None:
        """The incident of that id, if it is still there."""
        return await self._read(lambda: self._file.read(sqlite_reads.find_incident, incident_id, self._keys))

    async def last_seq(self) -> int:
        """The highest ``seq`` of what is in the outbox and has not ended; 0 where there is nothing."""
        return await self._read(lambda: self._file.read(sqlite_reads.last_seq))

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        """The first ``limit`` entries of the outbox that have not ended and have a higher ``seq``, in its order."""
        return await self._read(lambda: self._file.read(sqlite_reads.outbox, after_seq, limit))

    async def load_ids(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries of those ids that are there."""
        return await self._read(lambda: self._file.read(sqlite_reads.load_ids, ids, self._keys))

    async def load_intents(self, ids: Sequence[int]) -> dict[int, Intent]:
        """The intents of those entries that have one."""
        return await self._read(lambda: self._file.read(sqlite_reads.load_intents, ids, self._keys))

    async def load_events(self, seqs: Sequence[int]) -> dict[int, Event]:
        """Those events that are there."""
        return await self._read(lambda: self._file.read(sqlite_reads.load_events, seqs, self._keys))

    async def find_operation(self, tenant: str, namespace: str, operation_id: str) -> Identity | None:
        """Whose dispatched operation this is: of a record, or of a tombstone that says how it ended."""
        return await self._read(lambda: self._file.read(sqlite_reads.find_operation, tenant, namespace, operation_id))

    async def oldest_pending_at(self) -> int | None:
        """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
        return await self._read(lambda: self._file.read(sqlite_reads.oldest_pending_at))

    async def _read(self, question: Callable[[], T]) -> T:
        def timed() -> tuple[T, float]:
            started = waited_s()
            return question(), waited_s() - started

        answer, seconds = await self._run(timed, thread=self._reads.slow)
        self._reads.observe(seconds)
        return answer

    async def _run(self, work: Callable[[], T], *, thread: bool) -> T:
        if not self._in_thread(thread):
            return work()
        # Never abandoned: a write goes on in its thread whatever its caller does, and two must not overlap.
        return await trio.to_thread.run_sync(work, limiter=self._limiter)

    def _in_thread(self, wanted: bool) -> bool:
        return self._threads == "always" or (self._threads == "auto" and wanted)
