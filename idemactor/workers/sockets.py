"""The Unix sockets between the workers of one directory: bound once, before there are workers, and inherited by them.

They lie in the data directory, which is nobody else's. A worker that is being started again has its listening socket
all along: whoever connects meanwhile waits in its queue, and is greeted as soon as it is back.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from idemactor.errors import StartError

BACKLOG: Final = 128
RETRY_MS: Final = 100
"""How long to wait before another try to connect to a worker whose queue is full, or that is being stopped."""

_MS_PER_S: Final = 1_000


def socket_name(worker: int) -> str:
    """The name of a worker's socket."""
    return f"worker-{worker}.sock"


def bind_sockets(directory: Path, workers: int) -> list[socket.socket]:
    """A listening socket for each worker; what an earlier server left in their places is removed.

    The directory must be owned: nobody else listens there.

    Raises:
        StartError: One cannot be bound.
    """
    with contextlib.ExitStack() as undo, _short(directory) as short:
        bound = []
        for worker in range(workers):
            (directory / socket_name(worker)).unlink(missing_ok=True)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(sock.close)
            try:
                sock.bind(f"{short}/{socket_name(worker)}")
            except OSError as error:
                raise StartError(f"cannot listen on {directory / socket_name(worker)}: {error}") from error
            sock.listen(BACKLOG)
            sock.setblocking(False)
            bound.append(sock)
        undo.pop_all()
        return bound
    raise AssertionError("an exit stack swallows nothing")


def remove_sockets(directory: Path, workers: int) -> None:
    """Remove their files."""
    for worker in range(workers):
        (directory / socket_name(worker)).unlink(missing_ok=True)


async def connect(directory: Path, worker: int) -> trio.SocketStream:
    """A connection to a worker; waits for as long as there is none to be had."""
    while True:
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short(directory) as short:
                await sock.connect(f"{short}/{socket_name(worker)}")
            return trio.SocketStream(sock)
        except OSError:
            sock.close()
        except BaseException:
            sock.close()
            raise
        await trio.sleep(RETRY_MS / _MS_PER_S)


@contextlib.contextmanager
def _short(directory: Path) -> Iterator[str]:
    """A short name for a directory, however deep it lies: the name of a Unix socket has at most 107 bytes."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
