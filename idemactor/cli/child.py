"""A command in a process of its own, for ``idemactor run``: started, signalled, its output passed on and kept.

The command gets a process group of its own, so that a signal reaches all that it started; on a terminal it stays in
the terminal's, so that it can read from it, and Ctrl-C reaches it anyway.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from idemactor.cli.exits import SIGNALLED

READ_BYTES: Final = 65_536
PIPE_BYTES_MAX: Final = 1_048_576
"""What a pipe holds at most: no more than this can have been written by a command that has ended."""
_PR_SET_PDEATHSIG: Final = 1
"""Linux: the signal that a process gets when the one that started it ends, prctl(2)."""


class Tail:
    """The last bytes of an output, and how many came before them."""

    __slots__ = ("_kept", "_max", "dropped")

    def __init__(self, bytes_max: int) -> None:
        self.dropped = 0
        self._max = bytes_max
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """More output."""
        self._kept += data
        if (over := len(self._kept) - self._max) > 0:
            del self._kept[:over]
            self.dropped += over

    @property
    def kept(self) -> bytes:
        """What is kept of it."""
        return bytes(self._kept)


class Child:
    """One command.

    Args:
        command: The program and its arguments.
        environment: All its variables.
        tail: Keeps the end of its standard output, which is passed on as well; None: it writes to ours directly.
        dies_with_us: Whether it is told to end (SIGTERM) when this process ends without having waited for it.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, tail: Tail | None, dies_with_us: bool
    ) -> None:
        self._on_terminal = os.isatty(sys.__stdin__.fileno()) if sys.__stdin__ is not None else False
        self._tail = tail
        # Started from this thread, the main one, and not from a helper: it is the end of the starting thread that the
        # kernel takes for the end of the parent.
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdout=None if tail is None else subprocess.PIPE,
            process_group=None if self._on_terminal else 0,
            preexec_fn=_dying_with(os.getpid()) if dies_with_us else None,
        )

    def poll(self) -> int | None:
        """Its exit code as shells tell it; None while it runs."""
        code = self._process.poll()
        return SIGNALLED - code if code is not None and code < 0 else code

    @property
    def how(self) -> str:
        """How it ended, for people."""
        code = self._process.returncode
        if code is not None and code < 0:
            return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"exit status {code}"

    def pass_on(self, number: signal.Signals) -> None:
        """Hand on a signal that this process got. What a terminal's keys send, the terminal sent to the command too."""
        if not (self._on_terminal and number in (signal.SIGINT, signal.SIGQUIT)):
            self.send(number)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command and what it started; nothing where it has ended."""
        if self._process.poll() is not None:
            return
        if self._on_terminal:
            self._process.send_signal(number)
        else:
            os.killpg(self._process.pid, number)

    async def pass_output(self) -> None:
        """Pass its output on until it is over, or until cancelled; ``drain`` has the rest."""
        pipe, tail = self._process.stdout, self._tail
        if pipe is None or tail is None:
            return
        while True:
            await trio.lowlevel.wait_readable(pipe.fileno())
            # What is read is handed on whatever is cancelled meanwhile: nobody else could do it.
            with trio.CancelScope(shield=True):
                data = os.read(pipe.fileno(), READ_BYTES)
                # In a thread: a reader who is slow must not keep the lease from being renewed.
                if not data or not await trio.to_thread.run_sync(_handed_on, data):
                    # Nobody reads on: the command is to notice as if it wrote there itself.
                    pipe.close()
                    self._process.stdout = None
                    return
            tail.add(data)

    async def drain(self) -> None:
        """Once it has ended: what it wrote and nobody read yet. What it left running may go on writing; we do not."""
        pipe, tail = self._process.stdout, self._tail
        if pipe is None or tail is None:
            return
        os.set_blocking(pipe.fileno(), False)
        left = PIPE_BYTES_MAX
        try:
            while left > 0 and (data := os.read(pipe.fileno(), min(left, READ_BYTES))):
                left -= len(data)
                tail.add(data)
                if not await trio.to_thread.run_sync(_handed_on, data):
                    break
        except BlockingIOError:
            pass
        finally:
            pipe.close()


def _handed_on(data: bytes) -> bool:
    """Write to our standard output; False where nobody reads it any more."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        return False
    return True


def _dying_with(parent: int) -> Callable[[], None] | None:
    """What the new process does before it becomes the command; None where the system cannot do it."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            # It ended before we could ask: nobody will tell us.
            os.kill(os.getpid(), signal.SIGTERM)

    return prepare
