"""``idemactor restore``."""

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

_EXAMPLE: Final = "idemactor restore /backup/idemactor-2026-11-30 /var/lib/idemactor"


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("source", metavar="SRC", type=DIRECTORY)
@click.argument("data_dir", type=DIRECTORY)
@click.option("--replace", is_flag=True, help="DATA_DIR may hold data: its files are kept aside, and do not count.")
@click.option("--apart", is_flag=True, help="The files of SRC are of different moments, as litestream restores them.")
@config_option
@json_option
def restore(source: Path, data_dir: Path, replace: bool, apart: bool, config_path: Path | None, as_json: bool) -> None:
    """Let DATA_DIR, which is empty or not there, hold what the backup SRC does.

    Says in what time commands were acknowledged that may be lost. Tokens go on where no earlier one can have been: the
    clock of this machine has to be right. Stop the server before. With --replace, idemactor.json may be damaged or
    lost.
    """
    from idemactor.cli.output import moment, now_ms
    from idemactor.storage.backups import restore as put_back

    with (
        working(as_json=as_json, config_path=config_path) as progress,
        audited(told_as_owner(config_path, data_dir, source), "restore", data_dir) as told,
    ):
        restored = put_back(source, data_dir, progress, replaced=replace, apart=apart, keys=told.keys)
    now = now_ms()
    unproved = [] if restored.compared else [f"nothing says how the files of {source} were: they were not compared"]
    names = ", ".join(restored.unread)
    unread = [f"the end is the present: of what was replaced, not all can be read: {names}"] if names else []
    kept = [] if restored.replaced is None else [f"the files of before are kept in {restored.replaced}"]
    lines = [
        f"{data_dir}: {restored.shards} shards restored from {source}",
        "commands that were acknowledged in this time may be lost, callers may repeat what was done in it:",
        f"  from  {moment(restored.taken_ms, now)}",
        f"  until {moment(_whole_second(restored.until_ms), now)}",
        f"tokens go on at {restored.next_token}",
    ]
    report(as_json, members(restored), lines + unread + unproved + kept)


def _whole_second(at_ms: int) -> int:
    """The next whole second: a moment is told without its milliseconds, and nothing may lie behind the one told."""
    return -(-at_ms // 1_000) * 1_000
