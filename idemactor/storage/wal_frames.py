"""What a WAL's own checksums tell that SQLite does not: an end that is torn, or a middle that was damaged.

SQLite reads a WAL up to the first frame whose checksum is wrong, and takes that for the end: what a power loss tore was
never acknowledged. But a byte that changed on its own looks the same, and everything behind it would be gone without a
word, though it was acknowledged. The two differ in what comes after: a transaction is begun only once the one before it
is synced. So a whole frame behind the end of the transaction that is torn says that it was whole once.

The format: https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_MAGIC: Final = 0x377F0682
"""Of a WAL whose checksums are little-endian; with the lowest bit set they are big-endian."""
_MASK: Final = 0xFFFFFFFF


class Frame(NamedTuple):
    """The header of a frame: the page's number, the file's pages after a commit (0: none), salts, checksum."""

    page: int
    commit: int
    salts: tuple[int, int]
    checksum: tuple[int, int]


def frames_in(path: Path) -> list[Frame]:
    """The frames of a WAL that belong to its present run, whole or not; none where there is no WAL.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = _Head.of(file.read(HEADER_BYTES))
            return [] if head is None else [f for f in _headers(file, head, 0) if f.salts == head.salts]
    except FileNotFoundError:
        return []


def damage_behind(path: Path, frames: int) -> str | None:
    """What is wrong with a WAL of which SQLite read so many frames; None: it ends where a power loss may have torn it.

    Not found is damage to the last transaction, and to the last frame of the two before it: it cannot be told from a
    write that the power cut off. Of a journal ``watermark.py`` tells.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return _damage_behind(file, frames)
    except FileNotFoundError:
        return None


def _damage_behind(file: BinaryIO, frames: int) -> str | None:
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES or not any(header):
        return None
    head = _Head.of(header)
    if head is None:
        # A header is synced before the first frame of its run.
        first = file.read(FRAME_HEADER_BYTES)
        whole = len(first) < FRAME_HEADER_BYTES or _is_torn_restart(header, first[8:16])
        return None if whole else "the header of its WAL is damaged"
    torn: int | None = None
    committed = False
    for number, frame in enumerate(_headers(file, head, frames), frames + 1):
        whole = frame.salts == head.salts and _is_whole(file, head, number)
        if torn is None:
            # What is whole goes on from what SQLite read; of a transaction that was cut off that is its beginning.
            torn = None if whole else number
        elif committed and whole:
            return f"frame {torn} of its WAL is damaged, and more comes after it"
        else:
            # Only a whole frame tells: in the place of one that never came stands what an earlier run left, ends too.
            committed = committed or (whole and frame.commit > 0)
    return None


def _is_torn_restart(header: bytes, salts: bytes) -> bool:
    """Whether a header is half written over the one before it: everything of that run was in the file by then.

    The frames still have the salts of the run before. A new header counts the runs and the first salt up by one, and
    has another second salt; so it is known what was there before, but for where the writing stopped.
    """
    magic, version, page_bytes, run = struct.unpack(">4I", header[:16])
    before = struct.pack(">4I", magic, version, page_bytes, (run - 1) & _MASK) + salts
    before += struct.pack(">2I", *_sum(">" if magic & 1 else "<", before, (0, 0)))
    salt, salt_before = (int.from_bytes(each[16:20], "big") for each in (header, before))
    torn = [at for at in range(16, HEADER_BYTES) if header[at:] == before[at:]]
    return any(at <= 20 or salt == (salt_before + 1) & _MASK for at in torn)


class _Head(NamedTuple):
    order: str
    page_bytes: int
    salts: tuple[int, int]

    @classmethod
    def of(cls, header: bytes) -> _Head | None:
        """What a header says, None where it is not whole."""
        if len(header) < HEADER_BYTES:
            return None
        magic, _, page_bytes, _, *rest = struct.unpack(">8I", header)
        if magic & ~1 != _MAGIC:
            return None
        order = ">" if magic & 1 else "<"
        if _sum(order, header[:24], (0, 0)) != (rest[2], rest[3]):
            return None
        return cls(order, page_bytes, (rest[0], rest[1]))


def _headers(file: BinaryIO, head: _Head, first: int) -> Iterator[Frame]:
    """The headers of the frames from ``first`` on, counted from 0, whole or not."""
    position = HEADER_BYTES + first * (FRAME_HEADER_BYTES + head.page_bytes)
    while True:
        file.seek(position)
        header = file.read(FRAME_HEADER_BYTES)
        if len(header) < FRAME_HEADER_BYTES:
            return
        page, commit, salt_1, salt_2, sum_1, sum_2 = struct.unpack(">6I", header)
        yield Frame(page, commit, (salt_1, salt_2), (sum_1, sum_2))
        position += FRAME_HEADER_BYTES + head.page_bytes


def _is_whole(file: BinaryIO, head: _Head, number: int) -> bool:
    """Whether a frame, counted from 1, goes on from the one before it, or the header: by its checksum."""
    size = FRAME_HEADER_BYTES + head.page_bytes
    file.seek(HEADER_BYTES - 8 if number == 1 else HEADER_BYTES + (number - 2) * size + 16)
    before = struct.unpack(">2I", file.read(8))
    file.seek(HEADER_BYTES + (number - 1) * size)
    frame = file.read(size)
    if len(frame) < size:
        return False
    stored = struct.unpack(">2I", frame[16:24])
    counted = _sum(head.order, frame[:8], (before[0], before[1]))
    return _sum(head.order, frame[FRAME_HEADER_BYTES:], counted) == stored


def _sum(order: str, data: bytes, start: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum of a multiple of eight bytes, continued from ``start``."""
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & _MASK
        second = (second + words[index + 1] + first) & _MASK
    return first, second
