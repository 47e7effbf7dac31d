"""``idemactor import``."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from idemactor.cli.audited import audited
from idemactor.cli.command import fail
from idemactor.cli.exits import Exit
from idemactor.cli.output import safe
from idemactor.cli.tools import (
    DIRECTORY,
    FILE,
    config_option,
    epilog,
    json_option,
    members,
    report,
    told_as_owner,
    working,
)
from idemactor.errors import StartError

if TYPE_CHECKING:
    from idemactor.storage.importing import Conflicts

_EXAMPLE: Final = "idemactor import /var/lib/idemactor everything.jsonl --shards 16"


@click.command("import", epilog=epilog(_EXAMPLE, Exit.CONFLICT))
@click.argument("data_dir", type=DIRECTORY)
@click.argument("source", metavar="[FILE]", type=FILE, required=False)
@click.option("--shards", type=int, metavar="N", help="Of a new directory; else the configuration's, or the export's.")
@config_option
@json_option
def import_(data_dir: Path, source: Path | None, shards: int | None, config_path: Path | None, as_json: bool) -> None:
    """Take what an export wrote into DATA_DIR, while no server runs.

    It is read from FILE; from standard input where none is named, or -. DATA_DIR is new, or holds none of the keys:
    where one is there with something else nothing is changed, and they are named. What is there with the same is left
    as it is.
    """
    from idemactor.storage.importing import Conflicts, import_lines

    with working(as_json=as_json, config_path=config_path) as progress, contextlib.ExitStack() as stack:
        told = told_as_owner(config_path, data_dir, source)
        stack.enter_context(audited(told, "import", data_dir))
        file: BinaryIO = sys.stdin.buffer if source is None else stack.enter_context(_opened(source))
        try:
            imported = import_lines(
                data_dir,
                file,
                progress,
                shards=shards,
                shards_default=None if told.server is None else told.server.shards,
                checksums=None if told.server is None else told.server.page_checksums,
                keys=told.keys,
            )
        except Conflicts as error:
            progress.clear()
            _tell(error, as_json)
    kept = [] if imported.rebuilt is None or imported.rebuilt.replaced is None else [imported.rebuilt.replaced]
    lines = [
        f"{data_dir}: {imported.entries} keys, {imported.events} events and {imported.incidents} incidents came in,"
        f" {imported.present} keys were there already, with the same",
        *(f"the files of before are kept in {path}" for path in kept),
    ]
    report(as_json, members(imported), lines)


def _opened(source: Path) -> BinaryIO:
    """The file to read. Raises: StartError: it cannot be opened."""
    try:
        return source.open("rb")
    except IsADirectoryError:
        raise StartError(f"{source} is a directory; name the file that an export wrote") from None
    except OSError as error:
        raise StartError(f"{source} cannot be read: {error.strerror}") from error


def _tell(conflicts: Conflicts, as_json: bool) -> None:
    """Name the keys, and end."""
    named = [identity._asdict() for identity in conflicts.named]
    told = {"code": "CONFLICT", "detail": str(conflicts), "conflicts": conflicts.count, "named": named}
    keys = [safe(f"{identity.tenant} {identity.namespace} {identity.key}") for identity in conflicts.named]
    report(as_json, told, keys)
    fail(str(conflicts), Exit.CONFLICT)
