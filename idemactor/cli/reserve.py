"""``idemactor reserve``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from idemactor.cli.acquiring import EXITS, acquiring_options, completed_lines, granted_lines
from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.waiting import wait_option

if TYPE_CHECKING:
    from idemactor.client import Completed, Reserved

_EXAMPLE = """\
token=$(idemactor reserve order-17 --lease 30s --quiet) || exit
place-order && idemactor commit order-17 "$token" --status 200"""


@client_command(example=_EXAMPLE, exits=EXITS)
@click.argument("key")
@click.option("--lease", "lease_ms", type=duration, metavar=METAVAR, help="How long you may work.")
@wait_option("while it is in flight")
@acquiring_options
@click.option("--quiet", "-q", is_flag=True, help="Write nothing but the token.")
def reserve(call: Call, key: str, quiet: bool, **asked: Any) -> None:
    """Ask to be the one holder of KEY.

    Exit code 0, and only 0, means that you are: do the work, then commit or release with the token. With any
    other exit code do not.
    """

    def show(result: Reserved | Completed) -> Iterable[str]:
        from idemactor.client import Completed

        if isinstance(result, Completed):
            return [] if quiet else completed_lines(key, result)
        return [str(result.token)] if quiet else granted_lines(key, result)

    answer(call, lambda client, namespace: client.reserve(namespace, key, **asked), show, acquiring=True)
