"""An upstream that answers every request at once, where there is no nginx: ``python -m bench.load.upstream PORT``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load.listening import listen
from bench.peers.nginx import ANSWER
from bench.processes import accepts, free_port, running, wait_until

_HEAD: Final = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(ANSWER)}\r\n\r\n"
_WHOLE: Final = (_HEAD + ANSWER).encode()


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where it answers, and which process it is."""

    address: str
    pid: int


@contextlib.contextmanager
def answering(directory: Path) -> Iterator[Upstream]:
    """One in a process of its own. Raises: BenchError."""
    directory.mkdir()
    port, log = free_port(), directory / "log"
    with running([sys.executable, "-m", "bench.load.upstream", str(port)], log=log) as process:
        wait_until(lambda: accepts(port), process, log)
        yield Upstream(f"127.0.0.1:{port}", process.pid)


def serve(port: int) -> None:
    """Answer for ever."""
    listen(port, lambda heads: _WHOLE * len(heads))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
