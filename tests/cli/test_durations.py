"""Durations in and out of text."""

from __future__ import annotations

import click
import pytest

from idemactor.cli.durations import duration, parse_duration, say_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1500", 1_500),
        ("250ms", 250),
        ("30s", 30_000),
        ("1.5s", 1_500),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        (" 5M ", 300_000),
        ("0.001s", 1),
    ],
)
def test_what_is_a_duration(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1", "-1s", "1 s", "5x", "1.5", "0.5ms", "1s2", "1e3", "٣s", "¹", "0x10", "9" * 33, "1s" * 20, "nan"],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is a number with ms, s, m, h or d"):
        parse_duration(text)
    with pytest.raises(click.BadParameter, match="a duration is"):
        duration(text)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (59_999, "59s"),
        (90_000, "1m 30s"),
        (300_000, "5m"),
        (3_600_000, "1h"),
        (3_601_000, "1h"),
        (5_400_000, "1h 30m"),
        (86_400_000 * 3 + 3_600_000 * 2 + 60_000, "3d 2h"),
        (86_400_000 * 400, "400d"),
    ],
)
def test_how_a_duration_is_said(ms: int, said: str) -> None:
    assert say_duration(ms) == said
