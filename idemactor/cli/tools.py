"""What the commands that work on files have in common: how they show progress, answer, and end."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import fail
from idemactor.cli.exits import Exit, table_of
from idemactor.cli.identity import become_owner, caller
from idemactor.cli.interrupts import INTERRUPTED, interruptible
from idemactor.errors import ConfigError, StartError, StorageError

if TYPE_CHECKING:
    from idemactor.config import ServerConfig, ServerSection
    from idemactor.storage.sealing import Keyring

SHOWN_EVERY_S: Final = 0.1
"""How often a line of progress is written anew."""


class _File(click.Path):
    """A file; None for ``-``, which is standard input or output, as where none is named. ``./-`` is a file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "-" else super().convert(value, param, ctx)


EXITS: Final = (Exit.DONE, Exit.UNEXPECTED, Exit.USAGE, Exit.DAMAGED)
DIRECTORY: Final = click.Path(path_type=Path)
FILE: Final = _File(path_type=Path)
DATA_DIR_DEFAULT: Final = Path("data")
"""The server's own, where nothing says another one."""
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Write the report as one line of JSON.")


config_option: Final = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The server's configuration: the keys of what is encrypted.",
)
_SETTINGS: Final = "IDEMACTOR_SERVER__"


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What a tool goes by besides its arguments.

    Attributes:
        who: The name of the user who runs it.
        server: What the server is told of its files; None: nothing.
        keys: The keys of what is encrypted; None: there are none.
        audit_file: Where the configuration that was named has what operators do written; None: nowhere.
    """

    who: str
    server: ServerSection | None
    keys: Keyring | None
    audit_file: Path | None


def told_as_owner(config_path: Path | None, written: Path | None, read: Path | None = None) -> Told:
    """Read the settings, which root alone may be allowed to read, and then be the user in whose hands the files are.

    Args:
        config_path: The server's configuration, beside the environment.
        written: See ``become_owner``.
        read: See ``become_owner``.

    Raises:
        StartError: See ``told_by`` and ``become_owner``.
    """
    told = told_by(config_path)
    become_owner(written, read)
    return told


def told_by(config_path: Path | None) -> Told:
    """Read the settings.

    Raises:
        StartError: They cannot be used, or the package for the keys is not there.
    """
    config = _config(config_path)
    server = None if config is None else config.server
    # Nobody said of the environment's that tools go by it.
    audit_file = None if config is None or config_path is None else config.log.audit_file
    return Told(caller(), server, _keys_of(server), audit_file)


def _config(path: Path | None) -> ServerConfig | None:
    if not _has_settings(path):
        return None
    from idemactor.config import load

    # Without a file, what the environment says of other things is for a server.
    given = os.environ
    environment = given if path is not None else {k: v for k, v in given.items() if _counts_alone(k)}
    try:
        return load(path, environment=environment)
    except ConfigError as error:
        raise StartError(str(error)) from error


def _counts_alone(variable: str) -> bool:
    return variable.startswith(_SETTINGS) or not variable.startswith("IDEMACTOR_")


def _has_settings(path: Path | None) -> bool:
    return path is not None or any(variable.startswith(_SETTINGS) for variable in os.environ)


def directory_of(named: Path | None, server: ServerSection | None) -> Path:
    """The data directory that is meant: the one that is named, else the server's, else the server's default.

    Absolute, so that a report says which one it was.
    """
    if named is not None:
        return named.absolute()
    return (DATA_DIR_DEFAULT if server is None else server.data_dir).absolute()


def _keys_of(server: ServerSection | None) -> Keyring | None:
    from idemactor.storage.sealing import Keyring

    return Keyring(server.encryption_keys) if server is not None and server.encryption_keys else None


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
def working(*, as_json: bool, config_path: Path | None = None) -> Iterator[TerminalProgress]:
    """While a tool works: it shows how far it is, and what stops it is said in one line and ends the program.

    SIGTERM stops it as Ctrl-C does, so that what it has begun is cleaned away.
    """
    if _has_settings(config_path):
        # Before a signal raises anything: Python ends by SIGINT, whatever is made of it, once one came amid an import.
        importlib.import_module("idemactor.config")
    progress = TerminalProgress(quiet=as_json)
    try:
        with interruptible():
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
