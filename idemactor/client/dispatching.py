"""Dispatched operations and the outbox, for callers: what they give and what they get (contract, 15)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from idemactor import errors
from idemactor.client.errors import InvalidRequest
from idemactor.core.delivery import Intent, NewEvent, OperationState
from idemactor.core.record import Outcome
from idemactor.errors import Code
from idemactor.wire.fields import Dialect
from idemactor.wire.intents import EVENTS, INTENT

Headers = Mapping[str, str] | Iterable[tuple[str, str]]

_READ_INTENT: Final = INTENT.reader("intent", Dialect.MSGPACK)
_READ_EVENTS: Final = EVENTS.reader("events", Dialect.MSGPACK)
"""The server's own rules: what cannot be sent is found wanting here and not when it is too late."""

JSON_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """How a dispatched operation stands; times in milliseconds since the epoch, None for what does not apply.

    Attributes:
        state: ``queued``, ``delivering``, ``succeeded``, ``failed``, ``in_doubt``, ``expired``, ``cancelled`` or
            ``released``.
        attempt: The latest; 0: nobody has tried yet.
        next_attempt_at: When it is tried next.
        lease_expires_at: Until when the present attempt may take.
        deliver_until: From then on nothing is sent any more.
        reason: What the latest attempt came to, for people.
        outcome: What the destination answered.
    """

    operation_id: str
    key: str
    state: OperationState
    attempt: int | None
    accepted_at: int | None
    next_attempt_at: int | None
    lease_expires_at: int | None
    deliver_until: int | None
    ended_at: int | None
    expires_at: int | None
    order_key: str | None
    reason: str | None
    outcome: Outcome | None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done about it."""
        return self.state.ended


@dataclass(frozen=True, slots=True)
class EntryRef:
    """What acknowledges an entry of the outbox.

    Attributes:
        id: The same for every delivery.
        token: Of this one delivery.
    """

    id: str
    key: str
    token: int


@dataclass(frozen=True, slots=True)
class OutboxEntry(EntryRef):
    """An entry that was fetched, to be dealt with and then acknowledged; times in milliseconds since the epoch.

    Attributes:
        kind: ``intent``: a dispatched operation; ``event``: what a commit announced.
        at: When the intent was accepted, or the event committed.
        visible_until: Until then it is shown to nobody else.
        takeover: Whether an earlier delivery may already have had its effect.
    """

    kind: Literal["intent", "event"]
    operation_id: str
    attempt: int
    order_key: str | None
    at: int
    visible_until: int
    takeover: bool
    content_type: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes


def intent_from(body: object, content_type: str | None, headers: Headers | None) -> Intent:
    """An intent that the server will not refuse for its form.

    Args:
        body: Bytes as they are, text as UTF-8, anything else as JSON.
        content_type: None: what says that the body is JSON, where it was made so, else none.
        headers: Names with their values, or pairs.

    Raises:
        InvalidRequest: The server would refuse it.
        TypeError: The body has no JSON form.
        ValueError: It has none because it holds a number that is infinite or none.
    """
    try:
        read: Intent = _READ_INTENT(_members(body, content_type, headers))
    except errors.InvalidRequest as error:
        raise InvalidRequest(error.code, error.detail, field=error.field) from None
    return read


def event(
    body: object,
    *,
    content_type: str | None = None,
    headers: Headers | None = None,
    order_key: str | None = None,
) -> NewEvent:
    """An event for ``commit``; the arguments and errors are those of ``intent_from``.

    Args:
        body: See ``intent_from``.
        content_type: See ``intent_from``.
        headers: See ``intent_from``.
        order_key: Events of one are fetched strictly one after the other.
    """
    members = _members(body, content_type, headers)
    if order_key is not None:
        members["order_key"] = order_key
    try:
        [read] = _READ_EVENTS([members])
    except errors.RequestError as error:
        raise InvalidRequest(error.code, error.detail, field=error.field) from None
    assert isinstance(read, NewEvent)
    return read


def content_members(content: Intent | NewEvent) -> dict[str, Any]:
    """An intent or an event as it is sent."""
    found: dict[str, Any] = {"body": content.body}
    if content.content_type:
        found["content_type"] = content.content_type
    if content.headers:
        found["headers"] = [list(pair) for pair in content.headers]
    if isinstance(content, NewEvent) and content.order_key is not None:
        found["order_key"] = content.order_key
    return found


def _members(body: object, content_type: str | None, headers: Headers | None) -> dict[str, Any]:
    data, made_json = _bytes_of(body)
    found: dict[str, Any] = {"body": data}
    if content_type is not None or made_json:
        found["content_type"] = JSON_TYPE if content_type is None else content_type
    if headers is not None:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        found["headers"] = [list(pair) for pair in pairs]
    return found


def _bytes_of(body: object) -> tuple[bytes, bool]:
    """The bytes of a body, and whether it was made JSON."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body), False
    if isinstance(body, str):
        try:
            return body.encode(), False
        except UnicodeEncodeError:
            raise InvalidRequest(Code.INVALID_REQUEST, "the body holds a lone surrogate", field="body") from None
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(), True
