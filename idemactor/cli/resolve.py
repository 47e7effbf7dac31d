"""``idemactor resolve``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.exits import Exit
from idemactor.cli.inputs import outcome_options

if TYPE_CHECKING:
    from idemactor.client import Outcome, Resolved

_EXAMPLE = """\
idemactor records --state in_doubt
idemactor resolve order-17 1 committed --status 200 --body "filled, as the exchange says" """.rstrip()


@client_command(example=_EXAMPLE, exits=(Exit.IN_FLIGHT, Exit.STALE, Exit.UNKNOWN, Exit.ALREADY_COMMITTED))
@click.argument("key")
@click.argument("token_of_attempt", metavar="TOKEN", type=int)
@click.argument("verdict", type=click.Choice(["committed", "released"]))
@outcome_options
def resolve(
    call: Call,
    key: str,
    token_of_attempt: int,
    verdict: Literal["committed", "released"],
    outcome: Outcome | None,
) -> None:
    """Settle KEY that is in doubt (operators).

    TOKEN is that of the attempt, which get and records show to operators. "committed": it happened.
    "released": it did not, and may be tried again.
    """

    def show(result: Resolved) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([(result.verdict.value, safe(key) + (" (repeated)" if result.repeated else ""))])

    answer(
        call,
        lambda client, namespace: client.resolve(namespace, key, token_of_attempt, verdict, outcome=outcome),
        show,
    )
