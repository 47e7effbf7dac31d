"""Operations, and the outbox of services that fetch their work: calls to commands, what was taken to members.

See the contract, section 15.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from idemactor.core import limits
from idemactor.core.commands import AckEvent, Commit, NackEvent, Postpone, Release
from idemactor.core.delivery import Intent, Kind, NewEvent
from idemactor.core.keys import Identity
from idemactor.core.policy import DispatchPolicy, OnFailure
from idemactor.core.queries import TakenEvent, TakenIntent
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.calls import CANCEL, OPERATION, OUTBOX
from idemactor.wire.fields import POLL_DEFAULT, Dialect
from idemactor.wire.requests import Members, Scope, members_of

NACK_DELAY_MS: Final = 1_000
"""When an entry that was given back is shown again, where nothing else is said: not at once, to the same service."""
HOLDER_DEFAULT: Final = "outbox.poll"

_OPERATION: Final = {dialect: Members(OPERATION, dialect) for dialect in Dialect}
_CANCEL: Final = {dialect: Members(CANCEL, dialect) for dialect in Dialect}
_OUTBOX: Final = {(op, dialect): Members(table, dialect) for op, table in OUTBOX.items() for dialect in Dialect}

_OPERATION_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,5}")

Ack: TypeAlias = Commit | AckEvent
Nack: TypeAlias = Commit | Release | Postpone | NackEvent


def no_such_operation() -> RequestError:
    """What is told of an operation that no shard knows, or knows no longer."""
    return RequestError(Code.NOT_FOUND, "there is no such operation", field="operation_id")


def operation_from(members: Mapping[str, object], dialect: Dialect) -> tuple[str, int]:
    """Which operation is asked for, and how long its end is waited for, milliseconds.

    Args:
        members: ``operation_id`` and ``wait_ms``: over HTTP from the path and the query.
        dialect: How the members came.

    Raises:
        InvalidRequest: A member is missing, unknown or out of its bounds.
        RequestError: NOT_FOUND: no operation can have this id.
    """
    values = members_of(_OPERATION[dialect], members)
    return _checked(values["operation_id"]), values.get("wait_ms", 0)


def cancel_from(members: Mapping[str, object], dialect: Dialect) -> str:
    """Which operation is to be taken back; raises as ``operation_from``."""
    return _checked(members_of(_CANCEL[dialect], members)["operation_id"])


def _checked(operation_id: str) -> str:
    if _OPERATION_ID.fullmatch(operation_id) is None:
        raise no_such_operation()
    return operation_id


def path_members(operation_id: str, pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The members of a call that is a path and the decoded pairs of a URL's query, as JSON would have held them.

    Raises:
        InvalidRequest: One is there twice.
    """
    members: dict[str, object] = {"operation_id": operation_id}
    for name, value in pairs:
        if name in members:
            raise InvalidRequest("it is there twice", field=name)
        members[name] = int(value) if _DECIMAL.fullmatch(value) else value
    return members


# ---------------------------------------------------------------------------------------------------------- polling


@dataclass(frozen=True, slots=True)
class Poll:
    """What somebody who fetches work asks for; times in milliseconds."""

    max: int
    wait_ms: int
    visibility_ms: int
    holder: str


def poll_from(members: Mapping[str, object], dialect: Dialect) -> Poll:
    """A poll. Raises: InvalidRequest."""
    values = members_of(_OUTBOX["poll", dialect], members)
    return Poll(
        values.get("max", POLL_DEFAULT),
        values.get("wait_ms", 0),
        values.get("visibility_ms", limits.VISIBILITY_MS_DEFAULT),
        values.get("holder") or HOLDER_DEFAULT,
    )


def kinds_of(policy: DispatchPolicy) -> tuple[Kind, ...]:
    """What is there to be fetched: intents only where nobody delivers them."""
    return (Kind.EVENT,) if policy.pushed else (Kind.INTENT, Kind.EVENT)


def poll_body(intents: Iterable[TakenIntent], events: Iterable[TakenEvent], dialect: Dialect) -> dict[str, object]:
    """The members of what was taken, in the order in which it came to the outbox."""
    entries = [(taken.seq, _intent_entry(taken, dialect)) for taken in intents]
    entries += [(taken.event.seq, _event_entry(taken, dialect)) for taken in events]
    return {"entries": [entry for _, entry in sorted(entries, key=lambda found: found[0])]}


def _intent_entry(taken: TakenIntent, dialect: Dialect) -> dict[str, object]:
    return {
        "id": taken.operation_id,
        "kind": "intent",
        "key": taken.identity.key,
        "operation_id": taken.operation_id,
        "token": taken.token,
        "attempt": taken.attempt,
        "order_key": taken.order_key,
        "at": taken.accepted_at,
        "visible_until": taken.lease_expires_at,
        "takeover": taken.perhaps_sent,
        **_content(taken.intent, dialect),
    }


def _event_entry(taken: TakenEvent, dialect: Dialect) -> dict[str, object]:
    event = taken.event
    return {
        "id": event.id,
        "kind": "event",
        "key": event.identity.key,
        "operation_id": event.operation_id,
        "token": event.seq,
        "attempt": taken.attempt,
        "order_key": event.content.order_key,
        "at": event.committed_at,
        "visible_until": taken.lease_expires_at,
        "takeover": taken.attempt > 1,
        **_content(event.content, dialect),
    }


def _content(content: Intent | NewEvent, dialect: Dialect) -> dict[str, object]:
    shown: dict[str, object] = {
        "content_type": content.content_type or None,
        "headers": [list(pair) for pair in content.headers],
    }
    if dialect is Dialect.MSGPACK:
        return shown | {"body": content.body}
    try:
        return shown | {"body": content.body.decode()}
    except UnicodeDecodeError:
        return shown | {"body_b64": binascii.b2a_base64(content.body, newline=False).decode("ascii")}


# --------------------------------------------------------------------------------------------------------- settling


def ack_from(members: Mapping[str, object], scope: Scope, dialect: Dialect) -> Ack:
    """Whoever fetched an entry has dealt with it: the operation is committed, or the event is gone.

    Raises:
        InvalidRequest: A member is missing, unknown or out of its bounds, or is none of an event's.
    """
    values = members_of(_OUTBOX["ack", dialect], members)
    identity, token = _whose(values, scope), values["token"]
    if _is_event(values, "outcome", "ttl_ms"):
        return AckEvent(identity, token, values["id"])
    return Commit(identity, token, values.get("outcome"), values.get("ttl_ms"), operation_id=values["id"])


def nack_from(members: Mapping[str, object], scope: Scope, dialect: Dialect, now_ms: int) -> Nack:
    """Whoever fetched an entry did not deal with it: it is shown again, or it definitely failed.

    What that does to the key is the namespace's to say (``on_failure``): it is committed with the outcome, or freed
    with the reason.

    Args:
        members: As they came.
        scope: Who asks, and where.
        dialect: How the members came.
        now_ms: The shards' clock, milliseconds since the epoch.

    Raises:
        InvalidRequest: As in ``ack_from``.
    """
    values = members_of(_OUTBOX["nack", dialect], members)
    identity, token = _whose(values, scope), values["token"]
    due_at = now_ms + values.get("delay_ms", NACK_DELAY_MS)
    if _is_event(values, "outcome", "failed", "reason"):
        return NackEvent(identity, token, values["id"], due_at)
    if values.get("failed"):
        _refuse(values, "delay_ms", because="what failed is not tried again")
        if scope.policy.dispatch.on_failure is OnFailure.RELEASE:
            return Release(identity, token, values.get("reason"), failed=True, operation_id=values["id"])
        return Commit(identity, token, values.get("outcome"), failed=True, operation_id=values["id"])
    _refuse(values, "outcome", because="what is tried again has no outcome yet")
    reason = values.get("reason")
    return Postpone(identity, token, due_at, perhaps_sent=False, reason=reason, operation_id=values["id"])


def _whose(values: Mapping[str, Any], scope: Scope) -> Identity:
    return Identity(scope.tenant, scope.namespace, values["key"])


def _is_event(values: Mapping[str, Any], *not_of_events: str) -> bool:
    """Whether the entry is an event: its id has a dot, see ``Event.id``.

    Raises:
        InvalidRequest: It is, and a member is there that no event takes.
    """
    if "." not in values["id"]:
        return False
    _refuse(values, *not_of_events, because="no event takes it")
    return True


def _refuse(values: Mapping[str, Any], *names: str, because: str) -> None:
    for name in names:
        if name in values:
            raise InvalidRequest(because, field=name)
