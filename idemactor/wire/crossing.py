"""Commands and answers on their way between the workers of one server: values to plain data and back.

The workers are copies of one process, so that the forms need no version: a value is the place of its class in a table,
followed by its fields. How a field crosses follows from its annotation: most are taken as they are, which MessagePack
does in C; a class without a rule fails at import and not half-way through a call.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Final, TypeAlias

from idemactor.core.commands import Command
from idemactor.core.queries import Finding, Query
from idemactor.core.replies import Reply

Data: TypeAlias = tuple[Any, ...]
"""What MessagePack carries: arrays as tuples."""

_Way: TypeAlias = Callable[[Any], Any]

_PLAIN: Final = frozenset({str, int, bool, bytes, float, type(None)})


class _Form:
    """How the instances of one class cross."""

    __slots__ = ("_backward", "_forward", "_make", "_values")

    def __init__(self, cls: type) -> None:
        hints = typing.get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        self._make = cls
        self._values = _getter(names)
        ways = [_ways(hints[name]) for name in names]
        self._forward = tuple((at, there) for at, (there, _) in enumerate(ways) if there is not None)
        self._backward = tuple((at, back) for at, (_, back) in enumerate(ways) if back is not None)

    def data(self, value: object) -> Data:
        values = self._values(value)
        for at, _ in self._forward:
            # Most of what would have to be changed is not there.
            if values[at] is not None:
                return _changed(values, self._forward)
        return values

    def value(self, data: Data) -> Any:
        if not self._backward:
            return self._make(*data)
        changed = list(data)
        for at, way in self._backward:
            if changed[at] is not None:
                changed[at] = way(changed[at])
        return self._make(*changed)


def _changed(values: Sequence[Any], ways: Sequence[tuple[int, _Way]]) -> Data:
    changed = list(values)
    for at, way in ways:
        if changed[at] is not None:
            changed[at] = way(changed[at])
    return tuple(changed)


def _getter(names: Sequence[str]) -> Callable[[object], Data]:
    """All fields in one call where there are several: ``attrgetter`` of a single name gives no tuple."""
    if not names:
        return lambda value: ()  # noqa: ARG005
    if len(names) == 1:
        get = attrgetter(names[0])
        return lambda value: (get(value),)
    return attrgetter(*names)


def _ways(hint: Any) -> tuple[_Way | None, _Way | None]:
    """There and back for values of an annotation; None where MessagePack itself gives back what it was given.

    Raises:
        TypeError: There is no rule for it.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        [inner] = [argument for argument in arguments if argument is not type(None)]
        return _ways(inner)
    if origin is tuple:
        return _ways_of_tuple(arguments)
    if hint in _PLAIN:
        return None, None
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return None, hint
        if is_dataclass(hint):
            form = _form(hint)
            return form.data, form.value
        if issubclass(hint, tuple) and hasattr(hint, "_make"):
            return None, hint._make
    raise TypeError(f"no rule for values of {hint}")


def _ways_of_tuple(arguments: Sequence[Any]) -> tuple[_Way | None, _Way | None]:
    if arguments[-1] is Ellipsis:
        there, back = _ways(arguments[0])
        return (
            None if there is None else lambda values: tuple(map(there, values)),
            None if back is None else lambda values: tuple(map(back, values)),
        )
    ways = [_ways(argument) for argument in arguments]
    forward = tuple((at, there) for at, (there, _) in enumerate(ways) if there is not None)
    backward = tuple((at, back) for at, (_, back) in enumerate(ways) if back is not None)
    return (
        (lambda values: _changed(values, forward)) if forward else None,
        (lambda values: _changed(values, backward)) if backward else None,
    )


_FORMS: Final[dict[type, _Form]] = {}


def _form(cls: type) -> _Form:
    found = _FORMS.get(cls)
    if found is None:
        found = _FORMS[cls] = _Form(cls)
    return found


class _Table:
    """The classes of a union, each by its place."""

    def __init__(self, *unions: Any) -> None:
        classes = [cls for union in unions for cls in typing.get_args(union)]
        self._forms = [_form(cls) for cls in classes]
        self._places = {cls: (place, self._forms[place].data) for place, cls in enumerate(classes)}

    def data(self, value: object) -> Data:
        place, data = self._places[type(value)]
        return place, data(value)

    def value(self, data: Data) -> Any:
        place, values = data
        return self._forms[place].value(values)


_ASKED: Final = _Table(Command, Query)
_TOLD: Final = _Table(Reply, Finding)


def command_data(command: Command | Query) -> Data:
    """A command or a query as plain data."""
    return _ASKED.data(command)


def command_of(data: Data) -> Command | Query:
    """The reverse of ``command_data``."""
    command: Command | Query = _ASKED.value(data)
    return command


def answer_data(answer: Reply | Finding) -> Data:
    """An answer as plain data."""
    return _TOLD.data(answer)


def answer_of(data: Data) -> Reply | Finding:
    """The reverse of ``answer_data``."""
    answer: Reply | Finding = _TOLD.value(data)
    return answer
