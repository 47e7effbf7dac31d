"""The signals of a server: those that say to stop, and the one that says to read its tokens anew.

What says to stop is heard once, and ignored from then on, to the very end of the process. A service manager may send it
to all processes of a server at once, and again; whoever stops already must neither be ended by the next one nor start
anew. SIGHUP is what terminals send that close as well as what operators send: a terminal that is gone tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Final

import trio

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""From a service manager, and from a terminal's user."""

SIGNALS: Final = (*STOP_SIGNALS, signal.SIGHUP)
"""All that a server hears."""

_TERMINAL: Final = "/dev/tty"
"""A process's own terminal, whichever that is; it cannot be opened where there is none (any more)."""


class Terminal:
    """The terminal that a server was started from, if any; ``nohup`` says that its end does not matter."""

    def __init__(self) -> None:
        self._matters = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    @property
    def closed(self) -> bool:
        """Whether it was there at the start and is gone: a SIGHUP was its last word."""
        return self._matters and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def told_to_stop(reload: Callable[[], None]) -> Iterator[trio.Event]:
    """An event that is set by the first of ``STOP_SIGNALS``, or by SIGHUP from a terminal that closes.

    If it came, they are ignored afterwards: what is tidied up after the body is not to be cut off either. Else they
    mean again what they meant before. Only for the main thread.

    Args:
        reload: Called in the loop after any other SIGHUP; must not raise.
    """
    told = trio.Event()
    token = trio.lowlevel.current_trio_token()
    terminal = Terminal()

    def tell(*_: object) -> None:
        token.run_sync_soon(told.set, idempotent=True)

    def hang_up(*_: object) -> None:
        token.run_sync_soon(heed, idempotent=True)

    def heed() -> None:
        if terminal.closed:
            told.set()
        elif not told.is_set():
            reload()

    handlers = {**dict.fromkeys(STOP_SIGNALS, tell), signal.SIGHUP: hang_up}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield told
    finally:
        if told.is_set():
            ignore_from_now_on()
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore_from_now_on() -> None:
    """Ignore ``SIGNALS``; the interpreter leaves that as it is when it ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
