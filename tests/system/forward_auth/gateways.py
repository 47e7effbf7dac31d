"""The real gateways, each with its configuration from ``examples/gateways``: only addresses and tokens are another's.

nginx is Debian's; the others are wheels of ``requirements-gateways.lock``, which ``make test`` installs. A gateway that
is not there and cannot be installed fails its tests: none is skipped.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.system.process import environment, eventually
from tests.system.programs import EXAMPLES, PATIENCE_S, free_port, installed, listening, wheel

SHIPPED: Final = EXAMPLES / "gateways"
TOKEN: Final = "change-me"
"""The token of the shipped configurations."""
SERVER_CONFIG: Final = (SHIPPED / "idemactor.toml").read_text()

_IDEMACTOR_PORT: Final = "8787"
_APPLICATION_PORT: Final = "9000"
_OWN_PORT: Final = "8080"

# Every request on a connection of its own, as from many senders.
_SENDER: Final = httpx.Client(timeout=PATIENCE_S, verify=False, limits=httpx.Limits(max_keepalive_connections=0))

Edit = Callable[[str], str]


@dataclass(frozen=True)
class Kind:
    """One gateway.

    Attributes:
        name: Of its folder.
        command: What runs it, given its home.
        sees_body: Whether it sends the body along.
        has_request_ids: Whether it can name one request of its own.
        replayed_ok: The status of a finished duplicate that its sender should be told 200; None: it cannot be told.
        closed: What it answers without idemactor.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    sees_body: bool
    has_request_ids: bool
    replayed_ok: int | None
    closed: int

    def __str__(self) -> str:
        return self.name


def _nginx(home: Path) -> Sequence[str]:
    # One process: its worker would be another user, who may not look into a test's folder.
    told = "daemon off; master_process off;"
    return [installed("nginx", "nginx"), "-p", str(home), "-c", "nginx.conf", "-g", told]


def _envoy(_home: Path) -> Sequence[str]:
    return [wheel("envoy"), "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]


def _traefik(_home: Path) -> Sequence[str]:
    return [wheel("traefik"), "--configFile=traefik.yml"]


def _caddy(_home: Path) -> Sequence[str]:
    return [wheel("caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


NGINX: Final = Kind("nginx", _nginx, sees_body=False, has_request_ids=True, replayed_ok=200, closed=503)
ENVOY: Final = Kind("envoy", _envoy, sees_body=True, has_request_ids=True, replayed_ok=203, closed=503)
TRAEFIK: Final = Kind("traefik", _traefik, sees_body=True, has_request_ids=False, replayed_ok=None, closed=500)
CADDY: Final = Kind("caddy", _caddy, sees_body=False, has_request_ids=True, replayed_ok=200, closed=502)
KINDS: Final = (NGINX, ENVOY, TRAEFIK, CADDY)


@dataclass(frozen=True)
class Gateway:
    """A gateway that runs."""

    kind: Kind
    address: str

    def send(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> httpx.Response:
        url = f"http://{self.address}{path}"
        return _SENDER.request(method, url, headers=list(headers), content=body)

    def order(self, key: str | None, *headers: tuple[str, str], path: str = "/orders") -> httpx.Response:
        """A POST with a key."""
        own = [] if key is None else [("Idempotency-Key", key)]
        return self.send("POST", path, [*own, ("Content-Type", "application/json"), *headers], b'{"quantity": 1}')


@contextlib.contextmanager
def running(
    kind: Kind, home: Path, idemactor: str, *applications: str, token: str = TOKEN, edit: Edit = str
) -> Iterator[Gateway]:
    """The gateway in a process, with its shipped configuration.

    Args:
        home: A folder of its own.
        idemactor: Where to ask.
        applications: Where to send what may go on.
        token: Of the tenant that it asks for.
        edit: Changes the text of its configuration.
    """
    port = free_port()
    for file in (SHIPPED / kind.name).iterdir():
        if file.suffix != ".md":
            text = edit(_addressed(file.read_text(), port, idemactor, applications).replace(TOKEN, token))
            (home / file.name).write_text(text)
    command = kind.command(home)
    told = environment({"XDG_CONFIG_HOME": str(home), "XDG_DATA_HOME": str(home)})
    with (home / "log").open("wb") as log, subprocess.Popen(command, cwd=home, env=told, stdout=log, stderr=log) as run:
        try:
            eventually(lambda: _serves(port) or run.poll() is not None, PATIENCE_S)
            assert run.poll() is None, f"{kind} ended with {run.returncode}: {(home / 'log').read_text()}"
            yield Gateway(kind, f"127.0.0.1:{port}")
            assert run.poll() is None, f"{kind} ended with {run.returncode}: {(home / 'log').read_text()}"
        finally:
            run.kill()


def _serves(port: int) -> bool:
    """Whether it listens, and knows its routes: Traefik reads them later."""
    return listening(port) and _SENDER.get(f"http://127.0.0.1:{port}/ready").status_code != 404


def _addressed(text: str, port: int, idemactor: str, applications: Sequence[str]) -> str:
    """The shipped text with a test's addresses; a line that names the application is there once for each."""
    text = _moved(text, _OWN_PORT, f"127.0.0.1:{port}")
    text = _moved(text, _IDEMACTOR_PORT, idemactor)
    if "reverse_proxy 127.0.0.1:9000" in text:
        return text.replace(f"127.0.0.1:{_APPLICATION_PORT}", " ".join(applications))
    lines = []
    for line in text.splitlines():
        # Envoy has the port in a member of its own.
        named = re.search(rf"(127\.0\.0\.1:|port_value: ){_APPLICATION_PORT}\b", line)
        lines += [_moved(line, _APPLICATION_PORT, address) for address in applications] if named else [line]
    return "\n".join(lines) + "\n"


def _moved(text: str, port: str, address: str) -> str:
    number = address.rpartition(":")[2]
    return re.sub(rf"(127\.0\.0\.1:|http://:|port_value: ){port}\b", rf"\g<1>{number}", text)
