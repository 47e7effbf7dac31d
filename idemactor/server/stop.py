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


class Told:
    """Whether a signal said to stop, or to reload.

    Attributes:
        starting: A scope around everything; it is cancelled by a signal that comes before ``started``, when nobody was
            served yet and there is nobody to answer.
    """

    def __init__(self) -> None:
        self.starting = trio.CancelScope()
        self._heard = trio.Event()
        self._started = False
        self._reload: Callable[[], None] | None = None
        self._hung_up = False

    def started(self) -> None:
        """From now on callers are served: a signal is for ``wait`` to tell."""
        self._started = True

    def reload_with(self, reload: Callable[[], None]) -> None:
        """From now on ``reload`` is called at each ``hang_up``, and at once where there was one; it must not raise."""
        self._reload = reload
        if self._hung_up and not self.is_set():
            reload()

    def hang_up(self) -> None:
        """A SIGHUP came that says to reload; whoever stops already does not."""
        self._hung_up = True
        if self._reload is not None and not self.is_set():
            self._reload()

    def hear(self) -> None:
        """A signal came that says to stop."""
        self._heard.set()
        if not self._started:
            self.starting.cancel()

    def is_set(self) -> bool:
        """Whether one said to stop."""
        return self._heard.is_set()

    async def wait(self) -> None:
        """Wait until one does."""
        await self._heard.wait()


@contextlib.contextmanager
def told_to_stop() -> Iterator[Told]:
    """Told by the first of ``STOP_SIGNALS``, or by SIGHUP from a terminal that closes; any other SIGHUP says to reload.

    If it came, all signals are ignored afterwards: what is tidied up after the body is not to be cut off either. Else
    they mean again what they meant before. Only for the main thread.
    """
    told = Told()
    token = trio.lowlevel.current_trio_token()
    terminal = Terminal()

    def tell(*_: object) -> None:
        token.run_sync_soon(told.hear, idempotent=True)

    def hang_up(*_: object) -> None:
        token.run_sync_soon(heed, idempotent=True)

    def heed() -> None:
        if terminal.closed:
            told.hear()
        else:
            told.hang_up()

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
