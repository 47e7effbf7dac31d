"""A service manager for tests: the other end of sd_notify(3), and sockets passed on as sd_listen_fds(3) has it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

_PASS_ON: Final = """
import fcntl, os, sys
names, given, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
# Out of the way of where they go.
held = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 64) for number in given]
for place, number in enumerate(held):
    os.dup2(number, 3 + place, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)), LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""
"""Becomes the server, whose process id has to be in its environment."""


class Manager:
    """Hears what a service says of itself.

    Args:
        path: Of its socket.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def listen(self, for_s: float) -> list[str]:
        """The lines that come within a time, in order."""
        end, came = time.monotonic() + for_s, list[str]()
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                came += self._socket.recv(4_096).decode().splitlines()
            except TimeoutError:
                break
        self.heard += came
        return came

    def wait_for(self, line: str, timeout_s: float = 30.0) -> None:
        """Listen until a line comes; fails where it does not."""
        end = time.monotonic() + timeout_s
        while line not in self.listen(0.05):
            assert time.monotonic() < end, f"{line} did not come: {self.heard}"


def listening(host: str = "127.0.0.1") -> socket.socket:
    """A listening socket as a manager makes it."""
    sock = socket.create_server((host, 0))
    sock.listen(128)
    return sock


def listening_unix(path: Path) -> socket.socket:
    """The same at a path."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(128)
    return sock


def passing(names: str, sockets: Sequence[socket.socket]) -> list[str]:
    """The command to run a server under, so that it has these sockets; they must be inherited as they are."""
    return [sys.executable, "-c", _PASS_ON, names, ",".join(str(sock.fileno()) for sock in sockets)]
