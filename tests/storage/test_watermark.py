"""The number beside a journal: what it says is what was written last, or nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from idemactor.storage.journal_file import create_journal
from idemactor.storage.watermark import APART_MIN, SUFFIX, Watermark, lost_end, synced_up_to


@pytest.fixture(name="journal")
def _journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def beside(journal: Path) -> Path:
    return journal.with_name(journal.name + SUFFIX)


def test_what_was_noted_last_is_said(journal: Path) -> None:
    assert synced_up_to(journal) is None
    watermark = Watermark(journal)
    for number in (0, 7, 8, 2**53 + 1, 2**63):
        watermark.note(number)
        assert synced_up_to(journal) == number
    watermark.close()
    watermark.close()
    assert synced_up_to(journal) == 2**63
    watermark.note(9)
    watermark.close()
    assert synced_up_to(journal) == 9
    assert beside(journal).stat().st_mode & 0o777 == 0o600


def test_what_was_removed_says_nothing_until_something_is_noted(journal: Path) -> None:
    watermark = Watermark(journal)
    watermark.remove()
    watermark.note(1)
    watermark.remove()
    assert not beside(journal).exists()
    watermark.note(2)
    watermark.close()
    assert synced_up_to(journal) == 2


def test_what_is_torn_or_changed_says_nothing(journal: Path) -> None:
    watermark = Watermark(journal)
    contents = []
    for number in (10**15, 10**15 + 300):
        watermark.note(number)
        contents.append(beside(journal).read_bytes())
    watermark.close()
    old, new = contents
    for upto in range(len(new)):
        beside(journal).write_bytes(new[:upto])
        assert synced_up_to(journal) is None
        beside(journal).write_bytes(new[:upto] + old[upto:])
        assert synced_up_to(journal) in (None, 10**15)
    for position in range(len(new)):
        for bit in range(8):
            changed = bytearray(new)
            changed[position] ^= 1 << bit
            beside(journal).write_bytes(changed)
            assert synced_up_to(journal) is None, (position, bit)
    rng = Random(1)
    for _ in range(100):
        beside(journal).write_bytes(rng.randbytes(len(new)))
        assert synced_up_to(journal) is None


def test_the_number_of_another_journal_says_nothing(journal: Path) -> None:
    watermark = Watermark(journal)
    watermark.note(5)
    watermark.close()
    other = journal.with_name("journal-0-of-2.db")
    beside(journal).rename(beside(other))
    assert synced_up_to(other) is None


def test_a_number_that_cannot_be_written_costs_nobody_anything(journal: Path) -> None:
    beside(journal).mkdir()
    watermark = Watermark(journal)
    watermark.note(1)
    beside(journal).rmdir()
    watermark.note(2)
    watermark.close()
    assert synced_up_to(journal) == 2


def test_a_number_that_cannot_be_read_is_no_absent_one(journal: Path) -> None:
    beside(journal).mkdir()
    with pytest.raises(IsADirectoryError):
        synced_up_to(journal)


@pytest.mark.parametrize(
    ("synced", "latest", "lost"),
    [
        (None, 0, False),
        (5, 5, False),
        (5, 6, False),
        (5, 4, True),
        (2**40, 2**40 - 1, True),
        (APART_MIN - 1, 0, True),
        (APART_MIN, 0, False),
        (2**52, 7, False),
    ],
)
def test_an_end_before_the_number_is_lost_unless_it_is_of_another_directory(
    synced: int | None, latest: int, lost: bool
) -> None:
    found = lost_end(synced, latest)
    assert (found is not None) == lost
    assert found is None or (f"batch {latest}," in found and f"batch {synced} " in found)


def test_a_new_journal_has_nothing_of_the_one_that_was_in_its_place(journal: Path) -> None:
    watermark = Watermark(journal)
    watermark.note(5)
    watermark.close()
    create_journal(journal, {0: 3})
    assert synced_up_to(journal) is None
