"""The configuration of a server: file, then environment, then flags; all its problems are said at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from idemactor.config.addresses import Address, TcpAddress, UnixAddress, parse_address
from idemactor.config.build import build
from idemactor.config.model import (
    DoorSection,
    Durability,
    LogLevel,
    LogSection,
    ServerConfig,
    ServerSection,
    TokenEntry,
)
from idemactor.config.rules import check
from idemactor.config.sources import FLAGS, add_environment, add_flags, add_inherited, read_file
from idemactor.config.tree import Origin, Table
from idemactor.errors import ConfigError
from idemactor.server.auth import Role

__all__ = [
    "FLAGS",
    "Address",
    "DoorSection",
    "Durability",
    "LogLevel",
    "LogSection",
    "Role",
    "ServerConfig",
    "ServerSection",
    "TcpAddress",
    "TokenEntry",
    "UnixAddress",
    "load",
    "parse_address",
]

_BUILT_IN: Final = "built-in defaults"


def load(
    path: Path | None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    inherited: Mapping[str, object] | None = None,
) -> ServerConfig:
    """The configuration of a server.

    Args:
        path: The TOML file; None: none, only the built-in defaults below the other sources.
        environment: Variables by name; those that begin with ``IDEMACTOR_`` are settings, and of the others only those
            count that ``secret_env`` names.
        flags: Values by the dotted names of their settings (the keys of ``FLAGS``), those that were given.
        inherited: The addresses of listening sockets that are there already, by the settings that they stand for; they
            win over everything.

    Raises:
        ConfigError: It cannot be used; the message has a line for each problem, with file and line, the
            setting, what is wrong and what is allowed.
    """
    tree = Table(Origin(_BUILT_IN)) if path is None else read_file(path)
    problems = add_environment(tree, environment or {})
    add_flags(tree, flags or {})
    add_inherited(tree, inherited or {})
    config = build(tree, problems, environment or {})
    problems.extend(check(config, tree))
    if problems:
        raise ConfigError("\n".join(str(problem) for problem in sorted(problems)))
    return config
