"""``idemactor release``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.client import Released

_EXAMPLE = 'idemactor release order-17 1 --reason "the exchange refused it"'


@client_command(example=_EXAMPLE, exits=(Exit.STALE, Exit.UNKNOWN, Exit.ALREADY_COMMITTED))
@click.argument("key")
@click.argument("token_of_attempt", metavar="TOKEN", type=int)
@click.option("--reason", metavar="TEXT", help="Why, for people.")
def release(call: Call, key: str, token_of_attempt: int, reason: str | None) -> None:
    """Say that it did not happen: free KEY.

    TOKEN is what reserve answered. The next caller starts from nothing; where you are not sure that nothing
    happened, say doubt instead.
    """

    def show(result: Released) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([("released", safe(key) + (" (repeated)" if result.repeated else ""))])

    answer(
        call,
        lambda client, namespace: client.release(namespace, key, token_of_attempt, reason=reason),
        show,
    )
