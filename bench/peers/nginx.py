"""nginx: as the upstream of a gateway, and as a plain proxy to compare a gateway with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.peers.install import program
from bench.processes import accepts, free_port, running, wait_until

ANSWER: Final = '{"result":"reserved","token":1}'
"""What the upstream answers to everything: the load generators know the word."""

CONFIG: Final = """\
daemon off;
worker_processes 1;
pid {directory}/pid;
error_log {directory}/log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{servers}
}}
"""

UPSTREAM: Final = """\
    server {{
        listen 127.0.0.1:{port};
        default_type application/json;
        location / {{ return 200 '{answer}'; }}
    }}
"""

PROXY: Final = """\
    upstream orders {{
        server {upstream};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://orders;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
"""


@dataclass(frozen=True, slots=True)
class Nginx:
    """An nginx with one worker process."""

    port: int
    pid: int

    @property
    def address(self) -> str:
        """For a load generator."""
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def answering(directory: Path) -> Iterator[Nginx]:
    """An upstream that answers everything with ``ANSWER``. Raises: BenchError."""
    port = free_port()
    with _serving(directory, port, UPSTREAM.format(port=port, answer=ANSWER)) as nginx:
        yield nginx


@contextlib.contextmanager
def proxying(directory: Path, upstream: str) -> Iterator[Nginx]:
    """A plain proxy in front of ``upstream``. Raises: BenchError."""
    port = free_port()
    with _serving(directory, port, PROXY.format(port=port, upstream=upstream)) as nginx:
        yield nginx


@contextlib.contextmanager
def _serving(directory: Path, port: int, servers: str) -> Iterator[Nginx]:
    directory.mkdir()
    config, log = directory / "nginx.conf", directory / "log"
    # Its worker gives up root, and then has to find its way to its folders.
    user = "user root;\n" if Path("/proc/self").stat().st_uid == 0 else ""
    config.write_text(user + CONFIG.format(directory=directory, servers=servers))
    command = [str(program("nginx")), "-c", str(config), "-p", str(directory), "-e", str(log)]
    with running(command, log=log) as process:
        # It listens before its worker is there.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: accepts(port) and bool(children.read_text()), process, log)
        yield Nginx(port, int(children.read_text().split()[0]))
