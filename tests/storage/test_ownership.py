"""Nobody else may read what is made, and what a server makes that root runs is the directory's owner's."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from idemactor.storage import ownership, sqlite_create
from idemactor.storage.backups import back_up, restore
from idemactor.storage.directory import DataDirectory, take_lock
from idemactor.storage.exporting import export
from idemactor.storage.importing import import_lines
from idemactor.storage.layout import write_whole
from idemactor.storage.progress import silent
from idemactor.storage.resharding import reshard
from idemactor.storage.watermark import Watermark
from tests.storage.filled import Filler
from tests.storage.test_resharding import filled

USER = 4_321


def found_of(owner: int, names: int = 1) -> SimpleNamespace:
    """What a look at a file finds."""
    return SimpleNamespace(st_uid=owner, st_mode=stat.S_IFREG | 0o600, st_nlink=names)


def eyes_of(user: int, found: SimpleNamespace, give: Callable[[Any, int, int], None]) -> SimpleNamespace:
    """The operating system as ``user`` meets it, who finds the same everywhere."""
    return SimpleNamespace(geteuid=lambda: user, fstat=lambda _descriptor: found, fchown=give)


@pytest.fixture
def nobody_is_kept_out() -> Iterator[None]:
    """Of what is made without a mode, everybody may read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(path: Path) -> list[str]:
    return [
        f"{oct(each.stat().st_mode)} {each}"
        for each in (path, *path.rglob("*"))
        if each.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    ]


@pytest.mark.usefixtures("nobody_is_kept_out")
async def test_nobody_else_may_read_what_is_made_whatever_the_umask(tmp_path: Path) -> None:
    filler = await filled(tmp_path / "data", Random(1), 2, 10)
    running = Filler(Random(2), filler.path, 2)
    await running.open()
    # SQLite's own files, beside those that a server has open.
    assert {"shard-0000.db-wal", "journal.db-wal", "journal.db-shm"} <= set(os.listdir(filler.path))
    back_up(filler.path, tmp_path / "backup", silent)
    assert open_to_others(filler.path) == []
    await running.close()
    restore(tmp_path / "backup", tmp_path / "restored", silent)
    reshard(tmp_path / "restored", 3, silent)
    file = io.BytesIO()
    export(tmp_path / "restored", file.write, silent)
    file.seek(0)
    import_lines(tmp_path / "new", file, silent)
    for name in ("data", "backup", "restored", "new"):
        assert open_to_others(tmp_path / name) == []


def test_what_a_server_of_roots_makes_in_a_directory_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root sees it: what it makes is its own, until it is given away."""
    given: set[str] = set()
    data = tmp_path / "data"
    data.mkdir()

    def give(made: int, uid: int, gid: int) -> None:
        assert (uid, gid) == (USER, USER)
        given.add(Path(os.readlink(f"/proc/self/fd/{made}")).name)

    monkeypatch.setattr(ownership, "os", eyes_of(0, found_of(0), give))
    monkeypatch.setattr(ownership, "owner_of", lambda _directory: (USER, USER))
    DataDirectory.open(data, 1).close()
    Watermark(data / "journal.db").note(1)
    assert given >= {"LOCK", "shard-0000.lock", "shard-0000.db.new", "journal.db.new", "idemactor.json.new"}
    assert "journal.db-synced" in given


def test_only_root_gives_anything_away_and_only_what_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    for user, file, owner in ((1, 0, USER), (0, USER, 7), (0, 0, 0)):
        monkeypatch.setattr(ownership, "os", eyes_of(user, found_of(file), lambda made, *_: calls.append(made)))
        monkeypatch.setattr(ownership, "owner_of", lambda _directory, owner=owner: (owner, owner))
        ownership.hand_over(1, tmp_path)
    assert calls == []


def test_a_private_file_takes_nobodys_place(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError):
        sqlite_create.make_private(tmp_path / "mine")


@pytest.mark.parametrize("name", ["LOCK", "idemactor.json.new", "journal.db-synced"])
def test_a_link_that_the_directorys_user_put_there_leads_root_nowhere(tmp_path: Path, name: str) -> None:
    home = tmp_path / "data"
    home.mkdir()
    secret = tmp_path / "shadow"
    secret.write_bytes(b"root's own")
    secret.chmod(0o600)
    (home / name).symlink_to(secret)
    with contextlib.suppress(OSError):
        if name == "LOCK":
            take_lock(home / name)
        elif name.endswith(".new"):
            write_whole(home / name.removesuffix(".new"), b"x")
        else:
            Watermark(home / "journal.db").note(1)
    assert (home / name).is_symlink()
    assert secret.read_bytes() == b"root's own"


def test_a_file_that_has_another_name_elsewhere_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(ownership, "owner_of", lambda _directory: (USER, USER))
    for names in (1, 2):
        monkeypatch.setattr(ownership, "os", eyes_of(0, found_of(0, names), lambda made, *_: given.append(made)))
        ownership.hand_over(names, tmp_path)
    assert given == [1]
