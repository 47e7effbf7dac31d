"""The time in which a restore may lose commands has all of them in it, and no token is granted twice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from idemactor.errors import StartError
from idemactor.storage import backups
from idemactor.storage.backups import back_up, restore
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.copying import Copied
from idemactor.storage.directory import DataDirectory, wall_ms
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import JournalFile, Row, create_journal
from idemactor.storage.journal_rows import encode
from idemactor.storage.layout import MANIFEST_NAME, META_NAME, read_meta, shard_name
from idemactor.storage.newest import newest
from idemactor.storage.progress import silent
from idemactor.storage.resharding import reshard
from idemactor.storage.sealing import KEY_BYTES, Keyring
from idemactor.storage.sqlite_wal import FRAME_BYTES
from idemactor.storage.tokens import leap, token_at
from idemactor.storage.wal_frames import HEADER_BYTES, frames_in
from tests.storage.filled import Filler, killed

QUIET: Final = 10_000
"""So many rows that write-behind never begins: all is in the journal alone."""
LATER_MS: Final = 60_000
"""Beyond the present, for as long as a test takes."""
AHEAD_MS: Final = 20 * 60_000


async def lost(home: Path, *, later_ms: int = LATER_MS, keys: Keyring | None = None) -> tuple[Copied, Filler]:
    """A backup, and beside it the directory of a server that was killed after it had gone on for ``later_ms``."""
    filler = Filler(Random(5), home / "served", 2, rows=QUIET, keys=keys)
    await filler.open()
    filler.now = wall_ms() - LATER_MS
    await filler.turns(6)
    copied = back_up(filler.path, home / "backup", silent, keys)
    filler.now = copied.taken_ms + later_ms
    for shard, engine in enumerate(filler.engines):
        # Nothing that would have a shard's file written.
        filler.tokens[shard] += 1
        assert await engine.commit(Batch(filler.now, filler.tokens[shard])) is CommitResult.OK
    killed(filler.path, home / "data")
    await filler.close()
    return copied, filler


async def test_what_a_killed_server_had_in_its_journal_alone_is_within_the_time_that_is_told(tmp_path: Path) -> None:
    copied, filler = await lost(tmp_path)
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert (restored.taken_ms, restored.until_ms) == (copied.taken_ms, filler.now)
    assert restored.until_ms > restored.taken_ms
    assert restored.unread == ()
    # And once more: what was replaced is kept beside, and is lost as before.
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True).until_ms == filler.now


async def test_a_server_whose_clock_was_ahead_when_it_was_killed_is_noticed(tmp_path: Path) -> None:
    await lost(tmp_path, later_ms=AHEAD_MS)
    with pytest.raises(StartError, match="clock of this machine"):
        restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)


async def test_no_token_is_granted_twice_that_only_the_journal_knows(tmp_path: Path) -> None:
    """A copy that was served while the clock was a little ahead grants from that moment's tokens on."""
    _, filler = await lost(tmp_path)
    high = token_at(wall_ms() + AHEAD_MS)
    add_batch(tmp_path / "data", JOURNAL_NAME, Batch(filler.now, high))
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True).next_token > high


def add_batch(home: Path, name: str, batch: Batch) -> None:
    """One more batch in a journal, made where there is none, as a server that is killed leaves it."""
    path = home / name
    if not path.exists():
        create_journal(path, {0: 0})
    file = JournalFile(path)
    end = file.open()
    previous = file.read_batches(0).end
    assert file.append([Row(end + 1, 0, previous, encode(batch))], {}) is CommitResult.OK
    file.close(tidy=False)


@pytest.mark.parametrize("name", [JOURNAL_NAME, "journal-1-of-2.db"])
@pytest.mark.parametrize("where", ["first", "counts", "outdated"])
async def test_the_journals_of_every_set_and_every_number_of_workers_are_read(
    tmp_path: Path, name: str, where: str
) -> None:
    copied, _ = await lost(tmp_path)
    data = tmp_path / "data"
    before = (data / META_NAME).read_bytes()
    home = restore(tmp_path / "backup", data, silent, replaced=True).files
    if where == "outdated":
        (data / META_NAME).write_bytes(before)
    at_ms = copied.taken_ms + 2 * LATER_MS
    add_batch(data if where == "first" else home, name, Batch(at_ms, 1))
    assert restore(tmp_path / "backup", data, silent, replaced=True).until_ms == at_ms


def cut_wal(data: Path) -> None:
    wal = data / f"{JOURNAL_NAME}-wal"
    os.truncate(wal, HEADER_BYTES + len(frames_in(wal)) // 2 * FRAME_BYTES - 1)


def overwrite(path: Path) -> None:
    for suffix in ("", "-wal"):
        file = path.with_name(path.name + suffix)
        file.write_bytes(b"\0" * file.stat().st_size)


def put_older_file(data: Path) -> None:
    add_batch(data, JOURNAL_NAME, Batch(1, 1))
    file = JournalFile(data / JOURNAL_NAME)
    file.open()
    file.drop({0: file.read_batches(0).end})
    file.close(tidy=False)


UNREAD: dict[str, tuple[str, Callable[[Path], object]]] = {
    "lost journal": (JOURNAL_NAME, lambda data: (data / JOURNAL_NAME).unlink()),
    "damaged journal": (JOURNAL_NAME, lambda data: overwrite(data / JOURNAL_NAME)),
    "damaged WAL": (JOURNAL_NAME, cut_wal),
    "batch that makes no sense": (JOURNAL_NAME, lambda data: add_nonsense(data)),
    "lost file": (shard_name(1), lambda data: (data / shard_name(1)).unlink()),
    "damaged file": (shard_name(1), lambda data: overwrite(data / shard_name(1))),
    "older file": (shard_name(0), put_older_file),
}


def add_nonsense(data: Path) -> None:
    file = JournalFile(data / JOURNAL_NAME)
    end = file.open()
    assert file.append([Row(end + 1, 0, end, b"\x93")], {}) is CommitResult.OK
    file.close(tidy=False)


@pytest.mark.parametrize("what", UNREAD)
@pytest.mark.parametrize("meta", ["there", "damaged"])
async def test_where_something_cannot_be_read_the_time_ends_now_and_that_is_said(
    tmp_path: Path, what: str, meta: str
) -> None:
    await lost(tmp_path, later_ms=-60_000)
    name, damage = UNREAD[what]
    damage(tmp_path / "data")
    if meta == "damaged":
        (tmp_path / "data" / META_NAME).write_bytes(b"{")
    before = wall_ms()
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert before <= restored.until_ms <= wall_ms()
    assert restored.unread == (name,)


async def test_a_journal_whose_key_is_not_given_is_one_that_cannot_be_read(tmp_path: Path) -> None:
    keys = Keyring([bytes(KEY_BYTES)])
    _, filler = await lost(tmp_path, keys=keys)
    meta = read_meta(tmp_path / "data")
    assert newest(tmp_path / "data", meta, None).unread == (JOURNAL_NAME,)
    found = newest(tmp_path / "data", meta, keys)
    assert (found.last_token, found.latest_ms, found.unread) == (max(filler.tokens), filler.now, ())
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True, keys=keys).until_ms == filler.now


async def test_beyond_what_cannot_be_read_tokens_go_on_behind_what_it_may_have_granted(tmp_path: Path) -> None:
    _, filler = await lost(tmp_path)
    last = token_at(wall_ms() + AHEAD_MS)
    leap([tmp_path / "data" / shard_name(0)], last)
    add_batch(tmp_path / "data", JOURNAL_NAME, Batch(filler.now, last + 1_000))
    overwrite(tmp_path / "data" / JOURNAL_NAME)
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True).next_token > last + 1_000


async def test_a_window_never_ends_before_it_begins(tmp_path: Path) -> None:
    """The original did nothing after the backup, or its clock lags."""
    copied, _ = await lost(tmp_path, later_ms=-60_000)
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert restored.until_ms == restored.taken_ms == copied.taken_ms


async def test_a_command_is_told_of_whose_answer_took_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, filler = await lost(tmp_path)
    monkeypatch.setattr(backups, "wall_ms", lambda: filler.now + 1_500)
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True).until_ms == filler.now + 1_500
    monkeypatch.setattr(backups, "wall_ms", lambda: filler.now + AHEAD_MS)
    assert restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True).until_ms == filler.now + 2_000


# --------------------------------------------------------------------------------------------- a backup that was served


def serve(path: Path, at_ms: int) -> None:
    """Somebody has a look at a backup, and a key comes at ``at_ms``."""
    with DataDirectory.open(path) as data:
        leap([data.engine_path(0)], 5, at_ms)


def forget_moment(backup: Path) -> None:
    """What a release leaves that does not know ``taken_ms``."""
    content = json.loads((backup / META_NAME).read_bytes())
    del content["taken_ms"]
    (backup / META_NAME).write_text(json.dumps(content))


SINCE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "its own word was lost": lambda backup: (backup / MANIFEST_NAME).unlink(),
    "it was served by an older release": forget_moment,
}


@pytest.mark.parametrize("what", SINCE)
@pytest.mark.parametrize("apart", [False, True])
async def test_a_backup_that_was_served_is_still_of_when_it_was_taken(tmp_path: Path, what: str, apart: bool) -> None:
    copied, filler = await lost(tmp_path)
    for _ in range(2):
        serve(tmp_path / "backup", filler.now + LATER_MS)
    # Both shards have something later.
    leap([tmp_path / "backup" / shard_name(1)], 5, filler.now + LATER_MS)
    SINCE[what](tmp_path / "backup")
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True, apart=apart)
    assert restored.taken_ms == copied.taken_ms
    assert restored.until_ms >= filler.now
    # What it came to is a directory of its own.
    meta = read_meta(tmp_path / "data")
    assert meta is not None
    assert meta.taken_ms is None


async def test_of_a_served_backup_that_does_not_say_when_everything_may_be_missing(tmp_path: Path) -> None:
    copied, filler = await lost(tmp_path)
    serve(tmp_path / "backup", filler.now + LATER_MS)
    forget_moment(tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST_NAME).write_text("{}")
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert restored.taken_ms == copied.meta.created_ms


def test_a_backup_that_was_served_is_one_that_the_release_before_can_serve(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 1).close()
    copied = back_up(tmp_path / "data", tmp_path / "backup", silent)
    serve(tmp_path / "backup", 1)
    content = json.loads((tmp_path / "backup" / META_NAME).read_bytes())
    assert (content["format"], content["taken_ms"]) == (1, copied.taken_ms)
    again = back_up(tmp_path / "backup", tmp_path / "again", silent)
    reshard(tmp_path / "backup", 2, silent)
    served = read_meta(tmp_path / "backup")
    assert served is not None
    assert (served.shards, served.taken_ms) == (2, copied.taken_ms)
    meta = read_meta(tmp_path / "again")
    assert meta is not None
    assert (meta.copied_ms, meta.taken_ms) == (again.taken_ms, None)
    (tmp_path / "backup" / META_NAME).write_text(json.dumps({**content, "taken_ms": "noon"}))
    with pytest.raises(StartError, match="is damaged"):
        read_meta(tmp_path / "backup")


async def test_what_was_restored_for_a_look_is_of_when_its_backup_was_taken(tmp_path: Path) -> None:
    copied, filler = await lost(tmp_path)
    home = restore(tmp_path / "backup", tmp_path / "look", silent).files
    with DataDirectory.open(tmp_path / "look"):
        leap([home / shard_name(0)], 5, filler.now + LATER_MS)
    shutil.copytree(tmp_path / "look", tmp_path / "copy")
    # What goes on from it is of one line with it, and lost what came after that copy.
    assert restore(tmp_path / "copy", tmp_path / "look", silent, replaced=True).taken_ms == filler.now + LATER_MS
    restored = restore(tmp_path / "copy", tmp_path / "data", silent, replaced=True)
    assert restored.taken_ms == copied.taken_ms
    assert restored.until_ms == filler.now
