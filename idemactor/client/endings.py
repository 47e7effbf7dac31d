"""How an attempt ends, and what is said of why. No I/O."""

from __future__ import annotations

import re
from typing import Final

from idemactor.core.limits import REASON_CHARS_MAX
from idemactor.core.record import Outcome
from idemactor.core.values import slotted

_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]+")
"""What no reason may hold (contract, sections 8 and 12): control characters beside tabs and ends of lines, and
lone surrogates."""

LAPSE_MS: Final = 1
"""The shortest lease: what a takeover that is given up leaves behind."""


@slotted
class Claim:
    """An attempt, as its holder names it."""

    namespace: str
    key: str
    token: int


@slotted
class Commit:
    """The effect happened."""

    outcome: Outcome | None


@slotted
class GiveBack:
    """This attempt had no effect.

    Attributes:
        keep_evidence: An earlier attempt may have had one. Releasing would make the next caller believe that it is the
            first, so the lease is made to end instead: the next caller takes over and is told.
    """

    reason: str | None
    keep_evidence: bool


@slotted
class LeaveInDoubt:
    """Nobody knows whether the effect happened."""

    reason: str | None


Ending = Commit | GiveBack | LeaveInDoubt


def reason_of(error: BaseException) -> str:
    """Why, without a word of what may be secret."""
    return type(error).__name__[:REASON_CHARS_MAX]


def clean_reason(reason: str | None) -> str | None:
    """A reason that no server refuses: a doubt must not be lost for the looks of its reason, ``str(error)`` mostly.

    Raises:
        TypeError: It is no text.
    """
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise TypeError(f"reason is text or None, not {type(reason).__name__}")
    return _UNPRINTABLE.sub(" ", reason)[:REASON_CHARS_MAX].strip() or None


def is_all(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether ``error`` is of ``kinds``, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return isinstance(error, kinds) or all(is_all(inner, kinds) for inner in error.exceptions)
    return isinstance(error, kinds)
