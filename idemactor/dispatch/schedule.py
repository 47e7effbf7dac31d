"""When something is tried again. Pure: time and randomness are arguments. Times in milliseconds."""

from __future__ import annotations

import datetime
import re
from email.utils import parsedate_to_datetime
from typing import Final

from idemactor.dispatch.destination import Retry
from idemactor.dispatch.limits import RETRY_AFTER_MS_MAX

_SECONDS: Final = re.compile(r"[0-9]+")
_DIGITS_MAX: Final = 12
"""More of them, without zeros in front, are beyond every bound; reading a number of any length takes too long."""
_MS_PER_S: Final = 1_000


def backoff_ms(retry: Retry, attempt: int, chance: float) -> int:
    """How long to wait after an attempt: any time up to a bound that grows ("full jitter").

    Spread over the whole of it, those who failed together do not come back together.

    Args:
        attempt: The one that failed, from 1.
        chance: Random, from 0 up to 1.
    """
    bound = float(retry.first_ms)
    for _ in range(attempt - 1):
        if bound >= retry.longest_ms or retry.factor <= 1:
            break
        bound *= retry.factor
    return int(min(bound, retry.longest_ms) * chance)


def retry_after_ms(values: list[str], now_ms: int) -> int | None:
    """What ``Retry-After`` asks for: seconds or a date (RFC 9110, section 10.2.3); at most ``RETRY_AFTER_MS_MAX``.

    Returns None where it is not there once, or says nothing that can be understood.
    """
    if len(values) != 1:
        return None
    text = values[0].strip()
    wait_ms = _seconds_ms(text) if _SECONDS.fullmatch(text) else _until_date(text, now_ms)
    return None if wait_ms is None else max(0, min(wait_ms, RETRY_AFTER_MS_MAX))


def _seconds_ms(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) * _MS_PER_S if len(digits) <= _DIGITS_MAX else RETRY_AFTER_MS_MAX


def _until_date(text: str, now_ms: int) -> int | None:
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    # A date without a zone is none of HTTP's, whose dates are in GMT; it can only have meant that.
    at = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
    return int(at.timestamp() * _MS_PER_S) - now_ms


def check_is_due(since_ms: int, after_ms: int, now_ms: int, retry: Retry) -> bool:
    """Whether a check of an operation falls into the time after ``after_ms``, up to ``now_ms``.

    The checks of one are ``first_ms``, twice that, four times that... after ``since_ms``, and ``longest_ms`` apart from
    there on: so it is enough to know when was looked last, and nothing about the operation has to be kept.
    """
    age, before = now_ms - since_ms, after_ms - since_ms
    if age < retry.first_ms:
        return False
    latest = retry.first_ms
    while latest < retry.longest_ms and 2 * latest <= age:
        latest *= 2
    if latest >= retry.longest_ms:
        latest += (age - latest) // retry.longest_ms * retry.longest_ms
    return latest > before
