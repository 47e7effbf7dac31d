"""``idemactor backup``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from idemactor.cli.audited import audited
from idemactor.cli.identity import become_owner
from idemactor.cli.tools import (
    DATA_DIR_DEFAULT,
    DIRECTORY,
    config_option,
    directory_of,
    epilog,
    json_option,
    members,
    report,
    told_by,
    working,
)

_EXAMPLE: Final = 'idemactor backup --data-dir /var/lib/idemactor "/backup/idemactor-$(date +%F)"'


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("target", metavar="DEST", type=DIRECTORY)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    metavar="DIR",
    help=f"What is backed up; the configuration's, else {DATA_DIR_DEFAULT}. Name it where a flag tells the server.",
)
@config_option
@json_option
def backup(target: Path, data_dir: Path | None, config_path: Path | None, as_json: bool) -> None:
    """Copy a data directory to the new directory DEST, while the server runs or not.

    What was acknowledged before it began is in it. DEST is there once it is whole, and not before.
    """
    from idemactor.cli.output import moment, now_ms
    from idemactor.storage.backups import back_up

    with working(as_json=as_json, config_path=config_path) as progress:
        settings = told_by(config_path)
        source = directory_of(data_dir, settings.server)
        become_owner(target, source)
        with audited(settings, "backup", source):
            copied = back_up(source, target, progress, settings.keys)
    shards = [members(shard) for shard in copied.shards]
    places = {"source": str(source), "target": str(target)}
    told = places | {"taken_ms": copied.taken_ms, "latest_ms": copied.latest_ms, "shards": shards}
    size = sum(shard.file_bytes for shard in copied.shards)
    lines = [
        f"{target}: {len(shards)} shards of {source}, {size} bytes, with all that was acknowledged before it began:",
        f"  {moment(copied.taken_ms, now_ms())}",
    ]
    report(as_json, told, lines)
