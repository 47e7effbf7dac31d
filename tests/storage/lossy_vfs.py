"""A disk that keeps only what was synced: an apsw VFS over real files.

The real files are what the operating system shows, its cache included. Beside them a model of the disk's surface
keeps, for every file, what a power loss leaves. It follows a POSIX file system with ordered metadata:

- an unsynced write survives sector by sector (512 bytes) or not at all, in any mixture;
- unsynced truncations survive in the order in which they were made, up to some point;
- a name made or removed is durable once its directory was synced, which SQLite's VFS does with the first sync of a
  new file and where it says so on deletion; before that either may have happened;
- a sync that fails leaves some sectors written, and the rest marked clean: they are read back from the cache, and no
  later sync writes them;
- what is written beside a file without ever being synced (the watermark of a journal) survives as it is, as it ever was
  before, torn between two of these, or not at all, whatever became of the file.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import apsw

from idemactor.storage.watermark import SUFFIX as SYNCED_SUFFIX

SECTOR_BYTES: Final = 512
PAGE_BYTES_MIN: Final = 512
HEADER_BYTES: Final = 100
RESERVED_AT: Final = 20
CHECKSUM_BYTES: Final = 8

_serial = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    size: int


@dataclass(slots=True)
class Inode:
    """What the surface holds of a file, and what the cache holds beyond it."""

    surface: bytearray
    named: bool
    dirty: list[Write | Truncate] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.dirty:
            if isinstance(change, Write):
                _write(self.surface, change.offset, change.data)
            else:
                _resize(self.surface, change.size)
        self.dirty.clear()
        self.named = True

    def sync_some(self, survives: Callable[[], bool], rng: Random) -> None:
        """Bring some of what is dirty to the surface, and forget the rest."""
        truncations = [change for change in self.dirty if isinstance(change, Truncate)]
        kept = len(truncations) if survives() else rng.randrange(len(truncations) + 1)
        for change in self.dirty:
            if isinstance(change, Write):
                self._write_some(change, survives)
            elif kept > 0:
                kept -= 1
                _resize(self.surface, change.size)
        self.dirty.clear()

    def _write_some(self, change: Write, survives: Callable[[], bool]) -> None:
        position, end = change.offset, change.offset + len(change.data)
        while position < end:
            upto = min(end, (position // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if survives():
                _write(self.surface, position, change.data[position - change.offset : upto - change.offset])
            position = upto


def _resize(surface: bytearray, size: int) -> None:
    if size < len(surface):
        del surface[size:]
    else:
        surface.extend(bytes(size - len(surface)))


def _write(surface: bytearray, offset: int, data: bytes) -> None:
    if len(surface) < offset:
        _resize(surface, offset)
    surface[offset : offset + len(data)] = data


def page_checksum(content: bytes) -> bytes:
    """The checksum of https://www.sqlite.org/cksumvfs.html."""
    first = second = 0
    words = struct.unpack(f"<{len(content) // 4}I", content)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & 0xFFFFFFFF
        second = (second + words[index + 1] + first) & 0xFFFFFFFF
    return struct.pack("<2I", first, second)


class LossyDisk(apsw.VFS):
    """A VFS and its disk. Register by making it; ``close`` unregisters.

    Attributes:
        steps: Writes, truncations, syncs and deletions so far.
        power_lost_at: The step at which the power goes; from then on nothing works.
        failing_syncs: How many of the next syncs fail.
        free_bytes: How much more may be written before the disk is full, None: no end.
        failing_reads: How many of the next reads fail.
        afflicted: Syncs fail, and space runs out, only for files whose path contains this.
        synced: How many syncs succeeded.
        unsynced: By path, all that ever stood in a file that is never synced.
    """

    def __init__(self, rng: Random) -> None:
        self.name = f"lossy-{next(_serial)}"
        # By name: what is the process's own choice of a VFS may check pages, which is another layer's business.
        super().__init__(self.name, base="unix")
        self.steps = 0
        self.power_lost_at: int | None = None
        self.failing_syncs = 0
        self.free_bytes: int | None = None
        self.failing_reads = 0
        self.afflicted = ""
        self.synced = 0
        self.rng = rng
        self.inodes: dict[str, Inode] = {}
        self.unsynced: dict[str, list[bytes]] = {}
        self._removed: dict[str, Inode] = {}

    @property
    def dead(self) -> bool:
        return self.power_lost_at is not None and self.steps >= self.power_lost_at

    def step(self) -> None:
        """Count one change; raise once the power is gone."""
        self._look_beside()
        self.steps += 1
        if self.dead:
            raise apsw.IOError("the power is gone")

    def xOpen(self, filename: apsw.URIFilename | str | None, flags: list[int]) -> LossyFile:  # noqa: N802
        assert filename is not None, "temporary files stay in memory"
        path = filename if isinstance(filename, str) else filename.filename()
        there = Path(path).exists()
        file = self.open_file(filename, flags)
        if path not in self.inodes:
            self.inodes[path] = Inode(bytearray(Path(path).read_bytes() if there else b""), there)
        file.inode = self.inodes[path]
        file.path = path
        return file

    def open_file(self, filename: apsw.URIFilename | str, flags: list[int]) -> LossyFile:
        """An open file of this disk."""
        return LossyFile(filename, flags, self)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.step()
        super().xDelete(filename, syncdir)
        inode = self.inodes.pop(filename, None)
        if inode is not None and inode.named and not syncdir:
            self._removed[filename] = inode

    def _look_beside(self) -> None:
        """Remember what stands beside the files, which nobody writes through this disk."""
        for path in self.inodes:
            if path.endswith(".db") and (beside := Path(path + SYNCED_SUFFIX)).exists():
                content, seen = beside.read_bytes(), self.unsynced.setdefault(str(beside), [])
                if not seen or seen[-1] != content:
                    seen.append(content)

    def _leave_unsynced(self, directory: Path) -> None:
        self._look_beside()
        rng = self.rng
        for path, seen in self.unsynced.items():
            # The latest one is the one that could say too much.
            content = seen[-1] if rng.random() < 0.5 else rng.choice(seen)
            if rng.random() < 0.2:
                other, upto = rng.choice(seen), rng.randrange(len(content))
                content = content[:upto] + other[upto:]
            if rng.random() < 0.9:
                (directory / Path(path).name).write_bytes(content)

    def leave(self, directory: Path) -> None:
        """Write what a power loss now leaves into an empty directory."""
        rng = self.rng
        share = rng.choice((0.0, rng.random(), 1.0))

        def survives() -> bool:
            return rng.random() < share

        files = {path: inode for path, inode in self._removed.items() if not survives()}
        files |= {path: inode for path, inode in self.inodes.items() if inode.named or survives()}
        for path, inode in files.items():
            inode.sync_some(survives, rng)
            (directory / Path(path).name).write_bytes(inode.surface)
        self._leave_unsynced(directory)

    def close(self) -> None:
        self.unregister()


class LossyFile(apsw.VFSFile):
    """An open file of a ``LossyDisk``; the shared memory of a WAL is the real one's, and is never on any disk."""

    def __init__(self, filename: apsw.URIFilename | str, flags: list[int], disk: LossyDisk) -> None:
        super().__init__("unix", filename, flags)
        self.disk = disk
        self._main = bool(flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        self.inode = Inode(bytearray(), False)
        self.path = ""

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.disk.failing_reads > 0:
            self.disk.failing_reads -= 1
            raise apsw.IOError("a sector cannot be read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        disk = self.disk
        data = self._summed(bytes(data), offset)
        if disk.free_bytes is not None and disk.afflicted in self.path:
            if disk.free_bytes < len(data):
                raise apsw.FullError("no space left on device")
            disk.free_bytes -= len(data)
        # The write during which the power goes may be torn: it counts as made before the step says so.
        self.inode.dirty.append(Write(offset, data))
        disk.step()
        super().xWrite(data, offset)

    def _summed(self, data: bytes, offset: int) -> bytes:
        """A page of a file with checksums, with its own: this disk has the place of the VFS that keeps them."""
        if not self._main or len(data) < PAGE_BYTES_MIN:
            return data
        header = data if offset == 0 else super().xRead(HEADER_BYTES, 0)
        if header[RESERVED_AT] != CHECKSUM_BYTES:
            return data
        return data[:-CHECKSUM_BYTES] + page_checksum(data[:-CHECKSUM_BYTES])

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self.disk.step()
        self.inode.dirty.append(Truncate(newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802, ARG002
        disk = self.disk
        disk.step()
        if disk.failing_syncs > 0 and disk.afflicted in self.path:
            disk.failing_syncs -= 1
            share = disk.rng.choice((0.0, disk.rng.random()))
            self.inode.sync_some(lambda: disk.rng.random() < share, disk.rng)
            raise apsw.IOError("the sync failed")
        self.inode.sync()
        disk.synced += 1
