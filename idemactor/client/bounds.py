"""The members of a call, held against the server's own tables before anything is sent. No I/O.

What the server would refuse is refused here in its words: at the call, whether there is a server or not. What only it
knows stays its own: the settings of the namespace, and what a payload is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idemactor import errors
from idemactor.client.checks import check_text
from idemactor.client.errors import InvalidRequest
from idemactor.wire.calls import ACKNOWLEDGE, CALLS, CANCEL, EXCLUSIVE, INCIDENTS, OPERATION, OUTBOX, RECORDS, STUCK
from idemactor.wire.fields import Dialect, Field, Reader

_TABLES: Final[Mapping[str, tuple[Field, ...]]] = {
    **CALLS,
    **{f"outbox.{name}": table for name, table in OUTBOX.items()},
    "operation": OPERATION,
    "cancel": CANCEL,
    "records": RECORDS,
    "incidents": INCIDENTS,
    "acknowledge": ACKNOWLEDGE,
    "policy": (),
    "stuck": STUCK,
}
_LEFT_OUT: Final = frozenset({"payload", "payload_json", "intent", "events"})
"""Payloads are looked at by the namespace's rule; the other two were read when they were made (``dispatching.py``)."""
_WITHOUT_NAMESPACE: Final = frozenset({"stuck"})

_READERS: Final[Mapping[str, Mapping[str, Reader]]] = {
    method: {
        field.name: field.kind.reader(field.name, Dialect.MSGPACK) for field in table if field.name not in _LEFT_OUT
    }
    for method, table in _TABLES.items()
}
_REQUIRED: Final = {method: tuple(field.name for field in table if field.required) for method, table in _TABLES.items()}


def check_members(method: str, given: Mapping[str, object]) -> None:
    """Accept the members of a call, as they are sent, or refuse them by the server's own rules.

    Raises:
        TypeError: The namespace is no text.
        InvalidRequest: The server would refuse one, or misses one; ``field`` names it.
    """
    if method not in _WITHOUT_NAMESPACE:
        check_text("namespace", given.get("namespace"))
    readers = _READERS[method]
    try:
        for name, value in given.items():
            if (read := readers.get(name)) is not None:
                read(value)
    except errors.InvalidRequest as error:
        raise _ours(error) from None
    for name in _REQUIRED[method]:
        if name not in given:
            raise _ours(errors.InvalidRequest(f"{name} is missing", field=name))
    for one, other in EXCLUSIVE:
        if one in given and other in given:
            raise _ours(errors.InvalidRequest(f"{one} and {other} exclude each other", field=other))


def _ours(error: errors.InvalidRequest) -> InvalidRequest:
    return InvalidRequest(error.code, error.detail, field=error.field)


def check_wait(method: str, wait_ms: object) -> None:
    """Accept how long a call is to wait, which is no member where it is 0. Raises: InvalidRequest."""
    try:
        _READERS[method]["wait_ms"](wait_ms)
    except errors.InvalidRequest as error:
        raise _ours(error) from None


_READ_HOLDER: Final = _READERS["reserve"]["holder"]


def check_holder(holder: object) -> None:
    """Raise TypeError where ``holder`` is no text, ValueError where no call can have it."""
    check_text("holder", holder)
    try:
        _READ_HOLDER(holder)
    except errors.InvalidRequest as error:
        raise ValueError(error.detail) from None
