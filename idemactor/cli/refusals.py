"""Errors in one line for people."""

from __future__ import annotations

from idemactor.cli.answers import detail_of
from idemactor.cli.output import relative, safe
from idemactor.client import errors


def line_of(error: errors.IdemactorClientError, now: int) -> str:  # noqa: C901 - One case for each error.
    """What went wrong and, where that can be said, what comes next; ``now`` in milliseconds since the epoch."""
    match error:
        case errors.InFlightError():
            since = relative(error.reserved_at, now)
            if error.lease_expires_at is None:
                return f"in flight: it was dispatched {since}, and waits to be delivered"
            until = relative(error.lease_expires_at, now)
            return f"in flight: attempt {error.attempt} of {_who(error.holder)} began {since}, its lease ends {until}"
        case errors.InDoubtError():
            return _in_doubt(error, now)
        case errors.DuplicateError():
            return f"completed: it was done before{_when(error.committed_at, now)}"
        case errors.AlreadyCommittedError():
            return f"already committed{_when(error.committed_at, now)}"
        case errors.StaleTokenError():
            present = "there is none now" if error.attempt is None else f"that is number {error.attempt}"
            return f"stale: the token is not that of the latest attempt ({present})"
        case errors.MismatchError():
            return "mismatch: the key stands for another payload"
        case errors.UnknownKeyError():
            return "unknown: there is no record of this key"
        case errors.UncancellableError():
            return f"too late to cancel: it is {safe(error.state or 'under way').replace('_', ' ')}"
        case errors.UnsettledError():
            return "pending or in doubt: --force forgets it all the same"
        case errors.Refused():
            return safe(f"{error.code}: {error.detail}".rstrip("."))
        case errors.Unreachable() if error.__cause__ is None:
            # Something listens, and does not answer: most often it is the HTTP door.
            return safe(f"{detail_of(error)} (is it the RPC door?)")
        case _:
            return safe(detail_of(error).rstrip("."))


def _in_doubt(error: errors.InDoubtError, now: int) -> str:
    said = "in doubt: nobody knows whether it happened"
    if error.attempt is not None:
        said = f"{said} (attempt {error.attempt} of {_who(error.holder)}"
        if error.reserved_at is not None:
            said = f"{said} began {relative(error.reserved_at, now)}"
        said = f"{said}, operation {error.operation_id})"
    return f"{said}: {safe(error.reason)}" if error.reason else said


def _who(holder: str | None) -> str:
    return safe(holder) if holder else "an unnamed holder"


def _when(at_ms: int | None, now: int) -> str:
    return "" if at_ms is None else f", {relative(at_ms, now)}"
