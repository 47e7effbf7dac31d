"""Real file systems at their worst: no inode left, read-only all of a sudden, a file replaced.

They are mounted, so that it takes root; without it these tests run in a name space of their own user.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx

from tests.system.disks import mounted
from tests.system.operator_tools import tool, worked
from tests.system.process import Server, assert_clean, environment, eventually, refused

INODES: Final = 60
ROOM: Final = "size=2m"
MANY_SHARDS: Final = 64
"""Of files that do not fit into ``ROOM``."""
SHARDS: Final = 2
CONFIG: Final = f"[server]\nshards = {SHARDS}\n[namespaces.default]\nttl_ms = 86400000\n"
EVICTING: Final = CONFIG.replace("[namespaces", "evict_after_ms = 1000\n[namespaces")


@contextlib.contextmanager
def file_system(home: Path, options: str = f"size=8m,nr_inodes={INODES}") -> Iterator[Path]:
    path = home / "disk"
    with mounted(path, options) as real:
        assert real, "this machine lets nobody mount"
        yield path


def use_up_inodes(path: Path) -> None:
    filler = path / "filler"
    filler.mkdir()
    with contextlib.suppress(OSError):
        for number in range(10 * INODES):
            (filler / str(number)).touch()
    assert os.statvfs(path).f_favail == 0


def as_root(test: object) -> object:
    """Run a test as it is by root, and in a user's own name space by everybody else."""

    @functools.wraps(test)  # type: ignore[arg-type]
    def run(home: Path) -> None:
        if os.geteuid() == 0:
            test(home)  # type: ignore[operator]
            return
        name = f"{__file__}::{test.__name__}"  # type: ignore[attr-defined]
        command = ["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@as_root
def test_no_inode_at_start(home: Path) -> None:
    with file_system(home) as disk:
        use_up_inodes(disk)
        new = Server(home, CONFIG, data_dir=disk / "new")
        assert "no inode left" in refused(new).said
        shutil.rmtree(disk / "filler")
        with Server(home, CONFIG, data_dir=disk / "data") as server, server.http_client() as client:
            assert client.call("accept", key="k", outcome={"status": 200, "body": "kept"}).status == 201
            assert server.terminate() == 0
        # Beside each file there is what a restore, say, does not bring along.
        for file in (*disk.glob("data/*-wal"), *disk.glob("data/*-shm")):
            assert file.suffix == ".db-shm" or not file.stat().st_size
            file.unlink()
        use_up_inodes(disk)
        refusal = refused(Server(home, CONFIG, data_dir=disk / "data"))
        assert refusal.code == 2
        assert "no inode left" in refusal.said
        shutil.rmtree(disk / "filler")
        with Server(home, CONFIG, data_dir=disk / "data") as server, server.http_client() as client:
            assert client.call("reserve", key="k").members["outcome"]["body"] == "kept"


def use_up_room(path: Path) -> None:
    with (path / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4_096):
            pass
    assert os.statvfs(path).f_bavail == 0


@as_root
def test_a_reshard_that_finds_no_room_leaves_all_that_there_was_and_the_next_start_serves(home: Path) -> None:
    with file_system(home, ROOM) as disk:
        data = disk / "data"
        with Server(home, CONFIG, data_dir=data) as server, server.http_client() as client:
            assert client.call("accept", key="k", outcome={"status": 200, "body": "kept"}).status == 201
            assert server.terminate() == 0
        before = os.statvfs(disk).f_bavail
        for _ in range(2):
            done = tool("reshard", data, "--to", MANY_SHARDS)
            assert done.code == 2
            assert "the disk is full" in done.err
            assert not list(data.glob("files-*"))
            assert os.statvfs(disk).f_bavail == before
        # What a run that was killed leaves is named, since nothing else says what takes the room.
        left = data / "files-0001"
        left.mkdir()
        (left / "idemactor.unfinished").touch()
        for starts, workers in enumerate((1, SHARDS), 1):
            server = Server(home, CONFIG.replace("shards", f"workers = {workers}\nshards"), data_dir=data)
            with server, server.http_client() as client:
                assert client.call("reserve", key="k").members["outcome"]["body"] == "kept"
            assert server.log.count('"event": "unfinished_files"') == starts
            assert f"{left} is of a reshard, restore or import" in server.log


@as_root
def test_no_room_for_the_index_of_a_wal_is_said_to_be_that(home: Path) -> None:
    """SQLite says no more than that there was an I/O error."""
    with file_system(home, ROOM) as disk:
        with Server(home, CONFIG, data_dir=disk / "data") as server, server.http_client() as client:
            assert client.call("accept", key="k", outcome={"status": 200, "body": "kept"}).status == 201
            assert server.terminate() == 0
        for file in (*disk.glob("data/*-wal"), *disk.glob("data/*-shm")):
            file.unlink()
        use_up_room(disk)
        refusal = refused(Server(home, CONFIG, data_dir=disk / "data"))
        assert refusal.code == 2
        assert "disk I/O error (no space left on its file system: free some)" in refusal.said
        (disk / "filler").unlink()
        with Server(home, CONFIG, data_dir=disk / "data") as server, server.http_client() as client:
            assert client.call("reserve", key="k").members["outcome"]["body"] == "kept"


@as_root
def test_no_inode_while_it_runs(home: Path) -> None:
    with file_system(home) as disk:
        audit = disk / "logs" / "audit.log"
        audit.parent.mkdir()
        config = f"{EVICTING}\n[log]\naudit_file = '{audit}'\n"
        with Server(home, config, data_dir=disk / "data") as server, server.http_client(30.0) as client:
            assert client.call("accept", key="k", outcome={"status": 200, "body": "kept"}).status == 201
            use_up_inodes(disk)
            # What is open needs no inode.
            assert client.call("reserve", key="k").members["outcome"]["body"] == "kept"
            assert client.call("forget", key="k2").status == 404
            done = tool("backup", disk / "backup", "--data-dir", server.data_dir)
            assert done.code == 2
            assert "no inode left" in done.err or "No space left" in done.err, done.err
            assert server.alive
            shutil.rmtree(disk / "filler")
            eventually(lambda: client.get("/readyz").status == 200, 40)
            assert client.call("reserve", key="another").status == 201
            worked("backup", home / "backup", "--data-dir", server.data_dir)
            assert server.terminate() == 0
        assert_clean(disk / "data")


@contextlib.contextmanager
def bound_read_only(path: Path) -> Iterator[None]:
    """Whoever opens it anew cannot write to it. (What is open for writing the kernel makes nobody read-only.)"""
    subprocess.run(["mount", "--bind", str(path), str(path)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@as_root
def test_a_directory_that_becomes_read_only_and_writable_again(home: Path) -> None:
    with (
        file_system(home, "size=16m") as disk,
        Server(home, EVICTING, data_dir=disk / "data") as server,
        server.http_client(30.0) as client,
    ):
        keys = [f"k{number}" for number in range(8)]
        for key in keys:
            assert client.call("accept", key=key, outcome={"status": 200, "body": key}).status == 201
        eventually(lambda: 'idemactor_shard_in_memory{shard="0"} 0.0' in metrics(server), 30)
        with bound_read_only(server.data_dir):
            for key in keys:
                answer = client.call("reserve", key=key)
                assert answer.status == 503 or answer.members["outcome"]["body"] == key
            assert client.get("/livez").status == 200
        eventually(lambda: client.get("/readyz").status == 200, 60)
        for key in keys:
            assert client.call("reserve", key=key).members["outcome"]["body"] == key
            assert client.call("reserve", key=f"new-{key}").status == 201
        assert server.terminate() == 0
        assert_clean(disk / "data")


def metrics(server: Server) -> str:
    return httpx.get(f"http://{server.http}/metrics").text


@as_root
def test_a_file_that_is_read_only_is_read_and_costs_its_shard_with_the_first_write(home: Path) -> None:
    with file_system(home, "size=16m") as disk:
        server = Server(home, CONFIG, data_dir=disk / "data")
        with server, server.http_client() as client:
            for number in range(8):
                client.call("accept", key=f"k{number}", outcome={"status": 200, "body": "kept"})
            assert server.terminate() == 0
        with bound_read_only(server.data_dir / "shard-0001.db"):
            server.start()
            with server.http_client(30.0) as client:
                assert {client.call("reserve", key=f"k{number}").status for number in range(8)} == {200}
                granted = {f"n{number}": client.call("reserve", key=f"n{number}").status for number in range(8)}
                # A listing asks the files themselves, which are written first.
                assert client.get("/v1/default/records").status == 503
                eventually(lambda: client.get("/readyz").status == 503, 30)
                assert {client.call("reserve", key=f"o{number}").status for number in range(8)} == {201, 503}
        with server.http_client(30.0) as client:
            eventually(lambda: client.get("/readyz").status == 200, 60)
            for key, status in granted.items():
                assert status == 201
                assert client.call("reserve", key=key).members["result"] == "in_flight"
            assert server.terminate() == 0
        assert_clean(server.data_dir)


def test_a_shard_whose_file_is_older_than_the_journal_waits_and_the_others_serve(home: Path) -> None:
    server = Server(home, CONFIG)
    with server, server.http_client() as client:
        client.call("reserve", key="k")
        assert server.terminate() == 0
    kept = shutil.copytree(server.data_dir, home / "kept")
    with server.start(), server.http_client() as client:
        for number in range(20):
            client.call("reserve", key=f"k{number}")
        assert server.terminate() == 0
    shutil.copy(kept / "shard-0001.db", server.data_dir / "shard-0001.db")
    with server.start(), server.http_client() as client:
        told = {client.call("reserve", key=f"k{number}").status for number in range(20)}
        # What was acknowledged is granted to nobody anew: it is in flight, or nobody can say.
        assert told == {409, 503}
        assert client.get("/readyz").status == 503
        server.terminate()
    assert "restore the whole directory" in server.log
