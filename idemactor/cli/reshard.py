"""``idemactor reshard``."""

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

_EXAMPLE: Final = "systemctl stop 'idemactor*' && idemactor reshard /var/lib/idemactor --to 16"


@click.command(epilog=epilog(_EXAMPLE))
@click.argument("data_dir", type=DIRECTORY)
@click.option("--to", "shards", type=int, required=True, metavar="N", help="How many shards there are to be.")
@config_option
@json_option
def reshard(data_dir: Path, shards: int, config_path: Path | None, as_json: bool) -> None:
    """Give DATA_DIR another number of shards, while no server runs.

    New files are made beside the old ones, every record is compared, and then they take their place in one step.
    Run it once more after it was interrupted. The old files are kept: it needs as much room again.
    """
    from idemactor.storage.resharding import reshard as distribute

    with (
        working(as_json=as_json, config_path=config_path) as progress,
        audited(told_as_owner(config_path, data_dir), "reshard", data_dir) as told,
    ):
        rebuilt = distribute(data_dir, shards, progress, told.keys)
    if rebuilt is None:
        report(as_json, {"shards": shards, "changed": False}, [f"{data_dir} has {shards} shards already"])
        return
    lines = [
        f"{data_dir}: {shards} shards now, with {rebuilt.entries} keys, {rebuilt.incidents} incidents and"
        f" {rebuilt.events} events, each compared",
        f"the files of before are kept in {rebuilt.replaced}; say the new number where the configuration has one",
    ]
    report(as_json, {"changed": True} | members(rebuilt), lines)
