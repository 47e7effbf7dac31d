"""Files that are damaged when a real server starts: their shards wait, the others serve, and it says what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from idemactor.core.keys import Identity, identity_hash, shard_of
from tests.system.clients import HttpClient, Lost
from tests.system.operator_tools import worked
from tests.system.process import Server, assert_clean, eventually, refused, run_check

SHARDS: Final = 4
KEYS: Final = [f"k{number}" for number in range(24)]
BROKEN: Final = 2
"""The shard that is damaged; of two workers it is the first one's, as shard 0 is."""
DAY_MS: Final = 86_400_000


def config(workers: int) -> str:
    return f"[server]\nshards = {SHARDS}\nworkers = {workers}\n[namespaces.default]\nttl_ms = {DAY_MS}\n"


def of(shard: int) -> list[str]:
    """The keys of a shard."""
    return [key for key in KEYS if shard_of(identity_hash(Identity("default", "default", key)), SHARDS) == shard]


def lines(server: Server, event: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, server.log.splitlines()) if line["event"] == event]


@pytest.fixture(name="server", params=[1, 2])
def _server(request: pytest.FixtureRequest, home: Path) -> Iterator[Server]:
    """Stopped in good order, with an outcome under each key, half of them in a backup."""
    server = Server(home, config(request.param))
    with server.start(), server.http_client() as client:
        for number, key in enumerate(KEYS):
            if number == len(KEYS) // 2:
                worked("backup", home / "backup", "--data-dir", server.data_dir)
            assert client.call("accept", key=key, outcome={"status": 200, "body": key}).status == 201
        assert server.terminate() == 0
    yield server
    server.kill()


def answers(client: HttpClient, keys: list[str]) -> set[tuple[int, str | None]]:
    """How keys are answered for; each outcome that comes is the right one."""
    found = set()
    for key in keys:
        answer = client.call("reserve", key=key)
        if answer.status == 200:
            assert answer.members["outcome"]["body"] == key
        found.add((answer.status, answer.members.get("code")))
    return found


UNAVAILABLE: Final[set[tuple[int, str | None]]] = {(503, "IDEMPOTENCY_UNAVAILABLE")}
REPLAYED: Final[set[tuple[int, str | None]]] = {(200, None)}


def assert_one_shard_waits(server: Server, client: HttpClient) -> None:
    assert answers(client, of(BROKEN)) == UNAVAILABLE
    for shard in range(SHARDS):
        if shard != BROKEN:
            assert answers(client, of(shard)) == REPLAYED
    ready = client.get("/readyz")
    assert (ready.status, ready.members["detail"]) == (503, f"shards that cannot answer: {BROKEN}")
    assert f'idemactor_shard_quarantined{{shard="{BROKEN}"}} 1.0' in httpx.get(f"http://{server.http}/metrics").text
    assert server.alive


def damage(file: Path) -> bytes:
    """Every page but the first, of which not even the kind would be known; returns what was there."""
    good = file.read_bytes()
    file.write_bytes(good[:4_096] + bytes(byte ^ 1 for byte in good[4_096:]))
    return good


def test_a_damaged_shard_waits_until_its_file_is_put_right(server: Server) -> None:
    file = server.data_dir / f"shard-{BROKEN:04d}.db"
    good = damage(file)
    with server.start(), server.http_client() as client:
        assert_one_shard_waits(server, client)
        said = lines(server, "shard_quarantined")[0]
        assert (said["level"], said["shard"]) == ("error", BROKEN)
        assert all(word in said["what"] for word in (str(file), "damaged", "idemactor check", "backup"))
        file.write_bytes(good)
        eventually(lambda: client.get("/readyz").status == 200, 40)
        assert answers(client, KEYS) == REPLAYED
        assert lines(server, "shard_recovered")
        assert server.terminate() == 0
    assert_clean(server.data_dir)


def kill_its_worker(server: Server) -> None:
    """The worker that owns the damaged shard, and others, dies and comes back."""
    ready = lines(server, "worker_ready")
    pid = [line["pid"] for line in ready if line["worker"] == BROKEN % 2][-1]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(lines(server, "worker_ready")) > len(ready), 30)
    eventually(lambda: _is_back(server), 30)


def _is_back(server: Server) -> bool:
    try:
        with server.http_client() as client:
            return answers(client, of(0)) == REPLAYED
    except Lost:
        return False


def test_a_missing_shard_is_never_made_anew_and_a_worker_that_dies_comes_back_without_it(server: Server) -> None:
    file, aside = server.data_dir / f"shard-{BROKEN:04d}.db", server.home / "aside"
    file.rename(aside)
    with server.start():
        with server.http_client() as client:
            assert_one_shard_waits(server, client)
        if "workers = 2" in server.config_path.read_text():
            kill_its_worker(server)
            with server.http_client() as client:
                assert_one_shard_waits(server, client)
        assert not file.exists()
        shutil.copy(aside, file)
        with server.http_client() as client:
            eventually(lambda: client.get("/readyz").status == 200, 40)
            assert answers(client, KEYS) == REPLAYED


def test_what_an_operator_does_when_one_shard_cannot_be_put_right(server: Server) -> None:
    """As in ``docs/operations.md``: that shard goes back to the backup, and no other loses anything."""
    damage(server.data_dir / f"shard-{BROKEN:04d}.db")
    with server.start(), server.http_client() as client:
        assert_one_shard_waits(server, client)
        assert client.call("accept", key="meanwhile-1", outcome={"status": 200, "body": "x"}).status in (201, 503)
        assert server.terminate() == 0
    assert run_check(server.data_dir).returncode == 1
    mixed = shutil.copytree(server.data_dir, server.home / "mixed")
    name = f"shard-{BROKEN:04d}.db"
    for suffix in ("-wal", "-shm"):
        (mixed / (name + suffix)).unlink(missing_ok=True)
    shutil.copy(server.home / "backup" / name, mixed / name)
    told = worked("restore", mixed, server.home / "new", "--apart")
    assert told["taken_ms"]
    text = server.config_path.read_text()
    (server.home / "next").mkdir()
    with (
        Server(server.home / "next", text, data_dir=server.home / "new").start() as again,
        again.http_client() as client,
    ):
        backed_up = set(KEYS[: len(KEYS) // 2])
        for shard in range(SHARDS):
            kept = [key for key in of(shard) if shard != BROKEN or key in backed_up]
            assert answers(client, kept) == REPLAYED
        lost = [key for key in of(BROKEN) if key not in backed_up]
        for key in lost:
            assert client.call("reserve", key=key).members["token"] > 2**52
        assert client.get("/readyz").status == 200


def test_what_an_operator_does_when_the_journal_cannot_be_put_right(server: Server) -> None:
    """As in ``docs/operations.md``: the journal of the backup takes its place, and the files keep all they have."""
    for journal in server.data_dir.glob("journal*.db"):
        damage(journal)
    refusal = refused(server)
    assert refusal.code == 2
    assert all(word in refusal.said for word in ("no shard can be read", "journal", "is damaged", "idemactor check"))
    mixed = server.home / "mixed"
    mixed.mkdir()
    for file in (
        *server.data_dir.glob("shard-*.db"),
        *server.data_dir.glob("shard-*.db-wal"),
        *server.home.glob("backup/journal*.db"),
    ):
        shutil.copy(file, mixed)
    shutil.copy(server.home / "backup" / "idemactor.json", mixed)
    worked("restore", mixed, server.home / "new", "--apart")
    (server.home / "next").mkdir()
    text = server.config_path.read_text()
    with (
        Server(server.home / "next", text, data_dir=server.home / "new").start() as again,
        again.http_client() as client,
    ):
        assert answers(client, KEYS) == REPLAYED
