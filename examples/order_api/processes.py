"""Programs that are started, killed and started again."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

START_S: Final = 30.0
_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""
_LIBC: Final = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In a child: be killed when whoever started it is, however that ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(check: Callable[[], bool], what: str, timeout_s: float = 40.0) -> None:
    """Wait until ``check()``. Raises: AssertionError: it did not come to be in time."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"it did not come to be in {timeout_s} s: {what}")
        time.sleep(0.01)


@dataclass(slots=True)
class Program:
    """A module that is run as a process, time after time.

    Attributes:
        port: Where it listens, 0 for one that does not.
        log: Takes what it says.
    """

    arguments: Sequence[str]
    log: Path
    port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once it listens. Raises: RuntimeError: it ended instead."""
        if self._process is not None:
            return
        # What runs is the source tree that this file is of.
        path = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **path, **self.environment},
                preexec_fn=die_with_parent,
            )
        eventually(lambda: self._up() or not self.alive, f"{self.arguments[0]} listens", START_S)
        if not self.alive:
            raise RuntimeError(f"{self.arguments[0]} ended: {self.log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """SIGKILL; harmless where it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Kill it if it still runs, and start it again."""
        self.kill()
        self.start()

    def _up(self) -> bool:
        if not self.port:
            return True
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
