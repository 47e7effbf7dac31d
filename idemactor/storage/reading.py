"""The content of a shard as a start would bring it about, read without changing anything.

What the journal holds and the shard's file does not is laid over what the file says, in memory: it is as much as a
server lets come together between two writes. Files of the format before are read as the present one has them.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import apsw

from idemactor.core.delivery import Event, Intent, Kind
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.record import Entry, Incident
from idemactor.errors import OutOfReach, StorageError
from idemactor.storage import check_sql, journal_file, rows, schema, sqlite_reads
from idemactor.storage.base import Batch
from idemactor.storage.check import open_untouched
from idemactor.storage.checksums import refuse_damage
from idemactor.storage.journal_file import Held, opened_body
from idemactor.storage.journal_rows import decode
from idemactor.storage.overlay import Overlay
from idemactor.storage.sealing import Keyring, check_keys
from idemactor.storage.sqlite_create import check_version
from idemactor.storage.watermark import synced_up_to
from idemactor.storage.ways_out import NOT_ALONE

_PART: Final = " WHERE (records.hash % :shards + :shards) % :shards = :shard ORDER BY records.id"
# Without "+ :shards" a negative hash would leave a negative rest: SQLite rounds towards zero, Python down.
_ENTRIES: Final = schema.SELECT_LOADED + _PART
_COUNT: Final = "SELECT count(*) FROM records"
_HAS_ENTRY: Final = "SELECT 1 FROM records WHERE id = ?"
_EVENTS: Final = f"SELECT {', '.join(schema.EVENT_COLUMNS)} FROM events ORDER BY seq"
_INCIDENTS: Final = f"{schema.SELECT_ANY_INCIDENT} ORDER BY id"
_INCIDENT_ID: Final = "SELECT id FROM incidents WHERE token = ? AND tenant = ? AND namespace = ? AND key = ?"
_LAST_INCIDENT: Final = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'incidents'), 0)"
_LINE: Final = (
    "SELECT seq, 0, id FROM deliveries WHERE ending IS NULL UNION ALL SELECT seq, 1, seq FROM events ORDER BY 1"
)


@dataclass(frozen=True, slots=True)
class Part:
    """Those keys that belong to ``shard`` of ``shards``."""

    shard: int = 0
    shards: int = 1

    def has(self, identity: Identity) -> bool:
        """Whether this key is one of them."""
        return shard_of(identity_hash(identity), self.shards) == self.shard


EVERYTHING: Final = Part()


@dataclass(frozen=True, slots=True)
class Whole:
    """An entry with all that goes with it."""

    entry: Entry
    intent: Intent | None


@dataclass(slots=True)
class _Over:
    """What the journal lays over the file."""

    batch: Batch
    puts: dict[int, Entry] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    lost_intents: frozenset[int] = frozenset()
    incidents: list[Incident] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    acked: frozenset[int] = frozenset()
    emptied: frozenset[Identity] = frozenset()


class ShardReader:
    """One shard's content.

    Attributes:
        name: Of its file, for messages.
        last_token: The highest token granted.
        latest_ms: The latest time that anything was decided at.
        journal_seq: The number of the last batch that it includes.
        last_incident_id: The highest id that an incident of it ever had, or is about to have.
    """

    def __init__(self, connection: apsw.Connection, name: str, held: Held, keys: Keyring | None = None) -> None:
        self.name = name
        self._keys = keys
        self._connection = connection
        if check_version(connection, name) < schema.FORMAT:
            connection.execute(check_sql.FORMAT_1_AS_2)
        meta = connection.execute(schema.SELECT_META).fetchone()
        if meta is None:
            raise StorageError(f"{name} has lost its meta row; {NOT_ALONE}")
        _, self.shard, self.shards, last_token, latest_ms, self.journal_seq = meta
        self._over = _Over(Batch(0, 0))
        self._lay_over(held)
        self.last_token: int = max(last_token, self._over.batch.last_token)
        self.latest_ms: int = max(latest_ms, self._over.batch.now_ms)
        kept: int = connection.execute(_LAST_INCIDENT).get
        self.last_incident_id = kept + len(self._over.incidents)

    def refuse_without_key(self) -> None:
        """Look at the oldest and the latest of each kind of content.

        Raises:
            OutOfReach: The key of one of them is missing.
        """
        for headers, body in self._connection.execute(schema.SELECT_SEALED):
            try:
                check_keys(self._keys, headers, body)
            except OutOfReach as error:
                raise OutOfReach(f"{self.name}: {error}") from None

    def count(self) -> int:
        """How many entries there are."""
        in_file: int = self._connection.execute(_COUNT).get
        laid_over = [(entry_id,) for entry_id in self._over.gone | self._over.puts.keys()]
        covered = len(self._connection.executemany(_HAS_ENTRY, laid_over).fetchall())
        return in_file - covered + len(self._over.puts)

    def wholes(self, part: Part = EVERYTHING) -> Iterator[Whole]:
        """The entries of a part, in order of id.

        Raises:
            StorageError: Something that an entry should have is not there.
            apsw.Error: The file cannot be read.
        """
        over = self._over
        puts = sorted((entry for entry in over.puts.values() if part.has(entry.identity)), key=_id)
        cursor = self._connection.execute(_ENTRIES, {"shard": part.shard, "shards": part.shards})
        in_file = (row for row in cursor if row[0] not in over.gone and row[0] not in over.puts)
        for entry in heapq.merge((rows.loaded_entry_of(row, self._keys) for row in in_file), puts, key=_id):
            yield Whole(entry, self._intent(entry))

    def find(self, identity: Identity) -> Whole | None:
        """The entry of a key.

        Raises:
            StorageError: See ``wholes``.
            apsw.Error: See ``wholes``.
        """
        found = next((entry for entry in self._over.puts.values() if entry.identity == identity), None)
        if found is None:
            found = sqlite_reads.load(self._connection, [identity], self._keys).get(identity)
            if found is not None and (found.id in self._over.gone or found.id in self._over.puts):
                found = None
        return None if found is None else Whole(found, self._intent(found))

    def incidents(self) -> Iterator[Incident]:
        """The incidents, in the order in which they came."""
        for row in self._connection.execute(_INCIDENTS):
            if row[0] not in self._over.acknowledged:
                incident = rows.incident_of(row, self._keys).incident
                yield incident.emptied() if incident.identity in self._over.emptied else incident
        yield from self._over.incidents

    def has_incident(self, incident: Incident) -> bool:
        """Whether the same late commit left an incident here."""
        which = (incident.token, incident.identity)
        if any((each.token, each.identity) == which for each in self._over.incidents):
            return True
        row = self._connection.execute(_INCIDENT_ID, (incident.token, *incident.identity)).fetchone()
        return row is not None and row[0] not in self._over.acknowledged

    def events(self) -> Iterator[Event]:
        """The events that nobody has acknowledged, in order of ``seq``."""
        added = {event.seq: event for event in self._over.batch.events}
        cursor = self._connection.execute(_EVENTS)
        gone = self._over.acked | added.keys()
        kept = (rows.event_of(row, self._keys) for row in cursor if row[0] not in gone)
        in_file = (event.emptied() if event.identity in self._over.emptied else event for event in kept)
        yield from heapq.merge(in_file, sorted(added.values(), key=_seq), key=_seq)

    def line(self) -> Iterator[tuple[int, Kind]]:
        """The place in line of everything that waits to be delivered, in order."""
        over = self._over
        added = [(event.seq, Kind.EVENT) for event in over.batch.events]
        for entry in over.puts.values():
            delivery = None if entry.record is None else entry.record.delivery
            if delivery is not None and delivery.ending is None:
                added.append((delivery.seq, Kind.INTENT))
        events = {seq for seq, kind in added if kind is Kind.EVENT}
        in_file = (
            (seq, Kind(kind))
            for seq, kind, number in self._connection.execute(_LINE)
            if number not in ((over.acked | events) if kind else (over.gone | over.puts.keys() | over.lost_intents))
        )
        yield from heapq.merge(in_file, sorted(added))

    def _intent(self, entry: Entry) -> Intent | None:
        if entry.record is None or entry.record.delivery is None:
            return None
        if (intent := self._over.batch.intents.get(entry.id)) is not None:
            return intent
        if entry.id in self._over.gone or entry.id in self._over.lost_intents:
            return None
        row = self._connection.execute(schema.SELECT_INTENT, (entry.id,)).fetchone()
        return None if row is None else rows.intent_of(row, self._keys)[1]

    def _lay_over(self, held: Held) -> None:
        overlay, over = Overlay(), self._over
        for row in held.missing_from(self.journal_seq):
            batch = decode(opened_body(row, self._keys))
            self._lay_incidents(batch)
            batch.incidents, batch.acknowledged = [], []
            overlay.add(batch)
            self.journal_seq = row.seq
        merged = over.batch = overlay.merged()
        over.puts = {entry.id: entry for entry in merged.puts}
        over.gone = frozenset(entry.id for entry in merged.deletes)
        over.lost_intents = frozenset(merged.undelivered)
        over.acked = frozenset(merged.acked)
        over.emptied = frozenset(merged.emptied)

    def _lay_incidents(self, batch: Batch) -> None:
        before = self._over.incidents
        before[:] = [each.emptied() if each.identity in batch.emptied else each for each in before]
        for incident in batch.incidents:
            if not self.has_incident(incident):
                self._over.incidents.append(incident)
        # What is acknowledged was in the file when somebody was shown its id.
        self._over.acknowledged.update(batch.acknowledged)


def _id(entry: Entry) -> int:
    return entry.id


def _seq(event: Event) -> int:
    return event.seq


@contextlib.contextmanager
def read_shard(path: Path, held: Held, keys: Keyring | None = None) -> Iterator[ShardReader]:
    """The content of a shard's file that nobody uses, and of what its journal has beyond it.

    Raises:
        StorageError: It is not ours, damaged, of a newer release, or the journal does not fit. Or it is encrypted,
            and what it holds is asked for without the key.
        apsw.Error: It cannot be read.
        OSError: It cannot be opened.
    """
    refuse_damage(path)
    with open_untouched(path) as connection:
        yield ShardReader(connection, path.name, held, keys)


def read_held(path: Path, shard: int) -> Held:
    """What the journal at ``path``, which nobody uses, holds of a shard.

    Raises:
        StorageError: It is not ours, of a newer release, or damaged.
        apsw.Error: It cannot be read.
        OSError: It cannot be opened.
    """
    refuse_damage(path)
    with open_untouched(path) as connection:
        check_version(connection, path.name, journal_file.KIND)
        journal_file.refuse_lost_end(connection, path.name, synced_up_to(path))
        return journal_file.read_shard(connection, shard)
