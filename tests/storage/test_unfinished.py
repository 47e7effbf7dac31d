"""What is removed: what has the mark under its name at that moment, and nothing that a link leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from idemactor.storage.unfinished import MARK_NAME, begin, discard, is_marked, is_unfinished


def test_what_was_begun_goes_with_all_that_is_in_it_and_no_link_is_followed(tmp_path: Path) -> None:
    made, other = tmp_path / "made", tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    begin(made)
    (made / "file").touch()
    (made / "inner" / "deep").mkdir(parents=True)
    (made / "inner" / "link").symlink_to(other)
    (made / "link").symlink_to(other)
    discard(made)
    assert os.listdir(tmp_path) == ["other"]
    assert os.listdir(other) == ["precious"]


@pytest.mark.parametrize("marked", [False, True])
def test_a_link_in_the_place_of_what_was_begun_is_not_followed(tmp_path: Path, marked: bool) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.mkdir()
    (other / (MARK_NAME if marked else "precious")).touch()
    link.symlink_to(other)
    assert not is_marked(link)
    assert not is_unfinished(link)
    with pytest.raises(NotADirectoryError):
        discard(link)
    assert len(os.listdir(other)) == 1


def test_what_has_no_mark_of_its_own_stays_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "mark").touch()
    (other / MARK_NAME).symlink_to(tmp_path / "mark")
    (other / "precious").touch()
    assert not is_marked(other)
    with pytest.raises(OSError, match="not empty"):
        discard(other)
    assert len(os.listdir(other)) == 2
