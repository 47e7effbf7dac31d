"""A real server process for a benchmark, on ports of its own and with its data in a directory of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STOP_S: Final = 20.0
"""How long a server may take to drain."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server answers: ``host:port`` each."""

    http: str
    rpc: str
    pid: int


@contextlib.contextmanager
def running(data_dir: Path, *, shards: int) -> Iterator[Server]:
    """Start ``idemactor serve`` and stop it in the end.

    Raises:
        RuntimeError: It did not come up; what it said is in the message.
    """
    command = [sys.executable, "-m", "idemactor", "serve", "--data-dir", str(data_dir), "--shards", str(shards)]
    command += ["--http", "127.0.0.1:0", "--rpc", "127.0.0.1:0", "--config", os.devnull]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:2] != ["idemactor", "ready"]:
            raise RuntimeError(f"the server did not come up: {words}")
        addresses = dict(word.split("=", 1) for word in words[2:])
        yield Server(addresses["http"], addresses["rpc"], process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
