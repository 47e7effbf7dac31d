"""What the supervisor makes of a child that ended when it was needed, and of what it is told itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from idemactor.config import ServerConfig
from idemactor.config.reload import TokenReloader
from idemactor.observability.audit import NO_AUDIT
from idemactor.server.service_manager import NOBODY, ServiceManager
from idemactor.server.stop import SIGNALS, Terminal
from idemactor.supervisor import parent
from idemactor.supervisor.parent import _Ended, _signals, _Stopped, _Supervisor
from idemactor.supervisor.process import EXIT_FAILED, Child, start_child


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def made(signals: int, manager: ServiceManager = NOBODY) -> _Supervisor:
    return _Supervisor(signals, TokenReloader(ServerConfig(), ServerConfig), NO_AUDIT, Terminal(), manager)


@pytest.mark.parametrize("code", [0, -signal.SIGTERM])
def test_a_child_that_was_told_to_stop_before_its_parent_was_is_no_failure(code: int) -> None:
    with _signals() as signals:
        supervisor, us = made(signals), os.getpid()
        teller = start_child(lambda _: os.kill(us, signal.SIGTERM))
        with pytest.raises(_Stopped):
            supervisor._give_up(code)
        os.waitpid(teller.pid, 0)
        teller.forget()
    # Nothing ends it any more while it tidies up, and afterwards.
    os.kill(us, signal.SIGTERM)


@pytest.mark.parametrize(("code", "told"), [(0, EXIT_FAILED), (-signal.SIGTERM, -signal.SIGTERM), (2, 2), (-9, -9)])
def test_a_child_that_ended_for_itself_is_one(code: int, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "TOGETHER_SECONDS", 0.001)
    with _signals() as signals, pytest.raises(_Ended) as ended:
        made(signals)._give_up(code)
    assert ended.value.code == told


class _Listening(ServiceManager):
    """A service manager that counts signs of life."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = 0

    def alive(self) -> None:
        self.beats += 1


class _Stone(Child):
    """A process that no signal ends: it waits for a disk that is gone."""

    def signal(self, number: signal.Signals) -> None:
        killed.append(number)


killed: list[signal.Signals] = []


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time, milliseconds, to be set."""
    killed.clear()
    time_ms = [1_000_000]
    monkeypatch.setattr(parent, "_now_ms", lambda: time_ms[0])
    return time_ms


def _with_workers(manager: ServiceManager, now: list[int]) -> _Supervisor:
    supervisor = made(-1, manager)
    supervisor._workers = [
        parent._Worker(n, _Stone(0, -1), ready=True, started_ms=now[0], heard_ms=now[0]) for n in range(2)
    ]
    supervisor._looked_ms = now[0]
    return supervisor


def test_a_worker_that_is_silent_is_killed_once_and_the_watchdog_hears_nothing_until_it_is_gone(now: list[int]) -> None:
    manager = _Listening()
    supervisor = _with_workers(manager, now)
    for second in range(1, 21):
        now[0] = 1_000_000 + second * 1_000
        supervisor._workers[0].heard_ms = now[0]
        supervisor._look_after(10_000)
    # The second one was silent: for 10 s it is given the benefit of the doubt, then it is killed, and cannot be.
    assert killed == [signal.SIGKILL]
    assert manager.beats == 10
    supervisor._workers[1].child, supervisor._workers[1].hung = None, False
    supervisor._look_after(10_000)
    # It died at last, and is to be started anew: that is ours to see to.
    assert manager.beats == 11


def test_a_supervisor_that_was_away_blames_nobody(now: list[int]) -> None:
    manager = _Listening()
    supervisor = _with_workers(manager, now)
    now[0] += 3_600_000
    supervisor._look_after(10_000)
    assert not killed
    assert manager.beats == 1


def test_a_supervisor_that_was_away_before_it_began_to_watch_blames_nobody(
    now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = _with_workers(_Listening(), now)
    rounds = iter([False, True])

    def sleep(_timeout_s: float | None) -> None:
        if next(rounds):
            raise _Stopped

    for name, double in (
        ("_sleep", sleep),
        ("_hear", lambda _: None),
        ("_bury", lambda _: None),
        ("_stop", lambda _: 0),
    ):
        monkeypatch.setattr(supervisor, name, double)
    now[0] += 3_600_000
    given: Any = SimpleNamespace(config=ServerConfig())
    assert supervisor.watch(given) == 0
    assert not killed


def test_a_worker_that_never_becomes_ready_is_given_its_time_and_no_more(now: list[int]) -> None:
    manager = _Listening()
    supervisor = _with_workers(manager, now)
    supervisor._workers[1].ready = False
    for second in range(1, parent.START_MS_MAX // 1_000 + 3):
        now[0] = 1_000_000 + second * 1_000
        supervisor._workers[0].heard_ms = now[0]
        supervisor._look_after(10_000)
        assert bool(killed) == (second * 1_000 > parent.START_MS_MAX)
