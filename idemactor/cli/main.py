"""The command ``idemactor`` and its subcommands, one module each, imported when they are asked for."""

from __future__ import annotations

import importlib
import io
import keyword
import sys
from collections.abc import Mapping
from typing import Final

import click

from idemactor import __version__
from idemactor.cli.exits import Exit, table_of
from idemactor.cli.interrupts import TOOLS, as_usual

_COMMANDS: Final[Mapping[str, str]] = {
    "serve": "Run the server until SIGTERM.",
    "check": "Check the files of DATA_DIR and change nothing.",
    "reencrypt": "Encrypt everything in the data directory with the first key, while no server runs.",
    "backup": "Copy a data directory to the new directory DEST, while the server runs or not.",
    "restore": "Let DATA_DIR, which is empty or not there, hold what the backup SRC does.",
    "reshard": "Give DATA_DIR another number of shards, while no server runs.",
    "export": "Write everything in DATA_DIR, a backup or one that no server uses, as lines of JSON.",
    "import": "Take what an export wrote into DATA_DIR, while no server runs.",
    "key": "Show the key that a source finds in a request: a dry run.",
    "run": "Run COMMAND while holding a key, so that it does not run twice.",
    "reserve": "Ask to be the one holder of KEY.",
    "accept": "Reserve and commit KEY in one step.",
    "dispatch": "Hand over what is to be done under KEY: it is kept, and delivered at least once.",
    "operation": "Show how the dispatched operation ID stands.",
    "cancel": "Take back the dispatched operation ID, of which nothing was sent.",
    "outbox": "Fetch work of a namespace, and say what became of it.",
    "commit": "Say that it happened: keep the outcome of KEY.",
    "release": "Say that it did not happen: free KEY.",
    "extend": "Go on holding KEY: its lease ends DURATION from now.",
    "doubt": "Say that nobody knows whether it happened.",
    "resolve": "Settle KEY that is in doubt (operators).",
    "get": "Show the record of KEY.",
    "forget": "Drop everything about KEY (operators).",
    "records": "List the records of a namespace (operators).",
    "stuck": "List what is stuck, for how long, and who holds it (operators).",
    "incidents": "List what may have happened twice, or acknowledge it (operators).",
    "policy": "Show the settings of a namespace.",
    "ping": "See whether the server answers.",
}
"""Every subcommand and the line that lists it: the help page is shown without importing any of them."""

EPILOG: Final = f"""\b
Which server, and as whom: a flag wins over the environment (IDEMACTOR_ADDRESS,
IDEMACTOR_TOKEN, IDEMACTOR_NAMESPACE), that over the client file, which is
--client-config or ~/.config/idemactor/client.toml:
  address = "127.0.0.1:8788"    # or "unix:/run/idemactor/rpc.sock"
  token_file = "token"          # beside this file; or token = "..."
  namespace = "trade"
  tls_ca = "ca.pem"             # tls, tls_cert, tls_key, timeout = "5s"

\b
Exit codes, the same for all commands that talk to a server:
{table_of(*Exit)}
With --json the answer, refusals included, is one line of JSON on standard output
and has the members of the MessagePack-RPC result; errors have "code" and "detail".

\b
A DURATION is 250ms, 30s, 5m, 2h, 1d or 1h30m; a number alone is milliseconds.

\b
Completion:
  bash  eval "$(_IDEMACTOR_COMPLETE=bash_source idemactor)"    in ~/.bashrc
  zsh   eval "$(_IDEMACTOR_COMPLETE=zsh_source idemactor)"     in ~/.zshrc
  fish  _IDEMACTOR_COMPLETE=fish_source idemactor | source     in ~/.config/fish/config.fish

\b
Example:
  idemactor run --key "nightly-$(date +%F)" --ttl 2d -- ./nightly.sh
"""


class Commands(click.Group):
    """Subcommands that are imported when they are asked for: ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - The signature is click's.
        """Their names, in the order of the help page."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The subcommand of a name; None where there is none."""
        if cmd_name not in _COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command = getattr(importlib.import_module(f"idemactor.cli.{name}"), name)
        assert isinstance(command, click.Command)
        if cmd_name not in TOOLS:
            as_usual()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write their names and lines."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="idemactor %(version)s")
def main() -> None:
    """Deduplicate operations that must not happen twice: of any number of callers with one key, exactly one
    at a time is told to go on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A key in another script must not turn an answer into an encoding error.
            stream.reconfigure(errors="backslashreplace")
