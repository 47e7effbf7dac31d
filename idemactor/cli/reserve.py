"""``idemactor reserve``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.acquiring import EXITS, acquiring_options, completed_lines, granted_lines
from idemactor.cli.command import Call, answer, client_command
from idemactor.cli.durations import METAVAR, duration, parse_duration
from idemactor.core.limits import WAIT_MS_MAX

if TYPE_CHECKING:
    from idemactor.client import Completed, Reserved

WAIT_ALONE: Final = f"{WAIT_MS_MAX // 1000}s"
"""What ``--wait`` means without a value: as long as one call may."""

_EXAMPLE = """\
token=$(idemactor reserve order-17 --lease 30s --quiet) || exit
place-order && idemactor commit order-17 "$token" --status 200"""


def waiting(text: str) -> int:
    """The type of ``--wait``: milliseconds; a mistake is a usage error."""
    try:
        return parse_duration(text)
    except ValueError as error:
        said = f"{text!r}: {error}; without a value --wait comes after KEY."
        raise click.BadParameter(said) from None


@client_command(example=_EXAMPLE, exits=EXITS)
@click.argument("key")
@click.option("--lease", "lease_ms", type=duration, metavar=METAVAR, help="How long you may work.")
@click.option(
    "--wait",
    "wait_ms",
    type=waiting,
    is_flag=False,
    flag_value=WAIT_ALONE,
    default="0",
    metavar=f"[{METAVAR}]",
    help=f"Wait while it is in flight, so long (--wait=5s) or, without a value, {WAIT_ALONE}.",
)
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
