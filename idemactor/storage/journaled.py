"""An engine behind a journal: durable at once there, written to the shard's own file later and in large batches.

What the journal holds and the file does not is laid over the file in memory, so that reads see everything. The file is
written behind by ``maintain``, after answers have left; by what has to ask the file itself (listings, alarms); and by
``close``. Each write names the latest journal batch that it includes, in the same transaction: after a crash, opening
replays what comes behind it and nothing else, and any step of that may be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Batch, CommitResult, Engine, Opened, RecordQuery, StoredIncident
from idemactor.storage.journal import BODY_BYTES_MAX, Journal
from idemactor.storage.overlay import Overlay

WRITE_BEHIND_ROWS: Final = 384
"""How many rows a shard lets come together before its file is written: enough to make the file's own sync rare, and
few enough that writing them does not hold up the others for long."""


class JournaledEngine:
    """The storage of one shard, see ``storage/base.py`` for the methods.

    Args:
        shard: Its number.
        inner: The shard's own file. Its commits must be durable when they return.
        journal: Shared by all shards of the process.
    """

    def __init__(self, shard: int, inner: Engine, journal: Journal, *, rows: int = WRITE_BEHIND_ROWS) -> None:
        self.last_sync_s = 0.0
        self._shard = shard
        self._inner = inner
        self._journal = journal
        self._rows = rows
        self._overlay = Overlay()
        self._seq = 0
        self._broken = True

    async def open(self) -> Opened:
        """Open the file and bring it up to the journal."""
        return await self._catch_up(await self._inner.open())

    async def reopen(self) -> Opened:
        """Open the journal and the file anew after a failure of either."""
        self._broken = True
        return await self._catch_up(await self._inner.reopen())

    async def _catch_up(self, opened: Opened) -> Opened:
        self._overlay = Overlay()
        self._seq = opened.journal_seq
        await self._journal.open({self._shard: self._seq})
        for row in await self._journal.read(self._shard):
            if row.seq <= self._seq:
                continue  # The file has it; the journal only had no occasion yet to drop it.
            if row.previous != self._seq:
                raise StorageError(
                    f"shard {self._shard}: its file ends at batch {self._seq}, and the journal goes on at"
                    f" {row.previous}: one of the two was restored without the other; restore the whole directory"
                    " from one backup"
                )
            self._overlay.add(journal_rows.decode(row.body))
            self._seq = row.seq
        self._broken = False
        if len(self._overlay) or self._seq > opened.journal_seq:
            await self._write_behind()
            await self._inner.close()
            opened = await self._inner.open()
        self._journal.applied(self._shard, self._seq)
        return opened

    async def close(self) -> None:
        """Write behind what is left, and let go of the file."""
        if not self._broken:
            # What cannot be written is in the journal, and opening brings it into the file.
            with contextlib.suppress(StorageError):
                await self._write_behind()
        self._broken = True
        await self._inner.close()

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """The entries of those identities that have one."""
        if self._broken:
            raise StorageError(f"shard {self._shard} is not open")
        found, unknown = self._overlay.look_up(identities)
        if unknown:
            found.update(await self._inner.load(unknown))
        return found

    async def commit(self, batch: Batch) -> CommitResult:
        """Make a batch durable: in the journal, or, where it is too large for that, in the file."""
        if self._broken:
            return CommitResult.FAILED
        body = journal_rows.encode(batch)
        if len(body) > BODY_BYTES_MAX:
            self._overlay.add(batch)
            return await self._write()
        # Broken until proven whole: a caller that is cancelled half-way leaves nothing that looks whole.
        self._broken = True
        result, seq = await self._journal.append(self._shard, self._seq, body)
        self.last_sync_s = self._journal.sync_s
        if result is CommitResult.OK:
            self._broken = False
            self._overlay.add(batch)
            self._seq = seq
        return result

    async def confirm(self) -> CommitResult:
        """OK while journal and file are whole."""
        return CommitResult.FAILED if self._broken else await self._inner.confirm()

    async def maintain(self) -> None:
        """Write the file behind once enough has come together. A failure shows at the next commit."""
        if len(self._overlay) >= self._rows and not self._broken:
            await self._write()
        await self._inner.maintain()

    async def alarms(self, limit: int) -> list[tuple[int, Identity]]:
        """The earliest ``limit`` alarms, (alarm_at, identity) in order of time."""
        await self._write_behind()
        return await self._inner.alarms(limit)

    async def list_records(self, query: RecordQuery, after_id: int, limit: int) -> list[Entry]:
        """Matching entries with an id above ``after_id``, in order of id, their outcomes left out."""
        await self._write_behind()
        return await self._inner.list_records(query, after_id, limit)

    async def list_incidents(self, tenant: str, namespace: str, after_id: int, limit: int) -> list[StoredIncident]:
        """Incidents with an id above ``after_id``, in order of id."""
        await self._write_behind()
        return await self._inner.list_incidents(tenant, namespace, after_id, limit)

    async def find_incident(self, incident_id: int) -> StoredIncident | None:
        """The incident of that id, if it is still there."""
        await self._write_behind()
        return await self._inner.find_incident(incident_id)

    async def oldest_pending_at(self) -> int | None:
        """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
        await self._write_behind()
        return await self._inner.oldest_pending_at()

    async def _write_behind(self) -> None:
        """Bring the file up to what was committed, so that it can be asked.

        Raises:
            StorageError: The file cannot be written; the journal still has everything.
        """
        if self._broken:
            raise StorageError(f"shard {self._shard} is not open")
        if len(self._overlay) and await self._write() is not CommitResult.OK:
            raise StorageError(f"shard {self._shard}: its file cannot be written")

    async def _write(self) -> CommitResult:
        """Write the overlay to the file, whose commit is durable when it returns."""
        self._broken = True
        batch = self._overlay.merged()
        batch.journal_seq = self._seq
        result = await self._inner.commit(batch)
        if result is CommitResult.OK:
            self._broken = False
            self._overlay = Overlay()
            self._journal.applied(self._shard, self._seq)
        return result
