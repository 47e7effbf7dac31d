"""A child process that is a copy of this one, and that never outlives it.

A copy has what its parent read and bound: the configuration as it was then, the listening sockets, the TLS keys, the
code. So a worker that is started again needs nothing that may have changed meanwhile, and is there at once. That is
safe because the parent has no thread, no event loop and no database open, ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from idemactor.errors import StartError, messages_of
from idemactor.server.stop import SIGNALS

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""A child's exit code where it said what the user has to put right; as ``idemactor serve``'s own."""

NEWS_BYTES: Final = 4_096
_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""


@dataclass(slots=True)
class Child:
    """A child process.

    Attributes:
        pid: Which one.
        news: What it writes can be read here, until it ends.
        silent: It has closed its side: nothing more will come.
    """

    pid: int
    news: int
    silent: bool = False

    def read(self) -> bytes:
        """What it has said since the last time."""
        said = b""
        while not self.silent:
            try:
                piece = os.read(self.news, NEWS_BYTES)
            except BlockingIOError:
                break
            self.silent = not piece
            said += piece
        return said

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; harmless where it has just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def forget(self) -> None:
        """It was waited for: let go of what is left of it."""
        os.close(self.news)


def start_child(work: Callable[[Callable[[bytes], None]], None]) -> Child:
    """Start a copy of this process that does ``work`` and ends.

    Args:
        work: Is given a function that sends bytes to the parent. An error that it raises is said on standard error,
            and decides the exit code.

    Raises:
        OSError: There is no room for another process.
    """
    news, told = os.pipe()
    parent = os.getpid()
    # What tells the copy to stop waits until the copy would: at first it has its parent's handlers, which do nothing.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            os.close(news)
            _live(work, told, parent)
    except OSError:
        os.close(news)
        os.close(told)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    os.close(told)
    os.set_blocking(news, False)
    return Child(pid, news)


def _live(work: Callable[[Callable[[bytes], None]], None], told: int, parent: int) -> NoReturn:
    code = EXIT_FAILED
    try:
        _die_with(parent)
        _take_signals_anew()
        os.set_blocking(told, False)
        code = _carry_out(work, lambda data: _tell(told, data))
    except BaseException:
        traceback.print_exc()
    finally:
        # Nothing of the parent's is to be tidied up here, whatever is on the stack.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _carry_out(work: Callable[[Callable[[bytes], None]], None], tell: Callable[[bytes], None]) -> int:
    mistakes: list[str] = []
    try:
        work(tell)
    except* StartError as group:
        mistakes.extend(messages_of(group))
    for mistake in mistakes:
        print(f"idemactor: {mistake}", file=sys.stderr)
    return EXIT_USAGE if mistakes else 0


def _tell(descriptor: int, data: bytes) -> None:
    # A parent that is gone takes this process with it, and one that was stopped and does not read must not stop it.
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        os.write(descriptor, data)


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends; at once where it has already."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        os._exit(EXIT_FAILED)


def _take_signals_anew() -> None:
    """What a terminal sends to all its processes is the parent's to understand; it tells its children to stop."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
