"""A disk that fails one chosen operation, or every one from then on: the n-th write, sync, truncation or opening."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import NoReturn

import apsw

from tests.storage.lossy_vfs import LossyDisk, LossyFile


class Kind(enum.StrEnum):
    """What can fail."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    DELETE = "delete"


class Manner(enum.StrEnum):
    """How it fails."""

    ERROR = "error"
    """Nothing of it was done."""
    TORN = "torn"
    """Half of a write was done; of a sync, some sectors, and the rest is marked clean."""
    FULL = "full"
    """There is no space left."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``nth`` operation of its kind fails, counted from 1; where it lasts, all after it do until the disk heals."""

    kind: Kind
    nth: int
    manner: Manner = Manner.ERROR
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.nth} {self.manner}{' lasting' if self.lasting else ''}"


@dataclass(eq=False)
class Strikes:
    """Counts operations, and says which of them fail."""

    fault: Fault | None = None
    counts: Counter[Kind] = field(default_factory=Counter)
    struck: int = 0

    def meets(self, kind: Kind) -> bool:
        """Count an operation; whether it fails."""
        self.counts[kind] += 1
        fault = self.fault
        if fault is None or fault.kind is not kind or self.counts[kind] < fault.nth:
            return False
        if self.counts[kind] > fault.nth and not fault.lasting:
            return False
        self.struck += 1
        return True

    def fail(self) -> NoReturn:
        """As the operating system says it."""
        assert self.fault is not None
        if self.fault.manner is Manner.FULL:
            raise apsw.FullError("no space left on device")
        if self.fault.kind is Kind.OPEN:
            raise apsw.CantOpenError("it cannot be opened")
        raise apsw.IOError("the device reports an error")


class FaultyDisk(LossyDisk):
    """A ``LossyDisk`` with one ``Fault``; ``strikes.fault = None`` heals it.

    Attributes:
        cut_after: How many changes after the fault the power goes; None: it stays.
        full: No file can grow; what has its place already can be written over.
    """

    def __init__(self, rng: Random, fault: Fault | None = None, cut_after: int | None = None) -> None:
        super().__init__(rng)
        self.strikes = Strikes(fault)
        self.cut_after = cut_after
        self.full = False

    def step(self) -> None:
        if self.strikes.struck and self.cut_after is not None and self.power_lost_at is None:
            self.power_lost_at = self.steps + self.cut_after
        super().step()

    def xOpen(self, filename: apsw.URIFilename | str | None, flags: list[int]) -> LossyFile:  # noqa: N802
        if self.strikes.meets(Kind.OPEN):
            self.strikes.fail()
        return super().xOpen(filename, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        if self.strikes.meets(Kind.DELETE):
            self.strikes.fail()
        super().xDelete(filename, syncdir)

    def open_file(self, filename: apsw.URIFilename | str, flags: list[int]) -> LossyFile:
        return FaultyFile(filename, flags, self)


class FaultyFile(LossyFile):
    """An open file of a ``FaultyDisk``."""

    def __init__(self, filename: apsw.URIFilename | str, flags: list[int], disk: FaultyDisk) -> None:
        super().__init__(filename, flags, disk)
        self._faulty = disk
        self._strikes = disk.strikes

    @property
    def _torn(self) -> bool:
        fault = self._strikes.fault
        return fault is not None and fault.manner is Manner.TORN

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self._strikes.meets(Kind.READ):
            self._strikes.fail()
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._faulty.full and offset + len(data) > super().xFileSize():
            raise apsw.FullError("no space left on device")
        if self._strikes.meets(Kind.WRITE):
            if self._torn:
                super().xWrite(data[: len(data) // 2], offset)
            self._strikes.fail()
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._strikes.meets(Kind.TRUNCATE):
            self._strikes.fail()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if self._strikes.meets(Kind.SYNC):
            if self._torn:
                # Some of it reached the disk; the rest is called clean, and no later sync writes it.
                rng = self.disk.rng
                share = rng.random()
                self.inode.sync_some(lambda: rng.random() < share, rng)
            self._strikes.fail()
        super().xSync(flags)
