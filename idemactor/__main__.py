"""``python -m idemactor``: the command line."""

from __future__ import annotations

from idemactor.cli.main import main

if __name__ == "__main__":
    main(prog_name="idemactor")
