"""SIGHUP reads the tokens anew: who lost one has lost it everywhere at once, and nobody else notices."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.system.clients import HttpClient, RpcClient, RpcError
from tests.system.process import Server, assert_calm, eventually

HEAD = "[server]\nshards = 4\nworkers = {workers}\n[namespaces.default]\n[namespaces.trade]\n"


def tokens(**roles: str) -> str:
    """The tables of tokens by their names, each the token in clear with ``-secret`` behind it."""
    return "".join(
        f'[auth.tokens.{name}]\nsha256 = "{hashlib.sha256(f"{name}-secret".encode()).hexdigest()}"\n'
        f'tenant = "acme"\nnamespaces = ["*"]\nrole = "{role}"\n'
        for name, role in roles.items()
    )


def events(server: Server, name: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in server.log.splitlines() if line.startswith("{"))
    return [line for line in lines if line["event"] == name]


def reload(server: Server, config: str, event: str = "tokens_reloaded") -> dict[str, Any]:
    """Write a configuration, say so, and wait for what comes of it."""
    before = len(events(server, event))
    server.config_path.write_text(config)
    server.signal(signal.SIGHUP)
    eventually(lambda: len(events(server, event)) > before)
    return events(server, event)[-1]


def code_of(rpc: RpcClient, op: str = "get") -> str:
    """The code of a call's refusal; its result where it is none."""
    try:
        return str(rpc.call(op, key="k")["result"])
    except RpcError as error:
        return error.code


def status(server: Server, token: str) -> int:
    with HttpClient(server.http, token=f"{token}-secret") as http:
        return http.call("reserve", key=f"by-{token}").status


@pytest.mark.parametrize("workers", [1, 2])
def test_tokens_come_and_go_without_a_restart(home: Path, workers: int) -> None:
    head = HEAD.format(workers=workers)
    with Server(home, head + tokens(ann="operator", bob="caller")) as server:
        pid = server.pid
        ann, bob, kept = (server.rpc_client() for _ in range(3))
        for rpc, name in ((ann, "ann"), (bob, "bob"), (kept, "bob")):
            rpc.request("auth", {"token": f"{name}-secret"})
        held = bob.call("reserve", key="k")
        http = HttpClient(server.http, token="bob-secret")
        assert http.call("reserve", key="k").status == 409

        said = reload(server, head + tokens(ann="caller", eve="caller"))
        assert (said["added"], said["removed"], said["changed"]) == (["eve"], ["bob"], ["ann"])
        # On connections that are open already, whichever worker they are with.
        eventually(lambda: code_of(bob) == code_of(kept) == "IDEMPOTENCY_UNAUTHENTICATED")
        eventually(lambda: http.call("reserve", key="k").status == 401)
        eventually(lambda: code_of(ann, "forget") == "IDEMPOTENCY_FORBIDDEN")
        assert code_of(ann) == "found"
        for _ in range(8):  # New ones come to any worker.
            assert (status(server, "bob"), status(server, "eve")) in {(401, 201), (401, 409)}
        # Who lost a token may come back with another, on the same connection, and finish what it began.
        bob.request("auth", {"token": "eve-secret"})
        assert bob.call("commit", key="k", token=held["token"])["result"] == "committed"
        assert server.pid == pid
        for secret in ("ann-secret", "bob-secret", "eve-secret"):
            assert secret not in server.log
        for client in (ann, bob, kept, http):
            client.close()
        assert server.terminate() == 0
        assert_calm(server)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_cannot_be_used_changes_nothing(home: Path, workers: int) -> None:
    head = HEAD.format(workers=workers)
    good = head + tokens(ann="operator")
    with Server(home, good) as server, server.rpc_client() as rpc:
        rpc.request("auth", {"token": "ann-secret"})
        for bad in (
            "[auth", head + tokens(ann="king"), head.replace("shards = 4", "shards = -4") + tokens(bob="caller"),
            # A token in clear where its digest should be: it is not shown.
            head + tokens(ann="operator").replace(hashlib.sha256(b"ann-secret").hexdigest(), "ann-secret"),
            # Without tokens everybody is an operator: nobody may come there by a slip.
            head,
        ):  # fmt: skip
            assert reload(server, bad, "tokens_kept")["reason"]
            assert code_of(rpc) == "unknown"
            assert status(server, "ann") in {201, 409}
            assert status(server, "bob") == 401
        server.config_path.unlink()
        server.signal(signal.SIGHUP)
        eventually(lambda: len(events(server, "tokens_kept")) == 6)
        # Only tokens are read: that the rest has changed is said.
        other = good.replace("[namespaces.trade]", "[namespaces.trade]\nlease_ms = 1234")
        reload(server, other)
        eventually(lambda: len(events(server, "settings_not_reloaded")) == 1)
        assert "restart" in events(server, "settings_not_reloaded")[-1]["detail"]
        assert rpc.call("policy", namespace="trade")["lease_ms"] != 1234
        assert not any("Traceback" in line or "ann-secret" in line for line in server.log.splitlines())
        assert server.terminate() == 0


def test_a_worker_that_comes_back_goes_by_the_tokens_of_now(home: Path) -> None:
    head = HEAD.format(workers=2)
    with Server(home, head + tokens(ann="operator", bob="caller")) as server:
        reload(server, head + tokens(ann="operator"))
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        victims = [int(child) for child in children]
        before = len(events(server, "worker_ready"))
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(events(server, "worker_ready")) >= before + len(victims))
        for _ in range(8):
            assert status(server, "bob") == 401
            assert status(server, "ann") in {201, 409}


def test_first_tokens_close_a_server_that_was_open(home: Path) -> None:
    head = HEAD.format(workers=1)
    with Server(home, head) as server, server.rpc_client() as rpc:
        assert code_of(rpc) == "unknown"
        reload(server, head + tokens(ann="caller"))
        assert code_of(rpc) == "IDEMPOTENCY_UNAUTHENTICATED"
        assert status(server, "ann") == 201


@pytest.mark.parametrize("workers", [1, 2])
def test_what_comes_during_the_start_is_not_forgotten(home: Path, workers: int) -> None:
    head = HEAD.format(workers=workers).replace("shards = 4", "shards = 64")
    server = Server(home, head + tokens(bob="caller"))
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        # The file was read and signals are listened to; making the shards takes its time.
        eventually((home / "data").exists, 60)
        server.config_path.write_text(head + tokens(ann="caller"))
        server.signal(signal.SIGHUP)
        starting.join()
        eventually(lambda: status(server, "bob") == 401)
        assert status(server, "ann") == 201
        assert events(server, "tokens_reloaded")[0]["removed"] == ["bob"]
        assert server.terminate() == 0
    finally:
        server.kill()
