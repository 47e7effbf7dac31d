"""``idemactor export``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import click

from idemactor.cli.tools import DIRECTORY, config_option, epilog, keys_of, members, report, server_settings, working
from idemactor.errors import StartError

FILE_MODE: Final = 0o600
"""Keys and outcomes are nobody else's business."""
_EXAMPLE: Final = "idemactor export /backup/idemactor-2026-11-30 --output everything.jsonl"


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("data_dir", type=DIRECTORY)
@click.option("--output", type=DIRECTORY, metavar="FILE", help="Where to; standard output.")
@click.option("--without-outcomes", is_flag=True, help="Of outcomes write only the status, not what they say.")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Write the report as one line of JSON; only beside --output.")
def export(
    data_dir: Path, output: Path | None, without_outcomes: bool, config_path: Path | None, as_json: bool
) -> None:
    """Write everything in DATA_DIR, a backup or one that no server uses, as lines of JSON.

    What is written is as secret as the directory, and what that holds encrypted is written in clear: it takes the
    key. With --without-outcomes, intents and events that are still to be
    delivered are in it all the same, and a replay of what was left out tells its status alone.
    """
    from idemactor.storage.exporting import export as write_out

    if as_json and output is None:
        raise click.UsageError("--json needs --output: standard output has the export.")
    with working(as_json=as_json, config_path=config_path) as progress, _destination(output, data_dir) as file:
        keys = keys_of(server_settings(config_path))
        end = write_out(data_dir, file.write, progress, outcomes=not without_outcomes, keys=keys)
        file.flush()
    if output is not None:
        lines = [f"{output}: {end.entries} entries, {end.events} events, {end.incidents} incidents"]
        report(as_json, {"output": str(output)} | members(end), lines)


@contextlib.contextmanager
def _destination(output: Path | None, data_dir: Path) -> Iterator[BinaryIO]:
    """Standard output, or a file that has its name once it is whole."""
    if output is None:
        yield sys.stdout.buffer
        return
    if output.is_dir() or not output.name:
        raise StartError(f"{output} is a directory; name a file")
    if output.resolve().parent in (data_dir.resolve(), *(each.resolve() for each in data_dir.glob("files-????"))):
        raise StartError(f"{output} lies in the directory that is exported; name another place")
    if output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
        return
    scratch = output.with_name(output.name + ".unfinished")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.rename(scratch, output)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
