"""Proof that a server syncs before it answers: what strace saw between a request and its answer."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from bench.peers.durable_object import durable_object
from bench.peers.install import program
from bench.processes import BenchError

CALLS: Final = "trace=read,recvfrom,recvmsg,write,writev,sendto,sendmsg,pwrite64,fsync,fdatasync"
KEYS: Final = 20
"""More than there are objects, so that some meet objects whose files are there already."""

FINISH_S: Final = 10.0
"""How long strace may write on when its process has ended."""

_END: Final = re.compile(r"\+\+\+ (exited|killed) .*\s*\Z")
_REQUEST: Final = re.compile(r"(read|recvfrom|recvmsg)\(.*POST /reserve")
_ANSWER: Final = re.compile(r"(write|writev|sendto|sendmsg)\(.*HTTP/1\.1 201")
_WRITE: Final = re.compile(r"pwrite64\(")
_SYNC: Final = re.compile(r"(fsync|fdatasync)\(")


def of_durable_object(directory: Path) -> dict[str, object]:
    """Run a Durable Object under strace, reserve keys one at a time, and show the system calls of the last reserve.

    Raises:
        BenchError: It could not be traced.
    """
    trace = directory.with_name(directory.name + ".strace")
    # With -D strace is no parent of what it traces: whoever stops the server stops the server and not strace.
    under = [str(program("strace")), "-D", "-f", "-q", "-s", "48", "-e", CALLS, "-o", str(trace)]
    with durable_object(directory, under=under) as peer:
        for number in range(KEYS):
            peer.http.settle(f"traced-{number}")
    return verdict(_finished(trace))


def _finished(trace: Path) -> list[str]:
    """The lines of a trace, once strace has written the last one."""
    deadline = time.monotonic() + FINISH_S
    while not _END.search(text := trace.read_text(errors="replace")):
        if time.monotonic() > deadline:
            raise BenchError("strace did not come to an end")
        time.sleep(0.01)
    return text.splitlines()


def _synced_after_writing(window: list[str]) -> bool:
    """Whether the last write to a file was followed by a sync."""
    written = max((at for at, line in enumerate(window) if _WRITE.search(line)), default=None)
    return written is not None and any(_SYNC.search(line) for line in window[written:])


def verdict(lines: list[str]) -> dict[str, object]:
    """How many grants left behind a sync, and the system calls of the last one."""
    synced = unsynced = 0
    window: list[str] = []
    last: list[str] = []
    for line in lines:
        if _REQUEST.search(line):
            window = []
        window.append(line)
        if _ANSWER.search(line):
            if _synced_after_writing(window):
                synced += 1
            else:
                unsynced += 1
            last, window = window, []
    if synced + unsynced == 0:
        raise BenchError("strace saw no answer")
    shown = [re.sub(r"^\d+\s+", "", line)[:160] for line in last]
    return {"grants_after_a_sync": synced, "grants_without_a_sync": unsynced, "system_calls_of_one_grant": shown}
