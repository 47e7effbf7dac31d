"""``idemactor extend``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.durations import duration
from idemactor.cli.exits import Exit

if TYPE_CHECKING:
    from idemactor.client import Extended

_EXAMPLE = "idemactor extend order-17 1 30s"


@client_command(example=_EXAMPLE, exits=(Exit.IN_DOUBT, Exit.STALE, Exit.UNKNOWN, Exit.ALREADY_COMMITTED))
@click.argument("key")
@click.argument("token_of_attempt", metavar="TOKEN", type=int)
@click.argument("lease_ms", metavar="DURATION", type=duration)
def extend(call: Call, key: str, token_of_attempt: int, lease_ms: int) -> None:
    """Go on holding KEY: its lease ends DURATION from now.

    TOKEN is what reserve answered.
    """

    def show(result: Extended) -> Iterable[str]:
        from idemactor.cli.output import moment, now_ms, pairs, safe

        return pairs([("extended", safe(key)), ("lease ends", moment(result.lease_expires_at, now_ms()))])

    answer(call, lambda client, namespace: client.extend(namespace, key, token_of_attempt, lease_ms), show)
