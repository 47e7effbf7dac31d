from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from idemactor.errors import StartError
from idemactor.storage import directory, layout, sqlite_create
from idemactor.storage.base import Batch, CommitResult
from idemactor.storage.directory import DataDirectory
from idemactor.storage.sqlite import SqliteEngine
from tests.storage.samples import NOW, name, pending


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


def refusal(path: Path, shards: int | None = None) -> str:
    with pytest.raises(StartError) as caught:
        DataDirectory.open(path, shards)
    return str(caught.value)


def make(path: Path, shards: int = 2) -> None:
    DataDirectory.open(path, shards).close()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


async def test_a_new_directory_has_four_shards_that_nobody_else_may_read(path: Path) -> None:
    with DataDirectory.open(path) as data:
        assert data.shards == 4
        for shard in range(4):
            engine = SqliteEngine(data.engine_path(shard), shard=shard, shards=4, threads="never")
            assert (await engine.open()).last_token == 0
            await engine.close()
        with pytest.raises(ValueError, match="no shard 4"):
            data.engine_path(4)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert {"LOCK", "idemactor.json", "shard-0003.db", "shard-0003.lock"} < set(names(path))
    assert not [file for file in names(path) if "new" in file]


async def test_what_is_there_is_opened_as_it_is(path: Path) -> None:
    with DataDirectory.open(path, 3) as data:
        created_ms = data.created_ms
        engine = SqliteEngine(data.engine_path(2), shard=2, shards=3, threads="never")
        await engine.open()
        assert await engine.commit(Batch(NOW, 1, puts=[pending(1, name("k"))])) is CommitResult.OK
        await engine.close()
    for shards in (None, 3):
        with DataDirectory.open(path, shards) as data:
            assert (data.shards, data.created_ms) == (3, created_ms)
            engine = SqliteEngine(data.engine_path(2), shard=2, shards=3, threads="never")
            assert (await engine.open()).last_token == 1
            await engine.close()


def test_an_existing_empty_directory_will_do(path: Path) -> None:
    path.mkdir(parents=True)
    make(path)
    assert "idemactor.json" in names(path)


def test_another_number_of_shards_is_refused_with_the_way_out(path: Path) -> None:
    make(path, 2)
    assert "set shards = 2, leave it out" in refusal(path, 4)
    make(path, 2)


@pytest.mark.parametrize("shards", [0, -1, 1025])
def test_an_impossible_number_of_shards_is_refused(path: Path, shards: int) -> None:
    assert "1 to 1024" in refusal(path, shards)
    assert not path.exists()


def test_a_directory_in_use_is_refused_and_its_owner_named(path: Path) -> None:
    with DataDirectory.open(path):
        assert f"in use by process {os.getpid()}" in refusal(path)
        (path / "LOCK").write_text("")
        assert "in use by another process" in refusal(path)
    make(path, 4)


def test_a_shard_in_use_is_refused_and_nothing_stays_locked(path: Path) -> None:
    make(path)
    worker = os.open(path / "shard-0001.lock", os.O_RDWR)
    fcntl.flock(worker, fcntl.LOCK_EX)
    assert "shard-0001.lock is locked" in refusal(path)
    os.close(worker)
    make(path)


def test_locks_are_not_inherited(path: Path) -> None:
    with DataDirectory.open(path, 1):
        held = {os.path.realpath(f"/proc/self/fd/{fd}"): int(fd) for fd in os.listdir("/proc/self/fd")}
        for lock in ("LOCK", "shard-0000.lock"):
            assert not os.get_inheritable(held[str(path / lock)])


@pytest.mark.parametrize("shard", [0, 1])
def test_a_missing_shard_is_an_error_and_is_not_made_anew(path: Path, shard: int) -> None:
    make(path)
    (path / f"shard-000{shard}.db").unlink()
    assert f"has lost shard-000{shard}.db" in refusal(path)
    assert f"shard-000{shard}.db" not in names(path)


# ---------------------------------------------------------------------------------------------- an interrupted creation


class Interrupted(BaseException):
    """The process ends here."""


def interrupt(monkeypatch: pytest.MonkeyPatch, module: object, function: str, after: int) -> None:
    """End the process at the call of ``function`` that follows ``after`` others."""
    real: Callable[..., object] = getattr(module, function)
    calls = iter(range(after + 1))

    def counted(*arguments: object, **options: object) -> object:
        if next(calls) == after:
            raise Interrupted
        return real(*arguments, **options)

    monkeypatch.setattr(module, function, counted)


@pytest.mark.parametrize(
    ("module", "function", "after"),
    [
        *((directory, "create_file", n) for n in range(3)),
        *((os, "rename", n) for n in range(4)),
        *((sqlite_create, "sync_path", n) for n in range(3)),
        *((os, "fsync", n) for n in range(5)),
        (layout, "write_whole", 0),
    ],
)
def test_a_creation_that_was_interrupted_is_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: object, function: str, after: int
) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, module, function, after)
        with pytest.raises(Interrupted):
            DataDirectory.open(path, 3)
        assert "idemactor.json" not in names(path)
    # Also with another number: nothing was promised yet.
    with DataDirectory.open(path, 2) as data:
        assert data.shards == 2
    expected = {"LOCK", "idemactor.json", "journal.db"}
    expected |= {"shard-0000.db", "shard-0000.lock", "shard-0001.db", "shard-0001.lock"}
    assert set(names(path)) == expected
    make(path, 2)


def test_the_directory_is_only_called_finished_when_all_files_are_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    real = layout.write_whole

    def watching(target: Path, content: bytes) -> None:
        seen.append(names(path))
        real(target, content)

    monkeypatch.setattr(layout, "write_whole", watching)
    make(path)
    assert seen == [["LOCK", "journal.db", "shard-0000.db", "shard-0001.db"]]


def test_the_last_thing_done_to_a_new_directory_is_a_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for module, function in ((os, "rename"), (os, "fsync"), (layout, "sync_path")):
        real: Callable[..., object] = getattr(module, function)

        def noting(*arguments: object, real: Callable[..., object] = real, function: str = function) -> object:
            done.append(function)
            return real(*arguments)

        monkeypatch.setattr(module, function, noting)
    make(path, 1)
    # The content, the name, and the directory: in this order the name never stands for less than all of the content.
    assert done[-4:] == ["fsync", "rename", "sync_path", "fsync"]


def test_shards_with_keys_and_no_meta_are_not_thrown_away(path: Path) -> None:
    make(path)
    connection = apsw.Connection(str(path / "shard-0001.db"))
    connection.execute("UPDATE meta SET last_token = 5")
    connection.close()
    (path / "idemactor.json").unlink()
    assert "shard-0001.db with keys in it but no idemactor.json" in refusal(path)
    assert {"shard-0000.db", "shard-0001.db"} < set(names(path))


def test_what_is_not_ours_is_not_thrown_away(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "shard-0000.db").write_bytes(b"somebody else's" * 100)
    assert "cannot be used" in refusal(path)
    assert (path / "shard-0000.db").read_bytes() == b"somebody else's" * 100


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": 1, "shards": 2}', "is damaged"),
        ('{"format": 1, "shards": "2", "created_ms": 1}', "is damaged"),
        ('{"format": 1, "shards": 0, "created_ms": 1}', "is damaged"),
        ('{"format": 3, "shards": 2, "created_ms": 1}', "start the release that wrote it"),
    ],
)
def test_a_meta_file_that_makes_no_sense_is_refused(path: Path, content: str, words: str) -> None:
    make(path)
    (path / "idemactor.json").write_text(content)
    assert words in refusal(path)


def test_the_meta_file_says_what_the_directory_is(path: Path) -> None:
    make(path, 2)
    content = json.loads((path / "idemactor.json").read_text())
    assert content.keys() == {"format", "shards", "created_ms"}
    assert (content["format"], content["shards"]) == (1, 2)


# ------------------------------------------------------------------------------------------------- what the system says


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert "is not a directory" in refusal(tmp_path / "data")
    assert "not a directory" in refusal(tmp_path / "data" / "below")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "this user may not use it"),
        (errno.EROFS, "read-only file system"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.ESTALE, "use a local disk"),
        (errno.EMFILE, "ulimit"),
        (errno.EIO, "the disk reports an error"),
        (errno.EBADMSG, os.strerror(errno.EBADMSG)),
    ],
)
@pytest.mark.parametrize("function", ["mkdir", "open"])
def test_what_the_system_refuses_is_a_sentence(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, function, refuse)
        message = refusal(path)
    assert words in message
    assert str(path) in message


def test_a_file_system_without_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert "use a local disk" in refusal(path)


def test_a_disk_that_fills_up_during_creation_is_a_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "create_file", refuse)
        assert "free some space" in refusal(path)
    make(path)


def _held(path: Path, pid: int) -> int:
    """The descriptor of a lock file that is locked, and names a process."""
    descriptor = os.open(path / "LOCK", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"{pid}\n".encode().ljust(16), 0)
    return descriptor


def _dead() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_start_waits_for_the_workers_of_a_server_that_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    orphan = _held(tmp_path / "data", _dead())
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.close(orphan)

    monkeypatch.setattr(time, "sleep", sleep)
    DataDirectory.open(tmp_path / "data", 2).close()
    assert len(waits) == 3


def test_a_start_does_not_wait_for_workers_that_will_not_die_or_whose_server_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.open(tmp_path / "data", 2).close()
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    alive = _held(tmp_path / "data", os.getpid())
    with pytest.raises(StartError, match=f"in use by process {os.getpid()}"):
        DataDirectory.open(tmp_path / "data", 2)
    assert waits == []
    os.close(alive)
    dead = _dead()
    orphan = _held(tmp_path / "data", dead)
    monkeypatch.setattr(directory, "ORPHANS_MS_MAX", -1)
    with pytest.raises(StartError, match=f"in use by process {dead}"):
        DataDirectory.open(tmp_path / "data", 2)
    os.close(orphan)
