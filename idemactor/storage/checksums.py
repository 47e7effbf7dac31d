"""Checksums of pages: a byte of a file that has changed on its own is an error where it is read, never an answer.

SQLite keeps none of its own. Its checksum VFS (https://www.sqlite.org/cksumvfs.html, in the wheels of apsw) keeps eight
bytes at the end of each page of a file that was made with room for them: written whenever the page is, compared
whenever it is read. A file of an earlier release has no such room, and is read as it is.

The VFS becomes the process's default, as SQLite means it to be: who copies a file of ours within this process keeps its
checksums right without knowing of them. A program that writes to such a file without it makes its pages look damaged.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw
import apsw.sqlite_extra

from idemactor.errors import StorageError
from idemactor.storage.wal_frames import frames_in
from idemactor.storage.ways_out import NOT_ALONE

RESERVED_BYTES: Final = 8
"""What the checksum VFS needs at the end of each page, and how it knows the files that have it."""

_RESERVED_AT: Final = 20
"""Where the header of a file says so (https://www.sqlite.org/fileformat2.html#the_database_header)."""
_PAGE_SIZE_AT: Final = slice(16, 18)
_HEADER_BYTES: Final = 100
_ASKS: Final = -1
"""What is reserved instead of a number of bytes by who only asks how many are."""
_MAGIC: Final = b"SQLite format 3\0"
_VFS: Final = "cksmvfs"


@functools.cache
def checked_vfs() -> str:
    """The name of the VFS that keeps and compares checksums.

    Raises:
        StorageError: This build of apsw does not have it.
    """
    if _VFS not in apsw.vfs_names():
        connection = apsw.Connection(":memory:")
        try:
            apsw.sqlite_extra.load(connection, "cksumvfs")
        except Exception as error:
            raise StorageError(
                "apsw was installed without SQLite's checksum VFS; install its wheel (pip install --only-binary apsw)"
            ) from error
        finally:
            connection.close()
    return _VFS


def make_room(connection: apsw.Connection) -> None:
    """Give every page of a file that is still empty room for a checksum."""
    reserved = ctypes.c_int(RESERVED_BYTES)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))


def begin_with_checksums(connection: apsw.Connection) -> None:
    """Give a file that is still empty its first page, with room for checksums, before a copy fills it.

    A copy writes the first page last, and the VFS keeps no checksums before it has seen there that it should: what did
    not fit into SQLite's cache would be on disk without any.
    """
    make_room(connection)
    connection.pragma("user_version", 1)


def reserves_checksums(connection: apsw.Connection) -> bool:
    """Whether an open file was made with room for checksums."""
    reserved = ctypes.c_int(_ASKS)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    return reserved.value == RESERVED_BYTES


def has_checksums(path: Path) -> bool:
    """Whether a file was made with room for checksums. Nobody in this process may have it open.

    Raises:
        OSError: It cannot be read.
    """
    header = _header(path)
    return len(header) == _HEADER_BYTES and header[_RESERVED_AT] == RESERVED_BYTES


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER_BYTES)


def says_checksums(path: Path) -> bool | None:
    """What the header of a file says of checksums; None: it is no header, or cannot be read. As ``has_checksums``."""
    try:
        header = _header(path)
    except OSError:
        return None
    known = len(header) == _HEADER_BYTES and header.startswith(_MAGIC)
    return header[_RESERVED_AT] == RESERVED_BYTES if known else None


def wrong_pages(path: Path) -> Iterator[int]:
    """The numbers of a file's pages, from 1, whose checksum is wrong. Nobody in this process may have it open.

    Left out are pages that the WAL replaces: one that a power loss tore is whole again once the WAL was copied.

    Raises:
        OSError: It cannot be read.
        StorageError: See ``checked_vfs``.
    """
    checked_vfs()
    replaced = {frame.page for frame in frames_in(path.with_name(path.name + "-wal"))}
    connection = apsw.Connection(":memory:")
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(_HEADER_BYTES)[_PAGE_SIZE_AT], "big") or 65_536
            file.seek(0)
            number = 0
            while page := file.read(size):
                number += 1
                if number not in replaced and len(page) == size and not _is_right(connection, page):
                    yield number
    finally:
        connection.close()


def refuse_damage(path: Path) -> None:
    """Refuse a file some bytes of which have changed on their own. Nobody in this process may have it open.

    For whoever reads it without the VFS, which would compare each page.

    Raises:
        OSError: It cannot be read.
        StorageError: It is damaged, or see ``checked_vfs``.
    """
    if has_checksums(path) and (page := next(wrong_pages(path), None)) is not None:
        raise StorageError(f"{path.name} is damaged: the checksum of page {page} is wrong; {NOT_ALONE}")


def _is_right(connection: apsw.Connection, page: bytes) -> bool:
    return bool(connection.execute("SELECT verify_checksum(?)", (page,)).get)


def is_damage(error: BaseException) -> bool:
    """Whether an error says that what is on the disk is not what was written."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return True
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA
