"""A real server process for a benchmark, on addresses of its own and with its data in a directory of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from bench.processes import BenchError, running, tail

Durability = Literal["full", "process"]

CONFIG: Final = """\
[server]
durability = "{durability}"
# An expiry storm begins when we say: the directory's time is set ahead of the wall clock.
clock_backstep_max_ms = 86400000
[http]
bind = ["127.0.0.1:0", "unix:{sockets}/http.sock"]
[rpc]
bind = ["127.0.0.1:0", "unix:{sockets}/rpc.sock"]
[namespaces.default]
records_max = 100000000
# Longer than a run, as with the peers: what one subject left must not expire while another is measured.
lease_ms = 3600000
ttl_ms = 86400000
"""

GATEWAY: Final = """\
[gateway]
bind = ["127.0.0.1:0"]
[[gateway.routes]]
prefix = "/"
upstream = "http://{upstream}"
namespace = "default"
"""

DISPATCH: Final = """\
[namespaces.held]
records_max = 100000000
ttl_ms = 86400000
[namespaces.orders]
records_max = 100000000
ttl_ms = 86400000
[namespaces.orders.dispatch]
url = "http://{destination}/orders"
concurrency = {concurrency}
downstream_dedups = true
success = {{ pointer = "/success", equals = true }}
retry = {{ horizon_ms = 604800000 }}
"""
"""One namespace whose intents are pushed, and one whose intents wait for somebody to fetch them."""

CONCURRENCY: Final = 64
"""Deliveries under way at once, with every relay that is measured."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server answers, ``host:port`` or ``unix:/path``, and which process it is."""

    http: str
    http_unix: str
    rpc: str
    rpc_unix: str
    pid: int
    process: subprocess.Popen[str]
    ready_s: float
    """Seconds from its start to its ready line."""
    gateway: str = ""
    """Where its reverse proxy is, if it has one."""


@contextlib.contextmanager
def serving(
    data_dir: Path,
    *,
    shards: int,
    durability: Durability = "full",
    upstream: str = "",
    workers: int = 1,
    destination: str = "",
) -> Iterator[Server]:
    """Start ``idemactor serve`` on ``data_dir`` and stop it in the end.

    Args:
        upstream: ``host:port`` of what its reverse proxy stands in front of; empty: it has none.
        destination: ``host:port`` of where the namespace ``orders`` delivers; empty: there is none.

    Raises:
        BenchError: It did not come up; what it said is in the message.
    """
    sockets = data_dir.with_name(data_dir.name + ".run")
    sockets.mkdir(mode=0o700, exist_ok=True)
    config, log = sockets / "config.toml", sockets / "log"
    proxy = GATEWAY.format(upstream=upstream) if upstream else ""
    dispatch = DISPATCH.format(destination=destination, concurrency=CONCURRENCY) if destination else ""
    config.write_text(CONFIG.format(durability=durability, sockets=sockets) + dispatch + proxy)
    command = [sys.executable, "-m", "idemactor", "serve", "--config", str(config)]
    command += ["--data-dir", str(data_dir), "--shards", str(shards), "--workers", str(workers)]
    started = time.perf_counter()
    with running(command, log=log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:2] != ["idemactor", "ready"]:
            raise BenchError(f"the server did not come up: {words} {tail(log)}")
        ready_s = time.perf_counter() - started
        addresses = dict(word.split("=", 1) for word in words[2:])
        http, http_unix = addresses["http"].split(",")
        rpc, rpc_unix = addresses["rpc"].split(",")
        gateway = addresses.get("gateway", "")
        yield Server(http, http_unix, rpc, rpc_unix, process.pid, process, ready_s, gateway)
