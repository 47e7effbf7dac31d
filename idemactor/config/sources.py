"""Reads what the configuration is made of: a TOML file, then the environment, then flags; the later wins.

Nothing is judged here but whether a source can be read at all and whether a variable's name is well formed.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from idemactor.config.lines import locate
from idemactor.config.tree import Leaf, Origin, Problem, SettingPath, Table
from idemactor.errors import ConfigError

FILE_BYTES_MAX: Final = 4_194_304
"""The largest configuration file, bytes."""

ENVIRONMENT_PREFIX: Final = "IDEMACTOR_"
CLIENT_VARIABLES: Final = frozenset(
    {
        *("IDEMACTOR_ADDRESS", "IDEMACTOR_TOKEN", "IDEMACTOR_NAMESPACE"),
        *("IDEMACTOR_KEY", "IDEMACTOR_OPERATION_ID", "IDEMACTOR_ATTEMPT"),
        *("IDEMACTOR_FENCING_TOKEN", "IDEMACTOR_TAKEOVER"),
    }
)
"""Variables that belong to clients and to what ``idemactor run`` starts, and say nothing to a server."""

FLAGS: Final[Mapping[str, str]] = {
    "server.data_dir": "--data-dir",
    "server.shards": "--shards",
    "server.workers": "--workers",
    "http.bind": "--http",
    "rpc.bind": "--rpc",
}
"""The settings that have a flag of ``idemactor serve``."""


def read_file(path: Path) -> Table:
    """The settings of a TOML file.

    Raises:
        ConfigError: It cannot be read, is too large, is not UTF-8, begins with a byte order mark, or is not TOML.
    """
    text = _read_text(path)
    try:
        document = tomllib.loads(text)
        lines = locate(text)
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(_describe_syntax_error(path, text, error)) from None
    return _table(document, (), lines, str(path))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
    if data.startswith(codecs.BOM_UTF8):
        # TOML has none, and the parser points at a character that nobody sees.
        raise ConfigError(f"{path}:1: begins with a byte order mark; save it as UTF-8 without one")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: is not UTF-8 text, as TOML has to be") from None


def _describe_syntax_error(path: Path, text: str, error: ValueError) -> str:
    message = str(error)
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if at is None:
        return f"{path}: is not valid TOML: {message}"
    line = at[1] or str(text.count("\n") + 1)
    column = f" (column {at[2]})" if at[2] else " (end of file)"
    return f"{path}:{line}: is not valid TOML: {message[: at.start()]}{column}"


def _table(document: Mapping[str, object], path: SettingPath, lines: Mapping[SettingPath, int], file: str) -> Table:
    table = Table(_origin(path, lines, file))
    for name, value in document.items():
        below = (*path, name)
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            # By number each of its settings has a name and a line.
            numbered = {str(number): item for number, item in enumerate(value)}
            table.members[name] = dataclasses.replace(_table(numbered, below, lines, file), is_list=True)
        elif isinstance(value, dict):
            table.members[name] = _table(value, below, lines, file)
        else:
            table.members[name] = Leaf(value, _origin(below, lines, file))
    return table


def _origin(path: SettingPath, lines: Mapping[SettingPath, int], file: str) -> Origin:
    return Origin(file, lines.get(path, 0))


def add_environment(tree: Table, environment: Mapping[str, str]) -> list[Problem]:
    """Lays the variables of this program over ``tree``; answers those whose names can be no setting.

    ``__`` separates the levels of a name and its case does not count: ``IDEMACTOR_SERVER__DATA_DIR``.
    """
    problems = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in CLIENT_VARIABLES:
            continue
        origin = Origin(f"environment {variable}")
        path = tuple(variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if len(path) < 2 or not all(path):
            problems.append(Problem(origin, "", "no such setting; a name looks like IDEMACTOR_SERVER__DATA_DIR"))
        else:
            tree.put(path, Leaf(text, origin, is_text=True))
    return problems


def add_inherited(tree: Table, settings: Mapping[str, object]) -> None:
    """Lays what the service manager bound for us, by the dotted names of the settings it stands for, over ``tree``."""
    for setting, value in settings.items():
        tree.put(tuple(setting.split(".")), Leaf(value, Origin("socket activation")))


def add_flags(tree: Table, flags: Mapping[str, object]) -> None:
    """Lays the flags that were given, by the dotted names of their settings, over ``tree``."""
    for setting, value in flags.items():
        tree.put(tuple(setting.split(".")), Leaf(value, Origin(f"flag {FLAGS[setting]}")))
