"""Cloudflare's runtime, workerd, with a Durable Object that deduplicates (``workerd/deduplicator.js``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.install import workerd
from bench.peers.wrk import HttpPeer
from bench.processes import accepts, free_port, running, wait_until


@dataclass(frozen=True, slots=True)
class DurableObject:
    """A workerd that runs."""

    port: int
    pid: int

    @property
    def http(self) -> HttpPeer:
        """For a load generator."""
        return HttpPeer(f"127.0.0.1:{self.port}", ("/reserve", "/commit"), refuses_duplicates=True)


@contextlib.contextmanager
def durable_object(directory: Path, *, under: Sequence[str] = ()) -> Iterator[DurableObject]:
    """Start workerd with its storage in ``directory`` and stop it in the end.

    Args:
        under: A program that runs it, with its arguments (strace).

    Raises:
        BenchError: It cannot be installed or did not come up.
    """
    directory.mkdir()
    port, log = free_port(), directory.with_name(directory.name + ".log")
    config = Path(__file__).with_name("workerd") / "config.capnp"
    command = [*under, str(workerd()), "serve", str(config), "--directory-path", f"storage={directory}"]
    command += ["--socket-addr", f"http=127.0.0.1:{port}"]
    with running(command, log=log) as process:
        wait_until(lambda: accepts(port), process, log)
        yield DurableObject(port, process.pid)
