"""``idemactor get``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.acquiring import outcome_body, outcome_rows
from idemactor.cli.command import Call, answer, client_command, converse
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client, KeyRecord

_EXAMPLE = """\
idemactor get order-17
idemactor get order-17 --body > outcome.bin"""


@client_command(example=_EXAMPLE, exits=(Exit.UNKNOWN,))
@click.argument("key")
@click.option("--body", "only_body", is_flag=True, help="Write nothing but the body of the outcome, byte by byte.")
def get(call: Call, key: str, only_body: bool) -> None:
    """Show the record of KEY."""
    if only_body:
        write_body(call, key)
    else:
        answer(call, lambda client, namespace: client.get(namespace, key), record_lines)


def write_body(call: Call, key: str) -> None:
    """The bytes of the outcome's body to standard output; none where there is no outcome."""
    if call.as_json:
        raise click.UsageError("--body and --json exclude each other.")

    async def ask(client: Client, settings: Settings) -> KeyRecord:
        return await client.get(settings.namespace, key)

    record = converse(call, ask)
    if record.outcome is not None:
        click.echo(record.outcome.body, nl=False)


def record_lines(record: KeyRecord) -> Iterable[str]:
    """A record, for people."""
    from idemactor.cli.output import moment, now_ms, pairs, safe

    now = now_ms()

    def when(at_ms: int | None) -> str | None:
        return None if at_ms is None else moment(at_ms, now)

    rows = [
        ("key", safe(record.key)),
        ("state", safe(record.state) + (" (contested: see incidents)" if record.contested else "")),
        ("attempt", str(record.attempt)),
        ("token", None if record.token is None else str(record.token)),
        ("operation", safe(record.operation_id)),
        ("holder", safe(record.holder or "") or None),
        ("reason", safe(record.reason or "") or None),
        ("fingerprint", safe(record.fingerprint or "") or None),
        ("first seen", when(record.first_seen_at)),
        ("reserved", when(record.reserved_at)),
        ("lease ends", when(record.lease_expires_at)),
        *_dispatch_rows(record, when),
        ("committed", when(record.committed_at)),
        ("expires", when(record.expires_at)),
        *outcome_rows(record.outcome),
    ]
    return [*pairs(rows), *outcome_body(record.outcome)]


def _dispatch_rows(record: KeyRecord, when: Callable[[int | None], str | None]) -> list[tuple[str, str | None]]:
    """What a dispatched record has beside all others."""
    from idemactor.cli.output import safe

    found = record.dispatch
    if found is None:
        return []
    return [
        ("dispatched", safe(str(found["state"]))),
        ("order key", safe(found["order_key"] or "") or None),
        ("due", when(found["due_at"])),
        ("sent until", when(found["deliver_until"]) if record.state != "committed" else None),
    ]
