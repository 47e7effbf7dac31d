"""The exit codes of every command that talks to a server: what a shell script branches on."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from idemactor.errors import Code


class Exit(enum.IntEnum):
    """How a command ended. The numbers are an interface: they never change their meaning."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    OUT_OF_SERVICE = 3
    DENIED = 4
    IN_FLIGHT = 10
    IN_DOUBT = 11
    MISMATCH = 12
    STALE = 13
    UNKNOWN = 14
    COMPLETED = 15
    ALREADY_COMMITTED = 16
    RELEASED = 17
    UNSETTLED = 18
    QUOTA = 19
    LEASE_LOST = 20
    UNTOLD = 21
    NOT_DONE = 22
    UNCANCELLABLE = 23
    CONFLICT = 24
    DAMAGED = 25
    CANNOT_EXECUTE = 126
    NO_SUCH_COMMAND = 127


SIGNALLED: Final = 128
"""A command that signal n ended is told as 128 + n, as shells do it."""

MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.DONE: "done; after reserve and accept: you may go on",
    Exit.UNEXPECTED: "something that should not happen",
    Exit.USAGE: "a wrong flag, file, value or namespace",
    Exit.OUT_OF_SERVICE: "the server cannot be reached, or cannot answer now: try again",
    Exit.DENIED: "not authenticated, not allowed, or the server's certificate is not trusted",
    Exit.IN_FLIGHT: "in flight: somebody else holds the key",
    Exit.IN_DOUBT: "in doubt: nobody knows whether it happened; resolve it",
    Exit.MISMATCH: "mismatch: the key stands for another payload",
    Exit.STALE: "stale: the token is not that of the latest attempt",
    Exit.UNKNOWN: "there is no such record, incident or operation",
    Exit.COMPLETED: "it was done before: do not do it again",
    Exit.ALREADY_COMMITTED: "too late: the operation is committed",
    Exit.RELEASED: "a late repeat of a request id that was released",
    Exit.UNSETTLED: "pending or in doubt: not forgotten without --force",
    Exit.QUOTA: "the namespace is full",
    Exit.LEASE_LOST: "run: the lease was lost, and the command was ended for it",
    Exit.UNTOLD: "run: the command ended, and the server could not be told how",
    Exit.NOT_DONE: "operation: it ended, and was not done: failed, expired, cancelled or released",
    Exit.UNCANCELLABLE: "cancel: too late, something may have been sent",
    Exit.CONFLICT: "import: keys are there already, with something else",
    Exit.DAMAGED: "backup, restore, ...: what was read is damaged",
    Exit.CANNOT_EXECUTE: "run: the command cannot be executed",
    Exit.NO_SUCH_COMMAND: "run: there is no such command",
}

ALWAYS: Final = (Exit.DONE, Exit.UNEXPECTED, Exit.USAGE, Exit.OUT_OF_SERVICE, Exit.DENIED)
"""What every command can end with."""

UNREACHABLE: Final = "UNREACHABLE"
NOT_TRUSTED: Final = "SERVER_NOT_TRUSTED"
NO_PROTOCOL: Final = "PROTOCOL_VIOLATION"
UNEXPECTED: Final = "UNEXPECTED"
"""Codes for what no server answered, beside those of the contract."""

_BY_CODE: Final[Mapping[str, Exit]] = {
    Code.IN_FLIGHT: Exit.IN_FLIGHT,
    Code.DUPLICATE: Exit.COMPLETED,
    Code.IN_DOUBT: Exit.IN_DOUBT,
    Code.RELEASED: Exit.RELEASED,
    Code.STALE_TOKEN: Exit.STALE,
    Code.ALREADY_COMMITTED: Exit.ALREADY_COMMITTED,
    Code.UNSETTLED: Exit.UNSETTLED,
    Code.UNCANCELLABLE: Exit.UNCANCELLABLE,
    Code.UNKNOWN_KEY: Exit.UNKNOWN,
    Code.NOT_FOUND: Exit.UNKNOWN,
    Code.MISMATCH: Exit.MISMATCH,
    Code.INVALID_REQUEST: Exit.USAGE,
    Code.TOO_LARGE: Exit.USAGE,
    Code.UNKNOWN_NAMESPACE: Exit.USAGE,
    Code.UNAUTHENTICATED: Exit.DENIED,
    Code.BAD_SIGNATURE: Exit.DENIED,
    Code.FORBIDDEN: Exit.DENIED,
    Code.QUOTA_EXCEEDED: Exit.QUOTA,
    Code.OVERLOADED: Exit.OUT_OF_SERVICE,
    Code.UNAVAILABLE: Exit.OUT_OF_SERVICE,
    UNREACHABLE: Exit.OUT_OF_SERVICE,
    NOT_TRUSTED: Exit.DENIED,
}


def exit_of_code(code: str) -> Exit:
    """The exit code for a ``code`` of the contract, or one of those above; an unknown one is unexpected."""
    return _BY_CODE.get(code, Exit.UNEXPECTED)


def table_of(*exits: Exit) -> str:
    """The lines of a help page that say what ``exits`` mean."""
    return "\n".join(f"  {code.value:>3}  {MEANINGS[code]}" for code in exits)
