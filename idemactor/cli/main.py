"""The command ``idemactor`` and its subcommands, one module each."""

from __future__ import annotations

import click

from idemactor import __version__
from idemactor.cli.check import check
from idemactor.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="idemactor %(version)s")
def main() -> None:
    """Deduplicate operations that must not happen twice: of any number of callers with one key, exactly one
    at a time is told to go on."""


main.add_command(serve)
main.add_command(check)
