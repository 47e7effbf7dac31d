"""What a caller gives to the members of a call (contract, 5 and 6)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from idemactor import errors
from idemactor.client.bounds import check_members
from idemactor.client.dispatching import content_members
from idemactor.client.errors import InvalidRequest
from idemactor.client.flight import Flight
from idemactor.core.delivery import Intent, NewEvent
from idemactor.core.record import Outcome
from idemactor.errors import Code
from idemactor.wire.fields import Dialect
from idemactor.wire.outcomes import OUTCOME

REQUEST_ID_BYTES: Final = 18
"""Random bytes of a request_id: as many as fill 24 characters."""

_READ_OUTCOME: Final = OUTCOME.reader("outcome", Dialect.MSGPACK)
"""The server's own rule: an outcome must not be found wanting when it is too late, at the commit."""


def members(**given: object) -> dict[str, Any]:
    """The members of a call: what was left out stays out."""
    return {name: _sent(value) for name, value in given.items() if value is not None}


def members_of(method: str, **given: object) -> dict[str, Any]:
    """The members of a call that somebody asks for, as ``members``; see ``check_members``."""
    found = members(**given)
    check_members(method, found)
    return found


def _sent(value: object) -> object:
    if isinstance(value, Outcome):
        return outcome_members(value)
    if isinstance(value, Intent | NewEvent):
        return content_members(value)
    return value


def outcome_members(outcome: Outcome) -> dict[str, Any]:
    """An outcome as it is sent."""
    found: dict[str, Any] = {"status": outcome.status}
    if outcome.headers:
        found["headers"] = [list(pair) for pair in outcome.headers]
    if outcome.body:
        found["body"] = outcome.body
    return found


Headers = Mapping[str, str] | Iterable[tuple[str, str]]
"""The headers of an outcome, as callers give them."""


def outcome_from(status: int, body: object, headers: Headers | None) -> Outcome:
    """An outcome that a commit will not be refused for.

    Args:
        status: 100 to 599.
        body: Bytes as they are, text as UTF-8, anything else as JSON.
        headers: Names with their values, or name and value pairs; None: what says that the body is JSON, where it was
            made so.

    Raises:
        InvalidRequest: The server would refuse it.
        TypeError: The body has no JSON form.
        ValueError: It has none because it holds a number that is infinite or none.
    """
    try:
        if isinstance(body, bytes | bytearray | memoryview):
            data = bytes(body)
        elif isinstance(body, str):
            data = body.encode()
        else:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            headers = [("content-type", "application/json")] if headers is None else headers
        read: Outcome = _READ_OUTCOME({"status": status, "headers": _pairs(headers or ()), "body": data})
    except errors.InvalidRequest as error:
        raise InvalidRequest(error.code, error.detail, field=error.field) from None
    except UnicodeEncodeError:
        raise InvalidRequest(
            Code.INVALID_REQUEST, "an outcome's body holds a lone surrogate", field="outcome"
        ) from None
    return read


def _pairs(headers: Headers) -> object:
    """The pairs as lists; what is out of shape stays as it is, for the server's rule to refuse."""
    found: Iterable[object] = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(found, str | bytes) or not isinstance(found, Iterable):
        return found
    return [list(pair) if isinstance(pair, tuple) else pair for pair in found]


def fresh_request_id() -> str:
    """A name for one acquisition that nobody else has."""
    return secrets.token_urlsafe(REQUEST_ID_BYTES)


@dataclass(slots=True, eq=False)
class Acquisition:
    """One reserve or accept, with its request_id, however often it is sent.

    Attributes:
        params: What is asked, without the waiting.
        own: Whether the request_id is the client's: then nobody else can take up what was granted to it.
        flight: The latest sending.
    """

    method: str
    params: dict[str, Any]
    own: bool
    flight: Flight = field(init=False)

    def __post_init__(self) -> None:
        self.flight = Flight(self.method, self.params, kept=True)

    def sending(self, wait_ms: int = 0) -> Flight:
        """The call, to be sent now."""
        before = self.flight
        if wait_ms or before.sends or before.caller is not None:
            params = self.params | {"wait_ms": wait_ms} if wait_ms else self.params
            self.flight = Flight(self.method, params, waits_ms=wait_ms, kept=True, uncertain=before.uncertain)
        return self.flight


def acquisition(method: str, params: dict[str, Any]) -> Acquisition:
    """The acquisition that ``params`` (from ``members``) ask for; a request_id is added where they have none."""
    own = "request_id" not in params
    if own:
        params["request_id"] = fresh_request_id()
    return Acquisition(method, params, own)
