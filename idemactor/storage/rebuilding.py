"""A new set of files out of old shards: for another number of shards, or with what an import brings.

The old files are read and left as they are. The new ones are made one after the other, each under its own name only
when it is complete and on disk; then every record is compared with the one that it was made of; and then the new set
takes the place of the old one, in one step. What was interrupted goes on behind the last file that is complete, as long
as nobody used the old files meanwhile.

What changes in an entry is its id, since two old shards may have used the same one: the entries of a new shard are
numbered behind every token of before, in the order of their old ids. Tokens stay; so one may be that of several keys
of a shard, which ``Meta.merged`` says. No token of before is granted again, since all shards go on behind all of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgpack

from idemactor.core.delivery import Event, Kind
from idemactor.core.limits import TOKEN_MAX
from idemactor.core.record import Entry, Incident
from idemactor.errors import StorageError
from idemactor.storage import rows
from idemactor.storage.base import StoredIncident
from idemactor.storage.check import Severity, check_files
from idemactor.storage.directory import new_first_seq, wall_ms
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import Held, create_journal
from idemactor.storage.layout import MADE_NAME, Meta, set_path, shard_name, write_whole
from idemactor.storage.progress import Progress
from idemactor.storage.reading import Part, ShardReader, Whole, read_shard
from idemactor.storage.sealing import Keyring
from idemactor.storage.sets import next_set, note_of, switch
from idemactor.storage.unfinished import begin, discard, is_marked, unfinished_sets
from idemactor.storage.writing import ShardBuilder, Start

PLAN_NAME: Final = "plan.json"
"""What a set that is being made is made of; what is made by another plan is thrown away."""
_TOLD_EVERY: Final = 1_000

Moves = dict[tuple[int, Kind, int], int]
"""(source, kind, ``seq``) of what has to go to another place in line, and where."""


@dataclass(frozen=True, slots=True)
class Making:
    """How new files are made.

    Attributes:
        checksums: Whether pages have some.
        keys: What callers stored is sealed with them; None: it is kept as it is.
    """

    checksums: bool
    keys: Keyring | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the new files are made of, and how they begin.

    Attributes:
        made_by: The command.
        shards: How many there are to be.
        last_token: The highest token of before; entries are numbered behind it.
        next_token: The last number that counts as granted in every new shard.
        latest_ms: The latest time of all shards.
        last_incident_id: The highest id of an incident of before.
        first_seq: Where the numbers of the new journal begin.
        stamps: What shows whether the old files were used since: name, size and time of change of each.
        checksums: Whether pages have some.
        encrypted: Whether what callers stored is encrypted.
    """

    made_by: str
    shards: int
    last_token: int
    next_token: int
    latest_ms: int
    last_incident_id: int
    first_seq: int
    stamps: tuple[tuple[str, int, int], ...]
    checksums: bool = True
    encrypted: bool = False

    def start(self, shard: int) -> Start:
        """How a new shard begins."""
        return Start(
            shard,
            self.shards,
            self.next_token,
            self.latest_ms,
            self.first_seq,
            last_incident_id=self.last_incident_id,
            checksums=self.checksums,
        )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of it.

    Attributes:
        files: Where the new files are.
        replaced: Where those of before are, which do not count any more; None: there were none.
        shards: How many there are now.
        entries: How many keys were carried over, each compared.
        incidents: The same of incidents.
        events: The same of events.
        digest: The BLAKE2b-256 over the digests of all entries, by shard and in order, hexadecimal.
        resumed: How many files an interrupted run had left complete.
        next_token: The first token that can be granted from now on.
    """

    files: Path
    replaced: Path | None
    shards: int
    entries: int
    incidents: int
    events: int
    digest: str
    resumed: int
    next_token: int


def rebuild(
    path: Path,
    before: Meta | None,
    made_by: str,
    shards: int,
    sources: Sequence[ShardReader],
    progress: Progress,
    *,
    making: Making,
    least_token: int = 0,
    stamps: Sequence[tuple[str, int, int]] = (),
) -> Rebuilt:
    """Make the files of ``shards`` shards out of those of ``sources``, and let them be the ones that count.

    Args:
        path: The data directory, owned by this process.
        before: What it says of itself; None: nothing.
        made_by: The command, for whoever looks at the files later.
        shards: How many there are to be.
        sources: Everything that is to be in the new files. No key is in two of them.
        progress: Is told how far it is.
        making: How the new files are made.
        least_token: The new shards go on behind this one at least.
        stamps: See ``Plan``.

    Raises:
        StorageError: Something is damaged, or a new file is not as it should be.
        StartError: The directory cannot be written.
        apsw.Error: A file cannot be read or written.
        OSError: A file cannot be read or written.
    """
    files = next_set(path, before)
    home = set_path(path, files)
    plan = _plan(made_by, shards, sources, making, least_token, stamps)
    plan, resumed = _take_up(path, home, plan)
    moves = _moves(sources)
    for shard in range(shards):
        if not (home / shard_name(shard)).exists():
            _build(home / shard_name(shard), plan, shard, sources, moves, making.keys, progress)
    counted = _Counted()
    for shard in range(shards):
        _compare(home / shard_name(shard), Part(shard, shards), plan, sources, moves, counted, making.keys, progress)
    create_journal(home / JOURNAL_NAME, dict.fromkeys(range(shards), plan.first_seq), checksums=making.checksums)
    carried = sum(source.count() for source in sources)
    if counted.entries != carried:
        raise StorageError(f"{counted.entries} of {carried} entries were carried over; the old files still count")
    meta = Meta(
        shards,
        wall_ms() if before is None else before.created_ms,
        files=files,
        merged=max(0 if before is None else before.merged, plan.next_token),
        taken_ms=None if before is None else before.taken_ms,
    )
    _check(home, meta, progress)
    note = {"made_by": made_by, "at_ms": wall_ms(), "replaced": note_of(before), **counted.told()}
    write_whole(home / MADE_NAME, json.dumps(note).encode() + b"\n")
    switch(path, home, meta)
    replaced = None if before is None else before.home(path)
    counts = (counted.entries, counted.incidents, counted.events, counted.digest.hexdigest())
    return Rebuilt(home, replaced, shards, *counts, resumed, plan.next_token + 1)


# ------------------------------------------------------------------------------------------------------------- planning


def _plan(
    made_by: str,
    shards: int,
    sources: Sequence[ShardReader],
    making: Making,
    least_token: int,
    stamps: Sequence[tuple[str, int, int]],
) -> Plan:
    last_token = max(source.last_token for source in sources)
    # A token each: no new shard can have more entries than all old ones together.
    next_token = max(last_token + sum(source.count() for source in sources), least_token)
    if next_token >= TOKEN_MAX:
        raise StorageError(f"behind token {last_token} too few are left for what is to be made; nothing was changed")
    return Plan(
        made_by,
        shards,
        last_token,
        next_token,
        max(source.latest_ms for source in sources),
        max(source.last_incident_id for source in sources),
        new_first_seq(),
        tuple(stamps),
        making.checksums,
        making.keys is not None,
    )


def _take_up(path: Path, home: Path, plan: Plan) -> tuple[Plan, int]:
    """Go on with what an earlier run of the same plan left, else begin anew; returns how many files are complete."""
    try:
        earlier = _plan_of(json.loads((home / PLAN_NAME).read_bytes()))
        same = replace(earlier, first_seq=plan.first_seq, next_token=plan.next_token) == plan
        if plan.stamps and same and is_marked(home):
            return earlier, sum((home / shard_name(shard)).exists() for shard in range(plan.shards))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    # No set of a lower number was left unfinished: numbers are given in order.
    for left in unfinished_sets(path, int(home.name.removeprefix("files-")) - 1):
        discard(left)
    begin(home)
    write_whole(home / PLAN_NAME, json.dumps(dataclasses.asdict(plan)).encode() + b"\n")
    return plan, 0


def _plan_of(content: dict[str, Any]) -> Plan:
    stamps = tuple((str(name), int(size), int(changed)) for name, size, changed in content["stamps"])
    return Plan(**{**content, "stamps": stamps})


def stamps_of(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """What shows whether files were used meanwhile.

    Raises:
        OSError: One cannot be looked at.
    """
    found = []
    for path in paths:
        for each in (path, path.with_name(path.name + "-wal")):
            if each.exists():
                status = os.stat(each)
                found.append((each.name, status.st_size, status.st_mtime_ns))
    return found


def _moves(sources: Sequence[ShardReader]) -> Moves:
    """Of what waits in different shards, two may have one place in line; in one shard they may not.

    The processes of a server count places by the clock, each its own. What has to move goes just behind, and so does
    what stands there: nothing overtakes anything.
    """
    moves: Moves = {}
    last = 0
    for seq, kind, source in heapq.merge(*(_line(number, each) for number, each in enumerate(sources))):
        place = max(seq, last + 1)
        if place != seq:
            moves[source, kind, seq] = place
        last = place
    return moves


def _line(source: int, reader: ShardReader) -> Iterator[tuple[int, Kind, int]]:
    for seq, kind in reader.line():
        yield seq, kind, source


# -------------------------------------------------------------------------------------------------- what belongs where


def _wholes(sources: Sequence[ShardReader], part: Part, plan: Plan, moves: Moves) -> Iterator[Whole]:
    """The entries of a new shard, as they are to be in it."""

    def numbered(source: int, reader: ShardReader) -> Iterator[tuple[int, int, Whole]]:
        for whole in reader.wholes(part):
            yield whole.entry.id, source, whole

    merged = heapq.merge(*(numbered(number, each) for number, each in enumerate(sources)), key=lambda found: found[:2])
    for rank, (_, source, whole) in enumerate(merged, 1):
        yield Whole(_relabelled(whole.entry, plan.last_token + rank, source, moves), whole.intent)


def _relabelled(entry: Entry, entry_id: int, source: int, moves: Moves) -> Entry:
    record = entry.record
    if moves and record is not None and record.delivery is not None and record.delivery.ending is None:
        delivery = record.delivery
        seq = moves.get((source, Kind.INTENT, delivery.seq), delivery.seq)
        record = replace(record, delivery=replace(delivery, seq=seq))
    return replace(entry, id=entry_id, record=record)


def _events(sources: Sequence[ShardReader], part: Part, moves: Moves) -> Iterator[Event]:
    def moved(source: int, reader: ShardReader) -> Iterator[Event]:
        for event in reader.events():
            if part.has(event.identity):
                yield replace(event, seq=moves.get((source, Kind.EVENT, event.seq), event.seq))

    return heapq.merge(*(moved(number, each) for number, each in enumerate(sources)), key=lambda event: event.seq)


def _incidents(sources: Sequence[ShardReader], part: Part) -> Iterator[Incident]:
    found = (filter(lambda incident: part.has(incident.identity), source.incidents()) for source in sources)
    return heapq.merge(*found, key=lambda incident: incident.at)


# ------------------------------------------------------------------------------------------------------ making, proving


def _build(
    path: Path,
    plan: Plan,
    shard: int,
    sources: Sequence[ShardReader],
    moves: Moves,
    keys: Keyring | None,
    progress: Progress,
) -> None:
    part = Part(shard, plan.shards)
    total = max(1, sum(source.count() for source in sources) // plan.shards)
    builder = ShardBuilder(path, plan.start(shard), keys)
    try:
        builder.add(_told(_wholes(sources, part, plan, moves), f"shard {shard} of {plan.shards}", total, progress))
        builder.add_events(_events(sources, part, moves))
        builder.add_incidents(_incidents(sources, part))
        builder.finish()
    finally:
        builder.close()


def _told(wholes: Iterator[Whole], what: str, total: int, progress: Progress) -> Iterator[Whole]:
    progress(what, 0, total)
    for done, whole in enumerate(wholes):
        if done % _TOLD_EVERY == 0:
            progress(what, done, total)
        yield whole


class _Counted:
    """What was compared."""

    def __init__(self) -> None:
        self.entries = self.incidents = self.events = 0
        self.digest = hashlib.blake2b(digest_size=32)

    def told(self) -> dict[str, object]:
        """For ``made.json``."""
        counts = {"entries": self.entries, "incidents": self.incidents, "events": self.events}
        return {**counts, "digest": self.digest.hexdigest()}


def _compare(
    path: Path,
    part: Part,
    plan: Plan,
    sources: Sequence[ShardReader],
    moves: Moves,
    counted: _Counted,
    keys: Keyring | None,
    progress: Progress,
) -> None:
    """Read a new file, and compare each of its records with the one it was made of, by their digests."""
    total = max(1, sum(source.count() for source in sources) // plan.shards)
    with read_shard(path, Held(plan.first_seq), keys) as made:
        expected = _told(_wholes(sources, part, plan, moves), f"shard {part.shard} compared", total, progress)
        for digest in _equal(path, expected, made.wholes(), digest_of_whole):
            counted.digest.update(digest)
            counted.entries += 1
        for _ in _equal(path, _incidents(sources, part), made.incidents(), _digest_of_incident):
            counted.incidents += 1
        for _ in _equal(path, _events(sources, part, moves), made.events(), _digest_of_event):
            counted.events += 1


def _equal(path: Path, old: Iterator[Any], new: Iterator[Any], digest: Callable[[Any], bytes]) -> Iterator[bytes]:
    for one, other in zip_longest(old, new):
        if one is None or other is None or (found := digest(one)) != digest(other):
            raise StorageError(
                f"{path.name} is not what it was made of; nothing was changed, the old files still count"
            )
        yield found


def digest_of_whole(whole: Whole) -> bytes:
    """The BLAKE2b-256 of an entry with its outcome, its delivery and its intent."""
    entry, record = whole.entry, whole.entry.record
    delivery = None if record is None or record.delivery is None else record.delivery
    parts = (
        rows.entry_row(entry),
        rows.outcome_row(None if record is None else record.outcome),
        None if record is None or delivery is None else rows.delivery_row(record.operation_id, delivery),
        None if whole.intent is None else rows.intent_row(entry.id, whole.intent),
    )
    return _digest(parts)


def _digest_of_incident(incident: Incident) -> bytes:
    return _digest(rows.incident_row(StoredIncident(0, incident).incident))


def _digest_of_event(event: Event) -> bytes:
    return _digest(rows.event_row(event))


def _digest(content: object) -> bytes:
    return hashlib.blake2b(msgpack.packb(content, use_bin_type=True), digest_size=32).digest()


def _check(home: Path, meta: Meta, progress: Progress) -> None:
    errors = [found for found in check_files(home, meta, progress).findings if found.severity is Severity.ERROR]
    if errors:
        where = "" if errors[0].shard is None else f"shard {errors[0].shard}: "
        raise StorageError(
            f"the new files are not sound; nothing was changed, the old ones still count: {where}{errors[0].what}"
        )
