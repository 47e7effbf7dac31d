"""``python -m idemactor``: the command line."""

from __future__ import annotations

import sys

from idemactor.cli.interrupts import heed_from_the_start


def main() -> None:
    """Run the command that the arguments of the program name."""
    heed_from_the_start(sys.argv[1:])
    # Only here: from the first import on, a signal ends the program as it should.
    from idemactor.cli.main import main as command

    command(prog_name="idemactor")


if __name__ == "__main__":
    main()
