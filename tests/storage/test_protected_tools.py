"""What works on files keeps what protects them: the checksums of pages, and the encryption of what callers stored."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import apsw
import pytest

from idemactor.errors import StartError, StorageError
from idemactor.storage.backups import back_up, restore
from idemactor.storage.check import Finding, Severity, check_directory
from idemactor.storage.checksums import has_checksums, wrong_pages
from idemactor.storage.directory import DataDirectory
from idemactor.storage.exporting import export
from idemactor.storage.importing import import_lines
from idemactor.storage.layout import read_meta, shard_name
from idemactor.storage.progress import silent
from idemactor.storage.resealing import only_in_journal
from idemactor.storage.resharding import reshard
from idemactor.storage.sealing import KEY_BYTES, Keyring
from tests.storage.filled import Content, Filler, content_of, killed

KEYS = Keyring([b"k" * KEY_BYTES])
OTHER = Keyring([b"o" * KEY_BYTES])
SHARDS = 3
TURNS = 40


async def filled(path: Path, *, checksums: bool = True, keys: Keyring | None = None) -> Content:
    """A directory as a server that was killed leaves it; much of it is in the journal alone."""
    seed = SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    filler = Filler(Random(seed), path.with_name(path.name + "-live"), SHARDS, checksums=checksums, keys=keys)
    await filler.open()
    await filler.turns(TURNS)
    while not _some_is_in_the_journal_alone(killed(filler.path, path)):
        # By chance all of it had just been written behind.
        shutil.rmtree(path)
        await filler.turns(1)
    await filler.close()
    return filler.content


def _some_is_in_the_journal_alone(path: Path) -> bool:
    meta = read_meta(path)
    assert meta is not None
    return only_in_journal(meta.home(path), meta) > 0


def files_of(path: Path) -> list[Path]:
    meta = read_meta(path)
    assert meta is not None
    return sorted(meta.home(path).glob("*.db"))


def findings_but_for_missing_checksums(path: Path) -> list[Finding]:
    report = check_directory(path)
    assert report.shards
    return [found for found in report.findings if "has no checksums" not in found.what]


def all_have_checksums(path: Path) -> bool:
    """Whether the files of a directory have checksums, all of them right; fails where they differ."""
    files = files_of(path)
    assert len(files) >= 2
    (one,) = {has_checksums(file) for file in files}
    assert [page for file in files if one for page in wrong_pages(file)] == []
    return one


@pytest.mark.parametrize("keys", [None, KEYS], ids=["clear", "encrypted"])
@pytest.mark.parametrize("checksums", [True, False], ids=["checksums", "none"])
async def test_every_tool_leaves_files_as_protected_as_they_were(
    tmp_path: Path, checksums: bool, keys: Keyring | None
) -> None:
    """A backup, what was restored from it, resharded, exported and imported: all hold the same."""
    expected = (await filled(tmp_path / "data", checksums=checksums, keys=keys)).plain()
    back_up(tmp_path / "data", tmp_path / "backup", silent, keys)
    restore(tmp_path / "backup", tmp_path / "restored", silent)
    reshard(tmp_path / "restored", SHARDS + 2, silent, keys)
    lines: list[bytes] = []
    export(tmp_path / "restored", lines.append, silent, keys=keys)
    text = b"".join(lines)
    import_lines(tmp_path / "new", io.BytesIO(text), silent, checksums=checksums, keys=keys)
    for name in ("backup", "restored", "new"):
        assert content_of(tmp_path / name, keys).plain().wholes.keys() == expected.wholes.keys()
        assert all_have_checksums(tmp_path / name) is checksums
        assert findings_but_for_missing_checksums(tmp_path / name) == []
    assert content_of(tmp_path / "restored", keys).plain() == expected
    imported = import_lines(tmp_path / "restored", io.BytesIO(text), silent, keys=keys)
    assert (imported.entries, imported.present) == (0, len(expected.wholes))
    if keys is not None:
        assert expected.wholes
        for name in ("backup", "restored", "new"):
            with pytest.raises(StartError, match="no key is configured"):
                export(tmp_path / name, lambda _: None, silent)
            with pytest.raises(StartError, match=r"another key|not among those"):
                export(tmp_path / name, lambda _: None, silent, keys=OTHER)


async def test_what_is_encrypted_is_in_clear_in_no_file_of_an_import_or_a_reshard(tmp_path: Path) -> None:
    content = await filled(tmp_path / "data", keys=KEYS)
    bodies = [
        whole.entry.record.outcome.body
        for whole in content.wholes.values()
        if whole.entry.record is not None and whole.entry.record.outcome is not None
    ]
    told = [body for body in bodies if len(body) >= 16]
    assert told
    back_up(tmp_path / "data", tmp_path / "backup", silent, KEYS)
    reshard(tmp_path / "data", SHARDS + 1, silent, KEYS)
    for path in (tmp_path / "data", tmp_path / "backup"):
        files = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
        assert not any(body in file for body in told for file in files)


async def test_a_backup_without_the_key_has_what_the_files_have_or_is_refused(tmp_path: Path) -> None:
    """Rows go over as they are; a batch that only the journal has cannot be brought in without opening it."""
    content = await filled(tmp_path / "data", keys=KEYS)
    with pytest.raises(StartError, match="no key is configured"):
        back_up(tmp_path / "data", tmp_path / "backup", silent)
    assert not (tmp_path / "backup").exists()
    # A server that was stopped has left nothing in the journal.
    back_up(tmp_path / "data-live", tmp_path / "backup", silent)
    restore(tmp_path / "backup", tmp_path / "restored", silent)
    assert content_of(tmp_path / "restored", KEYS) == content


def of_databases(path: Path) -> dict[str, str]:
    """The digests of all that opening alone does not change: not of locks, nor of what SQLite has in memory."""
    files = [each for each in path.rglob("*") if each.is_file() and not each.name.endswith(("-shm", ".lock", "LOCK"))]
    return {str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


@pytest.mark.parametrize("keys", [None, OTHER], ids=["none", "other"])
async def test_without_the_key_nothing_is_begun_and_nothing_is_called_damaged(
    tmp_path: Path, keys: Keyring | None
) -> None:
    path = tmp_path / "data"
    await filled(path, keys=KEYS)
    # All that the journal had is in the files then.
    restore(path, tmp_path / "files", silent, keys=KEYS)
    for where in (path, tmp_path / "files"):
        before = of_databases(where)
        written: list[bytes] = []
        working: Mapping[str, Callable[[], object]] = {
            "export": partial(export, where, written.append, silent, keys=keys),
            "reshard": partial(reshard, where, SHARDS + 1, silent, keys),
            # Nothing of it is read before: it might be all of somebody's disk.
            "import": partial(import_lines, where, io.BytesIO(b"no export"), silent, keys=keys),
        }
        for tool, work in working.items():
            with pytest.raises(StartError, match=r"no key is configured|not among those|another key"):
                work()
            assert (tool, of_databases(where)) == (tool, before)
        assert written == []


async def test_a_key_that_is_missing_amid_the_files_leaves_no_set_behind(tmp_path: Path) -> None:
    """A look tells of the oldest and the latest alone."""
    path = tmp_path / "data"
    filler = Filler(Random(3), path, 1, keys=KEYS)
    await filler.open()
    await filler.turns(TURNS)
    await filler.close()
    connection = apsw.Connection(str(path / shard_name(0)))
    ids = [row[0] for row in connection.execute("SELECT id FROM outcomes ORDER BY id")]
    assert len(ids) > 2
    sealed = OTHER.seal(b"x", ("outcome", ids[1]))
    connection.execute("UPDATE outcomes SET body = ? WHERE id = ?", (sealed, ids[1]))
    connection.close()
    with pytest.raises(StartError, match="another key"):
        reshard(path, 2, silent, KEYS)
    assert not (path / "files-0001").exists()


@pytest.mark.parametrize("tool", ["export", "reshard", "backup", "restore"])
async def test_no_tool_carries_a_changed_byte_over(tmp_path: Path, tool: str) -> None:
    filler = Filler(Random(5), tmp_path / "data", 1)
    await filler.open()
    await filler.turns(TURNS)
    await filler.close()
    path = tmp_path / "data"
    if tool == "restore":
        back_up(path, tmp_path / "backup", silent)
        path = tmp_path / "backup"
        # Without it, nothing but the pages' own checksums could tell.
        (path / "backup.json").unlink()
    file = path / shard_name(0)
    content = bytearray(file.read_bytes())
    # The last page is a page of some table, whichever.
    content[-100] ^= 1
    file.write_bytes(content)
    working: Mapping[str, Callable[[], object]] = {
        "export": lambda: export(path, lambda _: None, silent),
        "reshard": lambda: reshard(path, 2, silent),
        "backup": lambda: back_up(path, tmp_path / "backup", silent),
        "restore": lambda: restore(path, tmp_path / "restored", silent),
    }
    with pytest.raises((StorageError, StartError), match=r"damaged|cannot be read"):
        working[tool]()


def test_a_new_directory_is_made_as_asked_and_stays_so(tmp_path: Path) -> None:
    for wanted, made in ((None, True), (True, True), (False, False)):
        path = tmp_path / f"{wanted}"
        with DataDirectory.open(path, 2, checksums=wanted) as directory:
            assert directory.checksums is made
            directory.hand_out_journals(2, {0: 1, 1: 2})
        assert all_have_checksums(path) is made
        with DataDirectory.open(path) as directory:
            assert directory.checksums is made
        with pytest.raises(StartError, match=r"page_checksums.*leave it out.*idemactor import"):
            DataDirectory.open(path, checksums=not made)
        with DataDirectory.open(path, checksums=made):
            pass


def test_a_check_warns_where_there_are_none(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 1, checksums=False).close()
    report = check_directory(tmp_path / "data")
    assert report.sound
    assert [(found.shard, found.severity) for found in report.findings] == [
        (None, Severity.WARNING),
        (0, Severity.WARNING),
    ]
