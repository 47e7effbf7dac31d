"""Problem details (RFC 9457): how a refusal is told over HTTP, whoever refuses (contract, 5 and 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idemactor.errors import Code

MEDIA_TYPE: Final = "application/problem+json"

_TYPE: Final = "urn:idemactor:problem:"
"""A problem's type is a name, not a place: nothing has to be reachable for it to stay the same."""

_CODES: Final[Mapping[Code, tuple[int, str]]] = {
    Code.IN_FLIGHT: (409, "The key is in flight"),
    Code.DUPLICATE: (409, "The operation was done before"),
    Code.IN_DOUBT: (409, "The operation is in doubt"),
    Code.RELEASED: (409, "The attempt was released"),
    Code.STALE_TOKEN: (409, "The token is stale"),
    Code.ALREADY_COMMITTED: (409, "The operation is committed"),
    Code.UNSETTLED: (409, "The operation is not settled"),
    Code.UNCANCELLABLE: (409, "The operation cannot be taken back"),
    Code.UNKNOWN_KEY: (404, "The key is unknown"),
    Code.MISMATCH: (422, "The key stands for another payload"),
    Code.INVALID_REQUEST: (400, "The request is not valid"),
    Code.TOO_LARGE: (413, "The request is too large"),
    Code.UNSUPPORTED_MEDIA_TYPE: (415, "The content type is not JSON"),
    Code.UNAUTHENTICATED: (401, "The caller is not known"),
    Code.BAD_SIGNATURE: (401, "The request is not its sender's"),
    Code.FORBIDDEN: (403, "The caller may not do this"),
    Code.UNKNOWN_NAMESPACE: (404, "There is no such namespace"),
    Code.QUOTA_EXCEEDED: (429, "The namespace is full"),
    Code.OVERLOADED: (503, "The server is overloaded or shutting down"),
    Code.UNAVAILABLE: (503, "The shard cannot answer"),
    Code.NOT_FOUND: (404, "There is nothing here"),
    Code.METHOD_NOT_ALLOWED: (405, "The method is not allowed here"),
    Code.UPSTREAM_FAILED: (502, "The upstream gave no answer"),
}
"""Every code's HTTP status and title."""


_TYPES: Final[Mapping[Code, str]] = {
    code: _TYPE + code.removeprefix("IDEMPOTENCY_").lower().replace("_", "-") for code in Code
}


def http_status_of_code(code: Code) -> int:
    """The HTTP status of a refusal with this code."""
    return _CODES[code][0]


def title_of_code(code: Code) -> str:
    """The title of every problem with this code: RFC 9457, section 3.1.3 wants it the same from one to the next."""
    return _CODES[code][1]


def problem(
    status: int,
    code: Code,
    detail: str,
    *,
    title: str | None = None,
    members: Mapping[str, object] = {},
) -> dict[str, object]:
    """A problem details object.

    Args:
        status: The HTTP status that it leaves with.
        code: What callers branch on; it gives the type too.
        detail: One sentence for people.
        title: None: that of the code.
        members: What else it carries (``answers.body_of``).
    """
    return {
        "type": _TYPES[code],
        "title": title_of_code(code) if title is None else title,
        "status": status,
        "detail": detail,
        "code": code.value,
        **members,
    }
