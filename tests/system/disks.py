"""Disks that fill up, and directories that cannot be written, with whatever this machine lets a test do."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from tests.system.process import Server

DISK_BYTES: Final = 8 * 1024 * 1024


class Disk(Protocol):
    """Where a data directory is.

    Attributes:
        path: A directory on it.
    """

    path: Path

    def fill(self, server: Server | None) -> None:
        """From now on nothing more can be written."""

    def free(self, server: Server | None) -> None:
        """There is room again."""


class MountedDisk:
    """A file system in memory, small, and its own; needs the right to mount."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, server: Server | None) -> None:
        del server
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4_096):
                pass

    def free(self, server: Server | None) -> None:
        del server
        self._filler.unlink()


class LimitedDisk:
    """The limit that a process has on the size of its files: needs no right at all, and fails writes as a disk does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, server: Server | None) -> None:
        self._limit(server, 0)

    def free(self, server: Server | None) -> None:
        self._limit(server, resource.RLIM_INFINITY)

    def _limit(self, server: Server | None, size: int) -> None:
        assert server is not None
        hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size, hard))


def _mount(path: Path, options: str) -> bool:
    path.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(path)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)


@contextlib.contextmanager
def mounted(path: Path, options: str = f"size={DISK_BYTES}") -> Iterator[bool]:
    """A file system in memory at ``path`` for the time of the block; whether this machine allows it."""
    if os.geteuid() != 0 or not _mount(path, options):
        yield False
        return
    try:
        yield True
    finally:
        _unmount(path)


@contextlib.contextmanager
def small_disk(home: Path) -> Iterator[Disk]:
    """A disk of a few megabytes, as real as this machine allows."""
    path = home / "disk"
    path.mkdir()
    with mounted(path) as real:
        yield MountedDisk(path) if real else LimitedDisk(path)


@contextlib.contextmanager
def read_only(path: Path) -> Iterator[None]:
    """``path``, a directory, cannot be written for the time of the block; for root it takes a mount of its own."""
    if os.geteuid() != 0:
        mode = path.stat().st_mode
        path.chmod(0o500)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    subprocess.run(["mount", "--bind", str(path), str(path)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True)
        yield
    finally:
        _unmount(path)
