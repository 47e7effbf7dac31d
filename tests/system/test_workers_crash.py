"""SIGKILL of workers and supervisors at random moments: callers at all workers, and histories that must be explainable.

``CRASH_ROUNDS`` says how often (a tenth of it here), ``SYSTEM_SEED`` replays the choices of a run.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path
from typing import Final

from tests.system import test_crash
from tests.system.clients import Lost
from tests.system.history import History, Key
from tests.system.process import Server, assert_clean
from tests.system.test_crash import CALLERS, KEYS, NAMESPACES, Caller
from tests.system.worker_server import PatientHttp, PatientRpc, Workers

ROUNDS: Final = max(2, test_crash.ROUNDS // 10)
CONFIG: Final = test_crash.CONFIG.partition("shards = 3")[2]
KILLS: Final = 4
"""How many workers die in a round, one after the other."""
BETWEEN_S: Final = (0.0, 0.6)


class WorkerCaller(Caller):
    """Takes "nobody knows" for a lost answer, and asks again, at another worker."""

    def go_on(self, rpc: list[str], http: list[str], keys: list[Key], over: threading.Event) -> None:
        while not over.is_set():
            try:
                address = self._chance.choice(http if self._over_http else rpc)
                with PatientHttp(address) if self._over_http else PatientRpc(address) as self._client:
                    lost, self._lost = self._lost, None
                    if lost is not None:
                        self._ask(lost.op, lost.key, lost.members, lost.settle)
                    while not over.is_set():
                        self._turn(self._chance.choice(keys))
            except Lost:
                # Its worker may be away: try another one, but not a thousand times meanwhile.
                time.sleep(0.01)


def test_no_key_is_granted_twice_whichever_workers_die(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    history = History()
    callers = [WorkerCaller(history, random.Random(chance.random()), number % 2 == 0) for number in range(CALLERS)]
    server = Workers(home, 2, CONFIG, shards=6)
    try:
        for number in range(ROUNDS):
            server.workers = chance.choice((2, 3))
            server.start()
            test_crash._verify(server, history)
            keys = [(chance.choice(NAMESPACES), f"r{number}-k{index}") for index in range(KEYS)]
            _run_round(server, callers, keys, chance)
            history.check()
            if chance.random() < 0.5:
                server.kill()
            else:
                assert server.terminate() == 0
            assert_clean(server.data_dir)
        server.workers = 1
        server.start()
        test_crash._verify(server, history)
    finally:
        server.kill()
    assert sum(caller.calls for caller in callers) > ROUNDS * CALLERS * KILLS
    assert sum(len(ledger.grants) for ledger in history.ledgers.values()) > ROUNDS * 5
    assert sum(ledger.committed is not None for ledger in history.ledgers.values()) > ROUNDS
    calls = sum(caller.calls for caller in callers)
    print(f"{ROUNDS * KILLS} workers killed, {calls} calls for {len(history.ledgers)} keys: nothing promised was lost")


def _run_round(server: Workers, callers: list[WorkerCaller], keys: list[Key], chance: random.Random) -> None:
    rpc, http = server.direct("rpc"), server.direct("http")
    failures: list[BaseException] = []
    over = threading.Event()

    def run(caller: WorkerCaller) -> None:
        try:
            caller.go_on(rpc, http, keys, over)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    for _ in range(KILLS):
        time.sleep(chance.uniform(*BETWEEN_S))
        with contextlib.suppress(ProcessLookupError):  # It may still be dead.
            server.kill_worker(chance.randrange(server.workers))
    time.sleep(chance.uniform(*BETWEEN_S))
    over.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    server.wait_whole()


def test_a_directory_of_workers_survives_kills_during_its_start(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    server = Workers(home, 2, CONFIG, shards=6)
    with server, server.rpc_client() as client:
        token = client.call("reserve", key="k", lease_ms=3_600_000)["token"]
    for _ in range(ROUNDS * 5):
        server.workers = chance.choice((1, 2, 3))
        server._environment["IDEMACTOR_SERVER__WORKERS"] = str(server.workers)
        Server.start_and_kill(server, chance.uniform(0.1, 0.9))
    assert_clean(server.data_dir)
    with server.start(), server.rpc_client() as client:
        assert client.call("get", key="k")["record"]["token"] == token
