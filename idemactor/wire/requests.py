"""The members of a call to the command that they are, for both doors (contract, 5, 6 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from idemactor.core.commands import (
    Accept,
    Command,
    Commit,
    Dispatch,
    Doubt,
    Extend,
    Forget,
    Get,
    Release,
    Reserve,
    Resolve,
)
from idemactor.core.delivery import Intent
from idemactor.core.fingerprint import Fingerprint, FingerprintRule, InvalidPayload, fingerprint_of
from idemactor.core.keys import Identity
from idemactor.core.policy import Policy
from idemactor.errors import Code, InvalidRequest, RequestError
from idemactor.wire.calls import CALLS
from idemactor.wire.fields import Dialect, Field, Reader
from idemactor.wire.intents import check_intent_size
from idemactor.wire.media import is_json
from idemactor.wire.sourced import Resolved, Resolver
from idemactor.wire.strict_json import InvalidJSON, parse

__all__ = [
    "BATCH_OPS",
    "COMMAND_OPS",
    "OPERATOR_OPS",
    "Dialect",
    "Members",
    "Scope",
    "Watch",
    "command_from",
    "members_of",
    "resolved_from",
]

COMMAND_OPS: Final = frozenset(CALLS)
"""The calls that are commands."""
BATCH_OPS: Final = COMMAND_OPS - {"forget"}
"""Those that a batch takes: the commands of the state table."""
OPERATOR_OPS: Final = frozenset({"resolve", "forget"})
"""Those that only operators may call."""

_NAME_CHARS_SHOWN: Final = 64
"""How much of the name of an unknown member a refusal repeats."""

_BYTES_RULE: Final = FingerprintRule()


Watch = Callable[[str, Identity, Mapping[str, object]], None]
"""Is told of every call that became a command: its name, its identity, and its members as they were read."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks and where: made by the door once it knows the caller.

    Attributes:
        tenant: Whose keys these are.
        namespace: One that is configured and that the caller may use.
        policy: Its settings.
        operator: Whether the caller may do what operators may.
        resolver: Finds the keys of requests by their sources; None: there are no sources.
        watch: Looks on; None, as a rule: nobody does, and nothing is kept for anybody.
        who: The name of the caller's token, for the audit log.
    """

    tenant: str
    namespace: str
    policy: Policy
    operator: bool
    resolver: Resolver | None = field(default=None, compare=False, repr=False)
    watch: Watch | None = field(default=None, compare=False, repr=False)
    who: str = field(default="", compare=False)


class Members:
    """A table of members made ready for one dialect: what it takes and what it wants."""

    __slots__ = ("readers", "required")

    def __init__(self, table: tuple[Field, ...], dialect: Dialect) -> None:
        known = [field for field in table if dialect is Dialect.MSGPACK or not field.rpc_only]
        self.readers: dict[str, Reader] = {field.name: field.kind.reader(field.name, dialect) for field in known}
        self.required: tuple[str, ...] = tuple(field.name for field in known if field.required)


@dataclass(frozen=True, slots=True)
class _Call:
    """One command in one dialect."""

    members: Members
    build: Callable[..., Command]
    acquires: bool
    dispatches: bool


_BUILD: Final[Mapping[str, Callable[..., Command]]] = {
    "reserve": Reserve,
    "accept": Accept,
    "dispatch": Dispatch,
    "commit": Commit,
    "release": Release,
    "extend": Extend,
    "doubt": Doubt,
    "resolve": Resolve,
    "get": Get,
    "forget": Forget,
}


def _calls(dialect: Dialect) -> dict[str, _Call]:
    return {
        op: _Call(Members(table, dialect), _BUILD[op], op in ("reserve", "accept"), op == "dispatch")
        for op, table in CALLS.items()
    }


_JSON_CALLS: Final = _calls(Dialect.JSON)
_MSGPACK_CALLS: Final = _calls(Dialect.MSGPACK)


def command_from(
    op: str,
    members: Mapping[str, object],
    scope: Scope,
    dialect: Dialect,
    *,
    header_key: str | None = None,
    in_batch: bool = False,
) -> Command:
    """The command that a call is.

    Args:
        op: The name of the call.
        members: What it carries, without the members that say which call it is and where (op, namespace).
        scope: Who asks and where.
        dialect: How the members came.
        header_key: The key of the ``Idempotency-Key`` header, already parsed; None where there is none.
        in_batch: Whether it is one of many in a batch.

    Raises:
        InvalidRequest: There is no such call, or a member is unknown, missing, of the wrong type or out of its
            bounds, or stands beside one that excludes it; ``field`` names it.
        RequestError: FORBIDDEN, where only operators may; UNAUTHENTICATED, where the sender of a request that
            came with its source has not proved who it is; TOO_LARGE, for an intent or events over their sizes.
    """
    call = (_JSON_CALLS if dialect is Dialect.JSON else _MSGPACK_CALLS).get(op)
    if call is None or (in_batch and op not in BATCH_OPS):
        raise InvalidRequest("there is no such command" + (" in a batch" if in_batch else ""), field="op")
    if op in OPERATOR_OPS and not scope.operator:
        raise RequestError(Code.FORBIDDEN, "only operators may call this")
    values = _read(call.members.readers, members)
    if header_key is not None and values.setdefault("key", header_key) != header_key:
        raise InvalidRequest("the key of the body is not the key of the Idempotency-Key header", field="key")
    seen = None if scope.watch is None else dict(values)
    if "source" in values or "request" in values:
        _resolve(values, scope)
    for name in call.members.required:
        if name not in values:
            raise InvalidRequest(f"{name} is missing", field=name)
    if call.acquires:
        _check_acquiring(values, scope.policy.fingerprint, in_batch)
    elif call.dispatches:
        _check_dispatching(values, scope.policy)
    identity = Identity(scope.tenant, scope.namespace, values.pop("key"))
    command = call.build(identity, **values)
    if scope.watch is not None and seen is not None:
        scope.watch(op, identity, seen)
    return command


def resolved_from(values: Mapping[str, Any], scope: Scope) -> Resolved:
    """What the source makes of the request that comes with it; ``values`` are read members.

    Raises:
        InvalidRequest: There is no such source, or it finds no key.
        RequestError: UNAUTHENTICATED: the sender has not proved who it is.
    """
    if scope.resolver is None:
        raise InvalidRequest("there are no sources here", field="source")
    return scope.resolver(values["source"], values["request"])


def _resolve(values: dict[str, Any], scope: Scope) -> None:
    """Put what a source finds in the place of the source and the request."""
    for name in ("source", "request"):
        if name not in values:
            raise InvalidRequest(f"{name} is missing: source and request come together", field=name)
    for name in ("key", "fingerprint", "payload", "payload_json"):
        if name in values:
            raise InvalidRequest(f"a request that comes with its source says its {name} itself", field=name)
    resolved = resolved_from(values, scope)
    del values["source"], values["request"]
    values["key"], values["fingerprint"] = resolved.key, resolved.fingerprint
    # Who calls may know better how long to remember; otherwise the source does.
    if "ttl_ms" not in values and "window_ms" not in values:
        values["window_ms"], values["ttl_ms"] = resolved.memory(scope.policy.ttl_ms)


def members_of(table: Members, members: Mapping[str, object]) -> dict[str, Any]:
    """What ``members`` hold by the table; null is as if it were absent.

    Raises:
        InvalidRequest: As in ``command_from``.
    """
    values = _read(table.readers, members)
    for name in table.required:
        if name not in values:
            raise InvalidRequest(f"{name} is missing", field=name)
    return values


def _read(readers: Mapping[str, Reader], members: Mapping[str, object]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in members.items():
        read = readers.get(name)
        if read is None:
            shown = name[:_NAME_CHARS_SHOWN]
            raise InvalidRequest(f"there is no member {shown!r} here", field=shown)
        if value is not None:
            values[name] = read(value)
    return values


def _check_acquiring(values: dict[str, Any], rule: FingerprintRule, in_batch: bool) -> None:
    """What members of reserve and accept mean together; a payload gives way to its fingerprint."""
    if values.get("ttl_ms") is not None and values.get("window_ms") is not None:
        raise InvalidRequest("ttl_ms and window_ms exclude each other", field="window_ms")
    if in_batch and "wait_ms" in values:
        raise InvalidRequest("nothing waits in a batch", field="wait_ms")
    _take_payload(values, rule)
    if rule.required and "fingerprint" not in values:
        raise InvalidRequest("this namespace wants a fingerprint or a payload", field="fingerprint")


def _take_payload(values: dict[str, Any], rule: FingerprintRule) -> None:
    """A payload gives way to its fingerprint."""
    for name in ("payload", "payload_json"):
        if name in values:
            payload = values.pop(name)
            if "fingerprint" in values:
                raise InvalidRequest("one of fingerprint, payload and payload_json is enough", field=name)
            values["fingerprint"] = _fingerprint(name, payload, rule)


def _check_dispatching(values: dict[str, Any], policy: Policy) -> None:
    """What members of dispatch mean together: an intent stands for itself where nothing else is said to."""
    intent: Intent = values["intent"]
    check_intent_size(intent, policy.dispatch.intent_max_bytes)
    _take_payload(values, policy.fingerprint)
    if "fingerprint" not in values:
        values["fingerprint"] = _fingerprint_of_intent(intent, policy.fingerprint)


def _fingerprint_of_intent(intent: Intent, rule: FingerprintRule) -> Fingerprint:
    """By its meaning where it is the JSON that it says it is, else byte by byte."""
    if is_json(intent.content_type):
        try:
            return fingerprint_of(parse(intent.body), rule)
        except (InvalidJSON, InvalidPayload):
            pass
    return _fingerprint("intent", intent.body, rule)


def _fingerprint(name: str, payload: object, rule: FingerprintRule) -> Fingerprint:
    try:
        if isinstance(payload, bytes):
            # Bytes are compared as they are: no pointer leads into them, so that a rule which names what counts
            # would find nothing in any of them and take all for one.
            return Fingerprint(fingerprint_of(payload, _BYTES_RULE).value, rule.rule_id)
        return fingerprint_of(payload, rule)
    except InvalidPayload as error:
        raise InvalidRequest(str(error), field=name) from None
