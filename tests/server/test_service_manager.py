"""What the environment says of a service manager, and what is told to it; the real process is in ``tests/system``."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from idemactor.errors import StartError
from idemactor.server.service_manager import LISTEN_FDS_MAX, NO_SOCKETS, ServiceManager, inherited_sockets


@pytest.mark.parametrize(
    ("environment", "watchdog_ms", "beat_ms"),
    [
        ({}, None, None),
        ({"NOTIFY_SOCKET": "/x"}, None, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000"}, 3_000, 1_000),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3_000, 1_000),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "soon"}, None, None),
        ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "0"}, None, None),
        ({"WATCHDOG_USEC": "3000000"}, None, None),
        ({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "3000000"}, None, None),
    ],
)
def test_what_the_environment_says(
    environment: Mapping[str, str], watchdog_ms: int | None, beat_ms: int | None
) -> None:
    manager = ServiceManager.from_environment(environment, 7)
    assert (manager.watchdog_ms, manager.beat_ms) == (watchdog_ms, beat_ms)


@pytest.mark.parametrize("abstract", [False, True])
def test_what_it_is_told(tmp_path: Path, abstract: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"@idemactor-{os.getpid()}" if abstract else str(tmp_path / "notify")
        manager.bind(f"\0{name[1:]}" if abstract else name)
        manager.settimeout(10)
        service = ServiceManager(name)
        service.ready("up\nREADY=0")
        # A status is one line: it cannot say anything else.
        assert manager.recv(1_000) == b"READY=1\nSTATUS=up READY=0"
        service.stopping()
        assert manager.recv(1_000) == b"STOPPING=1\nSTATUS=draining"
        service.alive()
        assert manager.recv(1_000) == b"WATCHDOG=1"


def test_a_manager_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        service = ServiceManager(str(tmp_path / "notify"))
        for _ in range(10_000):
            service.alive()


@pytest.mark.parametrize("environment", [{}, {"LISTEN_FDS": "1"}, {"LISTEN_PID": "8", "LISTEN_FDS": "1"}])
def test_sockets_of_another_process_are_not_ours(environment: Mapping[str, str]) -> None:
    assert inherited_sockets(environment, 7) is NO_SOCKETS


@pytest.mark.parametrize("count", ["", "-1", "x", str(LISTEN_FDS_MAX + 1)])
def test_a_number_of_sockets_that_cannot_be(count: str) -> None:
    with pytest.raises(StartError, match="LISTEN_FDS"):
        inherited_sockets({"LISTEN_PID": "7", "LISTEN_FDS": count}, 7)


def test_none_at_all() -> None:
    found = inherited_sockets({"LISTEN_PID": "7", "LISTEN_FDS": "0"}, 7)
    assert (found.settings(), found.sockets) == ({}, {})
