"""Arguments that are looked at when they are given: a mistake must not show when the effect has happened. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from idemactor.client.errors import InvalidRequest
from idemactor.core.keys import InvalidKey, InvalidNamespace, check_key, check_namespace
from idemactor.core.policy import OnUnavailable
from idemactor.errors import Code


def check_text(name: str, value: object) -> None:
    """Raise TypeError where ``value`` is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")


def check_whole(name: str, value: object, least: int | None = 0) -> None:
    """Raise TypeError where ``value`` is no int, ValueError where it is below ``least``; None: whoever else looks."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{name} is at least {least}")


def check_flag(name: str, value: object) -> None:
    """Raise TypeError where ``value`` is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {type(value).__name__}")


def check_duration(name: str, value: object, *, above_zero: bool = False) -> None:
    """Raise TypeError where ``value`` is no number, ValueError where it is no length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number of milliseconds, not {type(value).__name__}")
    if not math.isfinite(value) or value < 0 or (above_zero and not value):
        raise ValueError(f"{name} is a number of milliseconds {'above 0' if above_zero else 'from 0 on'}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ValueError where ``value`` is none of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def on_unavailable_from(value: Literal["closed", "open"] | None) -> OnUnavailable | None:
    """What to do when nobody can be asked; None where that is not said. Raises: ValueError."""
    if value is None:
        return None
    check_choice("on_unavailable", value, [choice.value for choice in OnUnavailable])
    return OnUnavailable(value)


def check_place(namespace: object, key: object) -> None:
    """Accept where a key lives, and the key, by the server's own rules: unprotected, no server would refuse them.

    Raises:
        TypeError: One is no text.
        InvalidRequest: No record can have it.
    """
    check_text("namespace", namespace)
    check_text("key", key)
    field = "namespace"
    try:
        check_namespace(str(namespace))
        field = "key"
        check_key(str(key))
    except (InvalidNamespace, InvalidKey) as error:
        raise InvalidRequest(Code.INVALID_REQUEST, str(error), field=field) from None


def wait_ms_from(wait: object) -> int | None:
    """How long to wait for a key, milliseconds; None: for as long as it takes.

    Raises:
        TypeError: ``wait`` is neither a bool nor an int.
        ValueError: It is negative.
    """
    if isinstance(wait, bool):
        return None if wait else 0
    if not isinstance(wait, int):
        raise TypeError(f"wait is True, False or a number of milliseconds, not {type(wait).__name__}")
    if wait < 0:
        raise ValueError("wait is True, False or a number of milliseconds from 0 on")
    return wait


def exceptions_from(name: str, value: object) -> tuple[type[BaseException], ...]:
    """Exception classes as a tuple, for one, a tuple or a list of them. Raises: TypeError."""
    kinds = tuple(value) if isinstance(value, tuple | list) else (value,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise TypeError(f"{name} is an exception class or a tuple of them, and {kind!r} is none")
    return kinds
