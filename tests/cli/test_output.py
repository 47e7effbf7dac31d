"""Text for people."""

from __future__ import annotations

import pytest

from idemactor.cli.output import BODY_CHARS_SHOWN, aligned, body_lines, moment, pairs, relative, safe, width

NOW = 1_795_982_381_000


def test_columns_stand_under_each_other() -> None:
    assert aligned([("KEY", "STATE", "N"), ("order-17", "pending", "1"), ("x", "in_doubt", "")]) == [
        "KEY       STATE     N",
        "order-17  pending   1",
        "x         in_doubt",
    ]


def test_wide_and_combining_characters_take_the_columns_that_they_take() -> None:
    assert [width(text) for text in ("abc", "注文", "e\u0301")] == [3, 4, 1]
    assert aligned([("注文", "1"), ("abcd", "2"), ("e\u0301", "3")]) == ["注文  1", "abcd  2", "e\u0301     3"]


def test_pairs_leave_out_what_has_no_value() -> None:
    assert pairs([("key", "a"), ("reason", None), ("attempt", "1")]) == ["key      a", "attempt  1"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode", "plain, ünïcode"),
        ("\x1b[2Jgone", "\\u001b[2Jgone"),
        ("a\nb\tc", "a\\u000ab\\u0009c"),
        ("\x9b31m", "\\u009b31m"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_reaches_the_terminal_as_a_command(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_lines_of_a_body_stay_lines() -> None:
    assert safe("a\nb\tc\x1b", lines=True) == "a\nb\tc\\u001b"
    assert body_lines(b'{"a":\n1}') == ['{"a":', "1}"]
    assert body_lines(b"\xff\xfe") == ["(2 bytes that are no text)"]
    assert body_lines(b"x" * (BODY_CHARS_SHOWN + 1)) == ["x" * BODY_CHARS_SHOWN, f"... ({BODY_CHARS_SHOWN + 1} bytes)"]


@pytest.mark.parametrize(
    ("distance_ms", "said"),
    [
        (0, "now"),
        (499, "now"),
        (-499, "now"),
        (-180_000, "3m ago"),
        (299_900, "in 5m"),
        (90_000, "in 1m 30s"),
        (-86_400_000, "1d ago"),
    ],
)
def test_times_are_told_as_people_tell_them(distance_ms: int, said: str) -> None:
    assert relative(NOW + distance_ms, NOW) == said


def test_a_moment_also_has_its_date() -> None:
    assert moment(NOW + 60_000, NOW) == "in 1m (2026-11-29 20:00:41Z)"
    # Beyond the calendar, as only a broken server's answer can be.
    assert moment(10**17, NOW).startswith("in ")
