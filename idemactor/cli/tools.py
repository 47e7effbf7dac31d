"""What the commands that work on files have in common: how they show progress, answer, and end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from idemactor.cli.command import INTERRUPTED, fail
from idemactor.cli.exits import Exit, table_of
from idemactor.errors import StartError, StorageError

SHOWN_EVERY_S: Final = 0.1
"""How often a line of progress is written anew."""

EXITS: Final = (Exit.DONE, Exit.UNEXPECTED, Exit.USAGE, Exit.DAMAGED)
DIRECTORY: Final = click.Path(path_type=Path)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write the report as one line of JSON.")


def epilog(example: str, *exits: Exit) -> str:
    """The end of a help page."""
    lines = "\n".join(f"  {line}" for line in example.splitlines())
    return f"\b\nExample:\n{lines}\n\n\b\nExit codes:\n{table_of(*sorted({*EXITS, *exits}))}"


class TerminalProgress:
    """A line on standard error that is written anew; nothing where that is no terminal, or programs read the answer."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()
        self._next = 0.0
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """See ``Progress``."""
        now = time.monotonic()
        if not self._shows or (now < self._next and what == self._what):
            return
        self._next, self._what = now + SHOWN_EVERY_S, what
        percent = min(100, 100 * done // max(total, 1))
        click.echo(f"\r\x1b[K{what}: {percent} %", err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._shows and self._what:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._what = ""


@contextlib.contextmanager
def working(*, as_json: bool) -> Iterator[TerminalProgress]:
    """While a tool works: it shows how far it is, and what stops it is said in one line and ends the program.

    SIGTERM stops it as Ctrl-C does, so that what it has begun is cleaned away.
    """
    progress = TerminalProgress(quiet=as_json)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield progress
    except StartError as error:
        _end(progress, as_json, "REFUSED", str(error), Exit.USAGE)
    except StorageError as error:
        _end(progress, as_json, "DAMAGED", str(error), Exit.DAMAGED)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        _end(progress, as_json, "REFUSED", str(error), Exit.USAGE)
    except KeyboardInterrupt:
        progress.clear()
        raise SystemExit(INTERRUPTED) from None
    finally:
        progress.clear()
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _end(progress: TerminalProgress, as_json: bool, code: str, detail: str, exit_code: Exit) -> None:
    progress.clear()
    if as_json:
        click.echo(json.dumps({"code": code, "detail": detail}))
    fail(detail, exit_code)


def members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, as JSON has them."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=str))
    return found


def report(as_json: bool, told: Mapping[str, object], lines: list[str]) -> None:
    """What a tool did: for programs, or for people."""
    if as_json:
        click.echo(json.dumps(told, separators=(",", ":")))
    else:
        for line in lines:
            click.echo(line)
