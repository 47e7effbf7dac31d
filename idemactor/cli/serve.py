"""``idemactor serve``: read the configuration, start the server, stay until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from idemactor.config import FLAGS, ServerConfig, load
from idemactor.errors import ConfigError, StartError, messages_of
from idemactor.server.service_manager import Inherited, ServiceManager, inherited_sockets

DEFAULT_CONFIG: Final = Path("config.toml")
"""The file that is read where none is named, if it is there."""

EXIT_USAGE: Final = 2
"""The exit code for what the user has to put right: the configuration, or what it points to."""


_EPILOG: Final = """\b
Example:
  idemactor serve --config /etc/idemactor.toml
  idemactor serve --data-dir data2 --http 127.0.0.1:9787 --rpc 127.0.0.1:9788"""


@click.command(epilog=_EPILOG)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; config.toml, if there is one.")
@click.option(FLAGS["server.data_dir"], "data_dir", metavar="DIR", help="Where the shards' files are.")
@click.option(FLAGS["http.bind"], "http", multiple=True, metavar="ADDRESS", help="HTTP door; repeatable.")
@click.option(FLAGS["rpc.bind"], "rpc", multiple=True, metavar="ADDRESS", help="RPC door; repeatable.")
@click.option(FLAGS["server.shards"], "shards", type=int, help="Number of shards of a new data directory.")
@click.option(FLAGS["server.workers"], "workers", type=int, help="Number of processes that share the shards.")
def serve(
    config: Path | None,
    data_dir: str | None,
    http: tuple[str, ...],
    rpc: tuple[str, ...],
    shards: int | None,
    workers: int | None,
) -> None:
    """Run the server until SIGTERM. SIGHUP reads its tokens anew.

    A flag wins over the environment (IDEMACTOR_SERVER__DATA_DIR=...), the environment over the file. An
    ADDRESS is "host:port", with port 0 for any free one, or "unix:PATH". Sockets that systemd passes on win over both,
    each for the door that its FileDescriptorName= names (http, rpc or gateway).
    """
    given = {
        "server.data_dir": data_dir,
        "http.bind": http,
        "rpc.bind": rpc,
        "server.shards": shards,
        "server.workers": workers,
    }
    flags = {name: value for name, value in given.items() if value not in (None, ())}
    mistakes: list[str] = []
    try:
        sockets = inherited_sockets(os.environ, os.getpid())
        path = config_path(config)
        read = partial(load, path, environment=os.environ, flags=flags, inherited=sockets.settings())
        _run(read(), read, sockets)
    except* (ConfigError, StartError) as group:
        # What the user can put right is said in words; everything else keeps its traceback.
        mistakes.extend(messages_of(group))
    if mistakes:
        for mistake in mistakes:
            click.echo(f"idemactor: {mistake}", err=True)
        raise SystemExit(EXIT_USAGE)


def config_path(named: Path | None) -> Path | None:
    """The file to read: the one that is named, else ``config.toml`` where there is one."""
    if named is None and DEFAULT_CONFIG.exists():
        return DEFAULT_CONFIG
    return named


def _run(config: ServerConfig, read: Callable[[], ServerConfig], sockets: Inherited) -> None:
    manager = ServiceManager.from_environment(os.environ, os.getpid())
    # Only here: `--help`, and a mistake in the configuration, need none of the server.
    if config.server.workers > 1:
        from idemactor.supervisor import supervise

        raise SystemExit(supervise(config, load=read, announce=click.echo, sockets=sockets, manager=manager))
    from idemactor.node import run

    trio.run(partial(run, config, load=read, announce=click.echo, sockets=sockets, manager=manager))
