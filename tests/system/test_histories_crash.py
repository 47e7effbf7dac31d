"""Histories of the real process through both doors, while it is killed, stopped, loses workers, and has a slow disk.

Each key's history has to be linearizable, judged by ``tests/histories``. ``CRASH_ROUNDS`` says how many rounds (a
twentieth of it each), ``SYSTEM_SEED`` replays the choices of a run (the moments are the machine's).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from idemactor.core.keys import Identity
from tests.histories.checker import unexplained
from tests.system.process import Server, assert_clean
from tests.system.recording import CONFIG, POLICIES, RecordedCaller, Recorder
from tests.system.slow_server import FORGETS, SLOW_MS
from tests.system.worker_server import Workers

ROUNDS: Final = max(1, int(os.environ.get("CRASH_ROUNDS", "20")) // 20)
LIVES: Final = 2
"""How often the server is started in a round, each time with the keys of the lives before."""
LIFE_S: Final = (0.3, 1.0)
CALLERS: Final = 8
KEYS: Final = 9
STOPPED_S: Final = (0.05, 0.7)

Trouble = Callable[[Server, random.Random], None]
Make = Callable[[Path], Server]


def _killed(server: Server, chance: random.Random) -> None:
    time.sleep(chance.uniform(*LIFE_S))
    server.kill()


def _stopped(server: Server, chance: random.Random) -> None:
    """SIGSTOP and SIGCONT: for who is stopped, time goes on all the same."""
    time.sleep(chance.uniform(*LIFE_S) / 2)
    server.signal(signal.SIGSTOP)
    time.sleep(chance.uniform(*STOPPED_S))
    server.signal(signal.SIGCONT)
    _killed(server, chance)


def _bereft(server: Server, chance: random.Random) -> None:
    """Single workers die, or are stopped, while the others live."""
    assert isinstance(server, Workers)
    for _ in range(3):
        time.sleep(chance.uniform(*LIFE_S) / 2)
        with contextlib.suppress(ProcessLookupError):  # It may still be dead.
            _strike(server.pid_of(chance.randrange(server.workers)), chance)
    _killed(server, chance)


def _strike(pid: int, chance: random.Random) -> None:
    if chance.random() < 0.6:
        os.kill(pid, signal.SIGKILL)
        return
    os.kill(pid, signal.SIGSTOP)
    time.sleep(chance.uniform(*STOPPED_S))
    os.kill(pid, signal.SIGCONT)


def _plain(home: Path) -> Server:
    return Server(home, "[server]\nshards = 3\n" + CONFIG)


def _slow(home: Path) -> Server:
    return Server(home, "[server]\nshards = 3\n" + CONFIG, module="tests.system.slow_server", extra={SLOW_MS: "10"})


def _workers(home: Path) -> Server:
    return Workers(home, 3, CONFIG)


@pytest.mark.parametrize(
    ("make", "trouble"),
    [(_plain, _killed), (_plain, _stopped), (_workers, _bereft), (_slow, _killed)],
    ids=["killed", "stopped", "bereft of workers", "slow disk"],
)
def test_every_history_is_linearizable(home: Path, seed: int, make: Make, trouble: Trouble) -> None:
    chance = random.Random(seed)
    server = make(home)
    told: Counter[str] = Counter()
    for number in range(ROUNDS):
        recorder = _round(server, trouble, chance, f"r{number}")
        assert_clean(server.data_dir)
        assert not (found := unexplained(recorder.calls)), "\n".join(found)
        told.update(type(call.reply).__name__ for call in recorder.calls)
    print(f"{sum(told.values())} calls judged: {dict(told)}")
    # A run in which hardly anything happened proves nothing.
    assert told["Reserved"] > 5 * ROUNDS
    assert told["NoneType"] > ROUNDS
    assert min(told[name] for name in ("Committed", "Released", "InFlight")) > 0


def test_a_disk_that_forgets_is_found_out(home: Path, seed: int) -> None:
    """The judge and the callers together: where something is lost, somebody notices."""
    chance = random.Random(seed)
    server = Server(home, CONFIG, module="tests.system.slow_server", extra={SLOW_MS: "1", FORGETS: "1"})
    assert any(unexplained(_round(server, _killed, chance, f"r{number}").calls) for number in range(3))


def _round(server: Server, trouble: Trouble, chance: random.Random, name: str) -> Recorder:
    """Some lives of a server with keys of their own, and all that its callers were told."""
    keys = [Identity("default", chance.choice(list(POLICIES)), f"{name}-k{index}") for index in range(KEYS)]
    recorder = Recorder(keys)
    callers = [
        RecordedCaller(recorder, random.Random(chance.random()), over_http=caller % 2 == 0) for caller in range(CALLERS)
    ]
    for _ in range(LIVES):
        _live(server, callers, trouble, chance)
        recorder.died()
    return recorder


def _live(server: Server, callers: list[RecordedCaller], trouble: Trouble, chance: random.Random) -> None:
    server.start()
    doors = _doors(server)
    over, failures = threading.Event(), list[BaseException]()

    def run(caller: RecordedCaller) -> None:
        try:
            caller.work(doors.__getitem__, over)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(caller,)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        trouble(server, chance)
    finally:
        server.kill()
        over.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def _doors(server: Server) -> dict[str, list[str]]:
    if isinstance(server, Workers):
        return {door: server.direct(door) for door in ("http", "rpc")}
    return {door: server.addresses(door) for door in ("http", "rpc")}
