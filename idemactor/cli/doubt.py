"""``idemactor doubt``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.client import Doubted

_EXAMPLE = 'idemactor doubt order-17 1 --reason "the connection broke after the order was sent"'


@client_command(example=_EXAMPLE, exits=(Exit.STALE, Exit.UNKNOWN, Exit.ALREADY_COMMITTED))
@click.argument("key")
@click.argument("token_of_attempt", metavar="TOKEN", type=int)
@click.option("--reason", metavar="TEXT", help="Why, for whoever resolves it; the first reason stays.")
def doubt(call: Call, key: str, token_of_attempt: int, reason: str | None) -> None:
    """Say that nobody knows whether it happened.

    TOKEN is what reserve answered. Nobody is told to go on until somebody resolves KEY, unless the namespace
    has on_doubt = "retry".
    """

    def show(result: Doubted) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([("in doubt", safe(key) + (" (repeated: the first reason stays)" if result.repeated else ""))])

    answer(call, lambda client, namespace: client.doubt(namespace, key, token_of_attempt, reason=reason), show)
