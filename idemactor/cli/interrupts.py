"""What Ctrl-C and SIGTERM do to a command, from its first moment to its last.

Imports next to nothing: it is there before all else.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Final

INTERRUPTED: Final = 130
"""What shells tell of a command that Ctrl-C ended: 128 + SIGINT."""
TOOLS: Final = frozenset({"check", "reencrypt", "backup", "restore", "reshard", "export", "import"})
"""The commands that work on files: SIGTERM ends them as Ctrl-C does. The others have signals of their own."""

_BOTH: Final = (signal.SIGINT, signal.SIGTERM)


def heed_from_the_start(arguments: Sequence[str]) -> None:
    """While the program is being imported, a signal ends it at once, with the code of one that was interrupted.

    An exception would be lost in whatever is being imported, or told as a failure of that. Nothing has begun.

    Args:
        arguments: Those of the program, the command first.
    """
    for number in _BOTH if arguments and arguments[0] in TOOLS else (signal.SIGINT,):
        # Who was started with a signal ignored (nohup, a background job) goes on ignoring it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    # Python takes its handlers away at the very end: what did all that was asked would be told as killed.
    atexit.register(_ignore)


def as_usual() -> None:
    """Signals do what they do to any Python program again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """While it lasts, both signals raise KeyboardInterrupt, so that what was begun is cleaned away."""
    before = {number: signal.getsignal(number) for number in _BOTH}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                # Trio knows this one by its name.
                signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore() -> None:
    for number in _BOTH:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_IGN)


def _leave(_number: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
