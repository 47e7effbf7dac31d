"""Many callers of one key at once, over every door: exactly one is told to go on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.system.clients import HttpClient, Members, RpcClient
from tests.system.conftest import TWO_NAMESPACES
from tests.system.process import Server, assert_calm

CALLERS: Final = 64
ROUNDS: Final = 5
DOORS: Final = ("http-tcp", "http-unix", "rpc-tcp", "rpc-unix")
Ask = Callable[[str, str], Members]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on TCP and Unix sockets."""
    home: Path = tmp_path_factory.mktemp("many")
    http = ["127.0.0.1:0", f"unix:{home}/h.sock"]
    rpc = ["127.0.0.1:0", f"unix:{home}/r.sock"]
    with Server(home, TWO_NAMESPACES, http=http, rpc=rpc) as running:
        yield running
        assert_calm(running)


def client_of(server: Server, door: str) -> HttpClient | RpcClient:
    protocol, kind = door.split("-")
    address = server.addresses(protocol)[kind == "unix"]
    return HttpClient(address) if protocol == "http" else RpcClient(address)


def all_at_once(server: Server, doors: list[str], op: str, key: str) -> list[Members]:
    """What each caller is told; all ask at the same moment, each on a connection of its own that is open already."""
    barrier = threading.Barrier(len(doors))

    def ask(door: str) -> Members:
        with client_of(server, door) as client:
            client.call("get", key="nothing")
            barrier.wait(30)
            told = client.call(op, key=key)
        return told if isinstance(told, dict) else told.members

    with ThreadPoolExecutor(len(doors)) as pool:
        return list(pool.map(ask, doors))


@pytest.mark.parametrize("door", [*DOORS, "every-door"])
def test_of_64_reserves_exactly_one_is_granted(server: Server, door: str) -> None:
    doors = list(DOORS) * (CALLERS // len(DOORS)) if door == "every-door" else [door] * CALLERS
    for number in range(ROUNDS):
        told = all_at_once(server, doors, "reserve", f"{door}-{number}")
        assert Counter(one["result"] for one in told) == {"reserved": 1, "in_flight": CALLERS - 1}
        assert sum(one["proceed"] for one in told) == 1
        [granted] = [one for one in told if one["proceed"]]
        assert all(one["attempt"] == granted["attempt"] == 1 for one in told)


@pytest.mark.parametrize("door", ["rpc-tcp", "http-tcp"])
def test_of_64_accepts_exactly_one_is_told_to_go_on(server: Server, door: str) -> None:
    told = all_at_once(server, [door] * CALLERS, "accept", f"accept-{door}")
    assert Counter(one["result"] for one in told) == {"accepted": 1, "completed": CALLERS - 1}


def test_of_64_pipelined_on_one_connection_the_first_is_granted(server: Server) -> None:
    with server.rpc_client() as client:
        params = {"namespace": "default", "key": "pipelined"}
        told = client.pipeline([("reserve", params)] * CALLERS)
        results = [one["result"] for one in told if isinstance(one, dict)]
        # Requests of one connection for one key are applied in the order sent.
        assert results == ["reserved"] + ["in_flight"] * (CALLERS - 1)
        ops = [{"op": "reserve", "namespace": "default", "key": "batched"}] * CALLERS
        batch = client.request("batch", {"ops": ops})["results"]
        assert [one["result"] for one in batch] == ["reserved"] + ["in_flight"] * (CALLERS - 1)


def test_of_64_waiters_each_gets_its_turn(server: Server) -> None:
    with server.rpc_client() as client:
        held = client.call("reserve", key="turns")
    turns: list[int] = []
    lock = threading.Lock()
    inside = threading.Semaphore(1)

    def work(number: int) -> None:
        with client_of(server, DOORS[number % len(DOORS)]) as client:
            client.call("get", key="nothing")
            ready.wait(30)
            answer = client.call("reserve", key="turns", wait_ms=20_000)
            told = answer if isinstance(answer, dict) else answer.members
            assert told["result"] == "reserved", told
            assert inside.acquire(blocking=False), "two are at work on one key"
            with lock:
                turns.append(told["token"])
            inside.release()
            client.call("release", key="turns", token=told["token"])

    ready = threading.Barrier(CALLERS + 1)
    with ThreadPoolExecutor(CALLERS) as pool:
        works = [pool.submit(work, number) for number in range(CALLERS)]
        ready.wait(30)
        with server.rpc_client() as client:
            client.call("release", key="turns", token=held["token"])
        for one in works:
            one.result()
    assert len(turns) == CALLERS
    assert turns == sorted(set(turns)), "tokens went back"
