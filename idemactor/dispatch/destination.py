"""Where a namespace's intents go, and what its answers mean: frozen values. Pure. Times in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from idemactor.core.limits import HORIZON_MS_DEFAULT
from idemactor.core.policy import OnFailure
from idemactor.dispatch import limits
from idemactor.gateway.proxy.routes import (
    DEFINITE_FAILURE,
    TIMEOUT_MS_DEFAULT,
    InvalidUpstream,
    Origin,
    SuccessRule,
    parse_upstream,
)

PLACEHOLDER: Final = "{operation_id}"
"""What a status URL has in the place of the operation's id."""

NOT_EXECUTED: Final = frozenset({429, 503})
"""Refused before anything was done, unless the destination's settings say otherwise."""
COMMITTED: Final = frozenset({200})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A URL as it is connected to and asked for.

    Attributes:
        origin: Where to.
        target: Path and query, as the request line has them.
    """

    origin: Origin
    target: str

    def of(self, operation_id: str) -> str:
        """The target with the id in its place; ids need no escapes in a URL."""
        return self.target.replace(PLACEHOLDER, operation_id)


def parse_endpoint(text: str) -> Endpoint:
    """``http://host:port/path?query`` or the same with ``https``.

    Raises:
        InvalidUpstream: It is none, or has credentials or a fragment in it; it says why.
    """
    parts = urlsplit(text) if text.startswith(("http://", "https://")) else None
    if parts is None:
        raise InvalidUpstream('is no URL: write "http://host:port/path" or "https://host/path"')
    if parts.fragment or text.endswith("#"):
        raise InvalidUpstream("has a fragment, which is never sent")
    origin = parse_upstream(f"{parts.scheme}://{parts.netloc}")
    path = text.removeprefix(f"{parts.scheme}://{parts.netloc}")
    if not (path.isascii() and path.isprintable()) or " " in path:
        raise InvalidUpstream("has white space, or characters beyond ASCII: write them as escapes")
    return Endpoint(origin, path if path.startswith("/") else f"/{path}")


@dataclass(frozen=True, slots=True)
class Retry:
    """When an intent is tried again.

    Attributes:
        first_ms: The most that the second attempt waits.
        factor: By which that grows with each further one.
        longest_ms: The most that any waits.
        horizon_ms: How long after it was accepted an intent is tried at most.
    """

    first_ms: int = limits.FIRST_MS_DEFAULT
    factor: float = limits.FACTOR_DEFAULT
    longest_ms: int = limits.LONGEST_MS_DEFAULT
    horizon_ms: int = HORIZON_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class StatusPage:
    """How to ask a destination what became of an operation.

    Attributes:
        endpoint: With ``{operation_id}`` in its target.
        committed: Statuses that say that it happened; the answer is its outcome.
        released: Statuses that say that it did not, and are believed ``after_ms`` after the lease of the last attempt.
        after_ms: How long what was sent may still be on its way.
    """

    endpoint: Endpoint
    committed: frozenset[int] = COMMITTED
    released: frozenset[int] = frozenset()
    after_ms: int = limits.STATUS_AFTER_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class Destination:
    """One namespace's destination; a ``VerdictRules``.

    Attributes:
        endpoint: What is posted to.
        timeout_ms: From the connection to the end of the answer.
        secrets: The keys that sign, decoded; several while they are rotated, none: nothing is signed.
        concurrency: How many requests it has at once.
        downstream_dedups: Whether it recognises an operation's id, so that sending it again is safe.
        status: How to ask what became of an operation; None: nobody can.
        retry: When an intent is tried again.
        success: What a 2xx has to say beside; None: nothing.
        definite_failure: Statuses that say that it will not be done.
        not_executed: Statuses that say that nothing was done yet: it is sent again.
        on_failure: What a definite failure does to the key.
    """

    endpoint: Endpoint
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    secrets: tuple[bytes, ...] = field(default=(), repr=False)
    concurrency: int = limits.CONCURRENCY_DEFAULT
    downstream_dedups: bool = False
    status: StatusPage | None = None
    retry: Retry = field(default_factory=Retry)
    success: SuccessRule | None = None
    definite_failure: frozenset[int] = DEFINITE_FAILURE
    not_executed: frozenset[int] = NOT_EXECUTED
    on_failure: OnFailure = OnFailure.FAILED

    @property
    def lease_ms(self) -> int:
        """How long an attempt is claimed for: longer than its request can take."""
        return self.timeout_ms + limits.LEASE_MARGIN_MS
