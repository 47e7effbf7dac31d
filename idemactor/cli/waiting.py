"""``--wait``, the same for every command that may wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from idemactor.cli.durations import METAVAR, parse_duration
from idemactor.core.limits import WAIT_MS_MAX

F = TypeVar("F", bound=Callable[..., object])

WAIT_ALONE: Final = f"{WAIT_MS_MAX // 1000}s"
"""What ``--wait`` means without a value: as long as one call may."""


def wait_option(what: str) -> Callable[[F], F]:
    """The option, as ``wait_ms``; its help says ``what`` is waited for."""
    return click.option(
        "--wait",
        "wait_ms",
        type=_waiting,
        is_flag=False,
        flag_value=WAIT_ALONE,
        default="0",
        metavar=f"[{METAVAR}]",
        help=f"Wait {what}, so long (--wait=5s) or, without a value, {WAIT_ALONE}.",
    )


def _waiting(text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        said = f"{text!r}: {error}; without a value --wait comes after KEY."
        raise click.BadParameter(said) from None
