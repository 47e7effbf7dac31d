"""How far a journal was synced, as a number in a small file beside it: how the loss of its end is noticed.

A WAL that ends in a damaged transaction, was cut or was deleted looks like one whose end the power cut off, and SQLite
goes on from what is left of it. But what the power cuts off was never acknowledged. So the number of the latest batch
is written here once its sync has returned, and before its answers leave: a journal that ends before that number has
lost something.

This file is never synced. A process that is killed leaves what it wrote in the system's cache; a power loss leaves any
earlier number, or none, which says less and nothing that is false. So it may only be written where commits sync. It is
written, not mapped: a page of a map that cannot be read or stored is a signal that kills the process, and a write costs
a microsecond of the half millisecond that a batch takes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import Final

from idemactor.storage.ownership import hand_over

SUFFIX: Final = "-synced"
"""What the file's name has behind the journal's."""

APART_MIN: Final = 2**32
"""From how far behind the number on a journal is of another directory, in batches: numbers begin at random in each."""

_MAGIC: Final = b"IDMSYNC1"
_FORM: Final = struct.Struct("<8sQI")
"""The number between what tells the file from others and a CRC-32 of the journal's name and the number."""
_FILE_MODE: Final = 0o600


class Watermark:
    """The number beside one journal, as its owner keeps it.

    Args:
        journal: Where the journal is.
    """

    def __init__(self, journal: Path) -> None:
        self._path = _beside(journal)
        self._start = _start_of(journal)
        self._descriptor: int | None = None

    def note(self, number: int) -> None:
        """Everything up to ``number`` is on the disk. Where that cannot be written, what it says already stays true."""
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(
                    self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE
                )
                hand_over(self._descriptor, self._path.absolute().parent)
            os.pwrite(self._descriptor, _encode(self._start, number), 0)

    def remove(self) -> None:
        """The journal has no WAL to lose: files that are put in its place have nothing to fear from it."""
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Let go of the file; ``note`` opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def synced_up_to(journal: Path) -> int | None:
    """The number beside the journal at ``journal``; None where nothing is said, or what is said was torn.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with _beside(journal).open("rb") as file:
            content = file.read(_FORM.size)
    except FileNotFoundError:
        return None
    if len(content) < _FORM.size:
        return None
    number: int = _FORM.unpack(content)[1]
    return number if content == _encode(_start_of(journal), number) else None


def lost_end(synced: int | None, latest: int) -> str | None:
    """What is wrong with a journal that ends at batch ``latest``, where ``synced`` was on the disk; None: nothing."""
    if synced is None or not latest < synced < latest + APART_MIN:
        return None
    return (
        f"it ends at batch {latest}, and batch {synced} was on the disk: the end of its WAL is lost, or it is an older"
        " copy"
    )


def _beside(journal: Path) -> Path:
    return journal.with_name(journal.name + SUFFIX)


def _start_of(journal: Path) -> int:
    """Of the checksum: so that the number of one journal is none of another's."""
    return zlib.crc32(journal.name.encode())


def _encode(start: int, number: int) -> bytes:
    return _FORM.pack(_MAGIC, number, zlib.crc32(number.to_bytes(8, "little"), start))
