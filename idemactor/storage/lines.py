"""The lines of an export (version 1): one JSON object each, ``type`` first. ``docs/operations.md`` has them for people.

``export`` comes first and says what it is; then a line for every entry, with its record, its outcome, its order to be
delivered and its intent; for every event and every incident; and ``end`` last, with how many there are, so that one
that was cut off is told from a whole one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, assert_never

from idemactor.core.delivery import Event, Intent
from idemactor.core.record import Entry, Incident, Outcome
from idemactor.errors import StorageError
from idemactor.storage.layout import SHARDS_MAX
from idemactor.storage.line_checks import check_entry, check_event, check_head, check_incident
from idemactor.storage.plain import NotPlain, from_plain, to_plain
from idemactor.storage.reading import Whole

VERSION: Final = 1
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
"""The longest line: an outcome and an intent of the largest size, each byte written as six characters, and the rest."""


@dataclass(frozen=True, slots=True)
class Head:
    """What an export says of itself.

    Attributes:
        version: Of the format.
        exported_at: When, milliseconds since the epoch.
        shards: How many shards it was taken from.
        last_token: The highest token granted by then in any of them.
        latest_ms: The latest time that anything was decided at.
        outcomes: Whether bodies and headers of outcomes are in it.
    """

    version: int
    exported_at: int
    shards: int
    last_token: int
    latest_ms: int
    outcomes: bool


@dataclass(frozen=True, slots=True)
class End:
    """How many lines there are of each type."""

    entries: int
    events: int
    incidents: int


Item = Head | Whole | Event | Incident | End


class BadLine(StorageError):
    """A line that cannot be read; the message has its number and the field at fault, and never quotes it."""

    def __init__(self, number: int, what: str) -> None:
        super().__init__(f"line {number}: {what}")


def line_of(item: Item) -> bytes:
    """The line of an item."""
    match item:
        case Head():
            content = {"type": "export", **to_plain(item)}
        case Whole():
            content = {"type": "entry", **to_plain(item.entry), "intent": to_plain(item.intent)}
        case Event():
            content = {"type": "event", **to_plain(item)}
        case Incident():
            content = {"type": "incident", **to_plain(item)}
        case End():
            content = {"type": "end", **to_plain(item)}
        case _:
            assert_never(item)
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def without_outcome(item: Whole | Incident) -> Whole | Incident:
    """The same without what an outcome says: its status stays, as of one that was too large to be kept."""
    if isinstance(item, Incident):
        return replace(item, outcome=_status_of(item.outcome))
    if item.entry.record is None or item.entry.record.outcome is None:
        return item
    record = replace(item.entry.record, outcome=_status_of(item.entry.record.outcome))
    return replace(item, entry=replace(item.entry, record=record))


def _status_of(outcome: Outcome | None) -> Outcome | None:
    return None if outcome is None else Outcome(outcome.status, omitted=True)


def read_lines(file: BinaryIO) -> Iterator[tuple[int, Item]]:
    """The items of an export, each with the number of its line.

    Raises:
        BadLine: It is no export, damaged, cut off, or of another version.
        OSError: It cannot be read.
    """
    number = 0
    item: Item | None = None
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if isinstance(item, End):
            raise BadLine(number, "there is something behind the end")
        if len(line) > LINE_BYTES_MAX:
            raise BadLine(number, f"it is longer than {LINE_BYTES_MAX} bytes")
        item = _item_of(number, line)
        if isinstance(item, Head) != (number == 1):
            raise BadLine(number, "an export begins with one line of type export")
        yield number, item
    if not isinstance(item, End):
        raise BadLine(number + 1, "the end is missing: it was cut off")


def _item_of(number: int, line: bytes) -> Item:
    try:
        content = json.loads(line, object_pairs_hook=_members)
        if type(content) is not dict:
            raise NotPlain("is an object")
        return _typed(content.pop("type", None), content)
    except NotPlain as error:
        raise BadLine(number, str(error)) from None
    except (ValueError, RecursionError):
        raise BadLine(number, "it is no JSON in UTF-8") from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object, each of which is there once: of two, nobody could say which one counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise NotPlain("this member is there twice", next(name for name in found if names.count(name) > 1))
    return found


def _typed(kind: object, content: dict[str, Any]) -> Item:
    match kind:
        case "export":
            if content.get("version") != VERSION:
                raise NotPlain(f"this release knows version {VERSION}", "version")
            head = from_plain(Head, content)
            check_head(head.exported_at, head.shards, head.last_token, head.latest_ms, SHARDS_MAX)
            return head
        case "entry":
            given = content.pop("intent", None)
            entry = from_plain(Entry, content)
            intent = None if given is None else from_plain(Intent, given, "intent")
            check_entry(entry, intent)
            return Whole(entry, intent)
        case "event":
            event = from_plain(Event, content)
            check_event(event)
            return event
        case "incident":
            incident = from_plain(Incident, content)
            check_incident(incident)
            return incident
        case "end":
            return from_plain(End, content)
        case _:
            raise NotPlain("is export, entry, event, incident or end", "type")
