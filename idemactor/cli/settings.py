"""Whom a command talks to, and as whom: from flags, then the environment, then a file, then the defaults."""

from __future__ import annotations

import codecs
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from idemactor.cli.durations import parse_duration
from idemactor.errors import IdemactorError

ADDRESS_DEFAULT: Final = "127.0.0.1:8788"
NAMESPACE_DEFAULT: Final = "default"
TIMEOUT_MS_DEFAULT: Final = 5_000

FILE_BYTES_MAX: Final = 65_536
"""The largest client file or token file, bytes."""

ENVIRONMENT: Final[Mapping[str, str]] = {
    "address": "IDEMACTOR_ADDRESS",
    "token": "IDEMACTOR_TOKEN",
    "namespace": "IDEMACTOR_NAMESPACE",
}
"""The variables that set what flags set."""


class UsageProblem(IdemactorError):
    """Something that the user has to put right; the message is one line."""


@dataclass(frozen=True, slots=True)
class Given:
    """What one source says; None for what it is silent about.

    Attributes:
        token_file: A file that holds the token; it and ``token`` exclude each other.
        tls: Whether to speak TLS; the other ``tls_`` settings imply it.
        tls_ca: A file of certificates to trust instead of the system's.
        tls_cert: The client's own certificate, where the server wants one.
        tls_key: The key of that certificate.
        timeout_ms: How long to try, milliseconds.
    """

    address: str | None = None
    token: str | None = None
    token_file: Path | None = None
    namespace: str | None = None
    tls: bool | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command goes by; as in ``Given``, complete."""

    address: str
    token: str | None
    namespace: str
    tls: bool
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    timeout_ms: int


def default_file(environment: Mapping[str, str]) -> Path:
    """The file that is read where none is named, if it is there."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "idemactor" / "client.toml"


def settings_from(flags: Given, environment: Mapping[str, str], file: Path | None) -> Settings:
    """What the sources say together; the earlier one wins, setting by setting.

    Args:
        flags: What the command line says.
        environment: All variables; those of ``ENVIRONMENT`` count, and empty ones are as if they were not there.
        file: The file that the user named; None: ``default_file``, if it is there.

    Raises:
        UsageProblem: A file cannot be read, or says what cannot be.
    """
    named = file is not None
    path = file if file is not None else default_file(environment)
    sources = (flags, given_by_environment(environment), given_by_file(path) if named or path.is_file() else Given())
    found = {field.name: _first(field.name, sources) for field in fields(Given)}
    tls_files = (found["tls_ca"], found["tls_cert"], found["tls_key"])
    if (found["tls_cert"] is None) != (found["tls_key"] is None):
        raise UsageProblem("tls_cert and tls_key go together")
    if found["tls"] is False and any(tls_files):
        raise UsageProblem("TLS is off, and there are settings for it")
    return Settings(
        address=found["address"] or ADDRESS_DEFAULT,
        token=_token(sources),
        namespace=found["namespace"] or NAMESPACE_DEFAULT,
        tls=bool(found["tls"] or any(tls_files)),
        tls_ca=tls_files[0],
        tls_cert=tls_files[1],
        tls_key=tls_files[2],
        timeout_ms=found["timeout_ms"] if found["timeout_ms"] is not None else TIMEOUT_MS_DEFAULT,
    )


def given_by_environment(environment: Mapping[str, str]) -> Given:
    """What the variables say; an empty one says nothing."""
    found: dict[str, Any] = {name: environment.get(variable) or None for name, variable in ENVIRONMENT.items()}
    return Given(**found)


def _first(name: str, sources: tuple[Given, ...]) -> Any:
    return next((value for source in sources if (value := getattr(source, name)) is not None), None)


def _token(sources: tuple[Given, ...]) -> str | None:
    """The token of the first source that has one, in whichever form."""
    for source in sources:
        if source.token is not None and source.token_file is not None:
            raise UsageProblem("token and token_file exclude each other")
        if source.token_file is not None:
            token = read_text(source.token_file).strip()
            if not token:
                raise UsageProblem(f"{source.token_file}: holds no token")
            return token
        if source.token is not None:
            return source.token
    return None


def read_text(path: Path) -> str:
    """A small text file.

    Raises:
        UsageProblem: It cannot be read, is too large, not UTF-8, or begins with a byte order mark.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageProblem(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > FILE_BYTES_MAX:
        raise UsageProblem(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    if data.startswith(codecs.BOM_UTF8):
        raise UsageProblem(f"{path}: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageProblem(f"{path}: is not UTF-8 text") from None


# ------------------------------------------------------------------------------------------------------------- the file

_KINDS: Final[Mapping[str, type[str] | type[bool] | type[Path]]] = {
    "address": str,
    "token": str,
    "token_file": Path,
    "namespace": str,
    "tls": bool,
    "tls_ca": Path,
    "tls_cert": Path,
    "tls_key": Path,
    "timeout": str,
}
"""The settings of the file. Paths that are not absolute start from the file's own directory."""


def given_by_file(path: Path) -> Given:
    """What the client file says.

    Raises:
        UsageProblem: It cannot be read, is no TOML, or has a setting that does not exist or is of the wrong kind.
    """
    try:
        document = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageProblem(f"{path}: is not valid TOML: {error}") from None
    found: dict[str, Any] = {}
    for name, value in document.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise UsageProblem(f"{path}: {name}: no such setting; there are {', '.join(_KINDS)}")
        if not isinstance(value, bool if kind is bool else str):
            raise UsageProblem(f"{path}: {name}: must be {'true or false' if kind is bool else 'text'}")
        found[name] = path.parent / os.path.expanduser(str(value)) if kind is Path else value
    if "timeout" in found:
        try:
            found["timeout_ms"] = parse_duration(found.pop("timeout"))
        except ValueError as error:
            raise UsageProblem(f"{path}: timeout: {error}") from None
    return Given(**found)
