"""``idemactor reencrypt``: ends a change of keys, and encrypts what was stored before there were any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from idemactor.errors import ConfigError, StartError, StorageError

if TYPE_CHECKING:
    from idemactor.config import ServerConfig
    from idemactor.storage.directory import DataDirectory
    from idemactor.storage.sealing import Keyring

EXIT_FAILED: Final = 1

_EPILOG: Final = """\b
Example: the new key stands first in the file, the old one after it
  systemctl stop idemactor && idemactor reencrypt --config /etc/idemactor.toml
  (take the old key out of the file) && systemctl start idemactor"""


@click.command(epilog=_EPILOG)
@click.option("--config", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True)
def reencrypt(path: Path) -> None:
    """Encrypt everything in the data directory with the first key of the configuration.

    The server has to be stopped. It may be interrupted, and goes on where it was when it is started again.
    """
    # Only here: `--help` needs no storage engine.
    from idemactor.config import load

    try:
        config = load(path)
        if not config.server.encryption_keys:
            raise ConfigError(f"{path} has neither server.encryption_key_file nor server.encryption_key_env")
        written = _reencrypt(config)
    except (ConfigError, StartError, StorageError, OSError) as error:
        click.echo(f"idemactor: {error}", err=True)
        raise SystemExit(EXIT_FAILED) from None
    click.echo(f"{config.server.data_dir}: rows encrypted anew: {written}; only the first key is needed from now on")


def _reencrypt(config: ServerConfig) -> int:
    import trio

    from idemactor.node import keyring_of
    from idemactor.storage.directory import DataDirectory

    if not (config.server.data_dir / "idemactor.json").is_file():
        raise StartError(f"{config.server.data_dir} is no data directory")
    keys = keyring_of(config)
    assert keys is not None
    with DataDirectory.open(config.server.data_dir, config.server.shards) as directory:
        return trio.run(_all_files, directory, keys)


async def _all_files(directory: DataDirectory, keys: Keyring) -> int:
    from idemactor.shard.start import open_engines
    from idemactor.storage.resealing import reseal
    from idemactor.storage.sqlite_file import Place, ShardFile

    # Opening brings in what the journal has, in clear or under whichever key; wiping leaves nothing of it there.
    async with open_engines(directory, "full", keys=keys) as engines:
        for engine, _ in engines:
            if not await engine.wipe():
                raise StorageError("another program reads the files; stop it first")
    written = 0
    for shard in range(directory.shards):
        file = ShardFile(Place(directory.engine_path(shard), shard, directory.shards, keys=keys))
        file.open()
        try:
            written += reseal(file, keys)
        finally:
            file.close(tidy=True)
    return written
