"""Backups hold what was acknowledged, and after a restore no token is granted twice."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import apsw
import pytest
import trio

from idemactor.core.keys import Identity, identity_hash, shard_of
from idemactor.core.limits import TOKEN_MAX
from idemactor.core.record import Outcome
from idemactor.errors import StartError, StorageError
from idemactor.storage import backups, copying, directory, sqlite_writes, tokens
from idemactor.storage.backups import back_up, restore
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.check import check_directory
from idemactor.storage.checksums import has_checksums, wrong_pages
from idemactor.storage.directory import DataDirectory
from idemactor.storage.journal_file import NAME as JOURNAL_NAME
from idemactor.storage.journal_file import JournalFile, Row
from idemactor.storage.journal_rows import encode
from idemactor.storage.layout import META_NAME, lock_name, read_meta, shard_name
from idemactor.storage.progress import silent
from idemactor.storage.reading import Part, Whole
from idemactor.storage.resealing import only_in_journal
from idemactor.storage.sqlite_wal import FRAME_BYTES
from idemactor.storage.tokens import TOKENS_BEFORE_COPIES, token_at
from idemactor.storage.wal_frames import HEADER_BYTES, frames_in
from tests.storage import format_1
from tests.storage.filled import Content, Filler, content_of, killed, tallies_of
from tests.storage.samples import NOW, committed, name, pending

ROUNDS = 12
SPILLED_BYTES = 3 * 1024 * 1024
"""More than what SQLite keeps of a file in memory where nobody says how much (2 MB)."""


def per_shard(content: Content, filler: Filler) -> list[Content]:
    found = []
    for shard in range(filler.shards):
        part = Part(shard, filler.shards)
        found.append(
            Content(
                {i: w for i, w in content.wholes.items() if part.has(i)},
                {i: e for i, e in content.events.items() if part.has(e.identity)},
                {i: e for i, e in content.incidents.items() if part.has(i[0])},
            )
        )
    return found


async def test_whatever_happens_meanwhile_a_backup_is_each_shard_at_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two files that are copied, the server goes on: writes, and writes behind."""
    seed = SystemRandom().randrange(2**32)
    later = 0
    for number in range(ROUNDS):
        rng = Random(f"{seed}-{number}")
        filler = Filler(rng, tmp_path / f"data{number}", rng.randrange(1, 4))
        await filler.open()
        await filler.turns(rng.randrange(1, 40))
        began = [len(history) - 1 for history in filler.history]
        real = copying._copy_file

        def busy(*arguments: Any, real: Callable[..., None] = real, rng: Random = rng, filler: Filler = filler) -> None:
            trio.from_thread.run(filler.turns, rng.randrange(8))
            real(*arguments)
            trio.from_thread.run(filler.turns, rng.randrange(8))

        monkeypatch.setattr(copying, "_copy_file", busy)
        target = tmp_path / f"backup{number}"
        await trio.to_thread.run_sync(back_up, filler.path, target, silent)
        monkeypatch.setattr(copying, "_copy_file", real)
        report = check_directory(target)
        assert report.findings == (), f"seed {seed}-{number}"
        for shard, content in enumerate(per_shard(content_of(target), filler)):
            states = filler.history[shard][began[shard] :]
            assert content in states, f"seed {seed}-{number}: what was acknowledged before is not in it"
            later += content != states[0]
        # The server is not disturbed: it goes on, and closes as ever.
        await filler.turns(5)
        await filler.close()
        assert content_of(filler.path) == filler.content
    assert later > 0


async def test_a_backup_says_what_it_is(tmp_path: Path) -> None:
    filler = Filler(Random(1), tmp_path / "data", 2)
    await filler.open()
    await filler.turns(20)
    before = directory.wall_ms()
    copied = back_up(filler.path, tmp_path / "backup", silent)
    await filler.close()
    manifest = json.loads((tmp_path / "backup" / "backup.json").read_bytes())
    assert before <= copied.taken_ms == manifest["taken_ms"] <= directory.wall_ms()
    assert [shard["last_token"] for shard in manifest["shards"]] == filler.tokens
    assert manifest["latest_ms"] == filler.now
    assert sorted(os.listdir(tmp_path)) == ["backup", "data"]
    assert not {META_NAME, "journal.db", shard_name(0), shard_name(1)} - set(os.listdir(tmp_path / "backup"))
    meta = read_meta(tmp_path / "backup")
    assert meta is not None
    assert meta.copied_ms == copied.taken_ms


async def test_a_backup_takes_nobodys_place(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 1).close()
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    with pytest.raises(StartError, match="there already"):
        back_up(tmp_path / "data", tmp_path / "backup", silent)
    (tmp_path / "empty").mkdir()
    back_up(tmp_path / "data", tmp_path / "empty", silent)
    assert check_directory(tmp_path / "empty").sound
    with pytest.raises(StartError, match="is not there"):
        back_up(tmp_path / "nothing", tmp_path / "other", silent)
    assert not (tmp_path / "other").exists()


class Interrupted(BaseException):
    """The process ends here."""


def interrupt_at(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """End the process at the ``count``-th step that changes the name of anything, or syncs."""
    done: list[str] = []
    for function in ("rename", "unlink", "fsync", "mkdir"):
        real: Callable[..., object] = getattr(os, function)

        def counted(*arguments: Any, real: Callable[..., object] = real, which: str = function, **named: Any) -> object:
            if len(done) >= count:
                raise Interrupted
            done.append(which)
            return real(*arguments, **named)

        monkeypatch.setattr(os, function, counted)
    return done


async def filled(path: Path) -> Content:
    filler = Filler(Random(7), path, 2)
    await filler.open()
    await filler.turns(15)
    await filler.close()
    return filler.content


def steps_of(work: Callable[[], object]) -> int:
    with pytest.MonkeyPatch.context() as patched:
        done = interrupt_at(patched, 10**9)
        work()
        return len(done)


async def test_a_backup_that_was_interrupted_anywhere_is_none_or_whole(tmp_path: Path) -> None:
    content = await filled(tmp_path / "data")
    total = steps_of(lambda: back_up(tmp_path / "data", tmp_path / "first", silent))
    assert total > 10
    for count in range(total):
        target = tmp_path / f"b{count}"
        with pytest.MonkeyPatch.context() as patched:
            interrupt_at(patched, count)
            with pytest.raises(Interrupted):
                back_up(tmp_path / "data", target, silent)
        if target.exists() and any(target.iterdir()):
            assert content_of(target) == content
        else:
            back_up(tmp_path / "data", target, silent)
            assert content_of(target) == content
        assert not [file for file in os.listdir(tmp_path) if file.startswith(f"b{count}.")]


# -------------------------------------------------------------------------------------------------------------- restore


def test_the_law_of_tokens_holds_for_copies_of_copies() -> None:
    """Whatever is restored whenever: a server that grants as fast as nothing can is behind what comes after it."""
    rng = Random(SystemRandom().randrange(2**32))
    now = NOW
    granted = rng.randrange(10**12)
    kept = [granted]
    for _ in range(1_000):
        now += rng.randrange(1, 10**9)
        last = max(rng.choice(kept), token_at(now))
        assert last >= granted, "a token could be granted twice"
        spent = rng.randrange(1, 10**9)
        now += spent
        granted = last + spent * tokens.TOKENS_PER_MS
        kept.append(last + rng.randrange(granted - last))
    assert granted <= TOKEN_MAX


def test_a_clock_that_is_wrong_is_refused() -> None:
    for now_ms in (0, tokens.BEGAN_MS - 1, 2**53):
        with pytest.raises(StorageError, match="clock"):
            token_at(now_ms)


async def test_a_restore_brings_back_what_was_backed_up(tmp_path: Path) -> None:
    content = await filled(tmp_path / "data")
    copied = back_up(tmp_path / "data", tmp_path / "backup", silent)
    before = {file.name: file.read_bytes() for file in (tmp_path / "backup").iterdir()}
    restored = restore(tmp_path / "backup", tmp_path / "new" / "data", silent)
    assert {file.name: file.read_bytes() for file in (tmp_path / "backup").iterdir()} == before
    assert content_of(tmp_path / "new" / "data") == content
    assert check_directory(tmp_path / "new" / "data").findings == ()
    assert restored.taken_ms == copied.taken_ms <= restored.until_ms
    assert restored.next_token > TOKENS_BEFORE_COPIES
    assert lowest_token(tmp_path / "new" / "data") == restored.next_token - 1


def lowest_token(path: Path) -> int:
    return min(shard.last_token for shard in check_directory(path).shards)


async def test_restored_twice_from_one_backup_no_token_is_granted_twice(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    first = restore(tmp_path / "backup", tmp_path / "one", silent)
    second = restore(tmp_path / "backup", tmp_path / "two", silent)
    # Between them the first could grant a thousand a millisecond.
    assert second.next_token > first.next_token
    last = lowest_token(tmp_path / "one") + 10**9
    grant(tmp_path / "one", last)
    third = restore(tmp_path / "backup", tmp_path / "one", silent, replaced=True)
    assert third.next_token > last


def grant(path: Path, token: int, at_ms: int = 0) -> None:
    meta = read_meta(path)
    assert meta is not None
    tokens.leap([meta.home(path) / shard_name(0)], token, at_ms)


async def test_whoever_serves_a_backup_itself_grants_no_token_twice_either(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    copied = back_up(tmp_path / "data", tmp_path / "backup", silent)
    assert lowest_token(tmp_path / "backup") < TOKENS_BEFORE_COPIES
    DataDirectory.open(tmp_path / "backup").close()
    assert lowest_token(tmp_path / "backup") >= token_at(copied.taken_ms)
    served = lowest_token(tmp_path / "backup")
    DataDirectory.open(tmp_path / "backup").close()
    assert lowest_token(tmp_path / "backup") == served


async def test_a_restore_replaces_data_only_where_that_is_asked_and_keeps_them(tmp_path: Path) -> None:
    content = await filled(tmp_path / "data")
    later_ms = back_up(tmp_path / "data", tmp_path / "backup", silent).taken_ms + 60_000
    later = Filler(Random(9), tmp_path / "data", 2)
    await later.open()
    await later.turns(3)
    await later.close()
    with pytest.raises(StartError, match="--replace"):
        restore(tmp_path / "backup", tmp_path / "data", silent)
    with DataDirectory.open(tmp_path / "data"), pytest.raises(StartError, match="in use"):
        restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    grant(tmp_path / "data", 5, later_ms)
    restored = restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert content_of(tmp_path / "data") == content
    assert restored.until_ms == later_ms
    assert restored.replaced == tmp_path / "data"
    assert (tmp_path / "data" / shard_name(0)).exists()
    made = json.loads((restored.files / "made.json").read_bytes())
    assert (made["made_by"], made["replaced"]["files"]) == ("restore", 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").touch()
    with pytest.raises(StartError, match="not empty"):
        restore(tmp_path / "backup", tmp_path / "full", silent)


async def test_a_restore_that_was_interrupted_anywhere_leaves_nothing_that_counts(tmp_path: Path) -> None:
    content = await filled(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    total = steps_of(lambda: restore(tmp_path / "backup", tmp_path / "first", silent))
    assert total > 10
    for count in range(total):
        target = tmp_path / f"r{count}"
        with pytest.MonkeyPatch.context() as patched:
            # As by SIGKILL: nothing is tidied up.
            patched.setattr(backups, "_discard_unless_named", lambda *_: None)
            interrupt_at(patched, count)
            with pytest.raises(Interrupted):
                restore(tmp_path / "backup", target, silent)
        if target.exists() and read_meta(target) is None and any(target.glob("files-*")):
            with pytest.raises(StartError, match="run it once more"):
                DataDirectory.open(target)
        done = target.exists() and read_meta(target) is not None
        if not done:
            restore(tmp_path / "backup", target, silent)
        assert content_of(target) == content
        assert check_directory(target).findings == ()


def test_a_restore_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    monkeypatch.setattr(directory, "wall_ms", lambda: NOW)
    monkeypatch.setattr(backups, "wall_ms", lambda: NOW)
    with pytest.raises(StartError, match="clock of this machine"):
        restore(tmp_path / "backup", tmp_path / "new", silent)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("what", ["byte", "manifest"])
def test_a_backup_that_was_changed_is_not_restored(tmp_path: Path, what: str) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    if what == "byte":
        path = tmp_path / "backup" / shard_name(1)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        (tmp_path / "backup" / "backup.json").write_text("{}")
    with pytest.raises(StorageError, match="restore another backup"):
        restore(tmp_path / "backup", tmp_path / "new", silent)
    assert not (tmp_path / "new").exists()


def test_what_is_damaged_within_is_not_restored(tmp_path: Path) -> None:
    """A directory without a manifest: what its own server damaged."""
    with DataDirectory.open(tmp_path / "data", 1) as data:
        connection = apsw.Connection(str(data.engine_path(0)))
        connection.execute("INSERT INTO outcomes VALUES (1, 200, '[]', x'', 0)")
        connection.close()
    with pytest.raises(StorageError, match="outcomes without a record"):
        restore(tmp_path / "data", tmp_path / "new", silent)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", [shard_name(1), JOURNAL_NAME])
def test_a_file_of_a_newer_release_is_named_as_it_is_called_where_it_lies(tmp_path: Path, name: str) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    connection = apsw.Connection(str(tmp_path / "data" / name))
    connection.pragma("user_version", 99)
    connection.close()
    for work in (back_up, restore):
        with pytest.raises(StartError, match="has format 99, this release knows") as caught:
            work(tmp_path / "data", tmp_path / "new", silent)
        assert name in str(caught.value)
        assert ".part" not in str(caught.value)
        assert str(tmp_path / "new") not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (apsw.FullError("not an error"), "the disk is full; free some space and try again (FullError)"),
        (apsw.FullError("database or disk is full"), "try again (database or disk is full)"),
        (apsw.IOError("not an error"), "a file cannot be read or written: IOError"),
        (apsw.IOError("disk I/O error"), "a file cannot be read or written: disk I/O error"),
    ],
)
def test_an_error_is_never_said_to_be_none(tmp_path: Path, error: apsw.Error, said: str) -> None:
    """SQLite has no words for what ends a step of a copy."""
    with pytest.raises((StartError, StorageError)) as caught, directory.explained(tmp_path):
        raise error
    assert said in str(caught.value)
    assert isinstance(error, apsw.IOError) or str(caught.value).startswith(f"{tmp_path} cannot be written")


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_took_the_place_of_a_backup_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Two backups to one place at once, for one."""
    DataDirectory.open(tmp_path / "data", 1).close()
    target, real = tmp_path / "backup", copying.copy_files
    theirs = target / "theirs" if kind == "directory" else target

    def overtaken(*arguments: Any, **named: Any) -> Any:
        theirs.parent.mkdir(exist_ok=True)
        theirs.touch()
        return real(*arguments, **named)

    monkeypatch.setattr(backups, "copy_files", overtaken)
    with pytest.raises(StartError, match="backup came to be there meanwhile; name a new directory"):
        back_up(tmp_path / "data", target, silent)
    assert theirs.is_file()
    assert sorted(os.listdir(tmp_path)) == ["backup", "data"]


@pytest.mark.parametrize("work", [back_up, restore])
async def test_where_the_disk_is_full_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[..., object]
) -> None:
    """Also where what the journal alone has is written into the copy: nothing that was read is damaged."""
    filler = Filler(Random(1), tmp_path / "running", 1)
    await filler.open()
    await filler.turns(3)
    killed(tmp_path / "running", tmp_path / "data")
    await filler.close()

    def no_room(*_: object, **__: object) -> None:
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(sqlite_writes, "apply", no_room)
    with pytest.raises(StartError, match="the disk is full") as caught:
        work(tmp_path / "data", tmp_path / "new", silent)
    assert str(caught.value).startswith(f"{tmp_path / 'new'} cannot be written")


def test_a_directory_of_the_first_format_is_backed_up_with_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with DataDirectory.open(path, 1) as data:
        pass
    seq = int(apsw.Connection(str(data.engine_path(0))).execute("SELECT journal_seq FROM meta").get)
    (path / shard_name(0)).unlink()
    format_1.make_file(path / shard_name(0), journal_seq=seq)
    file = JournalFile(path / "journal.db")
    file.open()
    batch = Batch(NOW, 6, puts=[pending(6, name("six"))])
    assert file.append([Row(seq + 1, 0, seq, encode(batch))], {}) is CommitResult.OK
    back_up(path, tmp_path / "backup", silent)
    file.close(tidy=True)
    found = content_of(tmp_path / "backup")
    assert {i: w.entry for i, w in found.wholes.items()} == {**format_1.ENTRIES, name("six"): pending(6, name("six"))}
    with DataDirectory.open(tmp_path / "backup") as data:
        assert lock_name(0) in os.listdir(data.path)


async def test_of_a_journal_that_lost_its_end_what_is_left_is_taken_only_apart(tmp_path: Path) -> None:
    filler = Filler(Random(3), tmp_path / "data", 2)
    await filler.open()
    await filler.turns(47)
    for number in itertools.count():
        left = killed(filler.path, tmp_path / f"left-{number}")
        meta = read_meta(left)
        assert meta is not None
        # How much of it the shards' files have already depends on how quick the disk was.
        if only_in_journal(left, meta):
            break
        await filler.turns(1)
    await filler.close()
    whole = content_of(left)
    wal = left / f"{JOURNAL_NAME}-wal"
    assert len(frames_in(wal)) > 1
    os.truncate(wal, HEADER_BYTES + FRAME_BYTES - 1)
    with pytest.raises(StorageError, match=r"it ends at batch .*`idemactor restore --apart`"):
        restore(left, tmp_path / "refused", silent)
    restored = restore(left, tmp_path / "new", silent, apart=True)
    assert check_directory(tmp_path / "new").findings == ()
    kept = content_of(tmp_path / "new")
    assert kept != whole
    assert kept.wholes.keys() & whole.wholes.keys()
    assert restored.next_token > max(each.entry.record.token for each in whole.wholes.values() if each.entry.record)
    DataDirectory.open(tmp_path / "new").close()


async def _fill(filler: Filler, number: int, shard: int, *, behind: bool) -> None:
    """Commit one large outcome; ``behind``: let the shard's file be written."""
    identity = next(i for i in (name(f"large-{number}-{n}") for n in itertools.count()) if _is_of(shard, i, filler))
    token = filler.tokens[shard] = filler.tokens[shard] + 1
    entry = committed(token, identity, outcome=Outcome(200, (), filler.rng.randbytes(60_000)))
    content = filler.contents[shard]
    content.wholes[identity] = Whole(entry, None)
    batch = Batch(filler.now, token, [entry], tallies=tallies_of(content))
    assert await filler.engines[shard].commit(batch) is CommitResult.OK
    if behind:
        await filler.engines[shard].maintain()


def _is_of(shard: int, identity: Identity, filler: Filler) -> bool:
    return shard_of(identity_hash(identity), filler.shards) == shard


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("behind", [True, False])
async def test_what_does_not_fit_into_sqlites_cache_is_copied_with_its_checksums(
    tmp_path: Path, behind: bool, checksums: bool
) -> None:
    """Much in the WAL of a shard, or in that of the journal: those pages have no checksums there."""
    filler = Filler(Random(4), tmp_path / "data", 5, checksums=checksums)
    await filler.open()
    for number in range(70):
        await _fill(filler, number, 0 if behind else number % 5, behind=behind)
    heavy = filler.path / ("shard-0000.db-wal" if behind else f"{JOURNAL_NAME}-wal")
    assert heavy.stat().st_size > SPILLED_BYTES
    await trio.to_thread.run_sync(back_up, filler.path, tmp_path / "backup", silent)
    left = killed(filler.path, tmp_path / "left")
    content = filler.content.plain()
    await filler.close()
    for apart in (False, True):
        restore(left, tmp_path / f"apart-{apart}", silent, apart=apart)
    back_up(tmp_path / "backup", tmp_path / "again", silent)
    for copy in ("backup", "again", "apart-False", "apart-True"):
        # Where there are no checksums that is what is found.
        assert not checksums or check_directory(tmp_path / copy).findings == ()
        assert content_of(tmp_path / copy).plain() == content
        for file in (tmp_path / copy).glob("*.db"):
            assert has_checksums(file) is checksums
            assert not checksums or not list(wrong_pages(file))


def _with_something(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True)
    (directory / name).write_text("mine")
    return directory / name


async def test_a_restore_removes_nothing_that_is_somebody_elses(tmp_path: Path) -> None:
    filler = Filler(Random(6), tmp_path / "data", 2)
    await filler.open()
    await filler.turns(5)
    await filler.close()
    back_up(tmp_path / "data", tmp_path / "backup", silent)
    mine = _with_something(tmp_path / "stuff" / "files-2024", "tax.pdf")
    with pytest.raises(StartError, match="is not empty"):
        restore(tmp_path / "backup", tmp_path / "stuff", silent)
    assert mine.read_text() == "mine"
    inside = tmp_path / "data" / "files-0001"
    shutil.copytree(tmp_path / "backup", inside)
    with pytest.raises(StartError, match="is inside of"):
        restore(inside, tmp_path / "data", silent, replaced=True)
    restore(tmp_path / "backup", tmp_path / "data", silent, replaced=True)
    assert content_of(inside) == content_of(tmp_path / "backup")
