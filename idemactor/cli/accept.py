"""``idemactor accept``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from idemactor.cli.acquiring import EXITS, acquiring_options, completed_lines, granted_lines
from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.inputs import outcome_options

if TYPE_CHECKING:
    from idemactor.client import Accepted, Completed

_EXAMPLE = "idemactor accept webhook-4711 --payload @body.json && handle body.json"


@client_command(example=_EXAMPLE, exits=EXITS)
@click.argument("key")
@outcome_options
@acquiring_options
def accept(call: Call, key: str, **asked: Any) -> None:
    """Reserve and commit KEY in one step.

    Exit code 0, and only 0, means that you are the first. Whatever happens then, nobody else will be.
    """

    def show(result: Accepted | Completed) -> Iterable[str]:
        from idemactor.client import Completed

        return completed_lines(key, result) if isinstance(result, Completed) else granted_lines(key, result)

    answer(call, lambda client, namespace: client.accept(namespace, key, **asked), show, acquiring=True)
