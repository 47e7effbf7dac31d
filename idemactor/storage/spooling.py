"""What an export wrote, line by line, into a spool: a shard's file of its own that ends with the import."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, assert_never

import apsw

from idemactor.core.delivery import Event
from idemactor.core.record import Entry, Incident
from idemactor.storage.check_sql import TWINS
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.line_checks import times_of, tokens_of
from idemactor.storage.lines import BadLine, End, Head, Item, read_lines
from idemactor.storage.progress import Progress
from idemactor.storage.reading import Whole
from idemactor.storage.sealing import Keyring
from idemactor.storage.writing import ROWS_PER_TRANSACTION, ShardBuilder, Start


@dataclass(frozen=True, slots=True)
class Spool:
    """What was read.

    Attributes:
        path: The file.
        head: What the export says of itself.
        latest_ms: The latest time that it knows.
        latest_at: The line and the member that say so.
        counted: How many lines of each type there were.
    """

    path: Path
    head: Head
    latest_ms: int
    latest_at: str
    counted: End


class _Seen:
    """What there may be once only, whatever the line: on disk, and of each a digest alone."""

    def __init__(self) -> None:
        # A database without a name is SQLite's own scratch file, which nobody finds and which ends with it.
        self._connection = apsw.Connection("")
        self._connection.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID; BEGIN")

    def is_new(self, *parts: str | int) -> bool:
        """Whether nothing of these parts was there before."""
        digest = hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
        self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
        return bool(self._connection.changes())

    def close(self) -> None:
        """Forget it all."""
        self._connection.close()


class _Reader:
    """Brings the lines of an export into a spool, in order, a piece at a time."""

    def __init__(self, builder: ShardBuilder) -> None:
        self.head: Head | None = None
        self.end: End | None = None
        self.last_token = self.latest_ms = 0
        self.latest_at = ""
        self._builder = builder
        self._seen = _Seen()
        self._wholes: list[Whole] = []
        self._events: list[Event] = []
        self._incidents: list[Incident] = []
        self._entries = self._event_count = self._incident_count = 0
        self._last_event = 0
        self._next_place: dict[int, int] = {}

    def take(self, file: BinaryIO, progress: Progress) -> None:
        """Read all of it."""
        for number, item in read_lines(file):
            self._take(number, item)
            if number % ROWS_PER_TRANSACTION == 0:
                progress("lines read", number, number)
                self._flush()

    def close(self) -> None:
        """Let go of what was for reading alone."""
        self._seen.close()

    def _take(self, number: int, item: Item) -> None:
        match item:
            case Head():
                self.head = item
                self.last_token = item.last_token
                self._note_time(number, "latest_ms", item.latest_ms)
            case Whole():
                self._entry(number, item)
            case Event():
                self._event(number, item)
            case Incident():
                self._incident(number, item)
            case End():
                self._finish(number, item)
            case _:
                assert_never(item)

    def _note(self, number: int, item: Entry | Event | Incident) -> None:
        for member, at_ms in times_of(item):
            self._note_time(number, member, at_ms)
        if not isinstance(item, Event):
            self.last_token = max(self.last_token, *(token for _, token in tokens_of(item)))

    def _note_time(self, number: int, member: str, at_ms: int) -> None:
        if at_ms > self.latest_ms:
            self.latest_ms, self.latest_at = at_ms, f"line {number}: {member}"

    def _entry(self, number: int, whole: Whole) -> None:
        self._entries += 1
        entry, record = whole.entry, whole.entry.record
        self._note(number, entry)
        if record is not None and record.delivery is not None and record.delivery.ending is None:
            record = replace(record, delivery=replace(record.delivery, seq=self._place(record.delivery.seq)))
        # The order of the lines is that of listings; and by its id the line of an entry is found again.
        self._wholes.append(replace(whole, entry=replace(entry, id=number, record=record)))

    def _place(self, wanted: int) -> int:
        """The first place from ``wanted`` on that nothing has. What was passed on the way is not looked at again."""
        passed: list[int] = []
        place = wanted
        while place in self._next_place:
            passed.append(place)
            place = self._next_place[place]
        for each in (*passed, place):
            self._next_place[each] = place + 1
        return place

    def _event(self, number: int, event: Event) -> None:
        if not self._seen.is_new("event", event.id):
            raise BadLine(number, "id: an event of this id is on an earlier line")
        self._event_count += 1
        self._note(number, event)
        self._last_event = max(event.seq, self._last_event + 1)
        self._events.append(replace(event, seq=self._last_event))

    def _incident(self, number: int, incident: Incident) -> None:
        if not self._seen.is_new("incident", incident.token, *incident.identity):
            raise BadLine(number, "token: an incident of this key and token is on an earlier line")
        self._incident_count += 1
        self._note(number, incident)
        self._incidents.append(incident)

    def _finish(self, number: int, end: End) -> None:
        found = End(self._entries, self._event_count, self._incident_count)
        if end != found:
            raise BadLine(
                number,
                f"the end counts {end.entries} entries, {end.events} events and {end.incidents} incidents, and there"
                f" are {found.entries}, {found.events} and {found.incidents}",
            )
        self._flush()
        self.end = end

    def _flush(self) -> None:
        self._builder.add(self._wholes)
        self._builder.add_events(self._events)
        self._builder.add_incidents(self._incidents)
        self._wholes, self._events, self._incidents = [], [], []


def read_spool(path: Path, file: BinaryIO, progress: Progress, keys: Keyring | None = None) -> Spool:
    """Bring an export into a shard's file of its own; with ``keys``, what callers stored is sealed in it, too.

    Raises:
        BadLine: The export cannot be read.
        apsw.Error: The spool cannot be written.
        OSError: The export cannot be read, or the spool not be written.
    """
    builder = ShardBuilder(path, Start(0, 1, 0, 0, 0, 0), keys)
    reader = _Reader(builder)
    try:
        reader.take(file, progress)
        builder.finish(reader.last_token, reader.latest_ms)
    finally:
        builder.close()
        reader.close()
    assert reader.head is not None
    assert reader.end is not None
    with changing(path) as connection:
        twins = [row[0] for row in connection.execute(TWINS)]
    if twins:
        raise BadLine(twins[0], "identity: this key is on an earlier line")
    return Spool(path, reader.head, reader.latest_ms, reader.latest_at, reader.end)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[apsw.Connection]:
    """A connection that may write to a spool."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
    try:
        yield connection
    finally:
        connection.close()
