"""``idemactor ping``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, client_command, converse, write_json

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client


@client_command(example="idemactor ping --address 10.0.0.7:8788 --timeout 1s")
def ping(call: Call) -> None:
    """See whether the server answers.

    Where there is a token it has to be good.
    """

    async def ask(client: Client, settings: Settings) -> tuple[str, float]:
        began = time.perf_counter()
        await client.ping()
        return settings.address, (time.perf_counter() - began) * 1000

    address, took_ms = converse(call, ask)
    if call.as_json:
        write_json({"result": "pong"})
    else:
        click.echo(f"pong from {address} in {took_ms:.1f} ms, connecting included")
