"""Durations as people write them: ``30s``, ``5m``, ``1h30m``, ``1.5s``; a number alone is milliseconds."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import click

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
METAVAR: Final = "DURATION"
_CHARS_MAX: Final = 32
"""Longer is no duration; a number of a million digits is slow to convert."""


def parse_duration(text: str) -> int:
    """Milliseconds.

    Raises:
        ValueError: ``text`` is no duration, or no whole number of milliseconds.
    """
    text = text.strip().lower()
    if len(text) <= _CHARS_MAX:
        if text.isascii() and text.isdigit():
            return int(text)
        if _WHOLE.fullmatch(text):
            total = sum(Decimal(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
            if total == int(total):
                return int(total)
    raise ValueError("a duration is a number with ms, s, m, h or d, as in 30s or 1h30m; alone it is milliseconds")


def say_duration(ms: int) -> str:
    """A duration for people: its two largest units, rounded down."""
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    if not parts:
        return f"{ms}ms"
    return " ".join(part for part in parts[:2] if part)


def duration(text: str) -> int:
    """The type of options that take a duration: milliseconds; a mistake is a usage error."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}.") from None
