"""Calls that bring the request of a sender instead of a key: the request, and what a source makes of it.

Which sources there are, and how they find a key, is the matter of ``gateway/``: here is what both doors read and what
they are given back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from idemactor.core.fingerprint import Fingerprint


class Rule(enum.StrEnum):
    """Where the key of a request was found."""

    HEADER = "header"
    """The sender's ``Idempotency-Key``."""
    BODY = "body"
    """The sender's ``idempotencyKey`` in the body, whether or not the header says the same."""
    SOURCE = "source"
    """The source's own id."""
    DERIVED = "derived"
    """Made of what the request says."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as its sender sent it.

    Attributes:
        method: As sent; its case counts (RFC 9110, section 9.1).
        path: As sent, the query included.
        headers: Names and values in order, as sent; names are compared case-insensitively.
        body: The bytes of the content, without any transfer coding.
    """

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> list[str]:
        """Every value of the field ``name``, in order, without the white space around it."""
        wanted = name.lower()
        return [value.strip(" \t") for found, value in self.headers if found.lower() == wanted]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a source made of a request.

    Attributes:
        key: A valid key.
        fingerprint: Of what counts in the request; made under the source's rule.
        rule: Where the key was found.
        source: The source's name.
        namespace: The source's own namespace; a call that names one in its path uses that.
        window_ms: How long the key blocks from its first sighting; None: ``ttl_ms`` counts.
        ttl_ms: How long it blocks from its commit; None: as ``memory`` says. Never beside ``window_ms``.
        retry_horizon_ms: How long its sender may send it again; None: nobody knows.
    """

    key: str
    fingerprint: Fingerprint
    rule: Rule
    source: str
    namespace: str
    window_ms: int | None
    ttl_ms: int | None
    retry_horizon_ms: int | None = None

    def memory(self, namespace_ttl_ms: int) -> tuple[int | None, int | None]:
        """What a command for this key says of ``window_ms`` and ``ttl_ms``, in whichever namespace it is kept.

        A namespace's setting does not know the sender: where the source has no ttl of its own, nothing is forgotten
        before the sender is done.

        Args:
            namespace_ttl_ms: The setting of that namespace.
        """
        if self.window_ms is not None or self.ttl_ms is not None or self.retry_horizon_ms is None:
            return self.window_ms, self.ttl_ms
        return None, max(namespace_ttl_ms, self.retry_horizon_ms)


Resolver = Callable[[str, RawRequest], Resolved]
"""Finds the key of a request, given the name of its source.

Raises:
    InvalidRequest: There is no such source, or no key in the request; ``field`` names what is at fault.
    Unauthorized: The request is not its sender's.
"""


def key_body(resolved: Resolved) -> dict[str, object]:
    """The members of the answer of a dry run."""
    return {
        "result": "key",
        "key": resolved.key,
        "fingerprint": resolved.fingerprint.value,
        "rule": resolved.rule.value,
        "source": resolved.source,
    }
