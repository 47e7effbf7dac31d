"""Several processes on one data directory: one server to everybody who asks, whichever of them they reach."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system.clients import Answer, HttpClient, Members, RpcClient, RpcError, connect, frame, read_to_end
from tests.system.process import Server, assert_calm, assert_clean, eventually, refused
from tests.system.worker_server import Workers, is_alive

CONFIG: Final = """
[namespaces.default]
lease_ms = 60000
ttl_ms = 3600000
[namespaces.small]
records_max = 20
"""
CERTIFICATE: Final = Path(__file__).parent / "http_hostile" / "test_only_cert.pem"
PRIVATE_KEY: Final = Path(__file__).parent / "http_hostile" / "test_only_key.pem"
LATER_S: Final = 0.3
"""How long a call takes at most to be where it waits."""
WORKER_COUNTS: Final = pytest.mark.parametrize("workers", [2, 3])


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What calls give that begin at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        answers[index] = calls[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def later(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same, after the others have begun."""

    def wait_and_call() -> Any:
        time.sleep(LATER_S)
        return call()

    return wait_and_call


def owner_of(shard_map: Members, key: str, namespace: str = "default") -> int:
    """The worker of a key, by what the contract says of the map."""
    parts = (shard_map["tenant"], namespace, key)
    text = "".join(f"{len(part)}:{part}" for part in parts)
    hashed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
    shard = hashed % shard_map["shards"]
    return next(int(entry["worker"]) for entry in shard_map["workers"] if shard in entry["shards"])


def key_of(shard_map: Members, worker: int, prefix: str = "k") -> str:
    """A key that a worker owns."""
    return next(key for n in range(10_000) if owner_of(shard_map, key := f"{prefix}{n}") == worker)


@WORKER_COUNTS
def test_one_winner_among_callers_of_all_workers(home: Path, workers: int) -> None:
    with Workers(home, workers, CONFIG) as server:
        rpc = [RpcClient(address) for address in server.direct("rpc") for _ in range(3)]
        http = [HttpClient(address) for address in server.direct("http") for _ in range(3)]
        for number in range(30):
            key = f"key-{number}"
            calls: list[Callable[[], Any]] = [partial(client.call, "reserve", key=key) for client in rpc]
            told = together(calls + [partial(client.call, "reserve", key=key) for client in http])
            results = sorted(_result(answer) for answer in told)
            assert results == ["in_flight"] * (len(told) - 1) + ["reserved"], told
        assert server.terminate() == 0
        assert_calm(server)
        assert_clean(server.data_dir)


def _result(answer: Members | Answer) -> str:
    return str((answer if isinstance(answer, dict) else answer.members)["result"])


@WORKER_COUNTS
def test_what_one_worker_is_told_all_others_know(home: Path, workers: int) -> None:
    with Workers(home, workers, CONFIG) as server, server.rpc_clients() as clients:
        for number in range(20):
            key, outcome = f"key-{number}", {"status": 200, "headers": [["x", "y"]], "body": bytes([number, 255])}
            told = clients[number % workers].call("reserve", key=key, request_id="r", holder="me")
            again = clients[(number + 1) % workers].call("reserve", key=key, request_id="r")
            assert again == {**told, "repeated": True}
            held = clients[(number + 1) % workers].call("reserve", key=key)
            assert (held["result"], held["holder"]) == ("in_flight", "me")
            token = told["token"]
            assert clients[(number + 2) % workers].call("commit", key=key, token=token, outcome=outcome)["expires_at"]
            for client in clients:
                completed = client.call("reserve", key=key)
                assert completed["result"] == "completed"
                assert completed["outcome"] == outcome
                assert client.call("get", key=key)["record"]["token"] == token


def test_a_batch_is_answered_in_order_whoever_owns_its_keys(home: Path) -> None:
    with Workers(home, 3, CONFIG) as server, server.rpc_clients() as clients:
        for client in clients:
            prefix = os.urandom(4).hex()
            ops = [{"op": "reserve", "namespace": "default", "key": f"{prefix}-{n}"} for n in range(300)]
            results = client.request("batch", {"ops": ops})["results"]
            assert [result["key"] for result in results] == [op["key"] for op in ops]
            assert {result["result"] for result in results} == {"reserved"}


def test_requests_of_one_connection_for_one_key_keep_their_order(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server, server.rpc_clients() as clients:
        shard_map = server.shard_map()
        for number in range(2):
            for owner in range(2):
                key = key_of(shard_map, owner, f"order-{number}-")
                reserve = ("reserve", {"namespace": "default", "key": key})
                told = clients[number].pipeline([reserve, reserve, reserve])
                results = [answer["result"] for answer in told if not isinstance(answer, RpcError)]
                assert results == ["reserved", "in_flight", "in_flight"]


def test_a_waiter_is_granted_by_another_worker(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server, server.rpc_clients() as clients:
        shard_map = server.shard_map()
        for owner in range(2):
            key = key_of(shard_map, owner)
            held = clients[owner].call("reserve", key=key)
            rpc, http = RpcClient(server.direct("rpc")[1 - owner]), HttpClient(server.direct("http")[1 - owner])
            first, second, released = together(
                [
                    partial(rpc.call, "reserve", key=key, wait_ms=1_000),
                    partial(http.call, "reserve", key=key, wait_ms=700),
                    later(partial(clients[owner].call, "release", key=key, token=held["token"])),
                ]
            )
            assert released["result"] == "released"
            assert sorted([_result(first), _result(second)]) == ["in_flight", "reserved"]


def test_a_waiter_that_left_is_not_granted(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server, server.rpc_clients() as clients:
        shard_map = server.shard_map()
        for owner in range(2):
            key = key_of(shard_map, owner)
            held = clients[owner].call("reserve", key=key)
            members = {"namespace": "default", "key": key, "wait_ms": 30_000, "holder": "gone"}
            with connect(server.direct("rpc")[1 - owner]) as sock:
                sock.sendall(frame(1, "reserve", members))
                time.sleep(0.3)
            time.sleep(0.3)
            clients[owner].call("release", key=key, token=held["token"])
            assert clients[1 - owner].call("reserve", key=key, holder="next")["result"] == "reserved"


def test_the_shard_map_leads_to_the_owner(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server:
        maps = [HttpClient(address).get("/v1/shards").members for address in server.direct("http")]
        assert [shard_map.pop("worker") for shard_map in maps] == [0, 1]
        assert maps[0] == maps[1]
        assert sorted(shard for worker in maps[0]["workers"] for shard in worker["shards"]) == list(range(6))
        with server.rpc_clients() as clients:
            for number in range(20):
                key = f"key-{number}"
                clients[owner_of(maps[0], key)].call("reserve", key=key)
        decided = _by_worker(server, 'idemactor_commands_total{command="reserve",result="reserved",worker="')
        assert sum(decided.values()) == 20
        owners = [owner_of(maps[0], f"key-{number}") for number in range(20)]
        assert decided == {str(worker): owners.count(worker) for worker in set(owners)}


def _by_worker(server: Workers, line: str) -> dict[str, int]:
    text = HttpClient(server.http).get("/metrics").body.decode()
    found = re.findall(re.escape(line) + r'(\d+)"} ([0-9.]+)', text)
    return {worker: int(float(value)) for worker, value in found}


def test_listings_incidents_metrics_and_readiness_are_the_whole_servers(home: Path) -> None:
    with Workers(home, 3, CONFIG) as server, server.rpc_clients() as clients:
        keys = {f"key-{number}" for number in range(40)}
        for number, key in enumerate(sorted(keys)):
            clients[number % 3].call("reserve", key=key, lease_ms=60_000 if number else 1)
        time.sleep(0.05)
        late = sorted(keys)[0]
        token = clients[0].call("get", key=late)["record"]["token"]
        assert clients[1].call("reserve", key=late)["takeover"] is True
        assert clients[2].call("commit", key=late, token=token)["result"] == "stale"
        for client, http in zip(clients, server.direct("http"), strict=True):
            listed: set[str] = set()
            cursor = None
            while True:
                page = client.call("records", limit=7, **({"cursor": cursor} if cursor else {}))
                listed |= {record["key"] for record in page["records"]}
                if (cursor := page["next"]) is None:
                    break
            assert listed == keys
            [incident] = client.call("incidents")["incidents"]
            assert incident["key"] == late
            web = HttpClient(http)
            assert web.get("/readyz").status == 200
            assert web.get("/livez").status == 200
            text = web.get("/metrics").body.decode()
            assert 'idemactor_records{namespace="default",tenant="default"} 40.0' in text
            assert text.count("# TYPE idemactor_commands_total counter") == 1
            for worker in range(3):
                assert f'idemactor_worker_up{{worker="{worker}"}} 1.0' in text
                assert f'process_resident_memory_bytes{{worker="{worker}"}}' in text
            assert [f'idemactor_shard_in_memory{{shard="{shard}"}} 1.0' in text for shard in range(6)] == [True] * 6
        assert clients[0].call("acknowledge", id=incident["id"])["result"] == "acknowledged"
        assert clients[1].call("incidents")["incidents"] == []


def test_a_quota_counts_the_keys_of_all_workers(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server, server.rpc_clients() as clients:
        told = []
        for number in range(60):
            call = ("reserve", {"namespace": "small", "key": f"key-{number}"})
            told += clients[number % 2].pipeline([call])
            time.sleep(LATER_S / 10)
        assert [isinstance(answer, RpcError) for answer in told] == [False] * 20 + [True] * 40
        assert {answer.code for answer in told if isinstance(answer, RpcError)} == {"IDEMPOTENCY_QUOTA_EXCEEDED"}


def test_who_asks_crosses_with_the_question(home: Path) -> None:
    config = CONFIG
    for name, tenant, role in (("one", "acme", "caller"), ("two", "zeta", "caller"), ("ops", "acme", "operator")):
        digest = hashlib.sha256(name.encode()).hexdigest()
        config += f'[auth.tokens.{name}]\nsha256="{digest}"\ntenant="{tenant}"\nnamespaces=["*"]\nrole="{role}"\n'
    with Workers(home, 2, config) as server:
        shared = HttpClient(server.http, token="one").get("/v1/shards").members
        addresses = [worker["http"][0] for worker in shared["workers"]]
        assert HttpClient(addresses[0]).get("/v1/shards").status == 401
        for owner in range(2):
            key = key_of(shared, owner)
            one, two, ops = (HttpClient(addresses[1 - owner], token=token) for token in ("one", "two", "ops"))
            held = one.call("reserve", key=key).members
            assert two.call("reserve", key=key).members["result"] == "reserved"
            assert one.call("reserve", key=key).members["result"] == "in_flight"
            assert one.call("get", key=key).members["record"]["token"] is None
            assert ops.call("get", key=key).members["record"]["token"] == held["token"]
            assert one.call("forget", key=key, force=True).status == 403
            assert ops.call("forget", key=key, force=True).members["result"] == "forgotten"


def test_tls_is_every_workers(home: Path) -> None:
    config = f'[http]\ntls_cert = "{CERTIFICATE}"\ntls_key = "{PRIVATE_KEY}"\n{CONFIG}'
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    trusting.check_hostname = False
    with Workers(home, 2, config) as server:
        told = []
        for address in (server.http, *server.direct("http")):
            with connect(address) as plain, trusting.wrap_socket(plain) as sock:
                sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                told.append(read_to_end(sock).partition(b"\r\n")[0])
        assert told == [b"HTTP/1.1 200 "] * 3


def test_unix_sockets_outlive_a_worker_and_not_the_server(home: Path) -> None:
    config, addresses = CONFIG, [f"unix:{home}/r.sock", "127.0.0.1:0"]
    with Workers(home, 2, config, http=[f"unix:{home}/h.sock"], rpc=addresses) as server:
        shard_map = server.shard_map()
        assert [worker["http"] for worker in shard_map["workers"]] == [[f"unix:{home}/h.sock.{n}"] for n in range(2)]
        assert [len(worker["rpc"]) for worker in shard_map["workers"]] == [2, 2]
        files = [home / name for name in ("h.sock", "h.sock.0", "h.sock.1", "r.sock", "r.sock.0", "r.sock.1")]
        server.kill_worker(0)
        server.wait_whole()
        assert all(file.is_socket() for file in files)
        assert RpcClient(shard_map["workers"][0]["rpc"][0]).call("reserve", key="k")["result"] == "reserved"
        assert server.terminate() == 0
        assert not any(file.exists() for file in files)


def test_unix_sockets_of_workers_that_were_killed_go_with_the_next_start(home: Path) -> None:
    server = Workers(home, 3, CONFIG, http=[f"unix:{home}/h.sock"], rpc=[f"unix:{home}/r.sock"])
    try:
        for workers in (3, 2, 1):
            server.workers = workers
            server.start()
            expected = {f"{door}.sock{end}" for door in "hr" for end in ("", *(f".{n}" for n in range(workers)))}
            if workers == 1:
                expected = {"h.sock", "r.sock"}
            assert {file.name for file in home.glob("*.sock*")} == expected
            server.kill()
    finally:
        server.kill()


# ----------------------------------------------------------------------------------------------------- life and death


def test_sigterm_answers_what_is_in_flight_and_ends_all(home: Path) -> None:
    with Workers(home, 3, CONFIG) as server, server.rpc_clients() as clients:
        held = clients[0].call("reserve", key="k")
        assert held["result"] == "reserved"
        pids = server.pids
        assert len(pids) == 3
        waiting = [partial(client.call, "reserve", key="k", wait_ms=30_000) for client in clients]
        *told, _ = together([*waiting, later(partial(server.signal, signal.SIGTERM))])
        assert [answer["result"] for answer in told] == ["in_flight"] * 3
        assert server.wait() == 0
        assert not any(map(is_alive, pids))
        assert not list(server.data_dir.glob("*.sock"))
        assert_calm(server)
        assert_clean(server.data_dir)


@pytest.mark.parametrize("workers", [1, 3])
def test_sigterm_again_and_again_is_sigterm_once(home: Path, workers: int) -> None:
    with Workers(home, workers, CONFIG) as server, server.rpc_client() as client, server.rpc_client() as waiter:
        assert client.call("reserve", key="k")["result"] == "reserved"

        def insist() -> None:
            with contextlib.suppress(ProcessLookupError):
                while is_alive(server.pid):
                    os.kill(server.pid, signal.SIGTERM)
                    time.sleep(0.001)

        told, _ = together([partial(waiter.call, "reserve", key="k", wait_ms=30_000), later(insist)])
        assert told["result"] == "in_flight"
        assert server.wait() == 0
        assert_calm(server)
        assert_clean(server.data_dir)


@pytest.mark.parametrize("supervisor_first", [True, False])
def test_sigterm_to_all_processes_is_sigterm_to_the_server(home: Path, supervisor_first: bool) -> None:
    with Workers(home, 3, CONFIG) as server, server.rpc_clients() as clients:
        assert clients[0].call("reserve", key="k")["result"] == "reserved"
        pids = [server.pid, *server.pids] if supervisor_first else [*server.pids, server.pid]

        def tell() -> None:
            for pid in pids:
                os.kill(pid, signal.SIGTERM)

        waiting = [partial(client.call, "reserve", key="k", wait_ms=30_000) for client in clients]
        *told, _ = together([*waiting, later(tell)])
        assert [answer["result"] for answer in told] == ["in_flight"] * 3
        assert server.wait() == 0
        assert_clean(server.data_dir)


def test_sigterm_while_a_worker_dies_and_comes_back_ends_all_at_once(home: Path) -> None:
    server = Workers(home, 2, CONFIG)
    for after_s in (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2):
        with server.start():
            server.kill_worker(1)
            time.sleep(after_s)
            begun = time.monotonic()
            assert server.terminate() == 0, after_s
            assert time.monotonic() - begun < 10, after_s
    assert_clean(server.data_dir)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_while_connections_arrive_is_an_ordinary_end(home: Path, workers: int) -> None:
    server, over = Workers(home, workers, CONFIG), threading.Event()

    def knock() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, AssertionError):
                connect(server.rpc).close()

    threads = [threading.Thread(target=knock) for _ in range(4)]
    with server:
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                time.sleep(LATER_S)
                assert server.terminate() == 0
                server.start()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert_calm(server)


def test_the_death_of_the_supervisor_ends_its_workers_and_the_next_start_waits_for_that(home: Path) -> None:
    server = Workers(home, 3, CONFIG)
    with server:
        for number in range(8):
            with server.rpc_client() as client:
                assert client.call("reserve", key=f"k{number}")["result"] == "reserved"
            pids = server.pids
            server.restart()
            assert not any(map(is_alive, pids))
        with server.rpc_client() as client:
            assert {client.call("reserve", key=f"k{number}")["result"] for number in range(8)} == {"in_flight"}


def test_another_number_of_workers_at_each_start(home: Path) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    tokens: dict[str, int] = {}
    server = Workers(home, 1, CONFIG)
    with server:
        for turn, workers in enumerate((2, 3, 1, 3, 3, 2, 1, 2)):
            for number in range(30):
                key = f"{turn}-{number}"
                with server.rpc_client() as client:
                    tokens[key] = client.call("reserve", key=key)["token"]
            _end(server, chance.random() < 0.5)
            server.workers = workers
            server.start()
            for key, token in tokens.items():
                with server.rpc_client() as client:
                    assert client.call("get", key=key)["record"]["token"] == token, f"seed {seed}: {key}"
            journals = sorted(path.name for path in server.data_dir.glob("journal*.db"))
            expected = [f"journal-{n}-of-{workers}.db" for n in range(workers)] if workers > 1 else ["journal.db"]
            assert journals == expected
        _end(server, False)
        assert_clean(server.data_dir)


def _end(server: Workers, kill: bool) -> None:
    if kill:
        server.kill()
    else:
        assert server.terminate() == 0


def test_a_worker_that_dies_comes_back_and_the_others_go_on(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server, server.rpc_clients() as clients:
        shard_map = server.shard_map()
        here, there = key_of(shard_map, 0), key_of(shard_map, 1)
        tokens = [clients[0].call("reserve", key=key)["token"] for key in (here, there)]
        os.kill(server.pid_of(1), signal.SIGSTOP)
        get = ("get", {"namespace": "default", "key": there})
        [unknown], _ = together([partial(clients[0].pipeline, [get]), later(partial(server.kill_worker, 1))])
        assert isinstance(unknown, RpcError)
        assert unknown.code == "IDEMPOTENCY_UNAVAILABLE"
        assert clients[0].call("get", key=here)["record"]["token"] == tokens[0]

        def back() -> bool:
            [answer] = clients[0].pipeline([get])
            if isinstance(answer, RpcError):
                assert answer.code == "IDEMPOTENCY_UNAVAILABLE"
                return False
            return bool(answer["record"]["token"] == tokens[1])

        eventually(back)
        assert RpcClient(server.direct("rpc")[1]).call("commit", key=there, token=tokens[1])["result"] == "committed"
        server.wait_whole()
        assert '"worker_died"' in server.log
        assert server.terminate() == 0
        assert_clean(server.data_dir)


# ---------------------------------------------------------------------------------------------------- what is refused


def test_more_workers_than_shards_are_refused_and_nothing_is_made(home: Path) -> None:
    server = Workers(home, 5, CONFIG, shards=4)
    assert "is 5, and there are 4 shards" in refused(server).said
    plain = Server(home, CONFIG, flags=["--workers", "9"])
    refusal = refused(plain)
    assert (refusal.code, "set workers to at most 4" in refusal.said) == (2, True)
    assert not (server.data_dir / "idemactor.json").exists()


def test_what_a_child_finds_out_before_it_serves_is_said_once(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server:
        with server.rpc_client() as client:
            client.call("reserve", "small", key="k")
        server.terminate()
    server.config_path.write_text("[namespaces.default]\n")
    refusal = refused(server)
    assert refusal.code == 2
    assert refusal.said.count("the configuration has no namespace small") == 1


def test_a_second_server_is_refused_while_the_first_goes_on(home: Path) -> None:
    with Workers(home, 2, CONFIG) as server:
        other = Server(home, CONFIG, data_dir=server.data_dir)
        assert f"in use by process {server.pid}" in refused(other).said
        with server.rpc_client() as client:
            assert client.call("reserve", key="k")["result"] == "reserved"
