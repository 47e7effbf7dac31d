"""What the commands that talk to a server have in common: their options, their help page, and how they end."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from idemactor.cli.durations import METAVAR, duration
from idemactor.cli.exits import ALWAYS, UNEXPECTED, Exit, exit_of_code, table_of
from idemactor.cli.inputs import Function
from idemactor.cli.interrupts import INTERRUPTED
from idemactor.cli.settings import ADDRESS_DEFAULT, NAMESPACE_DEFAULT, Given, Settings, UsageProblem, settings_from

if TYPE_CHECKING:
    from idemactor.cli.connection import CommandClient
    from idemactor.client import Client, IdemactorClientError
    from idemactor.client.results import Result

T = TypeVar("T")

PROGRAM: Final = "idemactor"

_PATH: Final = click.Path(path_type=Path)

_CONNECTION: Final = (
    click.Option(["--namespace", "-n"], help=f"Where the key lives; {NAMESPACE_DEFAULT!r} where nothing says it."),
    click.Option(["--address"], metavar="ADDRESS", help=f"host:port or unix:PATH of the RPC door; {ADDRESS_DEFAULT}."),
    click.Option(["--token"], metavar="TOKEN", help="To authenticate with; better in a file: process lists show it."),
    click.Option(["--token-file"], type=_PATH, metavar="FILE", help="A file that holds the token."),
    click.Option(["--client-config"], type=_PATH, metavar="FILE", help="Not ~/.config/idemactor/client.toml but this."),
    click.Option(["--tls/--no-tls"], default=None, help="Whether to speak TLS."),
    click.Option(["--tls-ca"], type=_PATH, metavar="FILE", help="Certificates to trust instead of the system's."),
    click.Option(["--tls-cert"], type=_PATH, metavar="FILE", help="This client's certificate."),
    click.Option(["--tls-key"], type=_PATH, metavar="FILE", help="The key of that certificate."),
    click.Option(["--timeout", "timeout_ms"], type=duration, metavar=METAVAR, help="How long to try; 5s."),
)
"""The options of every command that talks to a server, last on its help page."""

_JSON: Final = click.Option(["--json", "as_json"], is_flag=True, help="Write the answer as one line of JSON.")


@dataclass(frozen=True, slots=True)
class Call:
    """How a command was called, beside what it asks.

    Attributes:
        given: What the flags say about the connection.
        client_config: The client file, where one is named.
        as_json: Whether programs read the answer.
    """

    given: Given
    client_config: Path | None
    as_json: bool

    def settings(self) -> Settings:
        """Whom to talk to, and as whom.

        Raises:
            UsageProblem: Flags, environment or file say what cannot be.
        """
        import os

        return settings_from(self.given, os.environ, self.client_config)


def client_command(
    *,
    example: str,
    exits: tuple[Exit, ...] = (),
    with_json: bool = True,
    context_settings: dict[str, Any] | None = None,
) -> Callable[[Function], click.Command]:
    """Make a command of a function that takes a ``Call`` and its own options.

    Args:
        example: Lines for the help page.
        exits: What it may end with beside ``ALWAYS``.
        with_json: Whether it has ``--json``.
        context_settings: For click.
    """
    epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in example.splitlines())
    epilog += "\n\n\b\nExit codes:\n" + table_of(*sorted({*ALWAYS, *exits}))

    def decorate(function: Function) -> click.Command:
        command = click.command(epilog=epilog, context_settings=context_settings)(_called(function))
        command.params += (_JSON, *_CONNECTION) if with_json else _CONNECTION
        return command

    return decorate


def _called(function: Function) -> Function:
    @functools.wraps(function)
    def call(*arguments: Any, client_config: Path | None, as_json: bool = False, **named: Any) -> Any:
        given = Given(**{field.name: named.pop(field.name) for field in fields(Given)})
        return function(Call(given, client_config, as_json), *arguments, **named)

    return call


# ----------------------------------------------------------------------------------------------------------- to the end


def answer(
    call: Call,
    ask: Callable[[Client, str], Awaitable[Result]],
    show: Callable[[Any], Iterable[str]],
    *,
    acquiring: bool = False,
) -> None:
    """Ask one question, write the answer, and end with the exit code that it deserves.

    Args:
        call: How the command was called.
        ask: Asks, given an open client and the namespace.
        show: The lines for people.
        acquiring: Whether it is a reserve or an accept.
    """

    async def asking(client: Client, settings: Settings) -> Result:
        return await ask(client, settings.namespace)

    result = converse(call, asking, acquiring=acquiring)
    from idemactor.cli.answers import members_of
    from idemactor.client.results import Completed

    if call.as_json:
        write_json(members_of(result))
    else:
        write(show(result))
    if isinstance(result, Completed):
        raise SystemExit(Exit.COMPLETED)


def converse(
    call: Call,
    talk: Callable[[CommandClient, Settings], Awaitable[T]],
    *,
    acquiring: bool = False,
    patient: bool = False,
) -> T:
    """What ``talk`` returns, given an open client; an error is said in one line and ends the program.

    Args:
        call: How the command was called.
        talk: Asks, and returns what is of interest.
        acquiring: Whether it is a reserve or an accept, whose errors say not to go on.
        patient: As in ``open_client``.
    """
    # Only here: help pages and completion need none of it.
    import trio

    from idemactor.cli.connection import open_client
    from idemactor.client.errors import IdemactorClientError

    async def conversation() -> T:
        settings = call.settings()
        async with open_client(settings, patient=patient) as opened:
            return await talk(opened, settings)

    try:
        return trio.run(conversation)
    except UsageProblem as error:
        fail(str(error), Exit.USAGE)
    except IdemactorClientError as error:
        refuse(call, error, acquiring=acquiring)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:  # Who reads a listing has seen enough: click ends the program without a word.
        raise
    except Exception as error:  # A traceback helps nobody who runs this from a script.
        if call.as_json:
            write_json({"code": UNEXPECTED, "detail": repr(error)} | ({"proceed": False} if acquiring else {}))
        fail(f"unexpected: {error!r}", Exit.UNEXPECTED)


def refuse(call: Call, error: IdemactorClientError, *, acquiring: bool = False) -> NoReturn:
    """Say an error, and end with its exit code."""
    from idemactor.cli.answers import code_of, error_members
    from idemactor.cli.output import now_ms
    from idemactor.cli.refusals import line_of

    if call.as_json:
        write_json(error_members(error, acquiring=acquiring))
    fail(line_of(error, now_ms()), exit_of_code(code_of(error)))


def fail(line: str, code: int) -> NoReturn:
    """Say one line on standard error, and end."""
    warn(line)
    raise SystemExit(code)


def warn(line: str) -> None:
    """Say one line on standard error."""
    click.echo(f"{PROGRAM}: {' '.join(line.split())}", err=True)


def write(lines: Iterable[str]) -> None:
    """Lines to standard output."""
    for line in lines:
        click.echo(line)


def write_json(members: object) -> None:
    """One line of JSON to standard output; ASCII, so that no terminal's encoding can fail on it."""
    click.echo(json.dumps(members, separators=(",", ":")))
