"""``idemactor forget``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.client import Forgotten

_EXAMPLE = "idemactor forget order-17"


@client_command(example=_EXAMPLE, exits=(Exit.UNKNOWN, Exit.UNSETTLED))
@click.argument("key")
@click.option("--force", is_flag=True, help="Also where it is pending or in doubt: it may then happen twice.")
def forget(call: Call, key: str, force: bool) -> None:
    """Drop everything about KEY (operators).

    The next caller is told to go on as if there had been nothing. Its incidents, and events that nobody
    fetched, stay and hold nothing any more.
    """

    def show(_result: Forgotten) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([("forgotten", safe(key))])

    answer(call, lambda client, namespace: client.forget(namespace, key, force=force), show)
