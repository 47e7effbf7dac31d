"""``idemactor reencrypt``: ends a change of keys, and encrypts what was stored before there were any."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from idemactor.cli.audited import audited
from idemactor.cli.identity import become_owner
from idemactor.cli.tools import DIRECTORY, directory_of, epilog, json_option, report, told_by, working
from idemactor.errors import StartError, StorageError

if TYPE_CHECKING:
    from idemactor.storage.directory import DataDirectory
    from idemactor.storage.sealing import Keyring

_EXAMPLE: Final = """\
systemctl stop 'idemactor*' && idemactor reencrypt --config /etc/idemactor.toml --data-dir /var/lib/idemactor
(take the old key out of the file) && systemctl start idemactor"""

_NEEDED: Final = ("trio", "idemactor.shard.start", "idemactor.storage.resealing", "idemactor.storage.resharding")
"""Of modules, what root has to load before it becomes a user who may not be able to read them."""


@click.command(epilog=epilog(_EXAMPLE))
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The server's configuration: the new key stands first, the old one after it.",
)
@click.option(
    "--data-dir",
    type=DIRECTORY,
    metavar="DIR",
    help="What is encrypted anew; the configuration's. Name it where a flag tells the server.",
)
@json_option
def reencrypt(config_path: Path, data_dir: Path | None, as_json: bool) -> None:
    """Encrypt everything in the data directory with the first key, while no server runs.

    Run it once more after it was interrupted: it goes on where it was. The files of before that a reshard, an import
    or a restore kept aside are left as they are.
    """
    for module in _NEEDED:
        importlib.import_module(module)
    with working(as_json=as_json, config_path=config_path):
        told = told_by(config_path)
        path = directory_of(data_dir, told.server)
        become_owner(path)
        with audited(told, "reencrypt", path):
            if told.keys is None:
                raise StartError(f"{config_path} has neither server.encryption_key_file nor server.encryption_key_env")
            written, brought_in = _reencrypt(path, told.keys)
    lines = [
        f"{path}: rows encrypted anew: {written}, and batches that the journal alone had: {brought_in};"
        " only the first key is needed from now on"
    ]
    report(as_json, {"data_dir": str(path), "written": written, "brought_in": brought_in}, lines)


def _reencrypt(path: Path, keys: Keyring) -> tuple[int, int]:
    """How many rows were written, and how many batches opening brought in from the journal, encrypted anew as well."""
    import trio

    from idemactor.storage.directory import explained
    from idemactor.storage.resealing import only_in_journal
    from idemactor.storage.resharding import own

    with own(path) as directory, explained(directory.path):
        brought_in = only_in_journal(directory.meta.home(directory.path), directory.meta)
        return trio.run(_all_files, directory, keys), brought_in


def _not_wiped(path: Path, error: Exception | None) -> Exception:
    from idemactor.storage.ways_out import not_written

    if error is None:
        return StorageError("another program reads the files; stop it first")
    return not_written(path, error)


async def _all_files(directory: DataDirectory, keys: Keyring) -> int:
    from idemactor.shard.start import open_engines
    from idemactor.storage.resealing import reseal
    from idemactor.storage.sqlite_file import Place, ShardFile

    # Opening brings in what the journal has, in clear or under whichever key; wiping leaves nothing of it there.
    async with open_engines(directory, "full", keys=keys) as engines:
        for engine, _ in engines:
            if not await engine.wipe():
                raise _not_wiped(directory.path, engine.last_error)
    written = 0
    for shard in range(directory.shards):
        file = ShardFile(Place(directory.engine_path(shard), shard, directory.shards, keys=keys))
        file.open()
        try:
            written += reseal(file, keys)
        finally:
            file.close(tidy=True)
    return written
