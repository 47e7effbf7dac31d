"""The log of requests: a line for each call that became a command, at level debug alone (contract, 9).

A key shows as its digest, and a payload or a request not at all, unless the configuration asks for them in clear; what
a source names as secret never does: of a request only what counts in its fingerprint is shown.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Final

from idemactor.core.fingerprint import Number
from idemactor.core.keys import Identity
from idemactor.errors import InvalidRequest
from idemactor.gateway.bodies import Opaque
from idemactor.gateway.refs import Place
from idemactor.gateway.request import RawRequest
from idemactor.gateway.source import Source
from idemactor.gateway.values import Values
from idemactor.observability.logs import Redact, log_event

_log = logging.getLogger(__name__)

_PAYLOADS: Final = ("payload", "payload_json")


class RequestLog:
    """Is told of every call that became a command (``wire.requests.Watch``).

    Args:
        redact: What may be shown in clear.
        sources: The sources there are, by name: what is secret in their requests.
    """

    def __init__(self, redact: Redact, sources: Mapping[str, Source]) -> None:
        self._redact = redact
        self._sources = sources

    def __call__(self, op: str, identity: Identity, members: Mapping[str, object]) -> None:
        """One line for the call ``op`` with these members."""
        name = members.get("source")
        source = self._sources.get(name) if isinstance(name, str) else None
        log_event(
            _log,
            logging.DEBUG,
            "request",
            op=op,
            namespace=identity.namespace,
            source=name,
            key=self._redact.log_key(identity),
            payload=self._payload(members),
            request=self._request(source, members.get("request")),
        )

    def _payload(self, members: Mapping[str, object]) -> str | None:
        given = next((members[name] for name in _PAYLOADS if name in members), None)
        return None if given is None else self._shown(given)

    def _request(self, source: Source | None, request: object) -> str | None:
        if not self._redact.show or source is None or not isinstance(request, RawRequest):
            return None
        try:
            return self._shown(_without_secrets(source, request))
        except InvalidRequest:
            # A gateway that sent no body asks about one that would not be of its source's format.
            return None

    def _shown(self, value: object) -> str | None:
        if not self._redact.show:
            return None
        return self._redact.log_payload(
            value if isinstance(value, bytes) else json.dumps(value, default=_text).encode()
        )


def _without_secrets(source: Source, request: RawRequest) -> dict[str, object]:
    values = Values(source, request)
    shown: dict[str, object] = {
        "method": request.method,
        "path": values.path,
        "query": values.counted_query(),
        "headers": [[name, request.header(name)] for name in source.plan.headers],
    }
    # In bytes nobody knows where a secret begins.
    if not (isinstance(values.body, Opaque) and any(ref.place is Place.MEMBER for ref in source.plan.left_out)):
        shown["body"] = values.counted_body()
    return shown


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.text if isinstance(value, Number) else str(value)
