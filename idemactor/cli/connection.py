"""From settings to an open client."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from idemactor.cli.settings import Settings, UsageProblem
from idemactor.client import Client
from idemactor.client.client import CLEANUP_MS

CONNECT_MS_MAX: Final = 2_000
"""How long one attempt to connect may take, at most."""


HURRY_MS: Final = 300
"""How long the client waits when it closes and nothing is left that is worth waiting for."""


class CommandClient(Client):
    """The client of one command."""

    def hurry(self) -> None:
        """What is not told by now is given up soon, and without another word."""
        self._cleanup_ms = HURRY_MS
        _SAID.setLevel(logging.ERROR)


def open_client(settings: Settings, *, patient: bool = False) -> CommandClient:
    """A client for ``settings``, to be opened with ``async with``.

    Args:
        settings: Whom to talk to, and as whom.
        patient: Whether what has to be told at the end is tried for as long as any call, and not only shortly.

    Raises:
        UsageProblem: The address is none, or the files for TLS cannot be used.
    """
    _say_warnings()
    try:
        return CommandClient(
            settings.address,
            token=settings.token,
            tls=_tls(settings),
            timeout_ms=settings.timeout_ms,
            connect_ms=min(settings.timeout_ms, CONNECT_MS_MAX),
            cleanup_ms=settings.timeout_ms if patient else CLEANUP_MS,
        )
    except ValueError as error:
        raise UsageProblem(str(error)) from None


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls:
        return None
    with _naming(settings.tls_ca):
        context = ssl.create_default_context(cafile=settings.tls_ca)
    with _naming(settings.tls_cert, settings.tls_key):
        if settings.tls_cert is not None:
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    return context


@contextlib.contextmanager
def _naming(*given: Path | None) -> Iterator[None]:
    """What is wrong with files is said with their names, and where one cannot be read, with its name alone."""
    files = [file for file in given if file is not None]
    try:
        for file in files:
            file.open("rb").close()
        yield
    except ssl.SSLError as error:
        raise UsageProblem(f"{_named(files)} cannot be used: {error.reason or error}") from None
    except ValueError as error:
        raise UsageProblem(f"{_named(files)} cannot be used: {error}") from None
    except OSError as error:
        where = error.filename or _named(files)
        raise UsageProblem(f"the TLS file {where} cannot be read: {error.strerror or error}") from None


def _named(files: Sequence[Path]) -> str:
    return f"the TLS {'file' if len(files) == 1 else 'files'} {' and '.join(map(str, files))}".rstrip()


def _no_password() -> str:
    # Left to itself OpenSSL would ask on the terminal, in the middle of a script.
    raise ValueError("the key is encrypted")


class _Said(logging.Handler):
    """What the client warns of, as one line like any other; no traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line to standard error."""
        click.echo(f"idemactor: {record.getMessage()}", err=True)


_SAID: Final = _Said(logging.WARNING)


def _say_warnings() -> None:
    logger = logging.getLogger("idemactor.client")
    logger.propagate = False
    _SAID.setLevel(logging.WARNING)
    if _SAID not in logger.handlers:
        logger.addHandler(_SAID)
