"""An offline look at a data directory: is what it holds whole, and does it agree with itself?

The files are left exactly as they are. They are opened read-only, without SQLite's locks and shared memory (a VFS
that has neither; the locks of the directory keep a server out meanwhile), so that no WAL is moved into a file, no
``-shm`` appears, and nothing is made that was not there.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from idemactor.core.keys import Identity, identity_hash, shard_of, worker_of
from idemactor.errors import StorageError
from idemactor.storage import check_sql, journal_file, schema
from idemactor.storage.checksums import has_checksums, wrong_pages
from idemactor.storage.directory import explain, lock
from idemactor.storage.journal_file import Held
from idemactor.storage.journal_rows import decode
from idemactor.storage.layout import (
    LOCK_NAME,
    Meta,
    is_none,
    journal_name,
    lock_name,
    read_meta,
    shard_name,
)
from idemactor.storage.progress import Progress, silent
from idemactor.storage.sealing import is_sealed
from idemactor.storage.sqlite_create import check_version
from idemactor.storage.unfinished import NO_USE, outdated, refuse_outdated, unfinished
from idemactor.storage.wal_frames import damage_behind
from idemactor.storage.watermark import lost_end, synced_up_to

_MAY_BE_LOSSY: Final = ' (after a power failure under durability = "process", start once more with that setting)'
EXAMPLES_MAX: Final = 5
"""How many ids a finding names."""


class Severity(enum.StrEnum):
    """Whether a finding may break a promise, or only looks odd."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. ``shard`` is None where it concerns the directory; no key is ever quoted."""

    shard: int | None
    severity: Severity
    what: str


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What one file holds: counts by state, the latest token and time, and sizes in bytes.

    ``journal_batches`` are in the journal and not in the file yet: the counts do not show them; starting brings them
    in.
    """

    shard: int
    pending: int
    lapsed: int
    doubted: int
    committed: int
    tombstones: int
    incidents: int
    last_token: int
    latest_ms: int
    file_bytes: int
    wal_bytes: int
    journal_batches: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a directory holds and what is wrong with it. A shard that cannot be read has findings only."""

    path: Path
    shards: tuple[ShardReport, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was found that may break a promise."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def check_directory(path: Path, progress: Progress = silent) -> Report:
    """Look at every file of a data directory that no server uses.

    Raises:
        StartError: A server holds it, it is no data directory, or it cannot be read.
    """
    with reading_alone(path) as meta:
        report = check_files(meta.home(path), meta, progress)
        return replace(report, path=path, findings=(*report.findings, *_unfinished(path, meta)))
    raise AssertionError("a context swallows nothing")


@contextlib.contextmanager
def reading_alone(path: Path, *, current: bool = False) -> Iterator[Meta]:
    """While no server can use a data directory, which is left as it is; what ``idemactor.json`` says.

    Args:
        path: The directory.
        current: Refuse one whose ``idemactor.json`` is older than its files.

    Raises:
        StartError: A server holds it, it is no data directory, or it cannot be read.
    """
    with contextlib.ExitStack() as locks:
        try:
            _lock_if_there(path / LOCK_NAME, locks)
            meta = read_meta(path)
            if meta is None:
                raise is_none(path)
            if current:
                refuse_outdated(path, meta)
            for shard in range(meta.shards):
                _lock_if_there(path / lock_name(shard), locks)
        except OSError as error:
            raise explain(path, error) from error
        yield meta


def _bytes_changed(connection: apsw.Connection, path: Path, unless: str = "") -> Iterator[tuple[Severity, str]]:
    """What the checksums of a file and of its WAL say.

    Raises:
        apsw.Error: It cannot be read.
        OSError: It cannot be read.
    """
    if has_checksums(path):
        wrong = list(wrong_pages(path))
        if wrong:
            named = ", ".join(map(str, wrong[:EXAMPLES_MAX])) + (", ..." if len(wrong) > EXAMPLES_MAX else "")
            yield Severity.ERROR, f"pages whose checksum is wrong: {len(wrong)} ({named})"
    else:
        why = "made by an earlier release, or with page_checksums = false"
        yield Severity.WARNING, f"it has no checksums ({why}): a changed byte may go unnoticed"
    # Once something was read, SQLite knows how much of the WAL it takes for whole.
    frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    if found := damage_behind(path.with_name(path.name + "-wal"), max(0, frames)):
        yield Severity.ERROR, f"{found}: what was acknowledged after it is lost{unless}"


def check_files(home: Path, meta: Meta, progress: Progress = silent) -> Report:
    """Look at a set of files that nobody uses.

    Args:
        home: Where they are.
        meta: What the directory says, or is to say, of them.
        progress: Is told of every shard.
    """
    reports: list[ShardReport] = []
    findings: list[Finding] = []
    journals = {name: _journal(home / name, findings) for name in meta.journals()}
    for shard in range(meta.shards):
        progress("shards checked", shard, meta.shards)
        try:
            journal = journals[journal_name(worker_of(shard, meta.workers), meta.workers)]
            held = journal.get(shard, Held()) if journal is not None else None
            checked = _Shard(home / shard_name(shard), shard, meta, held)
            report = checked.run()
        except (apsw.Error, StorageError, OSError) as error:
            findings.append(Finding(shard, Severity.ERROR, f"cannot be read: {error}"))
            continue
        findings += checked.findings
        reports.append(report)
    findings += _strangers(home, meta, journals)
    return Report(home, tuple(reports), tuple(findings))


def _unfinished(path: Path, meta: Meta) -> Iterator[Finding]:
    """Sets of files that do not count: of what did not come to its end, and such as ought to."""
    if (wrong := outdated(path, meta)) is not None:
        yield Finding(None, Severity.ERROR, wrong)
    for left in unfinished(path, meta.files):
        yield Finding(None, Severity.WARNING, f"{left.name} {NO_USE}")


def _strangers(home: Path, meta: Meta, journals: Mapping[str, Mapping[int, Held] | None]) -> Iterator[Finding]:
    """Batches and files that belong to nobody here."""
    for worker, name in enumerate(meta.journals()):
        for shard in sorted(journals[name] or {}):
            if shard >= meta.shards:
                what = f"{name} has batches of shard {shard}, which is none of the {meta.shards} shards"
                yield Finding(None, Severity.ERROR, what)
            elif worker_of(shard, meta.workers) != worker:
                what = f"{name} has batches of shard {shard}, which is another worker's"
                yield Finding(None, Severity.ERROR, what)
    known = {shard_name(shard) for shard in range(meta.shards)}
    for extra in sorted({file.name for file in home.glob("shard-*.db")} - known):
        yield Finding(None, Severity.WARNING, f"{extra} belongs to none of the {meta.shards} shards")
    for extra in sorted({file.name for file in home.glob("journal*.db")} - journals.keys()):
        what = f"{extra} is of another number of workers than the {meta.workers} of before, and not needed any more"
        yield Finding(None, Severity.WARNING, what)


def _lock_if_there(path: Path, locks: contextlib.ExitStack) -> None:
    """Hold a lock file that exists; a directory without one (a backup) has no server."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    locks.callback(os.close, descriptor)
    lock(descriptor, path)


@contextlib.contextmanager
def open_untouched(path: Path) -> Iterator[apsw.Connection]:
    """A connection that reads file and WAL and changes neither, nor makes a file. The file must not be in use.

    Raises:
        apsw.Error: It cannot be opened.
        OSError: It is not there.
    """
    path.stat()
    wal = path.with_name(path.name + "-wal")
    # Without a WAL, opening would make one; as an immutable file there is none to look for. With one, exclusive
    # locking keeps the WAL's index in memory.
    immutable = "" if wal.exists() and wal.stat().st_size else "&immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"
    connection = apsw.Connection(uri, flags=flags, vfs="unix-none")
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("locking_mode", "EXCLUSIVE")
        yield connection
    finally:
        connection.close()


def _journal(path: Path, findings: list[Finding]) -> dict[int, Held] | None:
    """What the journal holds by shard; what is wrong with its file is added to ``findings``."""
    try:
        with open_untouched(path) as connection:
            check_version(connection, path.name, journal_file.KIND)
            for severity, what in _bytes_changed(connection, path, _MAY_BE_LOSSY):
                findings.append(Finding(None, severity, f"{path.name}: {what}"))
            for (line,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
                if line != "ok":
                    findings.append(Finding(None, Severity.ERROR, f"{path.name}: integrity: {line}"))
            if lost := lost_end(synced_up_to(path), journal_file.read_latest(connection)):
                findings.append(Finding(None, Severity.ERROR, f"{path.name}: {lost}"))
            return journal_file.read_all(connection)
    except (apsw.Error, StorageError, OSError) as error:
        findings.append(Finding(None, Severity.ERROR, f"{path.name} cannot be read: {error}"))
        return None


class _Shard:
    """One file's check."""

    def __init__(self, path: Path, shard: int, meta: Meta, journal: Held | None) -> None:
        self._journal = journal
        self.findings: list[Finding] = []
        self._path = path
        self._number = shard
        self._shards = meta.shards
        self._merged = meta.merged

    def run(self) -> ShardReport:
        with open_untouched(self._path) as connection:
            version = check_version(connection, self._path.name)
            for severity, what in _bytes_changed(connection, self._path):
                self._found(what, severity)
            self._integrity(connection)
            if version < schema.FORMAT:
                connection.execute(check_sql.FORMAT_1_AS_2)
            last_token, latest_ms, journal_seq = self._meta(connection, version)
            journal_batches = self._replay(journal_seq)
            self._queries(connection, last_token, latest_ms)
            self._owners(connection)
            self._tallies(connection)
            counts = connection.execute(check_sql.COUNTS).fetchone()
            assert counts is not None
            pending, lapsed, doubted, committed, tombstones, incidents = counts
        wal = self._path.with_name(self._path.name + "-wal")
        return ShardReport(
            shard=self._number,
            pending=pending,
            lapsed=lapsed,
            doubted=doubted,
            committed=committed,
            tombstones=tombstones,
            incidents=incidents,
            last_token=last_token,
            latest_ms=latest_ms,
            file_bytes=self._path.stat().st_size,
            wal_bytes=wal.stat().st_size if wal.exists() else 0,
            journal_batches=journal_batches,
        )

    def _found(self, what: str, severity: Severity = Severity.ERROR) -> None:
        self.findings.append(Finding(self._number, severity, what))

    def _integrity(self, connection: apsw.Connection) -> None:
        for (line,) in connection.execute("PRAGMA integrity_check(20)").fetchall():
            if line != "ok":
                self._found(f"integrity: {line}")

    def _replay(self, journal_seq: int) -> int:
        """Whether starting could bring the journal's batches into the file; returns how many there are."""
        if self._journal is None:
            return 0
        try:
            rows = self._journal.missing_from(journal_seq)
        except StorageError as error:
            self._found(str(error))
            return 0
        for row in rows:
            if is_sealed(row.body):
                # Only who has the key can tell.
                continue
            try:
                decode(row.body)
            except StorageError as error:
                self._found(f"batch {row.seq} of the journal: {error}")
        return len(rows)

    def _meta(self, connection: apsw.Connection, version: int) -> tuple[int, int, int]:
        row = connection.execute(schema.SELECT_META).fetchone()
        if row is None:
            raise StorageError("its meta row is missing")
        layout, shard, shards, last_token, latest_ms, journal_seq = row
        if layout != version:
            self._found(f"its meta row says format {layout}, its header {version}")
        if (shard, shards) != (self._number, self._shards):
            self._found(f"it says it is shard {shard} of {shards}, not {self._number} of {self._shards}")
        return last_token, latest_ms, journal_seq

    def _queries(self, connection: apsw.Connection, last_token: int, latest_ms: int) -> None:
        bindings = {"last_token": last_token, "latest_ms": latest_ms, "merged": self._merged}
        for what, sql in check_sql.IMPOSSIBLE.items():
            ids = [row[0] for row in connection.execute(sql, bindings)]
            self._report_ids(what, ids)

    def _report_ids(self, what: str, ids: list[int]) -> None:
        if ids:
            named = ", ".join(str(value) for value in ids[:EXAMPLES_MAX])
            more = ", ..." if len(ids) > EXAMPLES_MAX else ""
            self._found(f"{what}: {len(ids)} (id {named}{more})")

    def _owners(self, connection: apsw.Connection) -> None:
        wrong_hash: list[int] = []
        wrong_shard: list[int] = []
        for entry_id, stored, *texts in connection.execute(check_sql.OWNERS):
            hashed = identity_hash(Identity(*texts))
            if hashed != stored:
                wrong_hash.append(entry_id)
            if self._is_strange(hashed):
                wrong_shard.append(entry_id)
        self._report_ids("entries whose hash is not their key's", wrong_hash)
        self._report_ids("entries that belong to another shard", wrong_shard)
        events = connection.execute(check_sql.EVENT_OWNERS)
        strange = [seq for seq, *texts in events if self._is_strange(identity_hash(Identity(*texts)))]
        self._report_ids("events that belong to another shard", strange)

    def _is_strange(self, hashed: int) -> bool:
        return shard_of(hashed, self._shards) != self._number

    def _tallies(self, connection: apsw.Connection) -> None:
        for sql in (check_sql.WRONG_TALLIES, check_sql.MISSING_TALLIES):
            for tenant, namespace in connection.execute(sql):
                self._found(f"the counts of namespace {namespace} of tenant {tenant} are not what is there")
