"""What options may bring in from files: payloads and outcomes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.core.limits import FRAME_BYTES_MAX, OUTCOME_STATUS_MAX, OUTCOME_STATUS_MIN

if TYPE_CHECKING:
    from idemactor.core.record import Outcome

Function = Callable[..., Any]

STATUS_DEFAULT: Final = 200
_STDIN: Final = ("-", "@-")
_STDIN_READ: Final = "idemactor.stdin_read"


def source(text: str) -> bytes:
    """The type of options whose value is text, ``@FILE``, or ``-`` (``@-``) for standard input: bytes.

    What cannot be read, or is larger than any call may be, is a usage error.
    """
    try:
        data = _read(text)
    except OSError as error:
        raise click.BadParameter(f"{text.removeprefix('@')}: cannot be read: {error.strerror or error}.") from None
    if len(data) > FRAME_BYTES_MAX:
        raise click.BadParameter(f"it is larger than {FRAME_BYTES_MAX} bytes, which no server takes.")
    return data


def _read(text: str) -> bytes:
    if text in _STDIN:
        meta = click.get_current_context().meta
        if meta.get(_STDIN_READ):
            raise click.BadParameter("standard input is taken by another option already.")
        meta[_STDIN_READ] = True
        return sys.stdin.buffer.read(FRAME_BYTES_MAX + 1)
    if text.startswith("@"):
        with Path(text[1:]).expanduser().open("rb") as file:
            return file.read(FRAME_BYTES_MAX + 1)
    return os.fsencode(text)


def json_source(text: str) -> str:
    """As ``source``, for JSON. What it means is the server's to judge: its decimals stay as they are written."""
    try:
        return source(text).decode()
    except UnicodeDecodeError:
        raise click.BadParameter("it is not UTF-8, as JSON has to be.") from None


def header(text: str) -> tuple[str, str]:
    """The type of options that take one header of an outcome, ``Name: value``."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r} is no header, which looks like 'Name: value'.")
    return name.strip(), value.strip()


def stacked(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Options in the order in which the help page is to show them."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


payload_options: Final = stacked(
    click.option(
        "--payload",
        "payload_json",
        type=json_source,
        metavar="JSON|@FILE|-",
        help="What the key stands for: the key with another payload is refused.",
    ),
    click.option("--fingerprint", metavar="TEXT", help="Your own digest of it, instead of a payload."),
)


def outcome_options(function: Function) -> Function:
    """``--status``, ``--header`` and ``--body``: what the operation answered; ``function`` gets the ``outcome``."""

    @functools.wraps(function)
    def call(
        *arguments: Any, status: int | None, headers: tuple[tuple[str, str], ...], body: bytes | None, **named: Any
    ) -> Any:
        return function(*arguments, outcome=outcome_from(status, headers, body), **named)

    return stacked(
        click.option(
            "--status",
            type=click.IntRange(OUTCOME_STATUS_MIN, OUTCOME_STATUS_MAX),
            help=f"The outcome's status; {STATUS_DEFAULT} where it has a header or a body.",
        ),
        click.option("--header", "headers", type=header, multiple=True, metavar="'NAME: VALUE'", help="Repeatable."),
        click.option("--body", type=source, metavar="TEXT|@FILE|-", help="The outcome's body, byte by byte."),
    )(call)


def outcome_from(status: int | None, headers: tuple[tuple[str, str], ...], body: bytes | None) -> Outcome | None:
    """The outcome that the options name; None where there is none of them."""
    if status is None and not headers and body is None:
        return None
    from idemactor.core.record import Outcome

    return Outcome(STATUS_DEFAULT if status is None else status, headers, body or b"")
