"""What is exported comes back as it was: into a new directory, or beside keys that are there."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest

from idemactor.core.record import Outcome
from idemactor.errors import StartError, StorageError
from idemactor.storage import importing
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory
from idemactor.storage.exporting import export
from idemactor.storage.importing import Conflicts, import_lines
from idemactor.storage.layout import read_meta
from idemactor.storage.lines import BadLine, End
from idemactor.storage.progress import silent
from idemactor.storage.reading import Whole
from idemactor.storage.sqlite import SqliteEngine
from idemactor.storage.tokens import TOKENS_BEFORE_COPIES
from tests.storage.filled import Content, content_of
from tests.storage.samples import NOW, committed, name, pending
from tests.storage.test_backups import Interrupted, interrupt_at
from tests.storage.test_reading import digests
from tests.storage.test_resharding import filled, two_alike

ROUNDS = 8


def exported(path: Path, *, outcomes: bool = True) -> bytes:
    file = io.BytesIO()
    export(path, file.write, silent, outcomes=outcomes)
    return file.getvalue()


def lines_of(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def imported(path: Path, data: bytes, shards: int | None = None) -> importing.Imported:
    return import_lines(path, io.BytesIO(data), silent, shards=shards)


async def small(path: Path, *wholes: Whole, shards: int = 1) -> Path:
    """A directory with these entries; of one shard."""
    with DataDirectory.open(path, shards) as data:
        engine = SqliteEngine(data.engine_path(0), shard=0, shards=shards, threads="never")
        await engine.open()
        batch = Batch(NOW, 100, puts=[whole.entry for whole in wholes])
        assert await engine.commit(batch) is CommitResult.OK
        await engine.close()
    return path


async def test_what_was_exported_comes_back_into_any_number_of_shards(tmp_path: Path) -> None:
    seed = SystemRandom().randrange(2**32)
    for number in range(ROUNDS):
        rng = Random(f"{seed}-{number}")
        filler = await filled(tmp_path / f"data{number}", rng, rng.randrange(1, 4))
        before = digests(tmp_path / f"data{number}")
        data = exported(tmp_path / f"data{number}")
        assert digests(tmp_path / f"data{number}") == before
        shards = rng.choice((None, rng.randrange(1, 6)))
        done = imported(tmp_path / f"new{number}", data, shards)
        content = content_of(tmp_path / f"new{number}")
        assert content.plain() == filler.content.plain(), f"seed {seed}-{number}"
        assert (done.entries, done.present) == (len(content.wholes), 0)
        assert (done.events, done.incidents) == (len(content.events), len(content.incidents))
        report = check_directory(tmp_path / f"new{number}")
        assert report.findings == ()
        assert len(report.shards) == (shards or filler.shards)
        assert all(shard.last_token > TOKENS_BEFORE_COPIES for shard in report.shards)
        assert all(shard.latest_ms >= filler.now for shard in report.shards)
        again = exported(tmp_path / f"new{number}")
        assert [line for line in lines_of(data)[1:-1] if line["type"] == "event"] == [
            line for line in lines_of(again)[1:-1] if line["type"] == "event"
        ]
        if len(report.shards) == 1:
            # Each shard keeps the order of listings.
            assert order(data) == order(again)


def order(data: bytes) -> list[tuple[str, ...]]:
    return [tuple(line["identity"].values()) for line in lines_of(data) if line["type"] == "entry"]


async def test_an_export_is_documented_lines(tmp_path: Path) -> None:
    await small(tmp_path / "data", Whole(committed(1, name("k"), outcome=Outcome(200, (("a", "b"),), b"\xff")), None))
    first, entry, end = lines_of(exported(tmp_path / "data"))
    assert list(first) == ["type", "version", "exported_at", "shards", "last_token", "latest_ms", "outcomes"]
    assert (first["type"], first["version"], first["shards"], first["last_token"]) == ("export", 1, 1, 100)
    assert entry["identity"] == {"tenant": "default", "namespace": "trade", "key": "k"}
    assert entry["record"]["outcome"] == {
        "status": 200,
        "headers": [["a", "b"]],
        "body": {"b64": "/w=="},
        "omitted": False,
    }
    assert entry["record"]["state"] == "committed"
    assert end == {"type": "end", "entries": 1, "events": 0, "incidents": 0}


async def test_outcomes_can_be_left_out(tmp_path: Path) -> None:
    outcome = Outcome(201, (("secret", "header"),), b"secret body")
    await small(tmp_path / "data", Whole(committed(1, name("k"), outcome=outcome), None))
    assert b"secret" in exported(tmp_path / "data")
    data = exported(tmp_path / "data", outcomes=False)
    assert b"secret" not in data
    imported(tmp_path / "new", data)
    record = content_of(tmp_path / "new").wholes[name("k")].entry.record
    assert record is not None
    assert record.outcome == Outcome(201, omitted=True)


async def test_keys_that_are_not_there_come_in_beside_those_that_are(tmp_path: Path) -> None:
    one = await filled(tmp_path / "one", Random(31), 3)
    await small(tmp_path / "two", Whole(pending(7, name("new key")), None), Whole(committed(9, name("other")), None))
    done = imported(tmp_path / "one", exported(tmp_path / "two"))
    assert (done.entries, done.present, done.shards) == (2, 0, 3)
    content = content_of(tmp_path / "one").plain()
    assert {name("new key"), name("other")} < content.wholes.keys()
    expected = one.content.plain()
    del content.wholes[name("new key")], content.wholes[name("other")]
    assert content == expected
    assert check_directory(tmp_path / "one").findings == ()


async def test_keys_that_are_there_with_something_else_are_named_and_nothing_is_changed(tmp_path: Path) -> None:
    await small(tmp_path / "one", Whole(pending(1, name("a")), None), Whole(pending(2, name("b")), None))
    await small(tmp_path / "two", Whole(committed(5, name("a")), None), Whole(pending(6, name("c")), None))
    before = content_of(tmp_path / "one")
    with pytest.raises(Conflicts, match="1 keys are there already") as caught:
        imported(tmp_path / "one", exported(tmp_path / "two"))
    assert (caught.value.count, caught.value.named) == (1, (name("a"),))
    assert content_of(tmp_path / "one") == before
    left = {file for file in os.listdir(tmp_path / "one") if not file.endswith(("-wal", "-shm"))}
    assert left == {"LOCK", "idemactor.json", "journal.db", "shard-0000.db", "shard-0000.lock"}


async def test_an_import_once_more_changes_nothing(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(41), 2)
    data = exported(tmp_path / "data")
    imported(tmp_path / "new", data)
    before = read_meta(tmp_path / "new")
    done = imported(tmp_path / "new", data)
    assert (done.entries, done.present, done.rebuilt) == (0, len(filler.content.wholes), None)
    assert (done.events, done.incidents) == (0, 0)
    assert read_meta(tmp_path / "new") == before


async def test_part_of_it_was_there(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(43), 2)
    data = exported(tmp_path / "data")
    lines = data.splitlines(keepends=True)
    kept = [line for line in lines[1:-1] if line.startswith(b'{"type":"entry"')][::2]
    half = b"".join([lines[0], *kept, json.dumps({"type": "end", **ends(len(kept))}).encode()])
    imported(tmp_path / "new", half)
    done = imported(tmp_path / "new", data)
    assert (done.present, done.entries) == (len(kept), len(filler.content.wholes) - len(kept))
    assert content_of(tmp_path / "new").plain() == filler.content.plain()


def ends(entries: int, events: int = 0, incidents: int = 0) -> dict[str, int]:
    return {"entries": entries, "events": events, "incidents": incidents}


async def test_two_shards_with_the_same_numbers_are_exported_and_come_back(tmp_path: Path) -> None:
    await two_alike(tmp_path / "data")
    imported(tmp_path / "new", exported(tmp_path / "data"), 1)
    content = content_of(tmp_path / "new")
    assert (len(content.wholes), len(content.events), len(content.incidents)) == (6, 4, 2)
    line = [each.seq for each in content.events.values()]
    records = [whole.entry.record for whole in content.wholes.values()]
    line += [each.delivery.seq for each in records if each is not None and each.delivery is not None]
    assert len(set(line)) == 6
    assert check_directory(tmp_path / "new").findings == ()


async def test_an_import_that_was_interrupted_anywhere_leaves_what_was_there(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(51), 2, 10)
    data = exported(tmp_path / "data")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        steps = interrupt_at(patched, 10**9)
        imported(tmp_path / "first", data, 2)
    for count in range(len(steps)):
        path = tmp_path / f"i{count}"
        with pytest.MonkeyPatch.context() as patched:
            # As by SIGKILL: nothing is tidied up.
            patched.setattr(shutil, "rmtree", lambda *_, **__: None)
            interrupt_at(patched, count)
            with pytest.raises(Interrupted):
                imported(path, data, 2)
        if path.exists() and read_meta(path) is None and set(os.listdir(path)) - {"LOCK"}:
            with pytest.raises(StartError, match="run it once more"):
                DataDirectory.open(path)
        imported(path, data, 2)
        assert content_of(path).plain() == filler.content.plain()
        assert check_directory(path).findings == ()


# ------------------------------------------------------------------------------------------------------------- refusals


async def one_line(path: Path) -> list[Any]:
    return lines_of(exported(await small(path, Whole(committed(1, name("k")), None))))


def changed(lines: list[Any], change: Callable[[list[Any]], object]) -> bytes:
    change(lines)
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def twice(lines: list[Any]) -> None:
    """The entry is there twice."""
    lines.insert(1, lines[1])
    lines[3].update(entries=2)


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "line 1: it is no JSON": lambda lines: lines.insert(0, b"\xff\n"),
    "line 1: is an object": lambda lines: lines.insert(0, []),
    "line 1: type: is export": lambda lines: lines.insert(0, {"type": "no"}),
    "line 1: an export begins": lambda lines: lines.pop(0),
    "line 1: version: this release knows": lambda lines: lines[0].update(version=2),
    "line 2: record.state: is one of": lambda lines: lines[1]["record"].update(state="lost"),
    "line 2: record.token: is an integer": lambda lines: lines[1]["record"].update(token="1"),
    "line 2: record.token: is 1 to": lambda lines: lines[1]["record"].update(token=2**53),
    "line 2: record.reserved_at: is an integer": lambda lines: lines[1]["record"].update(reserved_at=2**63),
    "line 2: record.accepted: is a flag": lambda lines: lines[1]["record"].update(accepted=1),
    "line 2: record.outcome.body: is a text": lambda lines: lines[1]["record"]["outcome"].update(body={"b64": "?"}),
    "line 2: record.outcome.headers: is an array": lambda lines: lines[1]["record"]["outcome"].update(headers={}),
    "line 2: record.colour: there is no such member": lambda lines: lines[1]["record"].update(colour="red"),
    "line 2: record.attempt: is missing": lambda lines: lines[1]["record"].pop("attempt"),
    "line 2: identity: a key has": lambda lines: lines[1]["identity"].update(key=""),
    "line 2: identity.tenant: has 1 to": lambda lines: lines[1]["identity"].update(tenant=""),
    "line 2: identity: a namespace": lambda lines: lines[1]["identity"].update(namespace="No"),
    "line 3: it holds a text": lambda lines: lines[1]["record"].update(holder="\ud800"),
    "line 3: the end counts 2 entries": lambda lines: lines[2].update(entries=2),
    "line 3: the end is missing": lambda lines: lines.pop(),
    "line 4: there is something behind": lambda lines: lines.append(lines[2]),
    "entry 2 of the export is of a key": twice,
}


@pytest.mark.parametrize("what", CHANGES)
async def test_what_is_wrong_with_an_export_is_said_with_its_line_and_field(tmp_path: Path, what: str) -> None:
    data = changed(await one_line(tmp_path / "data"), CHANGES[what])
    with pytest.raises(StorageError) as caught:
        imported(tmp_path / "new", data)
    assert str(caught.value).startswith(what)
    assert not (tmp_path / "new").exists()


async def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idemactor.storage.lines.LINE_BYTES_MAX", 10)
    with pytest.raises(BadLine, match="line 1: it is longer than 10 bytes"):
        imported(tmp_path / "new", b"x" * 11)


async def test_what_no_server_can_have_written_is_not_taken(tmp_path: Path) -> None:
    lines = await one_line(tmp_path / "data")
    lines[1]["record"].update(expires_at=None)
    with pytest.raises(StorageError, match="committed records without the time of commit or of expiry"):
        imported(tmp_path / "new", changed(lines, lambda _: None))
    assert read_meta(tmp_path / "new") is None


async def test_where_nothing_can_be_imported_to_is_said(tmp_path: Path) -> None:
    data = exported(await small(tmp_path / "data", Whole(pending(1, name("k")), None)))
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="not a directory"):
        imported(tmp_path / "file", data)
    with pytest.raises(StartError, match="not empty"):
        imported(tmp_path, data)
    with pytest.raises(StartError, match="leave --shards out"):
        imported(tmp_path / "data", data, 2)
    with pytest.raises(StartError, match="--shards is 1 to 1024"):
        imported(tmp_path / "new", data, 0)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        imported(tmp_path / "data", data)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        exported(tmp_path / "data")


async def test_a_clock_that_lags_behind_an_export_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported(await small(tmp_path / "data", Whole(pending(1, name("k")), None)))
    monkeypatch.setattr(importing, "wall_ms", lambda: NOW)
    with pytest.raises(StartError, match="clock of this machine"):
        imported(tmp_path / "new", data)


def test_an_empty_directory_is_exported_and_comes_back(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    file = io.BytesIO()
    assert export(tmp_path / "data", file.write, silent) == End(0, 0, 0)
    imported(tmp_path / "new", file.getvalue())
    assert content_of(tmp_path / "new") == Content()
