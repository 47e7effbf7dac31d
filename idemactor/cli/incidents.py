"""``idemactor incidents``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import Call, client_command, converse, write_json
from idemactor.cli.exits import Exit
from idemactor.cli.listing import Item, list_pages, paging_options

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client

_EXAMPLE = """\
idemactor incidents
idemactor incidents --acknowledge 0-1"""

_HEADER: Final = ("ID", "KEY", "AT", "TOKEN", "PRESENT", "OUTCOME", "OPERATION")


@client_command(example=_EXAMPLE, exits=(Exit.UNKNOWN,))
@click.option("--acknowledge", "ids", metavar="ID", multiple=True, help="Somebody saw to it: drop it; repeatable.")
@paging_options
def incidents(call: Call, ids: tuple[str, ...], **paging: Any) -> None:
    """List what may have happened twice, or acknowledge it (operators).

    Each is a proof that an attempt which was given up for dead said that it succeeded: TOKEN came to commit
    when PRESENT held the key, or nobody ("-").
    """
    if ids:
        acknowledge(call, ids)
    else:
        list_pages(call, "incidents", {}, row=_row, header=_HEADER, **paging)


def acknowledge(call: Call, ids: tuple[str, ...]) -> None:
    """Drop incidents, one after the other; the first that is not there ends it."""

    async def ask(client: Client, settings: Settings) -> None:
        for incident_id in ids:
            await client.acknowledge(settings.namespace, incident_id)
            if call.as_json:
                write_json({"result": "acknowledged"})
            else:
                click.echo(f"acknowledged  {incident_id}")

    converse(call, ask)


def _row(incident: Item, now: int) -> Sequence[str]:
    from idemactor.cli.output import relative, safe

    outcome = incident["outcome"]
    return (
        safe(str(incident["id"])),
        safe(incident["key"]),
        relative(incident["at"], now),
        str(incident["token"]),
        "-" if incident["present_token"] is None else str(incident["present_token"]),
        "-" if outcome is None else str(outcome["status"]),
        safe(incident["operation_id"]),
    )
