"""One whole MessagePack-RPC frame to the call that it is (contract, 6 and 12).

Whatever leaves the msgid readable is answered on that msgid; what is no request at all breaks the connection.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Final, NoReturn, TypeAlias

import msgpack

from idemactor.core.limits import FRAME_BYTES_MAX, NESTING_MAX, VALUES_MAX
from idemactor.core.values import slotted
from idemactor.errors import IdemactorError
from idemactor.wire.strict_json import NAME

REQUEST: Final = 0
NOTIFICATION: Final = 2
MSGID_MAX: Final = 2**32 - 1
"""The published protocol's: a msgid is a 32-bit unsigned integer."""

_REQUEST_LENGTH: Final = 4
_NOTIFICATION_LENGTH: Final = 3


class ProtocolError(IdemactorError, ValueError):
    """Bytes after which nothing on this connection can be trusted: it must be closed."""


class _Flaw(Exception):
    """What is wrong with a request that can still be answered."""


@slotted
class Request:
    """One call. ``params`` is its one map: names are text, the rest is as MessagePack had it.

    A ``bin`` value is ``bytes``. A ``str`` value whose bytes were not UTF-8 (old clients pack bytes that way)
    holds lone surrogates, one for each such byte: ``text_of`` refuses it, ``bytes_of`` gives the bytes back.
    """

    msgid: int
    method: str
    params: dict[str, Any]


@slotted
class BadRequest:
    """A call that could be read well enough to be answered, and no better; ``detail`` never quotes it."""

    msgid: int
    detail: str


Incoming: TypeAlias = Request | BadRequest


def text_of(value: object) -> str | None:
    """The text of a field that came as ``str`` or ``bin``; None where it is neither, or not UTF-8."""
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            if not value.isascii():
                value.encode()
            return value
    except UnicodeError:
        pass
    return None


def bytes_of(value: object) -> bytes | None:
    """The bytes of a field that came as ``bin``, or as ``str`` from a client that packs bytes that way."""
    if isinstance(value, bytes):
        return value
    # Only what was not UTF-8 was escaped, so that this gives back exactly what was sent.
    return value.encode(errors="surrogateescape") if isinstance(value, str) else None


def decode(frame: bytes | bytearray) -> Incoming | None:
    """The call in a whole frame; None for a notification.

    Raises:
        ProtocolError: It is no request and no notification, or nested too deep.
    """
    try:
        message = msgpack.unpackb(
            frame, object_pairs_hook=_members, ext_hook=_refuse_ext, unicode_errors="surrogateescape"
        )
        plain = _plain_request(message)
        if plain is not None:
            return plain
        msgid = _msgid(message)
        _check_inside(message)
        if msgid is None:
            return None
        return Request(msgid, _method(message[2]), _params(message[3]))
    except _Flaw as flaw:
        return _salvage(frame, str(flaw))
    except ProtocolError:
        raise
    except ValueError:
        # The library's own refusals: a map key that is neither str nor bin, a timestamp of an impossible
        # length.
        return _salvage(frame, "map keys are text, and ext types are not taken")


def _msgid(message: object) -> int | None:
    """The msgid of a request; None for a notification.

    Raises:
        ProtocolError: It is neither.
    """
    if isinstance(message, list) and message and type(message[0]) is int:
        if len(message) == _REQUEST_LENGTH and message[0] == REQUEST:
            msgid = message[1]
            if type(msgid) is int and 0 <= msgid <= MSGID_MAX:
                return msgid
        elif len(message) == _NOTIFICATION_LENGTH and message[0] == NOTIFICATION:
            return None
    raise ProtocolError("not a MessagePack-RPC request")


def msgid_of_beginning(data: bytes | bytearray) -> int | None:
    """The msgid of a request of which only the beginning is there; None where that is not enough, or no request's."""
    reader = msgpack.Unpacker()
    reader.feed(data)
    try:
        if reader.read_array_header() != _REQUEST_LENGTH:
            return None
        return _msgid([reader.unpack(), reader.unpack(), None, None])
    except (ProtocolError, ValueError, msgpack.UnpackException):
        return None


def _method(value: object) -> str:
    method = text_of(value)
    if method is None:
        raise _Flaw("unknown method")
    return method


def _params(value: object) -> dict[str, Any]:
    if isinstance(value, list):
        if not value:
            # How clients call a method that needs nothing, such as ping.
            return {}
        if len(value) == 1 and isinstance(value[0], dict):
            return value[0]
    raise _Flaw("params is an array of one map")


def _members(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """A map. The library has seen to it that every key is str or bytes."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _named_twice(pairs)
    try:
        if all(map(str.isascii, members)):
            return members
    except TypeError:
        pass
    return _named_by_text(pairs)


def _named_twice(pairs: list[tuple[Any, Any]]) -> _Flaw:
    names = Counter(text_of(key) for key, _ in pairs)
    name = next(name for name, times in names.items() if times > 1)
    return _Flaw(f"the member {name} is named twice" if name and NAME.fullmatch(name) else "a member is named twice")


def _named_by_text(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """A map with keys that came as bin, or are not ASCII."""
    members: dict[str, Any] = {}
    for key, value in pairs:
        name = text_of(key)
        if name is None:
            raise _Flaw("a map key is not UTF-8 text")
        members[name] = value
    if len(members) != len(pairs):
        raise _named_twice(pairs)
    return members


def _refuse_ext(_code: int, _data: bytes) -> NoReturn:
    raise _Flaw("ext types are not taken")


_NOTABLE: Final = frozenset({list, dict, msgpack.Timestamp})


def _plain_request(message: object) -> Request | None:
    """The request with nothing but scalars in its map that nearly every message is: it needs no walk."""
    if type(message) is not list or len(message) != _REQUEST_LENGTH:
        return None
    kind, msgid, method, params = message
    if (
        type(kind) is int
        and kind == REQUEST
        and type(msgid) is int
        and 0 <= msgid <= MSGID_MAX
        and type(method) is str
        and method.isascii()
        and type(params) is list
        and len(params) == 1
        and type(params[0]) is dict
        and _NOTABLE.isdisjoint(map(type, params[0].values()))
    ):
        return Request(msgid, method, params[0])
    return None


def _check_inside(message: list[Any]) -> None:
    """Level by level, so that no depth can exhaust a stack: the depth of a message, and timestamps, which the
    library builds without asking.

    Raises:
        ProtocolError: Nested deeper than the contract's limit, counted from ``message`` itself.
        _Flaw: There is a timestamp, or there are more than ``VALUES_MAX`` values.
    """
    level: list[Any] = [message]
    stamped = False
    values = 0
    for _ in range(NESTING_MAX):
        values += sum(map(len, level))
        if values > VALUES_MAX:
            raise _Flaw(f"there are more than {VALUES_MAX} values")
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) in _NOTABLE
        ]
        if msgpack.Timestamp in map(type, level):
            stamped = True
            level = [item for item in level if type(item) is not msgpack.Timestamp]
        if not level:
            break
    else:
        raise ProtocolError(f"nested deeper than {NESTING_MAX} levels")
    if stamped:
        raise _Flaw("ext types are not taken")


def _salvage(frame: bytes | bytearray, detail: str) -> BadRequest | None:
    """The answer that a flawed frame can still get: its msgid, read without building what is flawed."""
    try:
        message = msgpack.unpackb(
            frame,
            object_pairs_hook=_flat,
            ext_hook=_no_value,
            unicode_errors="surrogateescape",
            strict_map_key=False,
        )
    except ValueError:
        message = _envelope(frame)
    msgid = _msgid(message)
    with contextlib.suppress(_Flaw):
        _check_inside(message)
    return None if msgid is None else BadRequest(msgid, detail)


def _flat(pairs: list[tuple[Any, Any]]) -> list[Any]:
    """A map as a list of its keys and values: as deep as the map, and no key is ever hashed."""
    return [item for pair in pairs for item in pair]


def _no_value(_code: int, _data: bytes) -> None:
    return None


def _envelope(frame: bytes | bytearray) -> list[Any]:
    """Type and msgid alone, for a frame whose rest the library cannot build."""
    reader = msgpack.Unpacker(max_buffer_size=FRAME_BYTES_MAX)
    reader.feed(frame)
    try:
        length = reader.read_array_header()
        return [reader.unpack(), reader.unpack(), *([None] * (length - 2))]
    except (ValueError, msgpack.UnpackException):
        raise ProtocolError("not a MessagePack-RPC request") from None
