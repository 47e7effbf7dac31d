"""``idemactor run``: hold a key while a command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from idemactor.cli.command import Call, client_command, converse
from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.exits import Exit
from idemactor.cli.inputs import payload_options
from idemactor.core.limits import OUTCOME_BYTES_MAX

if TYPE_CHECKING:
    from idemactor.cli.connection import CommandClient
    from idemactor.cli.settings import Settings

CODE_MAX: Final = 255
"""The largest exit code that a process can end with."""
CAPTURE_BYTES_DEFAULT: Final = 16_384
GRACE_DEFAULT: Final = "10s"
FOR_EVER: Final = "for ever"
_LIST_CHARS_MAX: Final = 4_096

_EXAMPLE = """\
idemactor run --key "nightly-$(date +%F)" --ttl 2d --release-on 75 -- ./nightly.sh
idemactor run --key "invoice-$N" -n billing --wait=5m --capture -- ./send-invoice "$N" """.rstrip()


def codes(text: str) -> frozenset[int]:
    """The type of options that take exit codes, ``75,1-63``; a mistake is a usage error."""
    found: set[int] = set()
    for part in text.split(",") if len(text) <= _LIST_CHARS_MAX else [""]:
        first, dash, last = part.strip().partition("-")
        ends = [first, last if dash else first]
        if not all(end.isascii() and end.isdigit() and len(end) <= len(str(CODE_MAX)) for end in ends):
            raise click.BadParameter(f"{text!r} is no list of exit codes, which looks like 75,1-63.")
        low, high = map(int, ends)
        if not low <= high <= CODE_MAX:
            raise click.BadParameter(f"{part.strip()!r}: exit codes go up from 0 to {CODE_MAX}.")
        found.update(range(low, high + 1))
    return frozenset(found)


def patience(text: str) -> bool | int:
    """The type of ``--wait``: True for ever, or milliseconds."""
    return True if text == FOR_EVER else duration(text)


@client_command(
    example=_EXAMPLE,
    exits=(
        *(Exit.IN_FLIGHT, Exit.IN_DOUBT, Exit.MISMATCH, Exit.STALE, Exit.UNKNOWN, Exit.COMPLETED, Exit.QUOTA),
        *(Exit.LEASE_LOST, Exit.UNTOLD, Exit.CANNOT_EXECUTE, Exit.NO_SUCH_COMMAND),
    ),
    with_json=False,
    # What follows the command's name is the command's, also without the "--".
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--key", "-k", required=True, help="What must not run twice.")
@click.option("--lease", "lease_ms", type=duration, metavar=METAVAR, help="How long after our end nobody may go on.")
@click.option(
    "--ttl",
    "ttl_ms",
    type=duration,
    metavar=METAVAR,
    help="How long it does not run again, from its end; the namespace's.",
)
@click.option("--window", "window_ms", type=duration, metavar=METAVAR, help="The same, from first sighting.")
@payload_options
@click.option("--holder", metavar="TEXT", help="Who runs it, shown to others; host and process.")
@click.option(
    "--wait",
    type=patience,
    is_flag=False,
    flag_value=FOR_EVER,
    default="0",
    metavar=f"[{METAVAR}]",
    help="Wait while it is in flight, for ever or so long (--wait=5m).",
)
@click.option("--commit-on", type=codes, default="0", metavar="CODES", help="Exit codes that mean: it is done; 0.")
@click.option("--release-on", type=codes, metavar="CODES", help="Exit codes that mean: nothing happened, as 75,1-63.")
@click.option("--capture", is_flag=True, help="Keep the end of its standard output in the outcome.")
@click.option(
    "--capture-max",
    type=click.IntRange(1, OUTCOME_BYTES_MAX),
    default=CAPTURE_BYTES_DEFAULT,
    metavar="BYTES",
    help=f"How much of it; {CAPTURE_BYTES_DEFAULT}.",
)
@click.option(
    "--on-lost",
    type=click.Choice(["terminate", "warn"]),
    default="terminate",
    help="What a lost lease does to the command; terminate.",
)
@click.option(
    "--grace",
    "grace_ms",
    type=duration,
    default=GRACE_DEFAULT,
    metavar=METAVAR,
    help=f"From SIGTERM to SIGKILL; {GRACE_DEFAULT}.",
)
@click.option(
    "--on-unavailable",
    type=click.Choice(["closed", "open"]),
    help="Whether to run unprotected when no server answers; closed.",
)
@click.option(
    "--done-exit",
    type=click.IntRange(0, CODE_MAX),
    default=Exit.COMPLETED.value,
    metavar="CODE",
    help="Exit code where it was done before; 15.",
)
@click.option(
    "--busy-exit",
    type=click.IntRange(0, CODE_MAX),
    default=Exit.IN_FLIGHT.value,
    metavar="CODE",
    help="Exit code where it is in flight; 10.",
)
def run(
    call: Call, command: tuple[str, ...], commit_on: frozenset[int], release_on: frozenset[int] | None, **rest: Any
) -> None:
    """Run COMMAND while holding a key, so that it does not run twice.

    It does not run where the key was committed before (exit code 15), is in flight (10) or in doubt (11); else
    the key is held, its lease renewed, and the exit code is COMMAND's (128 + n where signal n ended it).

    What becomes of the key: exit code 0, or one of --commit-on, commits. A code of --release-on, and a COMMAND
    that cannot be started, releases: it may be tried again. Any other end, by a signal too, leaves the key in
    doubt, since nobody knows how far it came: it does not run again until somebody resolves it, unless the
    namespace has on_doubt = "retry". So does every end of a COMMAND that was ended for a lost lease, whatever its
    code (exit code 20).

    Where the server does not answer then, it is tried for 30s at least (a signal ends that). If it cannot be
    told at all (21), the namespace's on_lease_expiry decides, once the lease has run out, whether it may run
    again.

    COMMAND finds IDEMACTOR_KEY, IDEMACTOR_NAMESPACE, IDEMACTOR_OPERATION_ID (the same for every attempt),
    IDEMACTOR_ATTEMPT, IDEMACTOR_FENCING_TOKEN and IDEMACTOR_TAKEOVER ("true" where an earlier attempt may
    already have had its effect) in its environment. Signals are passed on to its process group; on a terminal
    it stays in the terminal's. When this process is killed, COMMAND gets SIGTERM (Linux; not with --on-lost
    warn).
    """
    release_on = release_on or frozenset()
    if both := commit_on & release_on:
        raise click.UsageError(f"--commit-on and --release-on both have {min(both)}.")

    from idemactor.cli.holding import Plan, Running

    plan = Plan(command=command, commit_on=commit_on, release_on=release_on, **rest)

    async def talk(client: CommandClient, settings: Settings) -> int:
        return await Running(plan, client.hurry).run(client, settings.namespace)

    # A command that ended badly is worth some patience: what is not told now blocks the key for the rest of the lease.
    raise SystemExit(converse(call, talk, patient=True))
