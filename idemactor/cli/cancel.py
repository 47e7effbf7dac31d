"""``idemactor cancel``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.client import Cancelled

_EXAMPLE = "idemactor cancel 01890a5d-ac96-774b-bcce-b302099a8057"


@client_command(example=_EXAMPLE, exits=(Exit.UNKNOWN, Exit.UNCANCELLABLE))
@click.argument("operation_id", metavar="ID")
def cancel(call: Call, operation_id: str) -> None:
    """Take back the dispatched operation ID, of which nothing was sent."""

    def show(result: Cancelled) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([("cancelled", safe(operation_id) + (" (repeated)" if result.repeated else ""))])

    answer(call, lambda client, namespace: client.cancel(namespace, operation_id), show)
