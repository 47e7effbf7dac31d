"""``idemactor commit``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.exits import Exit
from idemactor.cli.inputs import outcome_options

if TYPE_CHECKING:
    from idemactor.client import Committed, Outcome

_EXAMPLE = "curl -s https://exchange.example/order -d @order.json | idemactor commit order-17 1 --body -"


@client_command(example=_EXAMPLE, exits=(Exit.STALE, Exit.UNKNOWN))
@click.argument("key")
@click.argument("token_of_attempt", metavar="TOKEN", type=int)
@outcome_options
@click.option("--ttl", "ttl_ms", type=duration, metavar=METAVAR, help="How long it blocks from now on.")
def commit(call: Call, key: str, token_of_attempt: int, outcome: Outcome | None, ttl_ms: int | None) -> None:
    """Say that it happened: keep the outcome of KEY.

    TOKEN is what reserve answered. From now on whoever reserves KEY is told the outcome.
    """

    def show(result: Committed) -> Iterable[str]:
        from idemactor.cli.output import moment, now_ms, pairs, safe

        repeated = " (repeated: the first outcome stays)" if result.repeated else ""
        return pairs([("committed", safe(key) + repeated), ("expires", moment(result.expires_at, now_ms()))])

    answer(
        call,
        lambda client, namespace: client.commit(namespace, key, token_of_attempt, outcome=outcome, ttl_ms=ttl_ms),
        show,
    )
