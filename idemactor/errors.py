"""The errors of idemactor: what is raised, and the codes that callers see.

A refusal of the state table is a reply (``core/replies.py``), never an exception. What is raised here either never
reached the table (``RequestError``) or says that the server cannot start or go on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final


class Code(enum.StrEnum):
    """The ``code`` of a refusal, as callers see it over every door."""

    IN_FLIGHT = "IDEMPOTENCY_IN_FLIGHT"
    DUPLICATE = "IDEMPOTENCY_DUPLICATE"
    IN_DOUBT = "IDEMPOTENCY_IN_DOUBT"
    RELEASED = "IDEMPOTENCY_RELEASED"
    STALE_TOKEN = "IDEMPOTENCY_STALE_TOKEN"
    ALREADY_COMMITTED = "IDEMPOTENCY_ALREADY_COMMITTED"
    UNSETTLED = "IDEMPOTENCY_UNSETTLED"
    UNCANCELLABLE = "IDEMPOTENCY_UNCANCELLABLE"
    UNKNOWN_KEY = "IDEMPOTENCY_UNKNOWN_KEY"
    MISMATCH = "IDEMPOTENCY_MISMATCH"
    INVALID_REQUEST = "IDEMPOTENCY_INVALID_REQUEST"
    TOO_LARGE = "IDEMPOTENCY_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "IDEMPOTENCY_UNSUPPORTED_MEDIA_TYPE"
    UNAUTHENTICATED = "IDEMPOTENCY_UNAUTHENTICATED"
    BAD_SIGNATURE = "IDEMPOTENCY_BAD_SIGNATURE"
    FORBIDDEN = "IDEMPOTENCY_FORBIDDEN"
    UNKNOWN_NAMESPACE = "IDEMPOTENCY_UNKNOWN_NAMESPACE"
    QUOTA_EXCEEDED = "IDEMPOTENCY_QUOTA_EXCEEDED"
    OVERLOADED = "IDEMPOTENCY_OVERLOADED"
    UNAVAILABLE = "IDEMPOTENCY_UNAVAILABLE"
    NOT_FOUND = "IDEMPOTENCY_NOT_FOUND"
    METHOD_NOT_ALLOWED = "IDEMPOTENCY_METHOD_NOT_ALLOWED"
    UPSTREAM_FAILED = "IDEMPOTENCY_UPSTREAM_FAILED"


class IdemactorError(Exception):
    """The base of every exception that idemactor raises on purpose."""


class RequestError(IdemactorError):
    """A request that never reached the state table.

    Attributes:
        code: What callers branch on.
        detail: One sentence for people; never quotes a key or a payload.
        field: The member at fault, where there is one.
        retry_after_ms: When trying again makes sense, milliseconds, where it does.
    """

    def __init__(self, code: Code, detail: str, *, field: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_ms = retry_after_ms


class InvalidRequest(RequestError):
    """A request that is not well formed: the caller's mistake, named by its field."""

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(Code.INVALID_REQUEST, detail, field=field)


class Unauthorized(RequestError):
    """A request whose sender has not proved who it is; the detail never says what would have passed.

    It is not the caller who is not known: that is ``UNAUTHENTICATED``.
    """

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(Code.BAD_SIGNATURE, detail, field=field)


class ConfigError(IdemactorError):
    """A configuration that cannot be used; the message names file, line and setting."""


class StartError(IdemactorError):
    """The server cannot start on this machine or directory; the message says the way out."""


class StorageError(IdemactorError):
    """A storage engine could not do what it was asked; the shard reloads before it goes on."""


class DamagedError(StorageError):
    """What is on the disk is not what was written there; the message names the file and says the way out."""


class UnfitError(StorageError):
    """A file is whole, and does not belong where it is, or to this release or configuration: somebody's mistake.

    No waiting mends it, so that a start is refused where it meets one.
    """


class OutOfReach(UnfitError):
    """What is stored is whole, and it takes another release, or a key that is not configured, to read it."""


DAMAGED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged row ends in, one way or another: whoever reads rows turns these into a ``StorageError``."""


def messages_of(group: BaseExceptionGroup[BaseException]) -> Iterator[str]:
    """What the errors of a group say, line by line, for people."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from messages_of(error)
        else:
            yield from str(error).splitlines()
