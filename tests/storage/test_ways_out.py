"""What is said where SQLite speaks of an I/O error and the file system has no more of something."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from idemactor.errors import StartError, StorageError
from idemactor.storage import copying, directory
from idemactor.storage.backups import back_up
from idemactor.storage.base import CommitResult
from idemactor.storage.directory import DataDirectory, explained
from idemactor.storage.progress import silent
from idemactor.storage.sqlite_wal import refusal
from idemactor.storage.ways_out import ROOM_MIN, is_out_of_room, lacking, not_written, reason_of

BLOCK = 4_096
FULL = apsw.FullError("database or disk is full")


def io_error(extended: int = apsw.SQLITE_IOERR) -> apsw.IOError:
    error = apsw.IOError("disk I/O error")
    error.extendedresult = extended  # type: ignore[attr-defined]
    return error


def has(monkeypatch: pytest.MonkeyPatch, *, room: int, inodes: int = 9, files: int = 10) -> None:
    """What there is left on every file system, bytes and inodes."""
    left = SimpleNamespace(f_bavail=room // BLOCK, f_frsize=BLOCK, f_favail=inodes, f_files=files)
    monkeypatch.setattr(os, "statvfs", lambda _: left)


@pytest.mark.parametrize(
    ("room", "inodes", "files", "error", "said"),
    [
        (ROOM_MIN, 1, 10, io_error(), None),
        (ROOM_MIN - BLOCK, 1, 10, io_error(), "no space left"),
        (0, 1, 10, apsw.CantOpenError("unable to open database file"), "no space left"),
        (ROOM_MIN, 0, 10, apsw.CantOpenError("unable to open database file"), "no inode left"),
        # Some have no numbers of inodes.
        (ROOM_MIN, 0, 0, io_error(), None),
        # As with a quota.
        (ROOM_MIN * 9, 1, 10, io_error(apsw.SQLITE_IOERR_SHMSIZE), "no space left"),
        (0, 0, 10, apsw.BusyError("database is locked"), None),
        (0, 0, 10, OSError("no"), None),
    ],
)
def test_what_is_lacking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int, inodes: int, files: int, error: Exception, said: str
) -> None:
    has(monkeypatch, room=room, inodes=inodes, files=files)
    found = lacking(tmp_path / "not" / "there", error)
    assert (found or "None").startswith(str(said))
    assert is_out_of_room(error, tmp_path) is (said is not None)
    message = str(refusal(str(tmp_path / "file"), "opened", error))
    assert message == f"{tmp_path / 'file'} cannot be opened: {error}" + (f" ({found})" if found else "")


def test_a_tool_is_refused_and_finds_no_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for error in (FULL, io_error()):
        has(monkeypatch, room=0)
        with (
            pytest.raises(StartError, match=f"^{tmp_path} cannot be written: .*space.*{reason_of(error)}"),
            explained(tmp_path),
        ):
            raise error
        assert isinstance(not_written(tmp_path, error), StartError)
    has(monkeypatch, room=ROOM_MIN)
    with pytest.raises(StorageError, match=r"a file cannot be read or written: disk I/O error$"), explained(tmp_path):
        raise io_error()
    assert isinstance(not_written(tmp_path, io_error()), StorageError)


def test_a_copy_that_finds_no_room_to_be_served_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    DataDirectory.open(tmp_path / "data", 1).close()
    back_up(tmp_path / "data", tmp_path / "backup", silent)

    def failing(*_: object) -> None:
        raise io_error()

    monkeypatch.setattr(directory, "leap", failing)
    has(monkeypatch, room=0)
    with pytest.raises(StartError, match=r"cannot be used: disk I/O error \(no space left"):
        DataDirectory.open(tmp_path / "backup")


def test_a_copy_that_cannot_be_written_for_lack_of_room_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = SimpleNamespace(name=str(tmp_path / "x"), last_error=io_error(), write=lambda _: CommitResult.FAILED)
    batch = SimpleNamespace()
    has(monkeypatch, room=0)
    with pytest.raises(apsw.IOError):
        copying._write(file, batch, 1)  # type: ignore[arg-type]
    has(monkeypatch, room=ROOM_MIN)
    with pytest.raises(StorageError, match="the copy cannot be written: disk I/O error"):
        copying._write(file, batch, 1)  # type: ignore[arg-type]
