from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from idemactor.core.delivery import Delivery, Ending
from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.record import Entry, Incident, Outcome, State, Tombstone
from idemactor.core.tally import Tally
from idemactor.errors import StartError
from idemactor.storage import check
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import Report, Severity, check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sqlite_file import Place, ShardFile
from tests.storage.samples import INTENT, NOW, committed, dispatched, event, name, pending

SHARDS = 2


def identities(shard: int) -> list[Identity]:
    found = [name(f"k{n}") for n in range(100)]
    return [identity for identity in found if shard_of(identity_hash(identity), SHARDS) == shard]


def fill(path: Path, *, tidy: bool) -> None:
    """Two shards with one of everything; ``tidy`` off leaves all of it in the WALs."""
    with DataDirectory.open(path, SHARDS) as data:
        for shard in range(SHARDS):
            keys = identities(shard)
            file = ShardFile(Place(data.engine_path(shard), shard, SHARDS))
            file.open()
            entries = [
                pending(1, keys[0]),
                pending(2, keys[1], state=State.LAPSED, contested=True),
                pending(3, keys[2], state=State.DOUBTED),
                committed(4, keys[3], outcome=Outcome(200, (("a", "b"),), b"body")),
                Entry(5, keys[4], None, Tombstone(5, "r", "o", NOW + 9), NOW + 9),
                committed(6, keys[5], outcome=None),
            ]
            incident = Incident(keys[0], "o", 1, 2, NOW, Outcome(200))
            tally = Tally(records=9, pending=3, in_doubt=2, committed=3, contested=1, incidents=1)
            batch = Batch(NOW, 9, [*entries, *deliveries(keys)], [], [incident], [], {("default", "trade"): tally})
            batch.intents = dict.fromkeys((7, 8, 9), INTENT)
            batch.events = [event(70, keys[0])]
            assert file.write(batch) is CommitResult.OK
            file.close(tidy=tidy)


def deliveries(keys: list[Identity]) -> list[Entry]:
    """One that waits, one that is being delivered, one that ended; the last left a tombstone before."""
    done = Delivery(9, "account", None, NOW, ending=Ending.SUCCEEDED)
    ended = committed(9, keys[8], attempt=2, outcome=None, delivery=done)
    return [
        dispatched(7, keys[6]),
        dispatched(8, keys[7], attempt=1, lease_expires_at=NOW + 1, delivery=Delivery(8, None, None, NOW + 9)),
        replace(ended, tombstone=Tombstone(8, None, "o", NOW + 9, ending=Ending.CANCELLED)),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "data", tidy=True)
    return tmp_path / "data"


def snapshot(path: Path) -> dict[str, tuple[int, int, str]]:
    files = {name: path / name for name in os.listdir(path)}
    return {
        name: (file.stat().st_mtime_ns, file.stat().st_ino, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in files.items()
    }


def damage(path: Path, sql: str, shard: int = 0) -> None:
    connection = apsw.Connection(str(path / f"shard-000{shard}.db"))
    connection.execute(sql).fetchall()
    connection.close()


def whats(report: Report) -> list[str]:
    return [finding.what for finding in report.findings]


@pytest.mark.parametrize("tidy", [True, False])
def test_a_sound_directory_is_counted_and_left_as_it_is(tmp_path: Path, tidy: bool) -> None:
    path = tmp_path / "data"
    fill(path, tidy=tidy)
    before = snapshot(path)
    report = check_directory(path)
    assert snapshot(path) == before
    assert report.findings == ()
    assert report.sound
    for shard, found in enumerate(report.shards):
        assert (found.shard, found.pending, found.lapsed, found.doubted, found.committed) == (shard, 3, 1, 1, 3)
        assert (found.tombstones, found.incidents, found.last_token, found.latest_ms) == (2, 1, 9, NOW)
        assert found.file_bytes > 0
        assert (found.wal_bytes == 0) is tidy


def test_a_directory_without_wals_or_locks_is_checked_as_well(path: Path) -> None:
    for file in path.iterdir():
        if file.suffix not in (".db", ".json"):
            file.unlink()
    before = snapshot(path)
    assert check_directory(path).findings == ()
    assert snapshot(path) == before


def test_a_directory_in_use_is_refused(path: Path) -> None:
    with DataDirectory.open(path), pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
        check_directory(path)
    assert check_directory(path).sound


def test_while_it_looks_no_server_starts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = check.open_untouched

    def trying(file: Path) -> AbstractContextManager[apsw.Connection]:
        with pytest.raises(StartError, match="in use"):
            DataDirectory.open(path)
        tried.append(file.name)
        return real(file)

    monkeypatch.setattr(check, "open_untouched", trying)
    assert check_directory(path).sound
    assert tried == ["journal.db", "shard-0000.db", "shard-0001.db"]


@pytest.mark.parametrize("there", [True, False])
def test_what_is_no_data_directory_is_refused(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "other"
    if there:
        path.mkdir()
    with pytest.raises(StartError, match=r"no idemactor\.json" if there else "is not there"):
        check_directory(path)


RECORD = "UPDATE records SET"

DAMAGES = {
    f"{RECORD} state = 4 WHERE id = 1": "a state that does not exist",
    f"{RECORD} tomb_token = NULL WHERE id = 5": "neither record nor tombstone",
    f"{RECORD} operation_id = NULL WHERE id = 1": "records that lack a field",
    f"{RECORD} state = NULL, tomb_token = 1 WHERE id = 1": "fields of a record that is not there",
    f"{RECORD} tomb_expires_at = NULL WHERE id = 5": "tombstones that lack a field",
    f"{RECORD} tomb_expires_at = 1 WHERE id = 1": "fields of a tombstone that is not there",
    f"{RECORD} committed_at = NULL WHERE id = 4": "without the time of commit",
    f"{RECORD} lease_expires_at = 1 WHERE id = 4": "committed records with a lease",
    f"{RECORD} lease_expires_at = NULL WHERE id = 3": "unsettled records without a lease",
    f"{RECORD} expires_at = 1 WHERE id = 1": "what only a committed one has",
    f"{RECORD} attempt = 0 WHERE id = 1": "an attempt below 1",
    f"{RECORD} token = 1 WHERE id = 2": "a token below their entry's",
    f"{RECORD} fingerprint = 'x' WHERE id = 1": "half a fingerprint",
    f"{RECORD} earlier = '[' WHERE id = 1": "list of earlier tokens",
    f"{RECORD} earlier = '[]' WHERE id = 1": "list of earlier tokens ",
    f"{RECORD} accepted = 2 WHERE id = 4": "neither 0 nor 1",
    f"{RECORD} alarm_at = NULL WHERE id = 1": "no alarm does",
    f"{RECORD} token = 10 WHERE id = 1": "records with a token above the last one",
    f"{RECORD} tomb_token = 10 WHERE id = 5": "tombstones with a token above",
    f"{RECORD} reserved_at = {NOW + 1} WHERE id = 1": "times later than the shard's latest",
    f"{RECORD} key = 'other' WHERE id = 1": "hash is not their key's",
    f"{RECORD} token = 2, id = 0 WHERE id = 1": "tokens that two records have",
    f"{RECORD} tomb_token = 1, tomb_operation_id = 'o', tomb_expires_at = 1, tomb_reported = 0 WHERE id = 1": (
        "token is their tombstone's"
    ),
    f"{RECORD} has_delivery = 0 WHERE id = 1": "neither 0 nor 1 ",
    f"{RECORD} has_delivery = NULL WHERE id = 7": "an attempt below 1 ",
    f"{RECORD} has_delivery = NULL, attempt = 1 WHERE id = 7": "unsettled records without a lease ",
    f"{RECORD} has_delivery = NULL WHERE id = 9": "deliveries without a record",
    f"{RECORD} has_delivery = NULL WHERE id = 8": "intents without a delivery",
    f"{RECORD} has_delivery = 1 WHERE id = 1": "a delivery that is not there",
    f"{RECORD} has_delivery = 1 WHERE id = 5": "fields of a record that is not there ",
    f"{RECORD} tomb_ending = 5 WHERE id = 9": "tombstones with an end that does not exist",
    f"{RECORD} tomb_ending = 1 WHERE id = 1": "fields of a tombstone that is not there ",
    "UPDATE deliveries SET ending = 5 WHERE id = 9": "an end or a flag",
    "UPDATE deliveries SET perhaps_sent = 2 WHERE id = 9": "an end or a flag ",
    "UPDATE deliveries SET operation_id = 'o' WHERE id = 9": "deliveries of another operation",
    "UPDATE deliveries SET ending = 1 WHERE id = 8": "ended and their record did not",
    "UPDATE deliveries SET ending = NULL WHERE id = 9": "or the other way round",
    "UPDATE deliveries SET due_at = 1 WHERE id = 9": "ended and are due",
    "UPDATE deliveries SET due_at = NULL WHERE id = 7": "never due",
    "DELETE FROM intents WHERE id = 8": "lack their intent",
    "UPDATE intents SET headers = '{'": "intents that cannot be read",
    "UPDATE events SET headers = '{'": "events that cannot be read",
    f"UPDATE events SET committed_at = {NOW + 1}": "events later than",
    "DELETE FROM outcomes": "an outcome that is not there",
    "UPDATE outcomes SET id = 99": "outcomes without a record",
    "UPDATE outcomes SET headers = '{'": "outcomes that cannot be read",
    "UPDATE incidents SET token = 10": "incidents with a token above",
    f"UPDATE incidents SET at = {NOW + 1}": "incidents later than",
    "UPDATE incidents SET body = NULL": "incidents whose outcome",
    "UPDATE records SET (hash, key) = (SELECT hash, key FROM records WHERE id = 2) WHERE id = 1": "there twice",
    "UPDATE tallies SET pending = 2": "the counts of namespace trade",
    "DELETE FROM tallies": "the counts of namespace trade ",
    "DELETE FROM incidents": "the counts of namespace trade of tenant default",
    "INSERT INTO tallies VALUES ('default', 'pay', 1, 0, 0, 0, 0, 0)": "the counts of namespace pay",
    "DELETE FROM meta": "its meta row is missing",
    "UPDATE meta SET format = 9": "its meta row says format 9",
    "UPDATE meta SET shard = 1": "it says it is shard 1 of 2, not 0 of 2",
    "PRAGMA user_version = 9": "has format 9",
    "PRAGMA application_id = 9": "not a file of idemactor",
}


@pytest.mark.parametrize("sql", DAMAGES)
def test_every_kind_of_damage_is_found(path: Path, sql: str) -> None:
    damage(path, sql)
    before = snapshot(path)
    report = check_directory(path)
    assert snapshot(path) == before
    assert any(DAMAGES[sql].strip() in what for what in whats(report)), whats(report)
    assert not report.sound
    assert {finding.shard for finding in report.findings} == {0}


def test_a_key_of_another_shard_is_found(path: Path) -> None:
    stranger = identities(1)[9]
    damage(path, f"{RECORD} key = '{stranger.key}', hash = {identity_hash(stranger)} WHERE id = 1")
    assert whats(check_directory(path)) == ["entries that belong to another shard: 1 (id 1)"]


def test_an_event_of_another_shard_is_found(path: Path) -> None:
    damage(path, f"UPDATE events SET key = '{identities(1)[9].key}'")
    assert whats(check_directory(path)) == ["events that belong to another shard: 1 (id 70)"]


def test_files_that_were_swapped_are_found(path: Path) -> None:
    (path / "shard-0000.db").rename(path / "x")
    (path / "shard-0001.db").rename(path / "shard-0000.db")
    (path / "x").rename(path / "shard-0001.db")
    report = check_directory(path)
    assert {finding.shard for finding in report.findings} == {0, 1}
    assert "it says it is shard 1 of 2, not 0 of 2" in whats(report)


def test_a_missing_file_is_found_and_the_other_still_checked(path: Path) -> None:
    (path / "shard-0000.db").unlink()
    report = check_directory(path)
    assert [found.shard for found in report.shards] == [1]
    assert [finding.shard for finding in report.findings] == [0]
    assert not (path / "shard-0000.db").exists()


def test_a_file_too_many_is_a_warning(path: Path) -> None:
    (path / "shard-0002.db").write_bytes(b"")
    report = check_directory(path)
    assert [finding.severity for finding in report.findings] == [Severity.WARNING]
    assert report.sound


def scribble(file: Path) -> None:
    content = bytearray(file.read_bytes())
    # The page of an index, its cells gone: the header and the tables stay readable.
    for page in range(3, len(content) // 4096):
        if content[page * 4096] == 0x0A:
            content[page * 4096 + 100 : (page + 1) * 4096] = b"\x55" * (4096 - 100)
            break
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096)


@pytest.mark.parametrize("spoil", [scribble, cut])
def test_a_damaged_page_is_found(path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(path / "shard-0000.db")
    report = check_directory(path)
    assert not report.sound
    assert {finding.shard for finding in report.findings} == {0}
    assert [found.shard for found in report.shards][-1] == 1


def test_a_finding_names_a_few_ids_and_never_a_key(path: Path) -> None:
    damage(path, f"{RECORD} attempt = 0 WHERE state IS NOT NULL")
    (what,) = whats(check_directory(path))
    assert what.endswith(": 5 (id 1, 2, 3, 4, 6)")
    ids = "WITH RECURSIVE ids (id) AS (VALUES (20) UNION ALL SELECT id + 1 FROM ids WHERE id < 40)"
    damage(path, f"{ids} INSERT INTO outcomes SELECT id, 200, '[]', x'', 0 FROM ids")
    assert any(what.endswith(": 21 (id 20, 21, 22, 23, 24, ...)") for what in whats(check_directory(path)))
