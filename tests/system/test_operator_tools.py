"""The hands of an operator: backup, restore, reshard, export and import of real servers, interrupted anywhere."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import apsw
import pytest

from idemactor.storage.directory import DataDirectory
from idemactor.storage.layout import shard_name
from tests.storage import format_1
from tests.system.clients import RpcClient
from tests.system.operator_tools import (
    CONFIG,
    Callers,
    every_grant_is_above,
    killed_after,
    lines_of,
    tool,
    worked,
)
from tests.system.process import Server, assert_calm, assert_clean, environment, refused, run_check
from tests.system.programs import wheel


@pytest.mark.parametrize("workers", [1, 2])
def test_a_backup_of_a_busy_server_has_what_was_acknowledged_before_it(home: Path, workers: int) -> None:
    with Server(home, CONFIG, flags=("--workers", str(workers))).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.4)
            for number in range(3):
                began_ms = time.time_ns() // 1_000_000
                told = worked("backup", home / f"b{number}", "--data-dir", server.data_dir)
                assert began_ms <= told["taken_ms"]
                assert [shard["shard"] for shard in told["shards"]] == [0, 1, 2]
        assert server.terminate() == 0
        assert_calm(server)
        assert_clean(server.data_dir)
    for number in range(3):
        assert_clean(home / f"b{number}")
    with Server(home, CONFIG, data_dir=home / "b2").start() as copy:
        assert callers.still_there(copy, told["taken_ms"]) > 20
        # Also what was granted after the copy was made is granted to nobody else.
        every_grant_is_above(copy, callers.highest)


def test_a_backup_that_is_killed_disturbs_nobody_and_the_next_one_works(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            for _ in range(8):
                which = chance.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
                arguments = ("backup", home / "backup", "--data-dir", server.data_dir)
                killed_after(chance.uniform(0.0, 0.8), which, arguments)
                if (home / "backup").exists():
                    assert_clean(home / "backup")
                    shutil.rmtree(home / "backup")
            worked("backup", home / "backup", "--data-dir", server.data_dir)
        assert not list(home.glob("backup.*"))
        assert server.terminate() == 0
        assert_calm(server)
    assert_clean(server.data_dir)
    assert_clean(home / "backup")


def test_after_a_restore_nothing_of_the_backup_is_lost_and_no_token_is_granted_twice(home: Path) -> None:
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.4)
            taken = worked("backup", home / "backup", "--data-dir", server.data_dir)
            time.sleep(0.3)
        server.kill()
        lost = [key for key, (_, _, at_ms) in callers.committed.items() if at_ms > taken["taken_ms"]]
        assert lost
        assert tool("restore", home / "backup", server.data_dir).code == 2
        told = worked("restore", home / "backup", server.data_dir, "--replace")
        assert told["taken_ms"] == taken["taken_ms"]
        # What is lost was acknowledged in the time that is told.
        assert all(told["taken_ms"] <= callers.committed[key][2] for key in lost)
        latest = max(shard["latest_ms"] for shard in run_check_json(home / "data-of-before", server.data_dir))
        assert told["until_ms"] >= latest
        assert told["next_token"] > callers.highest
        server.start()
        assert callers.still_there(server, taken["taken_ms"]) > 10
        every_grant_is_above(server, told["next_token"] - 1)
        # And once more, from the same backup, after tokens were granted since.
        server.kill()
        again = worked("restore", home / "backup", server.data_dir, "--replace")
        server.start()
        every_grant_is_above(server, again["next_token"] - 1)
        assert again["next_token"] > told["next_token"] + 1_000
        assert_calm(server)
    assert_clean(server.data_dir)


def test_an_idemactor_json_of_a_backup_is_no_way_to_have_old_files_count_again(home: Path) -> None:
    with Server(home, CONFIG).start() as server:
        worked("backup", home / "b", "--data-dir", server.data_dir)
        server.kill()
        worked("restore", home / "b", server.data_dir, "--replace")
        with server.start(), server.rpc_client() as client:
            assert client.call("accept", key="payment-1")["proceed"]
            worked("backup", home / "b2", "--data-dir", server.data_dir)
        (server.data_dir / "idemactor.json").write_text("")
        assert "restore --replace" in refused(Server(home, CONFIG)).said
        shutil.copy(home / "b2" / "idemactor.json", server.data_dir)
        refusal = refused(Server(home, CONFIG))
        assert (refusal.code, "restore --replace" in refusal.said) == (2, True)
        assert run_check(server.data_dir).returncode == 1
        worked("restore", home / "b2", server.data_dir, "--replace")
        with server.start(), server.rpc_client() as client:
            assert not client.call("accept", key="payment-1")["proceed"]
    assert_clean(server.data_dir)


def run_check_json(scratch: Path, data_dir: Path) -> list[dict[str, int]]:
    """What the files of before a restore say."""
    scratch.mkdir()
    for file in data_dir.glob("*.db*"):
        shutil.copy(file, scratch)
    (scratch / "idemactor.json").write_text('{"format": 1, "shards": 3, "created_ms": 1}')
    shards: list[dict[str, int]] = worked("check", scratch)["shards"]
    return shards


def test_a_restore_that_is_killed_leaves_nothing_that_counts(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.3)
        worked("backup", home / "backup", "--data-dir", server.data_dir)
    for _ in range(8):
        which = chance.choice((signal.SIGKILL, signal.SIGINT))
        killed_after(chance.uniform(0.0, 0.8), which, ("restore", home / "backup", home / "new"))
        if (home / "new" / "idemactor.json").exists():
            assert_clean(home / "new")
            shutil.rmtree(home / "new")
        elif list((home / "new").glob("files-*")):
            said = refused(Server(home, CONFIG, data_dir=home / "new")).said
            assert "run it once more" in said
    worked("restore", home / "backup", home / "new")
    assert_clean(home / "new")
    with Server(home, CONFIG, data_dir=home / "new").start() as restored:
        callers.still_there(restored, time.time_ns())


def test_another_number_of_shards_killed_again_and_again(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    config = CONFIG.replace("shards = 3", "")
    with Server(home, config).start(shards=3) as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.8)
            busy = tool("reshard", server.data_dir, "--to", "5")
            assert (busy.code, "in use" in busy.err) == (2, True)
        server.kill()
        for shards in (5, 2):
            arguments = ("reshard", server.data_dir, "--to", shards)
            for _ in range(4):
                which = chance.choice((signal.SIGKILL, signal.SIGINT))
                killed_after(chance.uniform(0.1, 1.0), which, arguments)
                assert run_check(server.data_dir).returncode == 0
            done = worked(*arguments)
            assert done["shards"] == shards
            assert_clean(server.data_dir)
            server.start()
            assert callers.still_there(server, time.time_ns()) == len(callers.committed)
            every_grant_is_above(server, callers.highest)
            with server.rpc_client() as client:
                # Who held a key still does, with the token of before.
                for key, token in list(callers.held.items())[:5]:
                    assert client.call("extend", key=key, token=token, lease_ms=3_600_000)["result"] == "extended"
                assert listed(client) >= len(callers.committed)
            server.kill()
    assert_clean(server.data_dir)
    assert_calm(server)


def listed(client: RpcClient) -> int:
    """How many committed records a listing goes through, page by page."""
    found = 0
    asked: dict[str, object] = {"namespace": "default", "state": "committed", "limit": 50}
    while True:
        page = client.request("records", asked)
        found += len(page["records"])
        if page["next"] is None:
            return found
        asked["cursor"] = page["next"]


def test_what_is_exported_is_imported_through_pipes(home: Path) -> None:
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.4)
        server.kill()
    data = tool("export", server.data_dir)
    assert data.code == 0
    told = worked("import", home / "new", "--shards", 5, feed=data.out.encode())
    assert (told["entries"], told["shards"]) == (len(callers.committed) + len(callers.held), 5)
    assert {key: line["record"] for key, line in lines_of(home / "new").items()} == {
        key: line["record"] for key, line in lines_of(server.data_dir).items()
    }
    again = worked("import", home / "new", feed=data.out.encode())
    assert (again["entries"], again["present"]) == (0, told["entries"])
    with Server(home, CONFIG.replace("shards = 3", ""), data_dir=home / "new").start() as copy:
        callers.still_there(copy, time.time_ns())
        every_grant_is_above(copy, callers.highest)
        with copy.rpc_client() as client:
            key, token = next(iter(callers.held.items()))
            assert client.call("commit", key=key, token=token)["result"] == "committed"
    refusal = tool("import", home / "new", "--json", feed=data.out.encode())
    assert refusal.code == 24
    assert refusal.told["named"] == [{"tenant": "default", "namespace": "default", "key": key}]
    assert_clean(home / "new")


def test_an_import_that_is_killed_leaves_what_was_there(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.4)
        server.kill()
    worked("export", server.data_dir, "--output", home / "all.jsonl")
    for _ in range(8):
        which = chance.choice((signal.SIGKILL, signal.SIGINT))
        arguments = ("import", home / "new", home / "all.jsonl")
        killed_after(chance.uniform(0.0, 0.9), which, arguments)
    worked("import", home / "new", home / "all.jsonl")
    assert_clean(home / "new")
    assert len(lines_of(home / "new")) == len(callers.committed) + len(callers.held)


# ------------------------------------------------------------------------------------------------------------- dispatch


def queue_up(client: RpcClient) -> None:
    """Operations that wait for a service to fetch them, in lines and without; and events that nobody has seen."""
    for number in range(30):
        intent = {"content_type": "text/plain", "body": f"work {number}"}
        line = {} if number % 3 == 0 else {"order_key": f"account {number % 3}"}
        told = client.call("dispatch", namespace="work", key=f"d{number}", intent=intent, **line)
        assert told["state"] == "queued"
        granted = client.call("reserve", namespace="work", key=f"e{number}")
        events = [{"body": f"news {number}", "order_key": "paper"}]
        client.call("commit", namespace="work", key=f"e{number}", token=granted["token"], events=events)


def fetched(client: RpcClient) -> dict[str, list[bytes]]:
    """What is fetched and acknowledged, in its order, by its line; what has no order is sorted."""
    lines: dict[str, list[bytes]] = {}
    while entries := client.request("outbox.poll", {"namespace": "work", "max": 100})["entries"]:
        for entry in entries:
            lines.setdefault(entry["order_key"] or "", []).append(entry["body"])
            members = {name: entry[name] for name in ("id", "key", "token")}
            told = client.request("outbox.ack", {"namespace": "work", **members})
            assert told["result"] in ("committed", "acknowledged"), told
    lines[""].sort()
    return lines


def test_what_waits_to_be_delivered_is_carried_through_all_of_it(home: Path) -> None:
    with Server(home, CONFIG).start() as server:
        with server.rpc_client() as client:
            # One is being delivered: its holder may still come back.
            client.call("dispatch", namespace="work", key="held", intent={"body": "first"})
            polled = client.request("outbox.poll", {"namespace": "work", "max": 1, "visibility_ms": 600_000})
            (held,) = polled["entries"]
            queue_up(client)
        worked("backup", home / "backup", "--data-dir", server.data_dir)
        server.kill()
    worked("restore", home / "backup", home / "restored")
    worked("reshard", home / "restored", "--to", 5)
    data = tool("export", home / "restored").out.encode()
    worked("import", home / "new", "--shards", 2, feed=data)
    found = []
    for path in (server.data_dir, home / "backup", home / "restored", home / "new"):
        assert_clean(path)
        with Server(home, CONFIG.replace("shards = 3", ""), data_dir=path).start() as copy, copy.rpc_client() as client:
            members = {name: held[name] for name in ("id", "key", "token")}
            assert client.request("outbox.ack", {"namespace": "work", **members})["result"] == "committed"
            found.append(fetched(client))
            operation = client.request("operation", {"namespace": "work", "operation_id": held["operation_id"]})
            assert operation["state"] == "succeeded"
    assert found[0].keys() == {"", "account 1", "account 2", "paper"}
    for lines in found:
        for name, bodies in lines.items():
            assert name == "" or bodies == sorted(bodies, key=lambda body: int(body.split()[1]))
        assert lines == found[0]


# ----------------------------------------------------------------------------------------------------------- litestream


def assert_sound_without_checksums(data_dir: Path) -> None:
    """Fails where ``idemactor check`` finds anything but that a changed byte may go unnoticed."""
    checked = run_check(data_dir)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = [line for line in checked.stdout.splitlines() if "warning" in line or "error" in line]
    assert found
    assert all("has no checksums" in line for line in found), found


def test_litestream_replicates_the_files_beside_the_running_server(home: Path) -> None:
    """Files that it restored are each of another moment; what all of them have is there again."""
    files = ("journal.db", *(shard_name(shard) for shard in range(3)))
    # It writes to the files, and has no checksums for what it writes.
    config = CONFIG.replace("[server]", "[server]\npage_checksums = false", 1)
    assert config != CONFIG
    with Server(home, config).start() as server:
        entries = [
            f"  - path: {server.data_dir / file}\n    replica:\n      type: file\n      sync-interval: 100ms\n"
            f"      path: {home / 'replica' / file}\n"
            for file in files
        ]
        (home / "litestream.yml").write_text("dbs:\n" + "".join(entries))
        command = [wheel("litestream"), "replicate", "-config", str(home / "litestream.yml")]
        callers = Callers(server)
        with (home / "litestream.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as beside:
            with callers.running():
                time.sleep(3.0)
            # It is behind by its interval, and catches up when it ends.
            time.sleep(1.0)
            beside.terminate()
            assert beside.wait(30) == 0, (home / "litestream.log").read_text()
            server.kill()
        assert_calm(server)
    assert_sound_without_checksums(server.data_dir)
    (home / "restored").mkdir()
    for file in files:
        restoring = [wheel("litestream"), "restore", "-config", str(home / "litestream.yml")]
        restoring += ["-o", str(home / "restored" / file), str(server.data_dir / file)]
        subprocess.run(restoring, check=True, timeout=60, capture_output=True)
    shutil.copy(server.data_dir / "idemactor.json", home / "restored")
    told = worked("restore", home / "restored", home / "new", "--apart")
    assert_sound_without_checksums(home / "new")
    with Server(home, config, data_dir=home / "new").start() as again:
        assert callers.still_there(again, told["taken_ms"]) > 100
        assert callers.still_there(again, time.time_ns()) == len(callers.committed)
        every_grant_is_above(again, callers.highest)


def test_a_reader_that_holds_on_to_an_old_state_blocks_nobody(home: Path) -> None:
    """As a slow backup or a replicating tool does: no checkpoint comes to its end while it reads."""
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running(prefix="before"):
            time.sleep(0.3)
        readers = []
        for file in ("journal.db", *(shard_name(shard) for shard in range(3))):
            reader = apsw.Connection(str(server.data_dir / file), flags=apsw.SQLITE_OPEN_READONLY)
            reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
            readers.append(reader)
        with callers.running(prefix="meanwhile"):
            time.sleep(0.8)
        assert server.terminate() == 0
        server.start()
        assert callers.still_there(server, time.time_ns()) == len(callers.committed)
        server.kill()
        for reader in readers:
            reader.close()
        server.start()
        assert callers.still_there(server, time.time_ns()) == len(callers.committed)
        assert server.terminate() == 0
        assert_calm(server)
    assert_clean(server.data_dir)


# -------------------------------------------------------------------------------------------------------------- upgrade


def of_then(home: Path) -> Path:
    """A directory as the release before left it."""
    path = home / "data"
    with DataDirectory.open(path, 1, checksums=False) as data:
        connection = apsw.Connection(str(data.engine_path(0)))
        seq = int(connection.execute("SELECT journal_seq FROM meta").get)
        connection.close()
    (path / shard_name(0)).unlink()
    format_1.make_file(path / shard_name(0), journal_seq=seq)
    return path


def test_the_files_of_the_release_before_are_served(home: Path) -> None:
    path = of_then(home)
    version = file_version(path)
    with Server(home, CONFIG.replace("shards = 3", "")).start() as server:
        with server.rpc_client() as client:
            keys = {entry.identity.key: entry for entry in format_1.ENTRIES.values()}
            listing = client.request("incidents", {"namespace": "trade"})
            assert [each["token"] for each in listing["incidents"]] == [format_1.LATE.token]
            told = client.call("reserve", namespace="trade", key="after the upgrade")
            assert (told["result"], told["token"]) == ("reserved", 6)
            assert len(keys) == 3
        assert server.terminate() == 0
        assert_calm(server)
    assert (version, file_version(path)) == (1, 2)
    assert_sound_without_checksums(path)


def test_the_tools_read_what_the_release_before_wrote(home: Path) -> None:
    path = of_then(home)
    assert set(lines_of(path)) == {identity.key for identity in format_1.ENTRIES}
    worked("backup", home / "backup", "--data-dir", path)
    assert_sound_without_checksums(home / "backup")
    worked("reshard", path, "--to", 3)
    assert set(lines_of(path)) == {identity.key for identity in format_1.ENTRIES}
    assert_sound_without_checksums(path)


def file_version(path: Path) -> int:
    connection = apsw.Connection(str(path / shard_name(0)), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


@pytest.mark.parametrize("what", ["file", "directory"])
def test_what_a_later_release_wrote_is_refused(home: Path, what: str) -> None:
    path = of_then(home)
    if what == "file":
        connection = apsw.Connection(str(path / shard_name(0)))
        connection.pragma("user_version", 99)
        connection.close()
    else:
        (path / "idemactor.json").write_text('{"format": 99, "shards": 1, "created_ms": 1}')
    server = Server(home, CONFIG.replace("shards = 3", ""))
    refusal = refused(server)
    assert refusal.code == 2
    assert "start the release that wrote it" in refusal.said
    for arguments in (("reshard", path, "--to", 2), ("export", path), ("backup", home / "b", "--data-dir", path)):
        done = tool(*arguments)
        assert done.code in (2, 25)
        assert "start the release that wrote it" in done.err
    assert not (home / "b").exists()


def test_who_reads_an_export_may_have_seen_enough(home: Path) -> None:
    with Server(home, CONFIG).start() as server:
        callers = Callers(server)
        with callers.running():
            time.sleep(0.5)
    command = f"{sys.executable} -m idemactor export {server.data_dir} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment(), timeout=60, check=True)
    assert done.stdout.startswith(b'{"type":"export"')
    assert b"cannot be used" not in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_tool_that_is_told_nonsense_says_what_is_wrong(home: Path) -> None:
    for arguments in (
        ("backup", home / "b", "--data-dir", home / "none"),
        ("restore", home / "none", home / "new"),
        ("reshard", home / "none", "--to", 2),
        ("export", home / "none"),
    ):
        done = tool(*arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("idemactor: ")
        assert str(home / "none") in done.err
    assert not [file for file in home.iterdir() if file.name != "none"]
