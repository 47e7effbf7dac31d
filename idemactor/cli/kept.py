"""What ``idemactor run`` keeps of a command in the outcome: how it ended, and the end of its output."""

from __future__ import annotations

from typing import Final

from idemactor.cli.child import Tail
from idemactor.cli.command import warn
from idemactor.client import Hold, Outcome

OUTCOME_STATUS: Final = 200
EXIT_HEADER: Final = "exit-status"
DROPPED_HEADER: Final = "output-bytes-dropped"
"""Headers of the outcome: the command's exit code, and how much of its output came before what is kept."""


def keep_outcome(hold: Hold, code: int, tail: Tail | None, room: int | None) -> None:
    """Set the outcome, and as much of the output as fits into ``room`` bytes with its headers."""
    headers = [(EXIT_HEADER, str(code))]
    body = tail.kept if tail is not None else b""
    dropped = tail.dropped if tail is not None else 0
    if room is not None and Outcome(OUTCOME_STATUS, _with_dropped(headers, dropped), body).size() > room:
        # The header that says how much is missing takes its place too; no count is longer than that of all.
        without = Outcome(OUTCOME_STATUS, _with_dropped(headers, dropped + len(body))).size()
        if without > room:
            warn(f"the namespace's outcome_max_bytes ({room}) has no room for the outcome: only its status is kept")
        kept = max(0, room - without)
        dropped += len(body) - kept
        body = body[len(body) - kept :]
    hold.set_outcome(status=OUTCOME_STATUS, headers=_with_dropped(headers, dropped), body=body)


def _with_dropped(headers: list[tuple[str, str]], dropped: int) -> tuple[tuple[str, str], ...]:
    return (*headers, (DROPPED_HEADER, str(dropped))) if dropped else tuple(headers)
