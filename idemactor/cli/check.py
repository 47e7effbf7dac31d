"""``idemactor check``: read a data directory that no server has open, and say what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from idemactor.cli.interrupts import INTERRUPTED, interruptible
from idemactor.errors import StartError, StorageError

if TYPE_CHECKING:
    from idemactor.storage.check import ShardReport

EXIT_PROBLEMS: Final = 1
EXIT_CANNOT_CHECK: Final = 2

_EPILOG: Final = """\b
Example:
  systemctl stop 'idemactor*' && idemactor check /var/lib/idemactor"""


@click.command(epilog=_EPILOG)
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Write the report as one JSON object.")
def check(data_dir: Path, as_json: bool) -> None:
    """Check the files of DATA_DIR and change nothing.

    Exit code 0: sound, though a warning may be said; 1: an error was found; 2: it cannot be checked;
    130: it was interrupted.
    """
    # Only here: `--help` needs no storage engine.
    from idemactor.cli.identity import become_owner
    from idemactor.cli.tools import TerminalProgress
    from idemactor.storage.check import check_directory

    progress = TerminalProgress(quiet=as_json)
    try:
        with interruptible():
            become_owner(None, data_dir)
            report = check_directory(data_dir, progress)
    except KeyboardInterrupt:
        progress.clear()
        raise SystemExit(INTERRUPTED) from None
    except (StartError, StorageError, OSError) as error:
        progress.clear()
        click.echo(f"idemactor: {data_dir}: cannot be checked: {error}", err=True)
        raise SystemExit(EXIT_CANNOT_CHECK) from None
    progress.clear()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=str))
    else:
        for shard in report.shards:
            click.echo(_summary(shard))
        for finding in report.findings:
            where = "" if finding.shard is None else f"shard {finding.shard}: "
            click.echo(f"{where}{finding.severity}: {finding.what}")
        click.echo(f"{data_dir}: {f'findings: {len(report.findings)}' if report.findings else 'clean'}")
    if not report.sound:
        raise SystemExit(EXIT_PROBLEMS)


def _summary(shard: ShardReport) -> str:
    """What one shard's file holds, in a line."""
    in_doubt = shard.lapsed + shard.doubted
    records = shard.pending + in_doubt + shard.committed
    line = (
        f"shard {shard.shard}: {records} records ({shard.pending} pending, {in_doubt} in doubt, {shard.committed}"
        f" committed), {shard.tombstones} tombstones, {shard.incidents} incidents, {shard.file_bytes} bytes"
    )
    if shard.journal_batches:
        line += f"; starting brings in {shard.journal_batches} batches of the journal"
    return line
