"""What an export wrote, line by line, into a spool: a shard's file of its own that ends with the import."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, assert_never

import apsw

from idemactor.core.delivery import Event
from idemactor.core.record import Incident
from idemactor.errors import StorageError
from idemactor.storage.check_sql import TWINS
from idemactor.storage.checksums import checked_vfs
from idemactor.storage.lines import BadLine, End, Head, Item, read_lines, tokens_of
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
        counted: How many lines of each type there were.
    """

    path: Path
    head: Head
    latest_ms: int
    counted: End


class _WrongEnd(Exception):
    """The last line does not count what came before."""


class _Reader:
    """Brings the lines of an export into a spool, in order, a piece at a time."""

    def __init__(self, builder: ShardBuilder) -> None:
        self.head: Head | None = None
        self.end: End | None = None
        self.last_token = self.latest_ms = 0
        self._builder = builder
        self._wholes: list[Whole] = []
        self._events: list[Event] = []
        self._incidents: list[Incident] = []
        self._entries = self._event_count = self._incident_count = 0
        self._last_event = 0
        self._places: set[int] = set()

    def take(self, file: BinaryIO, progress: Progress) -> None:
        """Read all of it."""
        for number, item in read_lines(file):
            try:
                self._take(item)
                if number % ROWS_PER_TRANSACTION == 0:
                    progress("lines read", number, number)
                    self._flush()
            except (UnicodeEncodeError, OverflowError):
                raise BadLine(number, "it holds a text or a number that cannot be stored") from None
            except apsw.ConstraintError as error:
                raise BadLine(number, f"at or before it something is there twice, or missing: {error}") from None
            except _WrongEnd as error:
                raise BadLine(number, str(error)) from None

    def _take(self, item: Item) -> None:
        match item:
            case Head():
                self.head = item
                self._note(item.last_token, item.latest_ms)
            case Whole():
                self._entry(item)
            case Event():
                self._event(item)
            case Incident():
                self._incident(item)
            case End():
                self._finish(item)
            case _:
                assert_never(item)

    def _note(self, token: int, at_ms: int) -> None:
        self.last_token = max(self.last_token, token)
        self.latest_ms = max(self.latest_ms, at_ms)

    def _entry(self, whole: Whole) -> None:
        self._entries += 1
        entry = whole.entry
        for _, token in tokens_of(entry):
            self._note(token, 0)
        record = entry.record
        if record is not None:
            self._note(0, max(record.first_seen_at, record.reserved_at, record.committed_at or 0))
            if record.delivery is not None and record.delivery.ending is None:
                place = record.delivery.seq
                while place in self._places:
                    place += 1
                self._places.add(place)
                record = replace(record, delivery=replace(record.delivery, seq=place))
        # The order of the lines is that of listings.
        self._wholes.append(replace(whole, entry=replace(entry, id=self._entries, record=record)))

    def _event(self, event: Event) -> None:
        self._event_count += 1
        self._note(0, event.committed_at)
        self._last_event = max(event.seq, self._last_event + 1)
        self._events.append(replace(event, seq=self._last_event))

    def _incident(self, incident: Incident) -> None:
        self._incident_count += 1
        self._note(max(incident.token, incident.present_token or 0), incident.at)
        self._incidents.append(incident)

    def _finish(self, end: End) -> None:
        found = End(self._entries, self._event_count, self._incident_count)
        if end != found:
            raise _WrongEnd(
                f"the end counts {end.entries} entries, {end.events} events and {end.incidents} incidents, and there"
                f" are {found.entries}, {found.events} and {found.incidents}"
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
        StorageError: A key is there twice.
        apsw.Error: The spool cannot be written.
        OSError: The export cannot be read, or the spool not be written.
    """
    builder = ShardBuilder(path, Start(0, 1, 0, 0, 0, 0), keys)
    try:
        reader = _Reader(builder)
        reader.take(file, progress)
        builder.finish(reader.last_token, reader.latest_ms)
    finally:
        builder.close()
    assert reader.head is not None
    assert reader.end is not None
    with changing(path) as connection:
        twins = [row[0] for row in connection.execute(TWINS)]
    if twins:
        raise StorageError(f"entry {twins[0]} of the export is of a key that was there before")
    return Spool(path, reader.head, reader.latest_ms, reader.end)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[apsw.Connection]:
    """A connection that may write to a spool."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checked_vfs())
    try:
        yield connection
    finally:
        connection.close()
