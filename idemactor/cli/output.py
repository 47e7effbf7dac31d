"""Text for people: aligned columns, times as they are told, nothing that a terminal would take for a command."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from idemactor.cli.durations import say_duration

GAP: Final = "  "
BODY_CHARS_SHOWN: Final = 2_000
"""More of a body is cut off in text; ``get --body`` has all of it."""

_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that turn the direction of what follows, and lone surrogates."""
_UNSAFE_IN_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_EPOCH_MS_MAX: Final = 253_402_300_799_000
"""The end of the year 9999, beyond which no date can be shown."""


def now_ms() -> int:
    """The time of this machine, milliseconds since the epoch; what "3m ago" is counted from."""
    return time.time_ns() // 1_000_000


def safe(text: str, *, lines: bool = False) -> str:
    """``text`` with everything escaped that a terminal would act on; ``lines``: ends of lines and tabs stay."""
    return (_UNSAFE_IN_LINES if lines else _UNSAFE).sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def relative(at_ms: int, now: int) -> str:
    """``3m ago``, ``in 5m``, ``now``."""
    distance = round((at_ms - now) / 1_000) * 1_000
    if distance == 0:
        return "now"
    return f"in {say_duration(distance)}" if distance > 0 else f"{say_duration(-distance)} ago"


def moment(at_ms: int, now: int) -> str:
    """A point in time: how far off it is, and when it is in UTC."""
    if not 0 <= at_ms <= _EPOCH_MS_MAX:
        return relative(at_ms, now)
    stamp = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return f"{relative(at_ms, now)} ({stamp})"


def width(text: str) -> int:
    """How many columns a terminal needs for ``text``."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with the columns of ``rows`` under each other."""
    widths: list[int] = []
    for row in rows:
        for index, cell in enumerate(row):
            if index == len(widths):
                widths.append(0)
            widths[index] = max(widths[index], width(cell))
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=False))
    return GAP.join(padded).rstrip()


def pairs(rows: Iterable[tuple[str, str | None]]) -> list[str]:
    """Lines of names and values; those without a value are left out."""
    return aligned([(name, value) for name, value in rows if value is not None])


def body_lines(body: bytes) -> list[str]:
    """A body as far as it is shown."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return [f"({len(body)} bytes that are no text)"]
    shown = safe(text[:BODY_CHARS_SHOWN], lines=True).splitlines()
    return [*shown, f"... ({len(body)} bytes)"] if len(text) > BODY_CHARS_SHOWN else shown
