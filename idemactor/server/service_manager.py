"""What systemd and this process tell each other: sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3).

The protocol is a datagram of lines and three variables of the environment. Without them nobody is told anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from idemactor.errors import StartError
from idemactor.observability.logs import log_event

LISTEN_FDS_START: Final = 3
"""The first descriptor that is passed on (sd_listen_fds(3))."""

LISTEN_FDS_MAX: Final = 64
"""More listening sockets than this are no doors of ours."""

DOORS: Final = ("http", "rpc", "gateway")
"""What ``FileDescriptorName=`` may say."""

BEATS_PER_WATCHDOG: Final = 3
"""So many beats fit into the time that the watchdog waits for one: one that comes late is no reason to be killed."""

_US_PER_MS: Final = 1_000
_UNIX_PREFIX: Final = "unix:"
_log = logging.getLogger(__name__)


class ServiceManager:
    """Where states are told to.

    Args:
        address: The manager's socket: a path, or a name after ``@``; None: nobody listens.
        watchdog_ms: Within this time it wants to hear that we live, milliseconds; None: it does not ask.
    """

    def __init__(self, address: str | None = None, watchdog_ms: int | None = None) -> None:
        self._address = address
        self._failed = False
        self.watchdog_ms = watchdog_ms if address is not None else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> ServiceManager:
        """The one that started this process, if any. What it says of another process is not for us."""
        address = environment.get("NOTIFY_SOCKET") or None
        told = environment.get("WATCHDOG_USEC", "")
        asks = told.isascii() and told.isdecimal() and environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watchdog_ms = int(told) // _US_PER_MS if asks else 0
        return cls(address, watchdog_ms or None)

    @property
    def beat_ms(self) -> int | None:
        """How often to say ``alive``, milliseconds; None: never."""
        return None if self.watchdog_ms is None else max(1, self.watchdog_ms // BEATS_PER_WATCHDOG)

    def ready(self, status: str) -> None:
        """Callers are served."""
        self._tell("READY=1", f"STATUS={_line(status)}")

    def stopping(self) -> None:
        """Nothing new is taken."""
        self._tell("STOPPING=1", "STATUS=draining")

    def status(self, text: str) -> None:
        """One line for people."""
        self._tell(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """For the watchdog."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        name = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto("\n".join(lines).encode(), name)
        except (OSError, ValueError) as error:
            # A manager that is being restarted must not take its services with it.
            if not self._failed:
                log_event(_log, logging.WARNING, "service_manager_not_told", reason=str(error))
            self._failed = True
        else:
            self._failed = False


NOBODY: Final = ServiceManager()
"""No manager."""


def _line(text: str) -> str:
    return text.replace("\n", " ")


@dataclass(frozen=True, slots=True)
class Inherited:
    """Listening sockets that the service manager bound for us.

    Attributes:
        doors: The addresses by the name of the door, in the order of the descriptors.
        sockets: The sockets by address.
    """

    doors: Mapping[str, tuple[str, ...]]
    sockets: Mapping[str, socket.socket]

    def settings(self) -> dict[str, tuple[str, ...]]:
        """What they come to as settings: they stand in for what is configured for their door."""
        return {f"{door}.bind": addresses for door, addresses in self.doors.items()}


NO_SOCKETS: Final = Inherited({}, {})


def inherited_sockets(environment: Mapping[str, str], pid: int) -> Inherited:
    """What was passed on to this process; nothing where it was not meant for it.

    Raises:
        StartError: A socket is none that connections come in at, or has no name that we know.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return NO_SOCKETS
    count = environment.get("LISTEN_FDS", "")
    if not (count.isascii() and count.isdecimal() and int(count) <= LISTEN_FDS_MAX):
        raise StartError(f"LISTEN_FDS is {count!r}: it must be a number from 0 to {LISTEN_FDS_MAX}")
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    doors: dict[str, list[str]] = {}
    sockets: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        for door, sock in _passed(int(count), names):
            undo.callback(sock.close)
            address = _address(sock, door)
            doors.setdefault(door, []).append(address)
            sockets[address] = sock
        undo.pop_all()
    return Inherited({door: tuple(found) for door, found in doors.items()}, sockets)


def _passed(count: int, names: Sequence[str]) -> Iterator[tuple[str, socket.socket]]:
    for number in range(count):
        descriptor, name = LISTEN_FDS_START + number, names[number] if number < len(names) else ""
        if name not in DOORS:
            known = ", ".join(DOORS)
            raise StartError(
                f"the socket of descriptor {descriptor} is called {name!r}: say FileDescriptorName= with one of {known}"
            )
        try:
            os.set_inheritable(descriptor, False)
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            raise StartError(f"descriptor {descriptor}, passed on for {name}, is no socket: {error}") from error
        yield name, sock


def _address(sock: socket.socket, door: str) -> str:
    """Where it listens, as the settings say it."""
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise StartError(
            f"the socket passed on for {door} does not listen for connections: say ListenStream=, Accept=no"
        )
    sock.setblocking(False)
    name = sock.getsockname()
    if sock.family == socket.AF_INET:
        return f"{name[0]}:{name[1]}"
    if sock.family == socket.AF_INET6:
        return f"[{name[0]}]:{name[1]}"
    if sock.family == socket.AF_UNIX and isinstance(name, str) and name:
        return f"{_UNIX_PREFIX}{name}"
    raise StartError(f"the socket passed on for {door} is neither TCP nor a Unix socket with a path")
