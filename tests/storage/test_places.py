"""No tool removes or replaces what is not ours, whatever it is called and wherever it lies."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from idemactor.errors import IdemactorError, StartError
from idemactor.storage import backups, places
from idemactor.storage.backups import back_up, restore
from idemactor.storage.check import check_directory
from idemactor.storage.directory import DataDirectory, take_lock
from idemactor.storage.exporting import export
from idemactor.storage.importing import import_lines
from idemactor.storage.journal_file import JournalFile, Row, create_journal
from idemactor.storage.layout import LOCK_NAME, META_NAME
from idemactor.storage.progress import silent
from idemactor.storage.resharding import reshard
from idemactor.storage.unfinished import MARK_NAME, begin
from tests.storage.test_backups import grant
from tests.storage.test_reading import digests
from tests.system.disks import mounted


@pytest.fixture
def data(tmp_path: Path) -> Path:
    DataDirectory.open(tmp_path / "data", 2).close()
    return tmp_path / "data"


@pytest.fixture
def backup(data: Path, tmp_path: Path) -> Path:
    back_up(data, tmp_path / "backup", silent)
    return tmp_path / "backup"


def exported(data: Path) -> io.BytesIO:
    file = io.BytesIO()
    export(data, file.write, silent)
    return io.BytesIO(file.getvalue())


def written(path: Path, content: str = "mine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


# ------------------------------------------------------------------------------------------------- names like ours


def test_a_backup_removes_nothing_that_is_called_as_its_scratch_is(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "b.unfinished")
    shutil.copytree(data, tmp_path / "b.unfinished-abcdefgh")
    notes = written(tmp_path / "b.unfinished-ABCDEFGH" / "notes.txt")
    back_up(tmp_path / "b.unfinished", tmp_path / "b", silent)
    assert check_directory(tmp_path / "b.unfinished").sound
    assert check_directory(tmp_path / "b.unfinished-abcdefgh").sound
    assert notes.read_text() == "mine"


def test_a_backup_removes_what_an_earlier_one_left_unless_it_is_the_source(data: Path, tmp_path: Path) -> None:
    left, source = tmp_path / "b.unfinished-abcdefgh", tmp_path / "b.unfinished-hgfedcba"
    for each in (left, source):
        shutil.copytree(data, each)
        (each / MARK_NAME).touch()
    going_on = tmp_path / "b.unfinished-aaaaaaaa"
    begin(going_on)
    lock = take_lock(going_on / LOCK_NAME)
    back_up(source, tmp_path / "b", silent)
    os.close(lock)
    assert not left.exists()
    assert going_on.exists()
    assert check_directory(source).sound
    assert not (tmp_path / "b" / MARK_NAME).exists()


@pytest.mark.parametrize("name", ["files-2024", "files-0001", "files-tax1", "import.unfinished"])
def test_a_directory_with_something_in_it_is_not_empty_whatever_that_is_called(
    backup: Path, data: Path, tmp_path: Path, name: str
) -> None:
    tax = written(tmp_path / "stuff" / name / "tax.pdf")
    for call in (
        lambda: restore(backup, tmp_path / "stuff", silent),
        lambda: import_lines(tmp_path / "stuff", exported(data), silent),
    ):
        with pytest.raises(StartError, match=f"not empty.*{name}"):
            call()
    assert tax.read_text() == "mine"
    assert os.listdir(tmp_path / "stuff") == [name]


@pytest.mark.parametrize("name", ["files-0001", "files-0002", "import.unfinished"])
def test_a_backup_or_a_stranger_inside_a_data_directory_stays(backup: Path, data: Path, name: str) -> None:
    shutil.copytree(backup, data / name)
    before = digests(data / name)
    for call in (
        lambda: reshard(data, 3, silent),
        lambda: import_lines(data, exported(data), silent),
        lambda: restore(backup, data, silent, replaced=True),
        lambda: DataDirectory.open(data).close(),
    ):
        refused = ""
        try:
            call()
        except StartError as error:
            refused = str(error)
        assert not refused or f"{name} is there already" in refused
        assert digests(data / name) == before


def test_what_an_interrupted_run_left_is_removed_by_its_mark(backup: Path, data: Path, tmp_path: Path) -> None:
    for name in ("files-0001", "files-0002", "import.unfinished"):
        begin(data / name)
        written(data / name / "plan.json")
    assert reshard(data, 3, silent) is not None
    assert not (data / "files-0002").exists()
    (tmp_path / "new").mkdir()
    begin(tmp_path / "new" / "files-0001")
    restore(backup, tmp_path / "new", silent)
    assert check_directory(tmp_path / "new").findings == ()


def test_a_link_is_not_followed_by_what_is_removed(data: Path, tmp_path: Path) -> None:
    begin(tmp_path / "elsewhere")
    mine = written(tmp_path / "elsewhere" / "mine")
    (data / "files-0001").symlink_to(tmp_path / "elsewhere")
    rebuilt = reshard(data, 3, silent)
    assert rebuilt is not None
    assert rebuilt.files.name == "files-0002"
    assert mine.exists()


# ------------------------------------------------------------------------------------------------ one inside the other


def test_a_backup_goes_into_no_directory_that_it_is_made_of(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    for target in (data / "files-0005", tmp_path / "link" / "b"):
        with pytest.raises(StartError, match="is inside of"):
            back_up(data, target, silent)
    assert "files-0005" not in os.listdir(data)


def test_a_restore_reads_and_writes_two_directories(backup: Path, data: Path) -> None:
    shutil.move(backup, data / "files-0001")
    before = digests(data / "files-0001")
    for source, target in (
        (data / "files-0001", data),
        (data, data / "new"),
        (data / "files-0001", data / "files-0001"),
    ):
        with pytest.raises(StartError, match=r"is inside of|are one directory"):
            restore(source, target, silent, replaced=True)
    assert digests(data / "files-0001") == before


@pytest.fixture(params=["a file system", "a part of this one"])
def mount_point(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory at which something is mounted, as really as this machine allows."""
    point, part = tmp_path / "point", tmp_path / "part"
    point.mkdir()
    part.mkdir()
    whole = request.param == "a file system"
    with mounted(point, "size=1m") if whole else mounted_part(part, point) as real:
        if not real and whole:
            monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == point)
        elif not real:
            monkeypatch.setattr(places, "_mount_of", lambda path: str(path == point))
        yield point


@contextlib.contextmanager
def mounted_part(part: Path, point: Path) -> Iterator[bool]:
    done = subprocess.run(["mount", "--bind", str(part), str(point)], capture_output=True, check=False)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(point)], check=True, capture_output=True)


def nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "copy_files", lambda *_, **__: pytest.fail("it was begun"))


def test_a_mount_point_is_no_place_for_a_backup_and_is_refused_before_the_copy(
    data: Path, mount_point: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        nothing_is_copied(before)
        with pytest.raises(StartError, match="is a mount point"):
            back_up(data, mount_point, silent)
    back_up(data, mount_point / "new", silent)


@pytest.mark.parametrize("called", [".", "", "../here", "absolute"])
def test_the_present_directory_is_no_place_for_a_backup_and_is_refused_before_the_copy(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    nothing_is_copied(monkeypatch)
    target = tmp_path / "here" if called == "absolute" else Path(called)
    with pytest.raises(StartError, match="is the directory this runs in"):
        back_up(data, target, silent)
    with pytest.raises(StartError, match="is there already"):
        back_up(data, Path(".."), silent)
    assert not list((tmp_path / "here").iterdir())


def test_a_link_is_no_place_for_a_backup_and_one_to_nothing_none_for_a_restore(
    backup: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for target in ("link", "dangling"):
        with pytest.raises(StartError, match="is a symbolic link"):
            back_up(data, tmp_path / target, silent)
    for call in (
        lambda: restore(backup, tmp_path / "dangling", silent),
        lambda: import_lines(tmp_path / "dangling", exported(data), silent),
    ):
        with pytest.raises(StartError, match="a symbolic link to nothing"):
            call()
    restore(backup, tmp_path / "link", silent)
    assert check_directory(tmp_path / "real").sound


# ------------------------------------------------------------------------------------------- what a start throws away


def test_a_start_throws_away_only_what_an_interrupted_creation_left(tmp_path: Path) -> None:
    path = tmp_path / "data"
    DataDirectory.open(path, 1).close()
    (path / META_NAME).unlink()
    mine = [written(path / name) for name in ("shard-0000.db.bak", "shard-list.db-notes", "journal.db.txt")]
    DataDirectory.open(path, 1).close()
    assert [each.read_text() for each in mine] == ["mine"] * 3


def test_a_journal_with_batches_is_not_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    create_journal(path / "journal.db", {0: 7})
    journal = JournalFile(path / "journal.db")
    journal.open()
    journal.append([Row(8, 0, 7, b"batch")], {})
    journal.close(tidy=True)
    with pytest.raises(StartError, match=r"journal\.db with keys in it"):
        DataDirectory.open(path, 1)
    (path / "journal.db").write_bytes(b"somebody else's" * 100)
    with pytest.raises(StartError, match="cannot be used"):
        DataDirectory.open(path, 1)
    assert (path / "journal.db").exists()


# ---------------------------------------------------------------------------------- idemactor.json of another moment


def older_meta(data: Path, backup: Path, tmp_path: Path) -> Path:
    """A directory that was restored and served, with the ``idemactor.json`` of a backup that was made since."""
    restore(backup, data, silent, replaced=True)
    grant(data, 2**52 + 10**18 // 10**6)
    back_up(data, tmp_path / "later", silent)
    shutil.copy(tmp_path / "later" / META_NAME, data / META_NAME)
    return data


TOOLS: dict[str, Callable[[Path, Path], object]] = {
    "serve": lambda data, _: DataDirectory.open(data),
    "backup": lambda data, scratch: back_up(data, scratch, silent),
    "restore": lambda data, scratch: restore(data, scratch, silent),
    "export": lambda data, _: exported(data),
    "import": lambda data, _: import_lines(data, io.BytesIO(), silent),
    "reshard": lambda data, _: reshard(data, 3, silent),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_an_idemactor_json_that_is_older_than_the_files_is_refused(
    data: Path, backup: Path, tmp_path: Path, tool: str
) -> None:
    path = older_meta(data, backup, tmp_path)
    with pytest.raises(StartError, match=r"older than the files.*files-0001 took.*idemactor restore --replace BACKUP"):
        TOOLS[tool](path, tmp_path / "scratch")
    assert (path / "files-0001" / "made.json").exists()
    assert not (tmp_path / "scratch").exists()


def test_check_reports_an_idemactor_json_that_is_older_than_the_files(data: Path, backup: Path, tmp_path: Path) -> None:
    report = check_directory(older_meta(data, backup, tmp_path))
    assert not report.sound
    assert "files-0001 took" in report.findings[0].what


@pytest.mark.parametrize("damage", ["damaged", "older", "lost", "lost with all sets"])
def test_whatever_became_of_idemactor_json_a_whole_restore_is_the_way_out(
    data: Path, backup: Path, tmp_path: Path, damage: str
) -> None:
    path = older_meta(data, backup, tmp_path)
    highest = max(shard.last_token for shard in check_directory(tmp_path / "later").shards)
    match damage:
        case "damaged":
            (path / META_NAME).write_text("{")
        case "lost":
            (path / META_NAME).unlink()
        case "lost with all sets":
            (path / META_NAME).unlink()
            shutil.rmtree(path / "files-0001")
            grant_file(path)
    kept = {each: digests(each) for each in (path / "files-0001",) if each.exists()}
    with pytest.raises(StartError, match="idemactor restore --replace BACKUP"):
        DataDirectory.open(path)
    with pytest.raises(StartError, match="--replace"):
        restore(tmp_path / "later", path, silent)
    restored = restore(tmp_path / "later", path, silent, replaced=True)
    assert restored.next_token > highest
    assert restored.replaced == path
    assert {each: digests(each) for each in kept} == kept
    assert check_directory(path).findings == ()
    DataDirectory.open(path).close()


def grant_file(path: Path) -> None:
    from idemactor.storage import tokens

    tokens.leap([path / "shard-0000.db"], 5)


def test_a_set_counts_as_finished_once_somebody_used_it(data: Path, backup: Path) -> None:
    """Whoever made it was killed before it took the mark away."""
    restore(backup, data, silent, replaced=True)
    (data / "files-0001" / MARK_NAME).touch()
    DataDirectory.open(data).close()
    assert not (data / "files-0001" / MARK_NAME).exists()
    shutil.copy(backup / META_NAME, data / META_NAME)
    with pytest.raises(StartError, match="older than the files"):
        DataDirectory.open(data)


# ---------------------------------------------------------------------------------------------------- what is left over


def test_what_was_refused_leaves_a_directory_as_it_was(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (backup / META_NAME).unlink()
    for target in (tmp_path / "empty", tmp_path / "a" / "b"):
        with pytest.raises(IdemactorError):
            restore(backup, target, silent)
        with pytest.raises(IdemactorError):
            import_lines(target, io.BytesIO(b"no\n"), silent)
    assert os.listdir(tmp_path / "empty") == []
    assert not (tmp_path / "a").exists()


def test_who_waited_for_a_lock_that_went_away_takes_the_one_that_is_there(tmp_path: Path) -> None:
    """The holder's process is taken for a dead one, so that the other waits."""
    held = take_lock(tmp_path / LOCK_NAME)
    os.ftruncate(held, 0)
    os.pwrite(held, b"4194305\n", 0)
    taken: list[int] = []
    waiting = threading.Thread(target=lambda: taken.append(take_lock(tmp_path / LOCK_NAME)))
    waiting.start()
    (tmp_path / LOCK_NAME).unlink()
    os.close(held)
    waiting.join(10)
    assert os.path.samestat(os.fstat(taken[0]), (tmp_path / LOCK_NAME).stat())
    os.close(taken[0])


def test_a_restore_says_whether_the_files_were_compared(backup: Path, tmp_path: Path) -> None:
    assert restore(backup, tmp_path / "one", silent).compared
    (backup / "backup.json").unlink()
    assert not restore(backup, tmp_path / "two", silent).compared
