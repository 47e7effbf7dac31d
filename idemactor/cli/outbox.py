"""``idemactor outbox``: work that is fetched, and acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import Call, answer, client_command, converse, warn, write, write_json
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.exits import Exit
from idemactor.cli.inputs import outcome_options, stacked
from idemactor.cli.waiting import wait_option
from idemactor.core.limits import POLL_MAX

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Acked, Client, Committed, OutboxEntry, Outcome, Postponed, Released

_HEADER: Final = ("ID", "KIND", "KEY", "TOKEN", "ATTEMPT", "VISIBLE", "BYTES", "NOTE")

_POLL = "idemactor outbox poll --max 1 --wait --visibility 5m --json"
_ACK = "idemactor outbox ack 01890a5d-ac96-774b-bcce-b302099a8057 order-17 7 --status 200 --body @answer.json"
_NACK = """\
idemactor outbox nack 01890a5d-ac96-774b-bcce-b302099a8057 order-17 7 --delay 30s --reason "exchange closed"
idemactor outbox nack 01890a5d-ac96-774b-bcce-b302099a8057 order-17 7 --failed --status 422"""

_entry: Final = stacked(
    click.argument("entry_id", metavar="ID"),
    click.argument("key"),
    click.argument("token_of_entry", metavar="TOKEN", type=int),
)


@click.group()
def outbox() -> None:
    """Fetch work of a namespace, and say what became of it."""


@client_command(example=_POLL)
@click.option("--max", "max_entries", type=click.IntRange(1, POLL_MAX), help="How many at most.")
@wait_option("for the first")
@click.option("--visibility", "visibility_ms", type=duration, metavar=METAVAR, help="How long nobody else gets them.")
@click.option("--holder", metavar="TEXT", help="Who takes them, shown to others; host and process.")
def poll(call: Call, **asked: Any) -> None:
    """Fetch what is due.

    What is not acknowledged in time is shown again. With --json every entry has its body.
    """

    async def ask(client: Client, settings: Settings) -> tuple[OutboxEntry, ...]:
        return await client.poll(settings.namespace, **asked)

    entries = converse(call, ask)
    if call.as_json:
        from idemactor.cli.answers import entry_members

        write_json({"entries": [entry_members(entry) for entry in entries]})
    elif entries:
        from idemactor.cli.output import aligned, now_ms

        now = now_ms()
        write(aligned([_HEADER, *(_row(entry, now) for entry in entries)]))
    else:
        warn("no entries")


@client_command(example=_ACK, exits=(Exit.STALE, Exit.UNKNOWN))
@_entry
@outcome_options
@click.option("--ttl", "ttl_ms", type=duration, metavar=METAVAR, help="How long it blocks from now on.")
def ack(call: Call, entry_id: str, key: str, token_of_entry: int, outcome: Outcome | None, ttl_ms: int | None) -> None:
    """Say that the entry ID of KEY is dealt with; TOKEN is what poll answered."""

    def show(result: Committed | Acked) -> Iterable[str]:
        from idemactor.cli.output import pairs, safe

        return pairs([("acknowledged", safe(entry_id) + (" (repeated)" if result.repeated else ""))])

    def ask(client: Client, namespace: str) -> Any:
        from idemactor.client import EntryRef

        entry = EntryRef(entry_id, key, token_of_entry)
        return client.ack(namespace, entry, outcome=outcome, ttl_ms=ttl_ms)

    answer(call, ask, show)


@client_command(example=_NACK, exits=(Exit.STALE, Exit.UNKNOWN, Exit.ALREADY_COMMITTED))
@_entry
@click.option("--delay", "delay_ms", type=duration, metavar=METAVAR, help="How long until it is shown again.")
@click.option("--reason", metavar="TEXT", help="Why, for people.")
@click.option("--failed", is_flag=True, help="It definitely did not happen, and is not to be tried again.")
@outcome_options
def nack(call: Call, entry_id: str, key: str, token_of_entry: int, failed: bool, **asked: Any) -> None:
    """Say that the entry ID of KEY was not dealt with: it is shown again, or has failed."""

    def show(result: Postponed | Committed | Released) -> Iterable[str]:
        from idemactor.cli.output import moment, now_ms, pairs, safe
        from idemactor.client import Postponed

        if isinstance(result, Postponed):
            return pairs([("given back", safe(entry_id)), ("shown again", moment(result.due_at, now_ms()))])
        return pairs([("failed", safe(entry_id) + (" (repeated)" if result.repeated else ""))])

    def ask(client: Client, namespace: str) -> Any:
        from idemactor.client import EntryRef

        return client.nack(namespace, EntryRef(entry_id, key, token_of_entry), failed=failed, **asked)

    answer(call, ask, show)


for _command in (poll, ack, nack):
    outbox.add_command(_command)


def _row(entry: OutboxEntry, now: int) -> Sequence[str]:
    from idemactor.cli.output import relative, safe

    notes = ["takeover"] if entry.takeover else []
    if entry.order_key is not None:
        notes.append(f"order key {safe(entry.order_key)}")
    return (
        safe(entry.id),
        entry.kind,
        safe(entry.key),
        str(entry.token),
        str(entry.attempt),
        relative(entry.visible_until, now),
        str(len(entry.body)),
        "; ".join(notes),
    )
