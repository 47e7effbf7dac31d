"""Bytes on their way to one client: written at once where the socket takes them, else by one task, within limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import trio

from idemactor.server.backlog import Backlog

PIECE_BYTES: Final = 65_536
"""What a slow client is given at a time: one that does read is not cut off for the size of its answers."""

_MS_PER_S: Final = 1_000


def _nobody() -> None:
    """Is told nothing."""


class Outbox:
    """The sending side of one connection.

    Args:
        stream: Where the bytes go. Nobody else sends on it.
        write_ms: How long the client may take for ``PIECE_BYTES``, milliseconds.
        on_change: Called whenever there is more room, and when the client is gone. It must neither block nor raise.
        backlog: Shared with others; None: this one is alone.
    """

    def __init__(
        self,
        stream: trio.abc.SendStream,
        write_ms: int,
        on_change: Callable[[], None],
        backlog: Backlog | None = None,
    ) -> None:
        self._backlog = backlog or Backlog()
        self.broken = False
        self.too_slow = False
        self._stream = stream
        self._write_ms = write_ms
        self._on_change = on_change
        self._waiting = bytearray()
        self._writing = 0
        self._wake = trio.Event()
        self._fd = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else None

    @property
    def waiting_bytes(self) -> int:
        """What the client has not taken yet."""
        return len(self._waiting) + self._writing

    def room(self, bytes_max: int) -> int:
        """How many bytes more may wait, of ``bytes_max`` where there is room for all clients; none: not one answer."""
        if self._backlog.waiting_bytes > self._backlog.bytes_max:
            bytes_max = 1
        return bytes_max - len(self._waiting) - self._writing

    def put(self, data: bytes) -> None:
        """Send ``data`` after all that was put before; what nobody will read any more is dropped."""
        if self.broken or not data:
            return
        left: bytes | memoryview = data
        if self._fd is not None and not self._waiting and not self._writing:
            # Nearly every answer fits into the socket's buffer: no other task has to be woken for it.
            left = self._write_now(self._fd, data)
        if left:
            self._waiting += left
            self._backlog.waiting_bytes += len(left)
            self._wake.set()

    async def run(self) -> None:
        """Send what does not fit at once; returns when the client is gone or too slow."""
        while not self.broken:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._waiting and not self.broken:
                await self._send_piece()

    def close(self) -> bool:
        """Send nothing any more; whether all that was put is with the operating system, so that the client may get it.

        Whoever closes the stream calls this first: its descriptor's number soon is another connection's, and an answer
        that comes late must not be written there.
        """
        all_sent = not self.broken and not self.waiting_bytes
        self.give_up()
        return all_sent

    def give_up(self) -> None:
        """Send nothing any more."""
        self.broken = True
        self._backlog.waiting_bytes -= len(self._waiting)
        self._waiting.clear()
        self._wake.set()
        self._on_change()

    def part(self) -> None:
        """Send nothing any more, and tell nobody: without the other's name two that know each other are no cycle, and
        are given back as soon as both are done."""
        self.give_up()
        self._on_change = _nobody

    def _write_now(self, fd: int, data: bytes) -> bytes | memoryview:
        """What the socket did not take."""
        try:
            sent = os.write(fd, data)
        except BlockingIOError:
            return data
        except OSError:
            self.give_up()
            return b""
        # What is left may be very large, and is about to be copied once more.
        return memoryview(data)[sent:] if sent < len(data) else b""

    async def _send_piece(self) -> None:
        piece = bytes(self._waiting[:PIECE_BYTES])
        del self._waiting[:PIECE_BYTES]
        self._writing = len(piece)
        try:
            with trio.fail_after(self._write_ms / _MS_PER_S):
                await self._stream.send_all(piece)
        except trio.TooSlowError:
            self.too_slow = True
            self.give_up()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.give_up()
        finally:
            self._writing = 0
            self._backlog.waiting_bytes -= len(piece)
        self._on_change()
