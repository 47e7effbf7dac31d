"""What the client returns and raises, as the members of the answer that it came from: what ``--json`` writes.

The names are those of the contract (sections 5 and 6); bytes are ``body`` where they are UTF-8, else ``body_b64``.
"""

from __future__ import annotations

import binascii
import dataclasses
from collections.abc import Mapping
from typing import Any, Final, assert_never

from idemactor.cli.exits import NO_PROTOCOL, NOT_TRUSTED, UNEXPECTED, UNREACHABLE
from idemactor.client import errors
from idemactor.client.results import (
    Accepted,
    Acked,
    Acknowledged,
    Cancelled,
    Committed,
    Completed,
    Dispatched,
    Doubted,
    Extended,
    Forgotten,
    KeyRecord,
    NamespacePolicy,
    Operation,
    OutboxEntry,
    Outcome,
    Postponed,
    Released,
    Reserved,
    Resolved,
    Result,
)
from idemactor.errors import Code

Members = dict[str, Any]

_RESULTS: Final[Mapping[str, str]] = {
    Code.IN_FLIGHT: "in_flight",
    Code.DUPLICATE: "completed",
    Code.IN_DOUBT: "in_doubt",
    Code.RELEASED: "released",
    Code.STALE_TOKEN: "stale",
    Code.ALREADY_COMMITTED: "already_committed",
    Code.UNKNOWN_KEY: "unknown",
    Code.MISMATCH: "mismatch",
    Code.UNCANCELLABLE: "uncancellable",
}
"""The refusals of the state table have a ``result``; no other error has (contract, section 12)."""

_AT_THE_TOP: Final = ("operation_id", "state", "outcome")
"""Members of an operation that stand beside it too, as in the answers of other calls."""

_CODES: Final[Mapping[type[errors.IdemactorClientError], str]] = {
    errors.Overloaded: Code.OVERLOADED,
    errors.Unavailable: Code.UNAVAILABLE,
    errors.OutOfService: UNREACHABLE,
    errors.EndingUnacknowledged: UNREACHABLE,
    errors.ServerNotTrusted: NOT_TRUSTED,
    errors.ProtocolViolation: NO_PROTOCOL,
}


def members_of(result: Result) -> Members:  # noqa: C901 - One case for each answer.
    """The members of a success."""
    match result:
        case Reserved():
            return {"result": "reserved", "proceed": True} | _fields(result) | {"takeover": result.takeover}
        case Accepted():
            return {"result": "accepted", "proceed": True} | _fields(result) | {"takeover": result.takeover}
        case Completed():
            found = {"result": "completed", "proceed": False} | _fields(result)
            del found["rejected"]
            return found
        case Committed():
            return {"result": "committed"} | _fields(result)
        case Released():
            return {"result": "released"} | _fields(result)
        case Extended():
            return {"result": "extended"} | _fields(result)
        case Doubted():
            return {"result": "in_doubt"} | _fields(result)
        case Resolved():
            return {"result": result.verdict.value, "repeated": result.repeated}
        case KeyRecord():
            record = _fields(result)
            if result.dispatch is None:
                del record["dispatch"]
            return {"result": "found", "record": record}
        case Forgotten():
            return {"result": "forgotten"}
        case Acknowledged():
            return {"result": "acknowledged"}
        case Dispatched():
            return {"result": "accepted", "proceed": False} | _fields(result)
        case Operation():
            found = _fields(result)
            return {"result": "found"} | {name: found[name] for name in _AT_THE_TOP} | {"operation": found}
        case Cancelled():
            return {"result": "cancelled"} | _fields(result)
        case Acked():
            return {"result": "acknowledged"} | _fields(result)
        case Postponed():
            return {"result": "postponed"} | _fields(result)
        case _:
            assert_never(result)


def entry_members(entry: OutboxEntry) -> Members:
    """The members of an entry that was fetched."""
    found = _fields(entry)
    found["headers"] = [list(pair) for pair in entry.headers]
    return found | body_members(found.pop("body"))


def policy_members(namespace: str, policy: NamespacePolicy) -> Members:
    """The members of a published policy."""
    return {"namespace": namespace} | {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}


def _fields(result: Any) -> Members:
    found = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    if "outcome" in found:
        found["outcome"] = outcome_members(found["outcome"])
    return found


def outcome_members(outcome: Outcome | None) -> Members | None:
    """The members of an outcome in JSON; None where there is none."""
    if outcome is None:
        return None
    shown: Members = {"status": outcome.status, "headers": [list(pair) for pair in outcome.headers]}
    if outcome.omitted:
        return shown | {"omitted": True}
    return shown | body_members(outcome.body)


def body_members(body: bytes) -> Members:
    """Bytes in JSON."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_b64": binascii.b2a_base64(body, newline=False).decode("ascii")}


# --------------------------------------------------------------------------------------------------------------- errors


def code_of(error: errors.IdemactorClientError) -> str:
    """The server's ``code``, or one of ours (``exits.py``) for what no server answered."""
    if isinstance(error, errors.Refused):
        return str(error.code)
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), UNEXPECTED)


def error_members(error: errors.IdemactorClientError, *, acquiring: bool) -> Members:
    """The members of a refusal of the state table; of any other error ``code`` and ``detail``.

    Args:
        error: What was raised.
        acquiring: Whether it was a reserve or an accept, which always say whether to go on.
    """
    code = code_of(error)
    found: Members = {}
    if code in _RESULTS:
        found = {"result": _RESULTS[code], "code": code} | _carried(error)
    else:
        found = {"code": code, "detail": detail_of(error)}
    return found | {"proceed": False} if acquiring else found


def _carried(error: errors.IdemactorClientError) -> Members:
    return {name: value for name, value in vars(error).items() if name not in ("code", "detail")}


def detail_of(error: errors.IdemactorClientError) -> str:
    """One sentence about an error."""
    return error.detail if isinstance(error, errors.Refused) else str(error)
