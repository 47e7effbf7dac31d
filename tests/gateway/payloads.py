"""The requests of ``cases/payloads``, what becomes of them, and the source that each of them is for."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from idemactor.config import load
from idemactor.gateway.profiles import SHIPPED
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source

PAYLOADS: Final = Path(__file__).parent.parent / "cases" / "payloads"
START_MS: Final = 1_772_461_800_000
"""When first requests come."""

OWN_TOML: Final = Path(__file__).parent / "sources.toml"
_CONFIGURED: Final = load(OWN_TOML).sources

OWN: Final[Mapping[str, Source]] = {
    "h08-3commas-like": _CONFIGURED["commas"],
    "h10-array-body": _CONFIGURED["trades"],
    "h11-number-formats": _CONFIGURED["orders"],
    "h12-form-body": _CONFIGURED["ipn"],
}
"""The sources of those for which none is shipped."""
SOURCES: Final[Mapping[str, Source]] = {
    **OWN,
    "h01-tradingview-json": SHIPPED["tradingview"],
    "h02-tradingview-text": SHIPPED["tradingview"],
    "h03-stripe-event": SHIPPED["stripe"],
    "h04-github-push": SHIPPED["github"],
    "h05-shopify-order": SHIPPED["shopify"],
    "h06-standard-webhooks": SHIPPED["standard-webhooks"],
    "h07-slack-like": SHIPPED["slack"],
    "h09-hoox": SHIPPED["hoox"],
}


@dataclass(frozen=True, slots=True)
class Payload:
    """One file.

    Attributes:
        id: Its name.
        content: All of it.
        first: Its request.
    """

    id: str
    content: Mapping[str, Any]
    first: RawRequest

    @property
    def source(self) -> Source:
        return SOURCES[self.id]

    @property
    def secrets(self) -> list[str]:
        """Values that must be found nowhere."""
        return [secret["value"] for secret in self.content["secrets"] if "value" in secret]

    def variants(self, kind: str) -> Iterator[tuple[str, Any, RawRequest, int]]:
        """What it says, what is expected, the request, and when it comes; ``resends`` or ``near_misses``."""
        for one in self.content[kind]:
            change = one["change"]
            at_ms = START_MS + change.get("after_ms", 0)
            yield one["what"], one["expect"], changed(self.first, change), at_ms


def changed(request: RawRequest, change: Mapping[str, Any]) -> RawRequest:
    """A request as a case's ``change`` makes it."""
    headers = {name.lower(): (name, value) for name, value in request.headers}
    for name, value in change.get("headers", {}).items():
        headers.pop(name.lower(), None)
        if value is not None:
            headers[name.lower()] = (name, value)
    body = change["body"].encode() if "body" in change else request.body
    method, path = change.get("method", request.method), change.get("path", request.path)
    return RawRequest(method, path, tuple(headers.values()), body)


def request_members(request: RawRequest, *, as_bytes: bool) -> dict[str, Any]:
    """A request as a member of a call: over RPC with its bytes, over HTTP in base64."""
    headers = [list(pair) for pair in request.headers]
    members: dict[str, Any] = {"method": request.method, "path": request.path, "headers": headers}
    if as_bytes:
        return members | {"body": request.body}
    return members | {"body_b64": base64.b64encode(request.body).decode()}


def payloads() -> list[Payload]:
    """All of them, in order."""
    return [_payload(path) for path in sorted(PAYLOADS.glob("*.json"))]


def _payload(path: Path) -> Payload:
    content = json.loads(path.read_bytes())
    request = content["request"]
    headers = tuple((name, value) for name, value in request["headers"])
    return Payload(
        content["id"], content, RawRequest(request["method"], request["path"], headers, request["body"].encode())
    )
