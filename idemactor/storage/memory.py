"""Storage in memory: the reference that the other engines are compared with, and the disk of the simulator.

A ``MemoryDisk`` outlives the engines on it, as a file outlives a process: crash and eviction are a new engine on the
same disk. What goes wrong is said to the disk beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from idemactor.core.delivery import Event, Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.record import Entry, Record, State
from idemactor.core.tally import Tally, TallyKey
from idemactor.errors import StorageError
from idemactor.storage.base import Batch, CommitResult, Open, Opened, RecordQuery, StateFilter, StoredIncident
from idemactor.storage.overlay import dispatched_in


@dataclass(frozen=True, slots=True)
class Fault:
    """What the next commit comes to; ``applied`` says whether an UNKNOWN batch is kept all the same."""

    result: CommitResult
    applied: bool = False

    def __post_init__(self) -> None:
        if self.applied and self.result is not CommitResult.UNKNOWN:
            raise ValueError("only an unknown batch may be kept without a word")


Hook = Callable[[Batch], Awaitable[None]]
"""Called before a batch is applied: a slow disk sleeps here."""


@dataclass(slots=True)
class MemoryDisk:
    """What is kept, and what is to go wrong.

    Attributes:
        faults: What the next commits come to, one after the other; none: OK.
        failing_opens: How many of the next ``open`` and ``reopen`` fail.
        failing_reads: How many of the next reading calls fail; the engine is broken afterwards.
        fenced: Another owner took over: commits and confirmations are FENCED.
        before_commit: A slow disk.
        commits: How many batches were applied.
        operations: By operation id, the entry that had it last; whether it still has is to be seen there.
    """

    entries: dict[int, Entry] = field(default_factory=dict)
    ids: dict[Identity, int] = field(default_factory=dict)
    incidents: dict[int, StoredIncident] = field(default_factory=dict)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    intents: dict[int, Intent] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    last_token: int = 0
    latest_ms: int = 0
    last_incident_id: int = 0
    faults: deque[Fault] = field(default_factory=deque)
    failing_opens: int = 0
    failing_reads: int = 0
    fenced: bool = False
    before_commit: Hook | None = None
    commits: int = 0

    def apply(self, batch: Batch) -> None:
        """Write a batch, all of it at once."""
        for entry in batch.deletes:
            self._delete(entry.id)
        for entry_id in batch.undelivered:
            self.intents.pop(entry_id, None)
        for entry in batch.puts:
            self.entries[entry.id] = entry
            self.ids[entry.identity] = entry.id
            self.operations.update(dict.fromkeys(dispatched_in(entry), entry.id))
        self._empty(frozenset(batch.emptied))
        self.intents.update(batch.intents)
        self.events.update((event.seq, event) for event in batch.events)
        for seq in batch.acked:
            self.events.pop(seq, None)
        known = {(stored.incident.token, stored.incident.identity) for stored in self.incidents.values()}
        for incident in batch.incidents:
            if (which := (incident.token, incident.identity)) not in known:
                known.add(which)
                self.last_incident_id += 1
                self.incidents[self.last_incident_id] = StoredIncident(self.last_incident_id, incident)
        # After the new ones: what is acknowledged does not come back for its token.
        for incident_id in batch.acknowledged:
            self.incidents.pop(incident_id, None)
        for key, tally in batch.tallies.items():
            # A copy: the shard goes on counting in the one it gave us.
            self.tallies[key] = replace(tally)
            if tally == Tally():
                del self.tallies[key]
        self.last_token = max(self.last_token, batch.last_token)
        self.latest_ms = max(self.latest_ms, batch.now_ms)
        self.commits += 1

    def _empty(self, gone: frozenset[Identity]) -> None:
        if not gone:
            return
        self.events.update((seq, event.emptied()) for seq, event in self.events.items() if event.identity in gone)
        for number, stored in self.incidents.items():
            if stored.incident.identity in gone:
                self.incidents[number] = replace(stored, incident=stored.incident.emptied())

    def _delete(self, entry_id: int) -> None:
        entry = self.entries.pop(entry_id, None)
        self.intents.pop(entry_id, None)
        if entry is None:
            return
        for operation_id in dispatched_in(entry):
            self.operations.pop(operation_id, None)
        if self.ids.get(entry.identity) == entry_id:
            del self.ids[entry.identity]


class MemoryEngine:
    """The storage of one shard on a ``MemoryDisk`` (see ``storage/base.py`` for the methods). Never uses a thread."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        self.last_sync_s = 0.0
        self.last_error: Exception | None = None
        self._usable = False

    async def open(self) -> Opened:
        """Say what the disk holds; ``StorageError`` while ``failing_opens`` lasts."""
        self._usable = False
        disk = self.disk
        if disk.failing_opens > 0:
            disk.failing_opens -= 1
            raise StorageError("the disk was told to fail")
        self._usable = True
        return Opened(disk.last_token, disk.latest_ms, {key: replace(t) for key, t in disk.tallies.items()})

    async def reopen(self) -> Opened:
        """As ``open``: memory has no cache that could lie."""
        return await self.open()

    async def close(self) -> None:
        """Stop using the disk; it keeps what it holds."""
        self._usable = False

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """The entries of those identities that have one."""
        disk = self._reading()
        return {identity: disk.entries[disk.ids[identity]] for identity in identities if identity in disk.ids}

    async def commit(self, batch: Batch) -> CommitResult:
        """Apply a batch, or do what the disk was told."""
        if not self._usable:
            return CommitResult.FAILED
        # Nothing that the hook waits for may find an engine that looks usable after being cancelled here.
        self._usable = False
        if self.disk.before_commit is not None:
            await self.disk.before_commit(batch)
        result = self._apply(batch)
        self._usable = result is CommitResult.OK
        return result

    def _apply(self, batch: Batch) -> CommitResult:
        disk = self.disk
        if disk.fenced:
            return CommitResult.FENCED
        fault = disk.faults.popleft() if disk.faults else Fault(CommitResult.OK)
        if fault.result is CommitResult.FENCED:
            disk.fenced = True
        if fault.result is CommitResult.OK or fault.applied:
            disk.apply(batch)
        return fault.result

    async def confirm(self) -> CommitResult:
        """FENCED once another owner took over, FAILED until it is opened."""
        if self.disk.fenced:
            return CommitResult.FENCED
        return CommitResult.OK if self._usable else CommitResult.FAILED

    async def maintain(self, *, small: bool = False) -> None:
        """Nothing to do."""

    async def wipe(self) -> bool:
        """There are no files."""
        return True

    async def alarms(self, limit: int) -> list[tuple[int, Identity]]:
        """The earliest ``limit`` alarms, (alarm_at, identity) in order of time."""
        entries = self._reading().entries.values()
        due = sorted((e.alarm_at, e.id, e.identity) for e in entries if e.alarm_at is not None)
        return [(at, identity) for at, _, identity in due[:limit]]

    async def list_records(self, query: RecordQuery, after_id: int, limit: int) -> list[Entry]:
        """Matching entries with an id above ``after_id``, in order of id, their outcomes left out."""
        entries = self._reading().entries
        ids = sorted(i for i, entry in entries.items() if i > after_id and _matches(entry, query))
        return [_without_outcome(entries[i]) for i in ids[:limit]]

    async def list_incidents(self, tenant: str, namespace: str, after_id: int, limit: int) -> list[StoredIncident]:
        """Incidents with an id above ``after_id``, in order of id."""
        incidents = self._reading().incidents
        owner = (tenant, namespace)
        ids = sorted(i for i, stored in incidents.items() if stored.incident.identity[:2] == owner and i > after_id)
        return [incidents[i] for i in ids[:limit]]

    async def find_incident(self, incident_id: int) -> StoredIncident | None:
        """The incident of that id, if it is still there."""
        return self._reading().incidents.get(incident_id)

    async def last_seq(self) -> int:
        """The highest ``seq`` of what is in the outbox and has not ended; 0 where there is nothing."""
        return max((each.seq for each in self._outbox()), default=0)

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        """The first ``limit`` entries of the outbox that have not ended and have a higher ``seq``, in its order."""
        opened = [each for each in self._outbox() if each.seq > after_seq]
        return sorted(opened, key=lambda each: each.seq)[:limit]

    def _outbox(self) -> list[Open]:
        # A part of opening, which fails apart from reading.
        if not self._usable:
            raise StorageError("the engine is not open")
        disk = self.disk
        opened = [found for entry in disk.entries.values() if (found := _open(entry)) is not None]
        opened += [
            Open(
                Kind.EVENT,
                e.seq,
                *e.identity[:2],
                e.seq,
                e.content.order_key,
                State.PENDING,
                None,
                e.committed_at,
                None,
            )
            for e in disk.events.values()
        ]
        return opened

    async def load_ids(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries of those ids that are there."""
        entries = self._reading().entries
        return {entry_id: entries[entry_id] for entry_id in ids if entry_id in entries}

    async def load_intents(self, ids: Sequence[int]) -> dict[int, Intent]:
        """The intents of those entries that have one."""
        intents = self._reading().intents
        return {entry_id: intents[entry_id] for entry_id in ids if entry_id in intents}

    async def load_events(self, seqs: Sequence[int]) -> dict[int, Event]:
        """Those events that are there."""
        events = self._reading().events
        return {seq: events[seq] for seq in seqs if seq in events}

    async def find_operation(self, tenant: str, namespace: str, operation_id: str) -> Identity | None:
        """Whose dispatched operation this is: of a record, or of a tombstone that says how it ended."""
        disk = self._reading()
        entry = disk.entries.get(disk.operations.get(operation_id, -1))
        if entry is None or entry.identity[:2] != (tenant, namespace) or operation_id not in dispatched_in(entry):
            return None
        return entry.identity

    async def oldest_pending_at(self) -> int | None:
        """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
        records = [entry.record for entry in self._reading().entries.values()]
        return min((r.reserved_at for r in records if r and r.state in (State.PENDING, State.LAPSED)), default=None)

    def _reading(self) -> MemoryDisk:
        if self._usable and self.disk.failing_reads > 0:
            self.disk.failing_reads -= 1
            self._usable = False
        if not self._usable:
            raise StorageError("the engine is not open")
        return self.disk


def _matches(entry: Entry, query: RecordQuery) -> bool:
    record = entry.record
    if record is None or entry.identity[:2] != (query.tenant, query.namespace):
        return False
    if query.contested is not None and record.contested is not query.contested:
        return False
    if query.reserved_before_ms is not None and record.reserved_at >= query.reserved_before_ms:
        return False
    if record.state is State.COMMITTED and not _after(record.expires_at, query.now_ms):
        return False
    return _in_state(record, query.state, query.now_ms)


def _in_state(record: Record, wanted: StateFilter | None, now_ms: int) -> bool:
    match wanted:
        case None:
            return True
        case StateFilter.COMMITTED:
            return record.state is State.COMMITTED
        case StateFilter.PENDING:
            return record.state is State.PENDING and not _over(record.lease_expires_at, now_ms)
        case StateFilter.IN_DOUBT:
            lapsed = record.state is State.PENDING and _over(record.lease_expires_at, now_ms)
            return lapsed or record.state in (State.LAPSED, State.DOUBTED)
        case _:
            assert_never(wanted)


def _after(time_ms: int | None, now_ms: int) -> bool:
    return time_ms is not None and time_ms > now_ms


def _over(time_ms: int | None, now_ms: int) -> bool:
    return time_ms is not None and time_ms <= now_ms


def _open(entry: Entry) -> Open | None:
    record = entry.record
    if record is None or (delivery := record.delivery) is None or delivery.ending is not None:
        return None
    if record.state is State.DOUBTED and delivery.order_key is None:
        return None
    return Open(
        Kind.INTENT,
        entry.id,
        entry.identity.tenant,
        entry.identity.namespace,
        delivery.seq,
        delivery.order_key,
        record.state,
        record.lease_expires_at,
        delivery.due_at,
        record.holder,
    )


def _without_outcome(entry: Entry) -> Entry:
    if entry.record is None or entry.record.outcome is None:
        return entry
    return replace(entry, record=replace(entry.record, outcome=None))
