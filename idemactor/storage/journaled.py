"""An engine behind a journal: durable at once there, written to the shard's own file later and in large batches.

What the journal holds and the file does not is laid over the file in memory, so that reads see everything. The file is
written behind by ``maintain``, after answers have left; by what has to ask the file itself (listings, alarms); and by
``close``. Each write names the latest journal batch that it includes, in the same transaction: after a crash, opening
replays what comes behind it and nothing else, and any step of that may be repeated.

Where the journal is damaged, and all of it that the file lacks can still be read, the file has everything after that
write: the shard goes on *alone*, with each batch in its file at once. What is numbered stays as it was, so that the
journal still fits when it is put right.

The journal lets go of a batch once the file's own commit returned. So that has to be durable whatever the journal's
durability is: a power loss may cost the journal its latest batches, but never a file the ones that were dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import apsw
import trio

from idemactor.core.delivery import Event, Intent
from idemactor.core.keys import Identity
from idemactor.core.record import Entry
from idemactor.errors import StorageError
from idemactor.storage import journal_rows
from idemactor.storage.base import Batch, CommitResult, Engine, Open, Opened, RecordQuery, StoredIncident
from idemactor.storage.journal import BODY_BYTES_MAX, Journal
from idemactor.storage.journal_file import about_batch, opened_body
from idemactor.storage.overlay import Overlay
from idemactor.storage.sealing import Keyring

WRITE_BEHIND_ROWS: Final = 128
"""How many rows a shard lets come together before its file is written. A row takes 12 to 15 us, so that the loop stands
still for 2 ms; three times as many, and as long, would save a twentieth of a small batch's cost."""

WRITE_BEHIND_BATCHES: Final = 4
"""How many batches of the size of the latest one come together at least. Where batches are large so is the time that
everybody waits for anyway, and a key that is reserved in one and committed in the next is written once."""

SMALL: Final = 2
"""What part of these comes together where several tenants are served: who asks for little waits for each piece."""

OVERDUE: Final = 2
"""How many times as much may come together while other shards have their turn."""

WRITE_BEHIND_BYTES: Final = 1024 * 1024
"""How many bytes of a shard's batches the journal may hold before its file is written, whatever few rows they are: one
key that is extended again and again must not make the journal grow, nor large outcomes the memory."""


class JournaledEngine:
    """The storage of one shard, see ``storage/base.py`` for the methods.

    Args:
        shard: Its number.
        inner: The shard's own file. Its commits must be durable when they return.
        journal: Shared by all shards of the process.
        rows: How many rows to let come together.
        bytes_max: How many bytes of batches to let come together.
        keys: Batches are sealed with them, whole.
    """

    def __init__(
        self,
        shard: int,
        inner: Engine,
        journal: Journal,
        *,
        rows: int = WRITE_BEHIND_ROWS,
        bytes_max: int = WRITE_BEHIND_BYTES,
        keys: Keyring | None = None,
    ) -> None:
        self.last_sync_s = 0.0
        self._shard = shard
        self._inner = inner
        self._journal = journal
        self._rows = rows
        self._bytes_max = bytes_max
        self._keys = keys
        self._overlay = Overlay()
        self._overlay_bytes = 0
        self._seq = 0
        self._latest_rows = 0
        self._broken = True
        self._forgets = False
        self._no_room = False
        self._alone: str | None = None

    @property
    def last_error(self) -> Exception | None:
        """What failed last: the journal, or the file behind it."""
        return self._journal.last_error or self._inner.last_error

    async def open(self) -> Opened:
        """Open the file and bring it up to the journal."""
        return await self._catch_up(await self._inner.open())

    async def reopen(self) -> Opened:
        """Open the journal and the file anew after a failure of either."""
        self._broken = True
        return await self._catch_up(await self._inner.reopen())

    async def _catch_up(self, opened: Opened) -> Opened:
        self._broken = True
        try:
            opened = await self._replay(opened)
        except BaseException:
            self._broken = True
            await self._inner.close()
            raise
        self._broken = False
        return opened

    async def _replay(self, opened: Opened) -> Opened:
        self._forget_overlay()
        self._seq = opened.journal_seq
        try:
            lacking = await self._journal.open(self._shard, self._seq)
        except StorageError as error:
            raise type(error)(f"shard {self._shard}: {error}") from error
        rows = lacking.rows
        self._alone = None if lacking.damage is None else str(lacking.damage)
        for row in rows:
            # It fits: before one that did not was appended, the file was written.
            body = opened_body(row, self._keys)
            self._lay_over(journal_rows.decode(body), len(body))
            self._seq = row.seq
        if rows and await self._write() is not CommitResult.OK:
            # What only a damaged journal has is shown to nobody before it is where it is safe.
            if self._alone is not None or not await self._go_on_reading():
                raise StorageError(f"shard {self._shard}: its file cannot be written")
            return self._overlay.opened(opened, self._seq)
        if rows:
            await self._inner.close()
            opened = await self._inner.open()
        self._journal.applied(self._shard, self._seq)
        return replace(opened, alone=self._alone)

    async def close(self) -> None:
        """Write behind what is left, and let go of the file."""
        if not self._broken and self._overlay.batches:
            # What cannot be written is in the journal, and opening brings it into the file.
            await self._write()
        self._broken = True
        await self._inner.close()

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """The entries of those identities that have one."""
        self._check_open()
        found, unknown = self._overlay.look_up(identities)
        if unknown:
            found.update(await self._inner.load(unknown))
        return found

    async def commit(self, batch: Batch) -> CommitResult:
        """Make a batch durable: in the journal, or, where it is too large for that, in the file."""
        if self._broken:
            return CommitResult.FAILED
        # Broken until proven whole: a caller that is cancelled half-way leaves nothing that looks whole.
        self._broken = True
        try:
            body = journal_rows.encode(batch)
        except (TypeError, ValueError, OverflowError):
            # What a file could not store must not become durable first, and then stand in the way for good.
            return CommitResult.FAILED
        if (self._no_room or not self._overlay.fits(batch)) and await self._write() is not CommitResult.OK:
            return CommitResult.FAILED
        self._broken = True
        if self._alone is not None:
            self.last_sync_s = 0.0
            result = await self._write_at_once(batch, len(body))
        elif len(body) <= BODY_BYTES_MAX:
            result = await self._append(batch, body)
        else:
            result = await self._bypass(batch, len(body))
        self._broken = result is not CommitResult.OK
        self._forgets = self._forgets or batch.forgets
        return result

    async def _append(self, batch: Batch, body: bytes) -> CommitResult:
        if self._keys is not None:
            body = self._keys.seal(body, about_batch(self._shard, self._seq))
        result, seq = await self._journal.append(self._shard, self._seq, body)
        self.last_sync_s = self._journal.sync_s
        if result is CommitResult.OK:
            self._lay_over(batch, len(body))
            self._seq = seq
        return result

    async def _bypass(self, batch: Batch, size: int) -> CommitResult:
        """Write to the file at once, between two words of the journal: should the file lose its end, it is missed.

        The first one gives the batch its number, and changes nothing; the second one says that the file has it.
        """
        number = Batch(now_ms=0, last_token=0)
        result = await self._append(number, journal_rows.encode(number))
        if result is not CommitResult.OK:
            return result
        result = await self._write_at_once(batch, size)
        if result is CommitResult.OK and not await self._journal.settle():
            # It is in the file. Whether that would be missed is not known.
            result = CommitResult.UNKNOWN
        return result

    async def _write_at_once(self, batch: Batch, size: int) -> CommitResult:
        self._lay_over(batch, size)
        result = await self._write()
        self.last_sync_s += self._inner.last_sync_s
        return result

    async def confirm(self) -> CommitResult:
        """OK while journal and file are whole."""
        return CommitResult.FAILED if self._broken else await self._inner.confirm()

    async def maintain(self, *, small: bool = False) -> None:
        """Write the file behind once enough has come together. A failure shows at the next commit."""
        if self._forgets:
            self._forgets = not await self.wipe()
        if not self._broken and self._due(SMALL if small else 1):
            # Answers of other shards may be durable by now, and leave before this one's file is written.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if await self._write() is not CommitResult.OK:
                await self._go_on_reading()
        await self._inner.maintain(small=small)
        if await self._inner.confirm() is not CommitResult.OK and not self._no_room:
            # The file was deleted, say: whoever comes next has to know.
            self._broken = True
        await self._journal.maintain()

    async def wipe(self) -> bool:
        """Leave nothing of what was removed in the file, nor in the journal, which has it as it was given.

        Nothing is removed from a journal that is damaged.
        """
        if self._broken or (self._overlay.batches and await self._write() is not CommitResult.OK):
            return False
        return await self._inner.wipe() and (self._alone is not None or await self._journal.wipe())

    def _due(self, part: int) -> bool:
        rows_enough = max(1, max(self._rows, WRITE_BEHIND_BATCHES * self._latest_rows) // part)
        full = max(len(self._overlay) / rows_enough, self._overlay_bytes / self._bytes_max)
        return full >= 1 and (self._journal.turn_to_write_behind() or full >= OVERDUE)

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

    async def last_seq(self) -> int:
        """The highest ``seq`` of what is in the outbox and has not ended; 0 where there is nothing."""
        if self._overlay.touches_outbox:
            await self._write_behind()
        self._check_open()
        return await self._inner.last_seq()

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        """The first ``limit`` entries of the outbox that have not ended and have a higher ``seq``, in its order."""
        if self._overlay.touches_outbox:
            await self._write_behind()
        self._check_open()
        return await self._inner.outbox(after_seq, limit)

    async def load_ids(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries of those ids that are there."""
        self._check_open()
        found, unknown = self._overlay.look_up_ids(ids)
        return found | await self._inner.load_ids(unknown) if unknown else found

    async def load_intents(self, ids: Sequence[int]) -> dict[int, Intent]:
        """The intents of those entries that have one."""
        self._check_open()
        found, unknown = self._overlay.look_up_intents(ids)
        return found | await self._inner.load_intents(unknown) if unknown else found

    async def load_events(self, seqs: Sequence[int]) -> dict[int, Event]:
        """Those events that are there."""
        self._check_open()
        found, unknown = self._overlay.look_up_events(seqs)
        return found | self._overlay.emptied(await self._inner.load_events(unknown)) if unknown else found

    async def find_operation(self, tenant: str, namespace: str, operation_id: str) -> Identity | None:
        """Whose dispatched operation this is: of a record, or of a tombstone that says how it ended."""
        self._check_open()
        if (identity := self._overlay.find_operation(tenant, namespace, operation_id)) is not None:
            return identity
        identity = await self._inner.find_operation(tenant, namespace, operation_id)
        # What the file says of a key is no news where the overlay knows the key, and did not find the operation.
        return None if identity is None or self._overlay.covers(identity) else identity

    async def oldest_pending_at(self) -> int | None:
        """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
        await self._write_behind()
        return await self._inner.oldest_pending_at()

    async def _write_behind(self) -> None:
        """Bring the file up to what was committed, so that it can be asked.

        Raises:
            StorageError: The file cannot be written; the journal still has everything.
        """
        self._check_open()
        await self._write_out()

    def _check_open(self) -> None:
        if self._broken:
            raise StorageError(f"shard {self._shard} is not open")

    async def _write_out(self) -> None:
        if self._overlay.batches and await self._write() is not CommitResult.OK:
            await self._go_on_reading()
            raise StorageError(f"shard {self._shard}: its file cannot be written")

    async def _go_on_reading(self) -> bool:
        """After a write for which the disk had no room: the journal has it all, and who reads is shown it as before.

        Nothing more is taken until the file was written: what the journal and memory hold for it has its limit.
        """
        if not isinstance(self._inner.last_error, apsw.FullError):
            return False
        try:
            await self._inner.reopen()
        except StorageError:
            return False
        self._broken = False
        self._no_room = True
        return True

    def _lay_over(self, batch: Batch, size: int) -> None:
        self._overlay.add(batch)
        self._latest_rows = len(batch.puts) + len(batch.deletes)
        self._overlay_bytes += size

    def _forget_overlay(self) -> None:
        self._overlay = Overlay()
        self._overlay_bytes = 0

    async def _write(self) -> CommitResult:
        """Write the overlay to the file, whose commit is durable when it returns."""
        self._broken = True
        batch = self._overlay.merged()
        batch.journal_seq = self._seq
        result = await self._inner.commit(batch)
        if result is CommitResult.OK:
            self._broken = self._no_room = False
            self._forget_overlay()
            self._journal.applied(self._shard, self._seq)
        return result
