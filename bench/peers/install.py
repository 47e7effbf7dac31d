"""Installing what a benchmark measures beside idemactor, where it is not there yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.processes import BenchError, output_of

PROGRAMS: Final = {
    "nginx": "nginx-light",
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "wrk": "wrk",
    "strace": "strace",
    "setpriv": "util-linux",
    "npm": "npm",
}
"""The Debian package that has each program."""

POSTGRES_PACKAGE: Final = "postgresql"
POSTGRES_HOME: Final = Path("/usr/lib/postgresql")
"""Where Debian keeps the servers, one folder a version: they are not on the PATH."""

HOME: Final = Path(sys.prefix) / "bench-peers"
"""Where npm's packages go: into the environment, which `make clean` removes."""


def program(name: str) -> Path:
    """Where a program of ``PROGRAMS`` is, installed if it has to be.

    Raises:
        BenchError: It is not there and cannot be installed.
    """
    found = shutil.which(name)
    if found is None:
        _install(PROGRAMS[name])
        found = shutil.which(name)
    if found is None:
        raise BenchError(f"{name} is not there, though {PROGRAMS[name]} is installed")
    return Path(found)


def postgres_programs() -> Path:
    """The folder with initdb, postgres, psql and pgbench, of the latest version that is installed.

    Raises:
        BenchError: It is not there and cannot be installed.
    """
    found = _postgres_folders()
    if not found:
        _install(POSTGRES_PACKAGE)
        found = _postgres_folders()
    if not found:
        raise BenchError(f"there is no pgbench below {POSTGRES_HOME}, though {POSTGRES_PACKAGE} is installed")
    return found[-1]


def workerd() -> Path:
    """The workerd program, from npm, exactly the version of ``workerd/package-lock.json``.

    Raises:
        BenchError: npm could not install it.
    """
    source = Path(__file__).with_name("workerd")
    home = HOME / "workerd"
    lock = source / "package-lock.json"
    installed = home / "package-lock.json"
    found = _workerd_programs(home)
    if not found or installed.read_bytes() != lock.read_bytes():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(source / "package.json", home)
        shutil.copy(lock, home)
        output_of([str(program("npm")), "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=home)
        found = _workerd_programs(home)
    if not found:
        raise BenchError("npm has no workerd for this machine")
    return found[0]


def versions() -> list[str]:
    """What the peers that are there say of themselves."""
    programs = [shutil.which("redis-server"), shutil.which("wrk"), *_workerd_programs(HOME / "workerd")]
    programs += [folder / "postgres" for folder in _postgres_folders()[-1:]]
    said = [
        subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
        for name in programs
        if name is not None
    ]
    return [line.strip() for line in said]


def _workerd_programs(home: Path) -> list[Path]:
    # The package's own launcher starts a Node first; the program itself is in the package for this machine.
    return sorted(home.glob("node_modules/@cloudflare/workerd-*/bin/workerd"))


def _postgres_folders() -> list[Path]:
    found = [path.parent for path in POSTGRES_HOME.glob("*/bin/pgbench")]
    return sorted(found, key=lambda path: float(path.parent.name))


def _install(package: str) -> None:
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None or (as_root and shutil.which("sudo") is None):
        raise BenchError(f"{package} is not installed, and apt-get cannot be used here")
    print(f"installing {package}", file=sys.stderr)
    quiet = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    try:
        _apt(quiet, package)
    except BenchError:
        output_of([*quiet, "update"])
        _apt(quiet, package)


def _apt(quiet: list[str], package: str) -> None:
    output_of([*quiet, "install", "-y", "--no-install-recommends", package])
