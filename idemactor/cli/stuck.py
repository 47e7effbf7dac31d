"""``idemactor stuck``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import Call, client_command, converse, warn, write, write_json
from idemactor.cli.durations import METAVAR, duration, say_duration
from idemactor.core.limits import LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX
from idemactor.wire.calls import STUCK_OLDER_THAN_MS_DEFAULT

if TYPE_CHECKING:
    from idemactor.cli.settings import Settings
    from idemactor.client import Client

_EXAMPLE = """\
idemactor stuck
idemactor stuck --older-than 10m --json | jq -r '.stuck[] | select(.why == "in_doubt").key'"""

_HEADER: Final = ("FOR", "WHY", "NAMESPACE", "KEY", "TOKEN", "ATTEMPT", "HOLDER", "OPERATION", "NOTE")

Item = Mapping[str, Any]


@client_command(example=_EXAMPLE)
@click.option(
    "--older-than",
    "older_than_ms",
    type=duration,
    metavar=METAVAR,
    default=str(STUCK_OLDER_THAN_MS_DEFAULT),
    help=f"How long something pends or waits to be delivered; {say_duration(STUCK_OLDER_THAN_MS_DEFAULT)}.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, LIST_LIMIT_MAX),
    default=LIST_LIMIT_DEFAULT,
    help=f"How many; {LIST_LIMIT_DEFAULT}.",
)
def stuck(call: Call, older_than_ms: int, limit: int) -> None:
    """List what is stuck, for how long, and who holds it (operators).

    The longest first, over all namespaces of the token: what pends for long, what is in doubt, intents that
    are not delivered, and incidents that nobody has acknowledged. What is in doubt, and incidents, count at
    once. --namespace makes no difference.
    """

    async def ask(client: Client, settings: Settings) -> Mapping[str, Any]:
        from idemactor.client.flight import Flight

        asked = Flight("stuck", {"older_than_ms": older_than_ms, "limit": limit})
        told: Mapping[str, Any] = await client.ask(asked, settings.timeout_ms)
        return told

    told = converse(call, ask)
    if call.as_json:
        write_json(told)
        return
    write(_lines(told))
    _warn(told, older_than_ms)


def _lines(told: Mapping[str, Any]) -> Iterable[str]:
    from idemactor.cli.output import aligned, now_ms

    now = now_ms()
    rows = [_row(item, now) for item in told["stuck"]]
    return aligned([_HEADER, *rows]) if rows else ()


def _warn(told: Mapping[str, Any], older_than_ms: int) -> None:
    from idemactor.cli.output import now_ms, relative, safe

    now = now_ms()
    for each in told["unfetched"]:
        since = relative(each["since"], now)
        warn(f"events of {safe(each['namespace'])} that nobody fetched: {each['entries']}, the first {since}")
    if told["more"]:
        warn("there is more: ask for a higher --limit, or for --older-than")
    if told["silent_shards"]:
        warn(f"shards that did not answer: {', '.join(map(str, told['silent_shards']))}; see /readyz")
    elif not told["stuck"]:
        warn(f"nothing is stuck (for more than {say_duration(older_than_ms)})")


def _row(item: Item, now: int) -> Sequence[str]:
    from idemactor.cli.output import safe

    return (
        say_duration(max(0, round(item["for_ms"], -3)) if item["for_ms"] >= _MS_PER_S else item["for_ms"]),
        safe(item["why"]),
        safe(item["namespace"]),
        safe(item["key"]),
        str(item["token"]),
        "-" if item["attempt"] is None else str(item["attempt"]),
        safe(item["holder"] or "-"),
        safe(item["operation_id"]),
        "; ".join(_notes(item, now)),
    )


_MS_PER_S: Final = 1_000


def _notes(item: Item, now: int) -> Iterable[str]:
    from idemactor.cli.output import relative, safe
    from idemactor.cli.records import NOTE_CHARS_SHOWN

    if item["incident"] is not None:
        present = item["present_token"]
        yield f"incident {safe(item['incident'])}, {'nobody' if present is None else f'token {present}'} held it then"
    elif item["contested"]:
        yield "contested"
    if item["lease_expires_at"] is not None:
        ends = relative(item["lease_expires_at"], now)
        yield f"lease {'ended' if item['lease_expires_at'] <= now else 'ends'} {ends}"
    if item["waiting"]:
        yield f"{item['waiting']} wait for it"
    if item["destination"] is not None:
        yield f"to {safe(item['destination'])}"
    if item["due_at"] is not None:
        yield "due" if item["due_at"] <= now else f"tried again {relative(item['due_at'], now)}"
    if item["reason"]:
        reason = item["reason"]
        yield safe(reason if len(reason) <= NOTE_CHARS_SHOWN else f"{reason[: NOTE_CHARS_SHOWN - 3]}...")
