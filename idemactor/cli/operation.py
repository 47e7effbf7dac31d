"""``idemactor operation``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from idemactor.cli.acquiring import outcome_body, outcome_rows
from idemactor.cli.command import Call, client_command, converse, write, write_json
from idemactor.cli.exits import Exit
from idemactor.cli.waiting import wait_option
from idemactor.core.delivery import OperationState

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client, Operation

_EXAMPLE = """\
idemactor operation 01890a5d-ac96-774b-bcce-b302099a8057 --wait
idemactor operation "$id" --wait=5s --body > answer.bin"""

EXITS: Final = {
    OperationState.SUCCEEDED: Exit.DONE,
    OperationState.QUEUED: Exit.IN_FLIGHT,
    OperationState.DELIVERING: Exit.IN_FLIGHT,
    OperationState.IN_DOUBT: Exit.IN_DOUBT,
    OperationState.FAILED: Exit.NOT_DONE,
    OperationState.EXPIRED: Exit.NOT_DONE,
    OperationState.CANCELLED: Exit.NOT_DONE,
    OperationState.RELEASED: Exit.NOT_DONE,
}
"""How the command ends, by what became of the operation."""


@client_command(example=_EXAMPLE, exits=(Exit.IN_FLIGHT, Exit.IN_DOUBT, Exit.UNKNOWN, Exit.NOT_DONE))
@click.argument("operation_id", metavar="ID")
@wait_option("for its end")
@click.option("--body", "only_body", is_flag=True, help="Write nothing but the body of the outcome, byte by byte.")
def operation(call: Call, operation_id: str, wait_ms: int, only_body: bool) -> None:
    """Show how the dispatched operation ID stands.

    Exit code 0, and only 0, means that it succeeded.
    """
    if only_body and call.as_json:
        raise click.UsageError("--body and --json exclude each other.")

    async def ask(client: Client, settings: Settings) -> Operation:
        return await client.operation(settings.namespace, operation_id, wait_ms=wait_ms)

    found = converse(call, ask)
    if call.as_json:
        from idemactor.cli.answers import members_of

        write_json(members_of(found))
    elif not only_body:
        write(_lines(found))
    elif found.outcome is not None:
        click.echo(found.outcome.body, nl=False)
    raise SystemExit(EXITS[found.state])


def _lines(found: Operation) -> Iterable[str]:
    from idemactor.cli.output import moment, now_ms, pairs, safe

    now = now_ms()

    def when(at_ms: int | None) -> str | None:
        return None if at_ms is None else moment(at_ms, now)

    rows = [
        ("operation", safe(found.operation_id)),
        ("key", safe(found.key)),
        ("state", str(found.state)),
        ("attempt", None if found.attempt is None else str(found.attempt)),
        ("order key", safe(found.order_key or "") or None),
        ("reason", safe(found.reason or "") or None),
        ("accepted", when(found.accepted_at)),
        ("next attempt", when(found.next_attempt_at)),
        ("lease ends", when(found.lease_expires_at)),
        ("sent until", when(found.deliver_until) if not found.ended else None),
        ("ended", when(found.ended_at)),
        ("expires", when(found.expires_at)),
        *outcome_rows(found.outcome),
    ]
    return [*pairs(rows), *outcome_body(found.outcome)]
