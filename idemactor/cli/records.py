"""``idemactor records``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from idemactor.cli.command import Call, client_command
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.listing import Item, list_pages, paging_options

_EXAMPLE = """\
idemactor records --state in_doubt --older-than 1h
idemactor records --all --json | jq -r '.records[].key'"""

_HEADER: Final = ("KEY", "STATE", "ATTEMPT", "TOKEN", "HOLDER", "RESERVED", "ENDS", "NOTE")

NOTE_CHARS_SHOWN: Final = 60
"""More of a reason is cut off, so that a row stays one line; ``get`` has all of it."""


@client_command(example=_EXAMPLE)
@click.option("--state", type=click.Choice(["pending", "in_doubt", "committed"]), help="Only those that stand so.")
@click.option("--contested/--not-contested", default=None, help="Only those with, or without, an incident.")
@click.option("--older-than", "older_than_ms", type=duration, metavar=METAVAR, help="Only those reserved before that.")
@paging_options
def records(call: Call, state: str | None, contested: bool | None, older_than_ms: int | None, **paging: Any) -> None:
    """List the records of a namespace (operators).

    ENDS is when the lease ends, or, of a committed one, when it stops blocking. A long reason is cut off in
    NOTE; get shows all of it.
    """
    filters = {"state": state, "contested": contested, "older_than_ms": older_than_ms}
    list_pages(call, "records", filters, row=_row, header=_HEADER, **paging)


def _row(record: Item, now: int) -> Sequence[str]:
    from idemactor.cli.output import relative, safe

    end = record["expires_at"] if record["state"] == "committed" else record["lease_expires_at"]
    notes = ["contested"] if record["contested"] else []
    dispatch = record.get("dispatch")
    if dispatch is not None:
        # The state says the same, but of a queued one whose attempt has not begun, or of how it ended.
        notes.append(f"dispatched: {safe(dispatch['state']).replace('_', ' ')}")
    if record["reason"]:
        reason = record["reason"]
        cut = reason if len(reason) <= NOTE_CHARS_SHOWN else f"{reason[: NOTE_CHARS_SHOWN - 3]}..."
        notes.append(safe(cut))
    return (
        safe(record["key"]),
        safe(record["state"]),
        str(record["attempt"]),
        "-" if record["token"] is None else str(record["token"]),
        safe(record["holder"] or "-"),
        relative(record["reserved_at"], now),
        "-" if end is None else relative(end, now),
        "; ".join(notes),
    )
