"""``idemactor backup``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from idemactor.cli.audited import audited
from idemactor.cli.tools import (
    DIRECTORY,
    config_option,
    epilog,
    json_option,
    members,
    report,
    told_as_owner,
    working,
)

DATA_DIR_DEFAULT: Final = Path("data")
_EXAMPLE: Final = 'idemactor backup --data-dir /var/lib/idemactor "/backup/idemactor-$(date +%F)"'


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("target", metavar="DEST", type=DIRECTORY)
@click.option("--data-dir", type=DIRECTORY, default=DATA_DIR_DEFAULT, show_default=True, help="What is backed up.")
@config_option
@json_option
def backup(target: Path, data_dir: Path, config_path: Path | None, as_json: bool) -> None:
    """Copy a data directory to the new directory DEST, while the server runs or not.

    What was acknowledged before it began is in it. DEST is there once it is whole, and not before.
    """
    from idemactor.cli.output import moment, now_ms
    from idemactor.storage.backups import back_up

    with (
        working(as_json=as_json, config_path=config_path) as progress,
        audited(told_as_owner(config_path, target, data_dir), "backup", data_dir) as settings,
    ):
        copied = back_up(data_dir, target, progress, settings.keys)
    shards = [members(shard) for shard in copied.shards]
    told = {"target": str(target), "taken_ms": copied.taken_ms, "latest_ms": copied.latest_ms, "shards": shards}
    size = sum(shard.file_bytes for shard in copied.shards)
    lines = [
        f"{target}: {len(shards)} shards, {size} bytes, with all that was acknowledged before it began:",
        f"  {moment(copied.taken_ms, now_ms())}",
    ]
    report(as_json, told, lines)
