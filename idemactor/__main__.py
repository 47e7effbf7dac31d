"""``python -m idemactor``: the command line."""

from __future__ import annotations

import gc
import sys
from typing import Final

from idemactor.cli.interrupts import heed_from_the_start

YOUNG_MAX: Final = 20_000
"""How many objects are made before Python looks for garbage among them: imports make many, and next to none of that."""


def main() -> None:
    """Run the command that the arguments of the program name."""
    # With Python's own number a tenth of the time of a start would go into looking.
    gc.set_threshold(YOUNG_MAX)
    heed_from_the_start(sys.argv[1:])
    # Only here: from the first import on, a signal ends the program as it should.
    from idemactor.cli.main import main as command

    command(prog_name="idemactor")


if __name__ == "__main__":
    main()
