"""A WAL that is torn at its end goes on; one that was damaged in its middle is refused, and SQLite would not say so."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Final

import apsw
import pytest

from idemactor.storage.sqlite_create import PAGE_BYTES
from idemactor.storage.wal_frames import FRAME_HEADER_BYTES, HEADER_BYTES, damage_behind, frames_in

FRAME: Final = FRAME_HEADER_BYTES + PAGE_BYTES
COMMITS: Final = 6


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    """A database that was copied while open: its WAL has six transactions of one or two frames, after a run of ten."""
    connection = apsw.Connection(str(tmp_path / "open.db"))
    connection.pragma("page_size", PAGE_BYTES)
    connection.pragma("journal_mode", "WAL")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT) STRICT")
    for number in range(10):
        connection.execute("INSERT INTO t (b) VALUES (?)", (f"before {number}",))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    for number in range(COMMITS):
        connection.execute("INSERT INTO t (b) VALUES (?)", (f"after {number}" * 200,))
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"open.db{suffix}", tmp_path / f"copy.db{suffix}")
    connection.close()
    return tmp_path / "copy.db"


def look(file: Path) -> tuple[int, str | None]:
    """How many frames SQLite reads, and what is wrong behind them."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("SELECT count(*) FROM t").fetchall()
        frames, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return frames, damage_behind(wal(file), frames)
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()


def wal(file: Path) -> Path:
    return file.with_name(file.name + "-wal")


def flip(file: Path, position: int) -> None:
    content = bytearray(wal(file).read_bytes())
    content[position] ^= 4
    wal(file).write_bytes(content)


def test_a_whole_wal_is_in_order_what_is_left_of_the_run_before_included(file: Path) -> None:
    frames = frames_in(wal(file))
    assert [frame.commit > 0 for frame in frames].count(True) == COMMITS
    assert wal(file).stat().st_size > HEADER_BYTES + len(frames) * FRAME
    assert look(file) == (len(frames), None)


def test_a_changed_byte_is_found_in_every_frame_but_those_of_the_last_transactions(file: Path) -> None:
    frames = frames_in(wal(file))
    ends = [number for number, frame in enumerate(frames) if frame.commit]
    content = wal(file).read_bytes()
    for number in range(len(frames)):
        # Of the header: page, mark of a commit, salts, checksum; of the page: first and last byte.
        for offset in (0, 7, 8, 12, 16, 23, FRAME_HEADER_BYTES, FRAME - 1):
            flip(file, HEADER_BYTES + number * FRAME + offset)
            read, found = look(file)
            assert read == max((end + 1 for end in ends if end < number), default=0)
            # Who is damaged in its checksum takes with it the proof of the frame after it.
            if number <= ends[-4 if offset in (16, 23) else -3]:
                assert found is not None, (number, offset)
            elif number > ends[-2]:
                assert found is None, (number, offset)
            wal(file).write_bytes(content)


def test_what_an_earlier_run_left_in_the_place_of_a_frame_that_never_came_is_an_end(file: Path) -> None:
    """A transaction of many frames, of which the power took any, over an earlier run that had commits everywhere."""
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    for number in range(30):
        connection.execute("INSERT INTO t (b) VALUES (?)", (f"of the earlier run {number}",))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    old = wal(file).read_bytes()
    connection.execute("INSERT INTO t (b) SELECT b || randomblob(2000) FROM t")
    new = wal(file).read_bytes()
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    frames = len(frames_in(wal(file)))
    assert frames > 8
    rng = Random(1)
    for _ in range(300):
        torn = bytearray(new)
        for sector in range(1, (HEADER_BYTES + frames * FRAME) // 512 + 1):
            if rng.random() < 0.3:
                torn[sector * 512 : sector * 512 + 512] = old[sector * 512 : sector * 512 + 512]
        wal(file).write_bytes(torn)
        assert look(file)[1] is None


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_a_changed_byte_of_the_header_is_found(file: Path, position: int) -> None:
    flip(file, position)
    assert look(file) == (0, "the header of its WAL is damaged")


@pytest.mark.parametrize("torn_at", range(16, HEADER_BYTES))
def test_a_header_that_is_half_written_over_the_one_before_is_an_end_like_any(file: Path, torn_at: int) -> None:
    old = wal(file).read_bytes()
    connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.execute("SELECT count(*) FROM t").fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    connection.execute("INSERT INTO t (b) VALUES ('in the next run')")
    new = wal(file).read_bytes()
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
    assert new[16:HEADER_BYTES] != old[16:HEADER_BYTES]
    wal(file).write_bytes(new[:torn_at] + old[torn_at:])
    assert look(file) == (0, None)


def test_what_a_power_loss_cut_off_is_an_end(file: Path) -> None:
    frames = frames_in(wal(file))
    content = wal(file).read_bytes()
    for size in range(0, HEADER_BYTES + len(frames) * FRAME, 997):
        wal(file).write_bytes(content[:size])
        assert look(file)[1] is None
