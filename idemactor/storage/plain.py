"""Between the values of ``core/`` and JSON: the form is derived from their annotations, so that no field is forgotten.

A dataclass or a named tuple is an object of its fields, an enumeration the lower-case name of its member, a tuple an
array. Bytes are a text where they are UTF-8, and else an object with a single member ``b64``.
"""

from __future__ import annotations

import binascii
import dataclasses
import enum
import functools
import re
import types
import typing
from typing import Any, Final, TypeVar

T = TypeVar("T")

INTEGER_MAX: Final = 2**63 - 1
"""What a column holds."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""No UTF-8 has them."""


class NotPlain(ValueError):
    """What was read is not what should be there.

    Attributes:
        field: Where, ``record.outcome.status``.
    """

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(f"{field}: {what}" if field else what)
        self.what = what
        self.field = field


def to_plain(value: object) -> Any:
    """``value`` as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, bytes):
        return _bytes_to_plain(value)
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        parts = [to_plain(each) for each in value]
        return parts if names is None else dict(zip(names, parts, strict=True))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _bytes_to_plain(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": binascii.b2a_base64(value, newline=False).decode("ascii")}


def from_plain(kind: type[T], value: object, field: str = "") -> T:
    """The value of type ``kind`` that ``to_plain`` made ``value`` of.

    Raises:
        NotPlain: It cannot have been one.
    """
    return typing.cast("T", _read(kind, value, field))


def _read(kind: Any, value: Any, field: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (each for each in typing.get_args(kind) if each is not types.NoneType)
        return None if value is None else _read(inner, value, field)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), value, field)
    if kind is bool:
        return _checked(type(value) is bool, value, "is a flag", field)
    if kind is str:
        _checked(type(value) is str, value, "is a text", field)
        return _checked(_SURROGATE.search(value) is None, value, "is a text without lone surrogates", field)
    if kind is int:
        fits = type(value) is int and -INTEGER_MAX <= value <= INTEGER_MAX
        return _checked(fits, value, "is an integer of 63 bits", field)
    if kind is bytes:
        return _read_bytes(value, field)
    if issubclass(kind, enum.Enum):
        names = {member.name.lower(): member for member in kind}
        known = isinstance(value, str) and value in names
        return names[_checked(known, value, f"is one of {', '.join(names)}", field)]
    return _read_fields(kind, value, field)


def _checked(fits: bool, value: Any, what: str, field: str) -> Any:
    if not fits:
        raise NotPlain(what, field)
    return value


def _read_tuple(parts: tuple[Any, ...], value: Any, field: str) -> tuple[Any, ...]:
    _checked(type(value) is list, value, "is an array", field)
    if len(parts) == 2 and parts[1] is Ellipsis:
        return tuple(_read(parts[0], each, f"{field}[{number}]") for number, each in enumerate(value))
    _checked(len(value) == len(parts), value, f"is an array of {len(parts)}", field)
    return tuple(_read(part, each, field) for part, each in zip(parts, value, strict=True))


def _read_bytes(value: Any, field: str) -> bytes:
    try:
        if type(value) is str:
            return value.encode()
        if type(value) is dict and value.keys() == {"b64"} and type(value["b64"]) is str:
            return binascii.a2b_base64(value["b64"], strict_mode=True)
    except ValueError:
        pass
    raise NotPlain('is a text, or {"b64": "..."}', field)


@functools.cache
def _fields_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether it may be left out."""
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        optional = {each.name: each.default is not dataclasses.MISSING for each in dataclasses.fields(kind)}
        return {name: (hints[name], may) for name, may in optional.items()}
    return {name: (hints[name], False) for name in kind._fields}  # type: ignore[attr-defined]


def _read_fields(kind: type, value: Any, field: str) -> Any:
    _checked(type(value) is dict, value, "is an object", field)
    fields = _fields_of(kind)
    inside = f"{field}." if field else ""
    if strange := sorted(value.keys() - fields.keys()):
        raise NotPlain("there is no such member", f"{inside}{strange[0]}")
    for name, (_, optional) in fields.items():
        if name not in value and not optional:
            raise NotPlain("is missing", f"{inside}{name}")
    found = {name: _read(kinds[0], value[name], f"{inside}{name}") for name, kinds in fields.items() if name in value}
    return kind(**found)
