"""Values: frozen to the type checker, plain slots at run time.

``dataclass(frozen=True)`` sets every field through ``object.__setattr__``: a record of twenty fields takes 2.6 us to
make instead of 1.0, and every command makes half a dozen of them. The type checker keeps anybody from changing one
all the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def slotted(cls: type[T]) -> type[T]:
    """Make ``cls`` a dataclass with slots whose instances are never changed; they compare and hash by their fields."""
    made: Any = dataclass(slots=True, unsafe_hash=True)(cls)
    # As frozen dataclasses with slots have them: without these the oldest protocols of pickle refuse slots.
    made.__getstate__ = _getstate
    made.__setstate__ = _setstate
    return cast("type[T]", made)


def _getstate(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for each, held in zip(fields(self), state, strict=True):
        setattr(self, each.name, held)
