"""What a shard asks of its storage: one small protocol, engines beside it, one contract suite that every engine runs.

The shard is the only caller and calls one method at a time. Every method is awaitable, so that an engine may be a
file, a memory or a server far away. A batch is all or nothing: its rows, its incidents, the last token it used and
its time land together, or none of them does.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from idemactor.core.delivery import Event, Intent, Kind
from idemactor.core.keys import Identity
from idemactor.core.record import Entry, Incident, State
from idemactor.core.tally import Tally, TallyKey


class CommitResult(enum.Enum):
    """What became of a batch."""

    OK = "ok"
    """On disk, as far as the durability setting promises: its answers may leave."""
    FAILED = "failed"
    """Nothing of it is kept; the shard reloads before it goes on."""
    UNKNOWN = "unknown"
    """It may or may not be kept; the shard reloads before it goes on."""
    FENCED = "fenced"
    """Somebody else owns the shard now: this owner stops."""


@dataclass(slots=True)
class Batch:
    """One transaction of a shard.

    Attributes:
        now_ms: The shard's time when it decided; becomes the shard's latest time on disk.
        last_token: The highest token granted so far in this shard.
        puts: Entries to insert or to replace, by id.
        deletes: Entries to remove, by id (their outcomes with them).
        incidents: New incidents; one that is there already for its key and token is left as it is.
        acknowledged: Ids of incidents to remove.
        tallies: The new absolute counts of every tenant and namespace that changed.
        intents: The intents of operations that are new, by the entry's id; one goes with its entry, or by
            ``undelivered``.
        undelivered: Ids of entries that stay and lost their delivery: it and its intent go. That comes before ``puts``
            and ``intents``: what lost one delivery and got another in the same batch is in all three.
        events: New events; none has the ``seq`` of one that is still there.
        acked: The ``seq`` of events to remove, after the new ones came.
        journal_seq: The number of the latest journal batch that this one includes, 0 where there is no journal.
        emptied: Whose incidents and events, as they are before the new ones come, lose their outcome and their content.
        forgets: Somebody wants what it removes to leave the files too: the next ``maintain`` sees to it.
    """

    now_ms: int
    last_token: int
    puts: list[Entry] = field(default_factory=list)
    deletes: list[Entry] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    intents: dict[int, Intent] = field(default_factory=dict)
    undelivered: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    emptied: list[Identity] = field(default_factory=list)
    journal_seq: int = 0
    forgets: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write: such a batch only needs ``confirm``."""
        # An intent comes with its entry, and so does what is undelivered.
        kept = self.puts or self.deletes or self.incidents or self.acknowledged
        return not (kept or self.events or self.acked or self.emptied)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a shard needs to know of its file before it can decide anything.

    Attributes:
        last_token: The highest token granted so far.
        latest_ms: The latest time that any batch was decided at.
        tallies: The counts.
        journal_seq: The number of the latest journal batch that the file includes.
        alone: What is wrong with the journal, where the shard has to do without: its file had everything, and each
            of its batches is written and synced there; None: nothing.
    """

    last_token: int
    latest_ms: int
    tallies: dict[TallyKey, Tally]
    journal_seq: int = 0
    alone: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Something in a shard's outbox that has not ended, as memory needs it; see ``core/outbox.py``.

    Attributes:
        id: The entry's, of an intent; the ``seq`` of an event.
        state: The record's as it is stored; PENDING for an event.
        lease_expires_at: The record's.
        due_at: The delivery's; ``committed_at`` for an event.
        holder: The record's; None for an event.
    """

    kind: Kind
    id: int
    tenant: str
    namespace: str
    seq: int
    order_key: str | None
    state: State
    lease_expires_at: int | None
    due_at: int | None
    holder: str | None


class StateFilter(enum.StrEnum):
    """The ``state`` of a listing; a lease that ran out counts as in doubt."""

    PENDING = "pending"
    IN_DOUBT = "in_doubt"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Which records a listing wants: entries that have a record which time has not ended at ``now_ms``."""

    tenant: str
    namespace: str
    now_ms: int
    state: StateFilter | None = None
    contested: bool | None = None
    reserved_before_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoredIncident:
    """An incident and the id under which this shard keeps it: ascending in the order of arrival, never reused."""

    id: int
    incident: Incident


class Engine(Protocol):
    """The storage of one shard. Methods raise ``StorageError`` when they cannot do what they say.

    Attributes:
        last_sync_s: Seconds that the sync of the latest commit took, as well as the engine can tell.
        last_error: What failed last, for the logs; None where nothing has.
    """

    last_sync_s: float

    @property
    def last_error(self) -> Exception | None:
        """See above."""

    async def open(self) -> Opened:
        """Open what is there (or make it anew where there is nothing) and say what it holds."""

    async def reopen(self) -> Opened:
        """Drop everything in memory after a failure, open again, and write anew and sync what was read.

        A sync that failed may have left pages in the operating system's cache that never reached the disk: what is
        read back is trusted only once it was written and synced again.
        """

    async def close(self) -> None:
        """Let go of files and memory; ``open`` brings everything back."""

    async def load(self, identities: Sequence[Identity]) -> dict[Identity, Entry]:
        """The entries of those identities that have one."""

    async def commit(self, batch: Batch) -> CommitResult:
        """Write a batch as one transaction; returns when its answers may leave. Never raises for a failed write."""

    async def confirm(self) -> CommitResult:
        """Say whether answers that only read may leave: whether this is still the owner."""

    async def maintain(self, *, small: bool = False) -> None:
        """Housekeeping that no answer waits for: called once the answers of a batch have left.

        Args:
            small: In smaller pieces, for somebody may wait for one of them to end.
        """

    async def wipe(self) -> bool:
        """Leave nothing in the files of what was removed, also in what is free in them; whether that was possible.

        Not possible is it while another program reads an older state (a backup), or where something failed.
        """

    async def alarms(self, limit: int) -> list[tuple[int, Identity]]:
        """The earliest ``limit`` alarms, (alarm_at, identity) in order of time."""

    async def list_records(self, query: RecordQuery, after_id: int, limit: int) -> list[Entry]:
        """Matching entries with an id above ``after_id``, in order of id, their outcomes left out."""

    async def list_incidents(self, tenant: str, namespace: str, after_id: int, limit: int) -> list[StoredIncident]:
        """Incidents with an id above ``after_id``, in order of id."""

    async def find_incident(self, incident_id: int) -> StoredIncident | None:
        """The incident of that id, if it is still there."""

    async def last_seq(self) -> int:
        """The highest ``seq`` of what is in the outbox and has not ended; 0 where there is nothing."""

    async def outbox(self, after_seq: int, limit: int) -> list[Open]:
        """The first ``limit`` entries of the outbox that have not ended and have a higher ``seq``, in its order.

        Left out is what is in doubt by its holder's word (DOUBTED) and has no ``order_key``: nothing waits for it.
        """

    async def load_ids(self, ids: Sequence[int]) -> dict[int, Entry]:
        """The entries of those ids that are there."""

    async def load_intents(self, ids: Sequence[int]) -> dict[int, Intent]:
        """The intents of those entries that have one."""

    async def load_events(self, seqs: Sequence[int]) -> dict[int, Event]:
        """Those events that are there."""

    async def find_operation(self, tenant: str, namespace: str, operation_id: str) -> Identity | None:
        """Whose dispatched operation this is: of a record, or of a tombstone that says how it ended."""

    async def oldest_pending_at(self) -> int | None:
        """The earliest ``reserved_at`` of a pending or lapsed record, milliseconds since the epoch."""
