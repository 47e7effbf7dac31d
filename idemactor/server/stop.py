"""The signals that say to stop: heard once, and ignored from then on, to the very end of the process.

A service manager may send them to all processes of a server at once, and again; whoever stops already must neither be
ended by the next one nor start anew.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

import trio

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""From a service manager, from a terminal's user, and from a terminal that closes."""


class Told:
    """Whether a signal said to stop.

    Attributes:
        starting: A scope around everything; it is cancelled by a signal that comes before ``started``, when nobody was
            served yet and there is nobody to answer.
    """

    def __init__(self) -> None:
        self.starting = trio.CancelScope()
        self._heard = trio.Event()
        self._started = False

    def started(self) -> None:
        """From now on callers are served: a signal is for ``wait`` to tell."""
        self._started = True

    def hear(self) -> None:
        """A signal came."""
        self._heard.set()
        if not self._started:
            self.starting.cancel()

    def is_set(self) -> bool:
        """Whether one came."""
        return self._heard.is_set()

    async def wait(self) -> None:
        """Wait until one comes."""
        await self._heard.wait()


@contextlib.contextmanager
def told_to_stop() -> Iterator[Told]:
    """Told by the first of ``STOP_SIGNALS``.

    If it came, they are ignored afterwards: what is tidied up after the body is not to be cut off either. Else they
    mean again what they meant before. Only for the main thread.
    """
    told = Told()
    token = trio.lowlevel.current_trio_token()

    def tell(*_: object) -> None:
        token.run_sync_soon(told.hear, idempotent=True)

    before = {number: signal.signal(number, tell) for number in STOP_SIGNALS}
    try:
        yield told
    finally:
        if told.is_set():
            ignore_from_now_on()
        else:
            for number, handler in before.items():
                signal.signal(number, handler)


def ignore_from_now_on() -> None:
    """Ignore ``STOP_SIGNALS``; the interpreter leaves that as it is when it ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
