"""Functions that must not run twice: the key from the arguments, the outcome from what is returned. No I/O."""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, TypedDict

from idemactor.client.errors import OutcomeMissing
from idemactor.client.hold import Hold
from idemactor.client.results import Outcome
from idemactor.core.fingerprint import InvalidPayload, canonical

KEY_PREFIX: Final = "once:v1:"
"""What a key made from arguments begins with: its version."""

STATUS: Final = 200

_log = logging.getLogger("idemactor.client")


class HoldArguments(TypedDict, total=False):
    """What ``once`` hands on to ``hold``, under the same names."""

    lease_ms: int | None
    ttl_ms: int | None
    window_ms: int | None
    wait: bool | int
    not_executed: type[BaseException] | Sequence[type[BaseException]]
    on_lost: Literal["cancel", "tell"]
    on_unavailable: Literal["closed", "open"] | None
    unavailable_after_ms: int | None
    holder: str | None
    timeout_ms: int | None


def to_json(value: object) -> bytes:
    """A returned value as it is kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    """A kept value as repeats get it: JSON knows no tuples, so that a tuple comes back as a list."""
    return json.loads(data)


HELD: Final[ContextVar[Hold | None]] = ContextVar("idemactor_hold", default=None)


def current_hold() -> Hold:
    """The hold of the ``once`` function that is running: for its ``operation_id``, ``takeover`` and ``lost``.

    Raises:
        LookupError: None is running.
    """
    hold = HELD.get()
    if hold is None:
        raise LookupError("no function that is decorated with once is running")
    return hold


def check_function(function: Callable[..., Any], *, is_async: bool) -> None:
    """Accept a function that can be done once: of the other kind its effect would come after its key is committed.

    Raises:
        TypeError: It is an async function where a plain one is wanted, or the reverse, or one that yields.
    """
    if not callable(function):
        raise TypeError(f"once decorates a function, and {function!r} is none")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # An object that can be called is as its ``__call__`` is.
    kinds = (inner, getattr(inner, "__call__", None))  # noqa: B004
    name = getattr(inner, "__qualname__", repr(inner))
    if any(inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
        raise TypeError(f"{name} yields: only a function that returns can be done once")
    if any(map(inspect.iscoroutinefunction, kinds)) is not is_async:
        wanted, other = ("an async", "idemactor.client.sync") if is_async else ("a plain", "idemactor.client")
        raise TypeError(f"this client's once decorates {wanted} function, and {name} is none: see {other}")


@dataclass(frozen=True, slots=True)
class Once:
    """How one function is done once: which key, and how what it returns is kept."""

    function: Callable[..., Any]
    key: Callable[..., str] | None
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def key_of(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        """The key of a call.

        Raises:
            TypeError: It is to be made from the arguments, and one of them is no JSON value or bytes.
        """
        if self.key is not None:
            return self.key(*arguments, **named)
        return derived_key(self.function, arguments, named)

    def repeat(self, outcome: Outcome | None) -> Any:
        """What the function returned when it ran.

        Raises:
            OutcomeMissing: That was not kept.
        """
        if outcome is None or outcome.omitted or not outcome.body:
            raise OutcomeMissing("it was done before, but what it returned was not kept")
        return self.decode(outcome.body)

    def keep(self, hold: Hold, result: object) -> None:
        """Have what the function returned kept. The effect has happened: nothing about its value may undo that."""
        try:
            hold.set_outcome(status=STATUS, body=self.encode(result))
        except Exception:
            _log.exception("what %s returned cannot be kept: repeats get OutcomeMissing", self.function.__qualname__)
            hold.set_outcome(status=STATUS)


def derived_key(function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """A digest of the function's name and its arguments, length-prefixed, however they were passed.

    Raises:
        TypeError: An argument has no canonical form.
    """
    bound = inspect.signature(function).bind(*arguments, **named)
    bound.apply_defaults()
    name = f"{function.__module__}.{function.__qualname__}"
    try:
        fed = canonical([name, _plain(dict(bound.arguments))])
    except InvalidPayload as error:
        raise TypeError(f"the arguments of {name} make no key by themselves ({error}): give key=") from None
    return f"{KEY_PREFIX}{sha256(fed).hexdigest()}"


def _plain(value: object) -> object:
    """Tuples as lists, at every level: that is all that arguments have and JSON has not."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
