"""What reserve and accept share: their options, and how their answers are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.exits import Exit
from idemactor.cli.inputs import payload_options, stacked

if TYPE_CHECKING:
    from idemactor.client import Accepted, Completed, Outcome, Reserved

EXITS: Final = (Exit.IN_FLIGHT, Exit.IN_DOUBT, Exit.MISMATCH, Exit.COMPLETED, Exit.RELEASED, Exit.QUOTA)

acquiring_options: Final = stacked(
    payload_options,
    click.option("--ttl", "ttl_ms", type=duration, metavar=METAVAR, help="How long it blocks, once committed."),
    click.option(
        "--window", "window_ms", type=duration, metavar=METAVAR, help="How long it blocks, from first sighting."
    ),
    click.option("--holder", metavar="TEXT", help="Who asks, shown to others; host and process."),
    click.option(
        "--on-duplicate", type=click.Choice(["replay", "reject"]), help="What a committed key answers this time."
    ),
    click.option(
        "--request-id",
        metavar="TEXT",
        help="Your name for this one acquisition: after a lost answer, ask again with the same.",
    ),
)


def granted_lines(key: str, granted: Reserved | Accepted) -> Iterable[str]:
    """A grant, for people."""
    from idemactor.cli.output import moment, now_ms, pairs, safe
    from idemactor.client import Reserved

    now = now_ms()
    taken_over = " (takeover: an earlier attempt may already have had its effect)" if granted.takeover else ""
    repeated = " (repeated)" if granted.repeated else ""
    attempt = ("attempt", f"{granted.attempt}{taken_over}")
    if isinstance(granted, Reserved):
        return pairs(
            [
                ("reserved", safe(key) + repeated),
                ("token", str(granted.token)),
                attempt,
                ("operation", safe(granted.operation_id)),
                ("lease ends", moment(granted.lease_expires_at, now)),
            ]
        )
    return pairs(
        [
            ("accepted", safe(key) + repeated),
            attempt,
            ("operation", safe(granted.operation_id)),
            ("expires", moment(granted.expires_at, now)),
        ]
    )


def completed_lines(key: str, completed: Completed) -> Iterable[str]:
    """What was done before, for people."""
    from idemactor.cli.output import moment, now_ms, pairs, safe

    now = now_ms()
    rows = [
        ("completed", f"{safe(key)} (done before: do not do it again)"),
        ("operation", safe(completed.operation_id)),
        ("committed", moment(completed.committed_at, now)),
        ("expires", moment(completed.expires_at, now)),
        *outcome_rows(completed.outcome),
    ]
    return [*pairs(rows), *outcome_body(completed.outcome)]


def outcome_rows(outcome: Outcome | None) -> list[tuple[str, str]]:
    """Status and headers of an outcome."""
    from idemactor.cli.output import safe

    if outcome is None:
        return []
    size = "too large to be kept" if outcome.omitted else f"{len(outcome.body)} bytes"
    headers = [("header", safe(f"{name}: {value}")) for name, value in outcome.headers]
    return [("outcome", f"{outcome.status}, {size}"), *headers]


def outcome_body(outcome: Outcome | None) -> list[str]:
    """The body of an outcome, below an empty line."""
    from idemactor.cli.output import body_lines

    return ["", *body_lines(outcome.body)] if outcome is not None and outcome.body else []
