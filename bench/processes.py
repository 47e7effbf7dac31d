"""Child processes of a benchmark: they are always stopped, and they say why where they do not come up."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

STOP_S: Final = 20.0
"""How long a server may take to drain."""

START_S: Final = 60.0
"""How long a server may take to come up."""

TAIL_CHARS: Final = 500
"""How much of a log an error message quotes."""

_POLL_S: Final = 0.002
_PR_SET_PDEATHSIG: Final = 1
"""From linux/prctl.h."""
_CPUCLOCK_SCHED: Final = 2
"""From linux/posix-timers.h: what a process used by the scheduler's count, nanoseconds."""
_LIBC: Final = ctypes.CDLL(None)


class BenchError(Exception):
    """Something that a benchmark needs did not work; the message says what."""


def die_with_parent() -> None:
    """In a child: be killed when the harness is, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def running(
    command: Sequence[str],
    *,
    log: Path,
    stop_with: signal.Signals = signal.SIGTERM,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start a server and stop it in the end.

    Args:
        log: Takes its standard error, and its standard output unless ``stdout`` says otherwise.
        stop_with: What makes it stop in good order; it is killed where that takes longer than ``STOP_S``.
    """
    with log.open("a") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout if stdout is not None else errors,
            stderr=errors,
            text=True,
            env=None if environment is None else {**os.environ, **environment},
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        stop(process, stop_with)


def stop(process: subprocess.Popen[str], stop_with: signal.Signals) -> None:
    """Stop a process, in good order if it can."""
    if process.poll() is None:
        process.send_signal(stop_with)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str], log: Path) -> None:
    """Wait until a server answers.

    Raises:
        BenchError: It ended, or ``START_S`` were over; the message has the end of its log.
    """
    deadline = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"{process.args!r} did not come up: {tail(log)}")
        time.sleep(_POLL_S)


def tail(log: Path) -> str:
    """The end of a log."""
    return " ".join(log.read_text(errors="replace")[-TAIL_CHARS:].split()) if log.exists() else "(no log)"


def accepts(port: int) -> bool:
    """Whether something listens on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


def free_port() -> int:
    """A port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def output_of(command: Sequence[str], *, cwd: Path | None = None) -> str:
    """What a program prints, as text; raises as ``output_bytes`` does."""
    return output_bytes(command, cwd=cwd).decode(errors="replace")


def output_bytes(command: Sequence[str], *, cwd: Path | None = None) -> bytes:
    """What a program prints.

    Raises:
        BenchError: It failed; the message has what it said.
    """
    done = subprocess.run(command, capture_output=True, cwd=cwd, check=False, preexec_fn=die_with_parent)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace")[-TAIL_CHARS:]
        raise BenchError(f"{' '.join(command[:3])} failed ({done.returncode}): {said}")
    return done.stdout


def cpu_s(pid: int) -> float:
    """The CPU time that a process used so far, those of its threads that have ended included, seconds.

    By its CPU clock (clock_getcpuclockid(3), which makes its number from the process's just like this): ``stat`` counts
    in ticks of 10 ms, which is a lot of a short run.
    """
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def resident_bytes(pid: int) -> int:
    """The memory of a process that is resident now (proc(5), VmRSS of status)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
