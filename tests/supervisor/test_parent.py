"""What the supervisor makes of a child that ended when it was needed, and of what it is told itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from idemactor.config import ServerConfig
from idemactor.config.reload import TokenReloader
from idemactor.server.stop import SIGNALS, Terminal
from idemactor.supervisor import parent
from idemactor.supervisor.parent import _Ended, _signals, _Stopped, _Supervisor
from idemactor.supervisor.process import EXIT_FAILED, start_child


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def made(signals: int) -> _Supervisor:
    return _Supervisor(signals, TokenReloader(ServerConfig(), ServerConfig), Terminal())


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
