"""Programs that listen at a port, for the tests of examples and docs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.system.process import environment, eventually

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S: Final = 30.0
APT_S: Final = 300.0
_PATH: Final = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
"""Servers are where only root looks."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended, and that nobody has waited for yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children_of(pid: int) -> list[int]:
    """The processes that its main thread started, and that are there yet."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def started(
    command: Sequence[str], port: int, extra: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens at ``port``."""
    with subprocess.Popen(command, env=environment(extra)) as process:
        try:
            eventually(lambda: listening(port) or process.poll() is not None, PATIENCE_S)
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class FakeExchange:
    """The examples' own exchange, in a process."""

    address: str

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def fills(self, symbol: str) -> int:
        return int(httpx.get(f"{self.url}/fills").json().get(symbol, 0))

    def fill(self, symbol: str, operation_id: str) -> None:
        """What an attempt did that was never heard of again."""
        order = {"symbol": symbol, "quantity": "1", "client_order_id": operation_id}
        assert httpx.post(f"{self.url}/orders", json=order).status_code == 200


@contextlib.contextmanager
def fake_exchange() -> Iterator[FakeExchange]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with started([sys.executable, str(EXAMPLES / "fake_exchange.py"), address], port):
        yield FakeExchange(address)


@contextlib.contextmanager
def webhook_gateway(server_rpc: str, exchange_url: str, **more: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The gateway of the examples: its port and its process."""
    port = free_port()
    told = {
        "GATEWAY_BIND": f"127.0.0.1:{port}",
        "EXCHANGE_URL": exchange_url,
        "EXCHANGE_TIMEOUT_MS": "1500",
        "IDEMACTOR_ADDRESS": server_rpc,
    }
    with started([sys.executable, str(EXAMPLES / "webhook_gateway" / "gateway.py")], port, told | more) as process:
        yield port, process


def installed(name: str, package: str) -> str:
    """Where a program of Debian's is, installed where it is missing and we may."""
    found = shutil.which(name, path=_PATH)
    if found is not None:
        return found
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    missing = f"{name} is not installed (apt-get install {package})"
    assert shutil.which("apt-get") is not None, missing
    assert not as_root or shutil.which("sudo") is not None, missing
    quiet = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    for command in ([*quiet, "update"], [*quiet, "install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=APT_S, check=False)
        assert done.returncode == 0, f"{missing}, and {' '.join(command)} failed: {done.stderr}"
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{package} was installed, but there is no {name}"
    return found


def require_go() -> None:
    """Debian's Go, installed where it is missing and we may."""
    installed("go", "golang-go")


def go_environment(home: Path) -> dict[str, str]:
    """Variables that keep what Go writes in ``home``."""
    return {"GOCACHE": str(home / "go-cache"), "GOPATH": str(home / "go-path"), "GOFLAGS": "-modcacherw"}


def wheel(name: str) -> str:
    """A program of ``requirements-gateways.lock``, which is in the environment that the tests run in."""
    found = shutil.which(name, path=os.fspath(Path(sys.executable).parent))
    assert found is not None, f"{name} is not installed: `make test` does it from requirements-gateways.lock"
    return found
