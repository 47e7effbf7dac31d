"""A destination that answers at once and notes when each delivery arrived: ``python -m bench.load.sink PORT FILE``.

For each request it appends to the file the operation's id, padded to ``ID_BYTES``, and the wall clock's time as a
double: whoever dispatched it did so by the same clock.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from bench.load.listening import listen, value
from bench.processes import BenchError, accepts, free_port, running, wait_until

ID_BYTES: Final = 48
RECORD: Final = struct.Struct(f"{ID_BYTES}sd")
DELIVERED_S: Final = 60.0
"""How long deliveries are waited for."""

_BODY: Final = b'{"success": true}'
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY) + _BODY
_KEY: Final = b"\r\nidempotency-key:"
_POLL_S: Final = 0.005


@dataclass(slots=True)
class Sink:
    """Where it answers, and how much of what it noted has been read."""

    address: str
    notes: Path
    _read: int = 0

    def skip(self) -> None:
        """Forget what was delivered so far."""
        self._read = self.notes.stat().st_size

    def wait(self, count: int) -> dict[str, float]:
        """When each of the next ``count`` operations arrived first, seconds since the epoch.

        Raises:
            BenchError: They did not all come.
        """
        arrived: dict[str, float] = {}
        deadline = time.monotonic() + DELIVERED_S
        with self.notes.open("rb") as file:
            while len(arrived) < count:
                file.seek(self._read)
                data = file.read()
                data = data[: len(data) - len(data) % RECORD.size]
                self._read += len(data)
                for operation_id, at in RECORD.iter_unpack(data):
                    arrived.setdefault(operation_id.rstrip(b"\0").decode(), at)
                if time.monotonic() > deadline:
                    raise BenchError(f"{self.notes}: {len(arrived)} of {count} deliveries came in {DELIVERED_S} s")
                if not data:
                    time.sleep(_POLL_S)
        return arrived


@contextlib.contextmanager
def sink(directory: Path) -> Iterator[Sink]:
    """One in a process of its own. Raises: BenchError."""
    directory.mkdir()
    port, log, notes = free_port(), directory / "log", directory / "notes"
    notes.touch()
    with running([sys.executable, "-m", "bench.load.sink", str(port), str(notes)], log=log) as process:
        wait_until(lambda: accepts(port), process, log)
        yield Sink(f"127.0.0.1:{port}", notes)


def serve(port: int, notes: BinaryIO) -> None:
    """Answer for ever."""

    def noted(heads: list[bytes]) -> bytes:
        for head in heads:
            notes.write(RECORD.pack(value(head, _KEY).strip(b'"'), time.time()))
        notes.flush()
        return _ANSWER * len(heads)

    listen(port, noted)


if __name__ == "__main__":
    with open(sys.argv[2], "ab") as file:
        serve(int(sys.argv[1]), file)
